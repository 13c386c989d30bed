"""The spectrum of an operator from products with it: eigenvalues with bounds, trace, density."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import array_api_compat as api
import numpy as np

from hessence._common.arguments import Seed, Which, require_int, require_options
from hessence._common.arrays import epsilon, integers, like, to_double, to_numpy
from hessence._common.device import budget
from hessence.krylov.density import density
from hessence.krylov.density_result import Density, known_density
from hessence.krylov.eigenpairs import eigenpairs
from hessence.krylov.eigenpairs_result import Eigenpairs
from hessence.krylov.request import preference
from hessence.krylov.trace import FEWEST, trace
from hessence.spectra.estimate import Estimate

SMALL = 512
"""Up to this many parameters the whole matrix is computed, whatever k is."""

WHOLE = 1024
"""Up to this many parameters a density is that of all eigenvalues, if they take fewer products."""

LARGEST = 2**14
"""The most parameters of which all eigenvalues are computed when k is None."""

DENSE_COPIES = 6
"""How many matrices in double precision that takes at a time."""


def estimate(
    H: Any,
    k: int | None = 10,
    *,
    which: str = "LA",
    tol: float = 1e-6,
    rng: Seed = 0,
    probes: int = 16,
    steps: int = 64,
    trace_products: int = 50,
    memory: float | None = None,
    reason: str = "no theorem is known for this operator.",
) -> Estimate:
    """Estimate the spectrum of an operator by products with it.

    Up to 512 parameters the whole matrix is computed and solved. Beyond, Lanczos finds the k
    eigenvalues, and further products go into the trace. The density is computed when it is first
    looked at.

    Parameters
    ----------
    H : Operator
        Of one network, not a batch.
    k : int or None
        How many eigenvalues; None for all, of at most 16384 parameters.
    which, tol, rng : optional
        See ``hs.eigenpairs``.
    probes, steps : int
        Of the density, see ``hs.density``.
    trace_products : int
        How many products go into the trace, at least 4.
    memory : float, optional
        How many bytes vectors and matrices may take, by default half of what the device has free.
    reason : str
        Why the spectrum is not exact.
    """
    if len(H.shape) != 2:
        raise ValueError(f"an estimate is of one operator, but H is a batch of shape {H.shape}.")
    require_options(k, which, tol, rng, probes, steps)
    require_int("trace_products", trace_products, FEWEST, None)
    size, room = int(H.shape[0]), budget(memory, H.reference)
    require_feasible(k, size)
    everything = k is None or k >= size
    needed = DENSE_COPIES * size**2 * 8.0
    if everything and size > SMALL and needed > room:
        raise ValueError(
            f"k={k} takes the whole matrix and some {needed / 1e9:.1f} GB, more than memory= or "
            "half of what is free: give a smaller k."
        )
    if k is None or everything or size <= SMALL:
        return _dense(H, k, which, reason)
    pairs = eigenpairs(H, k=k, which=which, tol=tol, rng=rng)
    found = trace(H, products=trace_products, rng=rng, memory=memory)
    # The estimate keeps the operator for its density, possibly for long: without cached graphs.
    H.release()
    whole = size <= min(probes * steps, WHOLE) and needed <= room
    return _reported(
        pairs, which, reason, found.value, found.stderr, pairs.products + found.products,
        lambda: _whole_density(H) if whole else density(H, probes, steps, rng, memory=memory),
    )  # fmt: skip


def require_feasible(k: int | None, size: int) -> None:
    """Refuse to compute all eigenvalues of a large operator."""
    if (k is None or k >= size) and size > LARGEST:
        raise ValueError(
            f"k={k}, all eigenvalues, works up to {LARGEST} parameters, but there are {size}: "
            "give a smaller k, or use hs.density."
        )


def _whole_density(H: Any) -> Density:
    """Return the density of all eigenvalues, for fewer products than an estimate of it takes."""
    pairs = eigenpairs(H, k=H.shape[0])
    H.release()
    found = known_density(pairs.eigenvalues, error=float(pairs.errors.max()))
    return replace(found, products=pairs.products)


def _dense(H: Any, k: int | None, which: str, reason: str) -> Estimate:
    """Solve the whole matrix, and keep the k eigenvalues asked for."""
    size = int(H.shape[0])
    pairs = eigenpairs(H, k=size)
    H.release()
    values = to_double(pairs.eigenvalues)
    wanted = preference(values[::-1], cast(Which, which))[: size if k is None else k]
    rounding = size * epsilon(pairs.eigenvalues) * float(np.abs(values).max())
    chosen = integers(np.sort(size - 1 - wanted), pairs.eigenvalues)
    xp, names = api.array_namespace(chosen), ("eigenvalues", "errors", "eigenvectors", "resolved")
    pairs = replace(pairs, errors=pairs.errors + float(to_numpy(getattr(H, "rounded", 0.0))))
    parts = {name: xp.take(getattr(pairs, name), chosen, axis=-1) for name in names}
    known = known_density(values, error=float(pairs.errors.max()))
    return _reported(
        replace(pairs, **parts), which, reason, values.sum(), rounding, pairs.products, known
    )


def _reported(
    pairs: Eigenpairs, which: str, reason: str, trace: float, trace_stderr: float, products: int,
    density: Density | Callable[[], Density],
) -> Estimate:  # fmt: skip
    """Return eigenpairs and what else is known as an estimate."""
    shared = ("eigenvalues", "errors", "eigenvectors", "outcome", "method", "message")
    return Estimate(
        **{name: getattr(pairs, name) for name in shared},
        trace=like(trace, pairs.eigenvalues),
        trace_stderr=like(trace_stderr, pairs.eigenvalues),
        size=int(pairs.eigenvectors.shape[0]),
        reason=reason,
        which=which,
        products=products,
        norm=float(pairs.norm),
        _density=density,
    )
