"""The density of eigenvalues that are all known: the same picture, without a band."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hessence._common.arrays import Numbers, to_numpy
from hessence.krylov.density_result import Density
from hessence.krylov.smoothing import Rules
from hessence.krylov.spectral_density import FINEST, default_grid

MOST_NODES = 2**12
"""More eigenvalues than this are first put together in bins, finer than the width by 64."""

BINS = 64


def known_density(values: Any, multiplicities: Any = None, *, error: float = 0.0) -> Density:
    """Return the smoothed density of eigenvalues, each as often as its multiplicity says.

    The error is how well they are known, up to rounding; it is small beside the width.

    Examples
    --------
    >>> import numpy as np
    >>> density = known_density([5.0, 0.0], [1, 99])
    >>> density.size, float(density.mean), float(density.band.max())
    (100, 0.05, 0.0)
    """
    nodes = to_numpy(values).astype(np.float64)
    counts = np.ones(len(nodes)) if multiplicities is None else np.asarray(multiplicities, float)
    order = np.argsort(nodes)
    nodes, counts = nodes[order], counts[order]
    ends = (float(nodes[0]), float(nodes[-1]))
    extent = ends[1] - ends[0]
    width = (extent if extent > 0 else abs(ends[0]) or 1.0) / FINEST
    rounding = 0.0
    if len(nodes) > MOST_NODES:
        nodes, counts = _binned(nodes, counts, width / BINS)
        rounding = width / BINS / 2
    weights = counts / counts.sum()
    # With infinitely many directions a random vector would have no spread at all.
    rules = Rules(nodes[None], weights[None], nodes[None], weights[None], math.inf, rounding)
    grid = default_grid(ends, width)
    density, band = rules.density(grid, width)
    return Density(
        grid=grid,
        values=density,
        band=band,
        nodes=nodes[None],
        weights=weights[None],
        products=0,
        ends=ends,
        ends_errors=(error, error),
        width=width,
        message="All eigenvalues are known.",
        size=int(counts.sum()),
        _rules=rules,
    )


def _binned(nodes: Numbers, counts: Numbers, width: float) -> tuple[Numbers, Numbers]:
    bins = np.floor((nodes - nodes[0]) / width).astype(np.int64)
    _, index = np.unique(bins, return_inverse=True)
    sums = np.bincount(index, weights=counts)
    return np.bincount(index, weights=counts * nodes) / sums, sums
