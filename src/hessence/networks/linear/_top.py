"""Extreme eigenpairs of linear networks: wide ones in their twin, many in two rounds."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, to_numpy
from hessence.krylov.eigenpairs import eigenpairs
from hessence.krylov.eigenpairs_result import ConvergenceWarning, Eigenpairs
from hessence.networks.linear._products import LinearProducts
from hessence.networks.twin import narrow_twin

LONG_BATCH = 32
"""A batch of at least this many networks is solved in two rounds."""

FIRST = 40
"""How many products the first round takes for one eigenvalue."""


def top_of_twin(
    H: LinearProducts, k: int, which: str, options: dict[str, Any]
) -> Eigenpairs | None:
    """Return eigenpairs of a two-layer network by Lanczos on its twin, or None if that fails.

    The twin has r (K + D) parameters instead of m (K + D), with r = K + D, and lacks only the bulk
    ±σ_i(G). The answer stands if all of the bulk lies inside of what was found, in every network of
    a batch.
    """
    if len(H.weights) != 2:
        return None
    width, twin_width = H.dims[1], H.dims[0] + H.dims[2]
    if width <= twin_width or k > twin_width * twin_width:
        return None
    xp = api.array_namespace(H.gradient)
    narrow = narrow_twin(*H.weights)
    twin = replace(H, weights=(narrow.W1, narrow.W2))
    if (v0 := options.get("v0")) is not None:
        columns = v0[:, None] if v0.ndim == 1 else v0
        start = twin.chain.join(list(narrow.narrow(*H.chain.split(columns))))
        single = v0.ndim == 1 and start.ndim == 2
        options = options | {"v0": start[..., 0] if single else start}
    found = top_of_batch(twin, k, which, options)
    if not _encloses(found, xp.linalg.svdvals(H.gradient)[..., 0], which):
        return None
    vectors = H.chain.join(list(narrow.widen(*twin.chain.split(found.eigenvectors))))
    return replace(found, eigenvectors=vectors, method=f"{found.method} on the narrow twin")


def top_of_batch(H: LinearProducts, k: int, which: str, options: dict[str, Any]) -> Eigenpairs:
    """Return eigenpairs by Lanczos; of a long batch of networks, in two rounds.

    All networks take every step together, so that the slowest would hold up the rest. The first
    round stops after a number of products that suffices for most; the second solves the others.
    """
    count = H.shape[0] if len(H.shape) == 3 else 0
    if count < LONG_BATCH or {"v0", "max_products"} & options.keys() or H.shape[-1] <= 4 * FIRST:
        return eigenpairs(H, k, which, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = eigenpairs(H, k, which, **options, max_products=FIRST + 4 * (k - 1))
    slow = np.flatnonzero(~to_numpy(found.resolved).all(axis=-1))
    if not slow.size:
        return found
    rest = eigenpairs(H.pick(slow), k, which, **options)
    merged = {}
    for name in ("eigenvalues", "eigenvectors", "errors", "resolved"):
        whole = to_numpy(getattr(found, name)).copy()
        whole[slow] = to_numpy(getattr(rest, name))
        kind = getattr(found, name)
        merged[name] = api.array_namespace(kind).asarray(whole, device=api.device(kind))
    return replace(
        found,
        **merged,
        products=max(found.products, rest.products),
        outcome=rest.outcome,
        message=rest.message,
        confidence=rest.confidence,
    )


def _encloses(found: Eigenpairs, bulk: Array, which: str) -> bool:
    """Tell whether ±bulk, and everything between, lies inside of what was found."""
    xp = api.array_namespace(bulk)
    values = found.eigenvalues
    if which == "LM":
        return bool(xp.all(xp.min(xp.abs(values), axis=-1) > bulk))
    # The values descend. Of "BE", half belong to each end.
    count = int(values.shape[-1])
    high = {"LA": count, "SA": 0, "BE": (count + 1) // 2}[which]
    above, below = values[..., :high] > bulk[..., None], values[..., high:] < -bulk[..., None]
    return bool(xp.all(above)) and bool(xp.all(below))
