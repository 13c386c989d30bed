"""The spectrum of an operator as far as products tell: eigenvalues with bounds, trace, density."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hessence._common.arrays import epsilon, like, to_numpy
from hessence.krylov.density import density
from hessence.krylov.density_result import Density, known_density
from hessence.krylov.eigenpairs import eigenpairs
from hessence.krylov.eigenpairs_result import Eigenpairs
from hessence.krylov.request import Which, preference
from hessence.krylov.trace import trace
from hessence.models.model_matrices import ModelHessian
from hessence.spectra.estimate import Estimate

SMALL = 512
"""Up to so many parameters the whole matrix is computed, whatever k is."""

WHOLE = 1024
"""Up to so many parameters a density is that of all eigenvalues, if these take fewer products."""

LARGEST = 2**14
"""The most parameters of which all eigenvalues are computed when k is None."""

DENSE_COPIES = 6
"""How many matrices in double precision that takes at a time."""

TRACE_PRODUCTS = 50
"""How many products the trace is estimated with."""


def estimate(
    H: ModelHessian,
    k: int | None,
    *,
    which: str,
    tol: float,
    rng: int,
    probes: int,
    steps: int,
    memory: float | None,
    reason: str,
) -> Estimate:
    """Estimate the spectrum of an operator, after a check of its products."""
    H.require_sound()
    size = H.shape[0]
    everything = k is None or k >= size
    if everything and size > LARGEST:
        raise ValueError(
            f"k={k}, all eigenvalues, works up to {LARGEST} parameters, but there are {size}: "
            "give a smaller k, or use hs.density."
        )
    needed = _matrices(size)
    if everything and size > SMALL and needed > H.setting.memory:
        raise ValueError(
            f"k={k} takes the whole matrix and some {needed / 1e9:.1f} GB, more than memory= or "
            "half of what is free: give a smaller k."
        )
    if everything or size <= SMALL:
        return _dense(H, k, which, reason)
    assert k is not None
    pairs = eigenpairs(H, k=k, which=which, tol=tol, rng=rng)
    found = trace(H, products=TRACE_PRODUCTS, rng=rng, memory=memory)
    # The estimate may live long, and holds the operator for its density: without the graphs.
    H.release()
    return _reported(
        pairs,
        slice(None),
        which=which,
        reason=reason,
        trace=found.value,
        trace_stderr=found.stderr,
        products=found.products,
        density=lambda: (
            _whole_density(H)
            if size <= min(probes * steps, WHOLE) and _matrices(size) <= H.setting.memory
            else density(H, probes, steps, rng, memory=memory)
        ),
    )


def _matrices(size: int) -> float:
    """Return how many bytes the dense route takes."""
    return DENSE_COPIES * size**2 * 8.0


def _whole_density(H: ModelHessian) -> Density:
    """Return the density of all eigenvalues, for fewer products than an estimate of it takes."""
    pairs = eigenpairs(H, k=H.shape[0])
    H.release()
    found = known_density(pairs.eigenvalues, error=float(pairs.errors.max()))
    return replace(found, products=pairs.products)


def _dense(H: ModelHessian, k: int | None, which: str, reason: str) -> Estimate:
    """Solve the whole matrix, and keep the k eigenvalues asked for."""
    size = H.shape[0]
    pairs = eigenpairs(H, k=size)
    ascending = to_numpy(pairs.eigenvalues)[::-1]
    wanted = preference(ascending, cast(Which, which))[: size if k is None else k]
    index = torch.as_tensor(np.sort(size - 1 - wanted), device=H.device)
    values = to_numpy(pairs.eigenvalues).astype(np.float64)
    rounding = size * epsilon(pairs.eigenvalues) * float(np.abs(values).max())
    return _reported(
        pairs,
        index,
        which=which,
        reason=reason,
        trace=values.sum(),
        trace_stderr=rounding,
        products=0,
        density=known_density(values, error=float(pairs.errors.max())),
    )


def _reported(
    pairs: Eigenpairs,
    chosen: Tensor | slice,
    *,
    which: str,
    reason: str,
    trace: float,
    trace_stderr: float,
    products: int,
    density: Density | Callable[[], Density],
) -> Estimate:
    """Return some of the eigenpairs as an estimate; the products are those beside theirs."""
    return Estimate(
        eigenvalues=pairs.eigenvalues[chosen],
        errors=pairs.errors[chosen],
        eigenvectors=pairs.eigenvectors[:, chosen],
        trace=like(trace, pairs.eigenvalues),
        trace_stderr=like(trace_stderr, pairs.eigenvalues),
        size=int(pairs.eigenvectors.shape[0]),
        converged=pairs.converged,
        method=pairs.method,
        message=pairs.message,
        reason=reason,
        which=which,
        products=pairs.products + products,
        norm=float(pairs.norm),
        _density=density,
    )
