"""``hs.spectrum``: the Hessian spectrum of any PyTorch model, exact where a theorem allows it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from hessence.arrays import epsilon, like, to_numpy
from hessence.curvature import ranks
from hessence.curvature.batch_parts import byte_count, tensors_in
from hessence.curvature.batches import is_sample_pair, merged
from hessence.curvature.model_matrices import ModelHessian, hessian
from hessence.curvature.setting import Setting
from hessence.curvature.snapshots import unwrap
from hessence.estimates import Estimate
from hessence.krylov.arguments import generator, require_int, require_tolerance
from hessence.krylov.density_result import Density
from hessence.krylov.extremal import eigenpairs
from hessence.krylov.known_density import known_density
from hessence.krylov.selection import Which, preference, require_which
from hessence.krylov.spectral_density import density
from hessence.krylov.stochastic_trace import trace
from hessence.models.criterion import PairCriterion
from hessence.precision import full_precision
from hessence.recognise import NotRecognised, Recognition, recognise
from hessence.spectra import Spectrum

Method = Literal["exact", "estimate"]

DENSE_LIMIT = 512
"""Up to so many parameters the whole matrix is computed, whatever k is."""

DENSE_MOST = 2**14
"""The most parameters of which all eigenvalues are computed when k is None."""

WHOLE = 1024
"""Up to so many parameters a density is that of all eigenvalues, if these take fewer products."""

DENSE_COPIES = 6
"""How many matrices in double precision that takes at a time."""

TRACE_PRODUCTS = 50
"""How many products the trace is estimated with."""

AGREEMENT = {torch.float64: 1e-8, torch.float32: 2e-4}
"""How far an exact product may be from that of automatic differentiation, relative."""


def spectrum(
    model: Any,
    data: Any,
    loss: Any = None,
    k: int | None = 10,
    *,
    params: Any = None,
    method: Method | None = None,
    which: str = "LA",
    tol: float = 1e-6,
    rng: int = 0,
    eval_mode: bool = False,
    memory: float | None = None,
    probes: int = 16,
    steps: int = 64,
    watch: Callable[[int], None] | None = None,
) -> Spectrum | Estimate:
    """Return the Hessian spectrum of a model's loss: exact if there is a theorem, else estimated.

    A model that is one of the solvable networks, or has two adjacent linear layers that a narrow
    twin can shrink, gets a ``Spectrum`` with all eigenvalues, after its products have been compared
    with automatic differentiation. Any other gets an ``Estimate``: k eigenvalues with proved error
    bounds, the trace with a standard error, a density with a band. The model is not touched.

    Parameters
    ----------
    model : torch.nn.Module
        The model, at the point of training it is at.
    data : (x, y), DataLoader, or iterable of batches
        See ``hs.hessian``.
    loss : torch.nn loss, function, str or closure
        See ``hs.hessian``; by default ½ E‖f − y‖².
    k : int or None
        How many eigenvalues an estimate has. None for all of them, of at most 16384 parameters.
    params : optional
        Which parameters, see ``hs.hessian``. A choice has no exact spectrum.
    method : {"exact", "estimate"}, optional
        Insist on one of the two.
    which, tol, rng : optional
        See ``hs.eigenpairs``.
    eval_mode, memory : optional
        See ``hs.hessian``.
    probes, steps : int
        Of the density of an estimate, see ``hs.density``.
    watch : callable, optional
        Called with the number of products so far, as they are made.

    Returns
    -------
    Spectrum or Estimate
        ``exact`` tells which, ``method`` how it was found, ``reason`` by which theorem, or why
        there is none.

    Raises
    ------
    ValueError
        If the model draws random numbers; if ``method="exact"`` and there is no theorem.

    Warns
    -----
    ConvergenceWarning
        If not every eigenvalue is as accurate as asked for; they are returned nevertheless.
    CheckWarning
        If products are not symmetric or disagree with finite differences.

    Notes
    -----
    Up to 512 parameters the whole matrix is computed and solved; the estimate's errors are then
    rounding. Beyond, Lanczos finds the k eigenvalues, and 50 products go into the trace. The
    density is computed when ``estimate.density`` is first looked at.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(100, 1).double(), torch.randn(100, 1).double()
    >>> wide = torch.nn.Linear(1, 3000, bias=False), torch.nn.Linear(3000, 1, bias=False)
    >>> relu = torch.nn.Sequential(wide[0], torch.nn.ReLU(), wide[1]).double()
    >>> s = hs.spectrum(relu, (x, y), torch.nn.MSELoss())
    >>> len(s), s.exact, s.method
    (6000, True, 'closed form')

    >>> deep = torch.nn.Sequential(torch.nn.Linear(1, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))
    >>> s = hs.spectrum(deep.double(), (x, y), torch.nn.MSELoss(), k=2)
    >>> len(s), s.exact, bool(s.errors.max() < 1e-10)
    (2, False, True)
    """
    if method is not None and method not in get_args(Method):
        raise ValueError(f'method must be "exact", "estimate" or None, got {method!r}.')
    # Whichever way is taken, and before any work.
    if k is not None:
        require_int("k", k, 1, None)
    require_int("probes", probes, 1, None)
    require_int("steps", steps, 1, None)
    require_which(which)
    require_tolerance(tol)
    generator(rng)
    H = hessian(model, data, loss, params, eval_mode=eval_mode, memory=memory)
    if watch is not None:
        H.watch(watch)
    reason = "an estimate was asked for."
    if method != "estimate":
        with full_precision():
            found = _exact(H, model, params)
        if isinstance(found, Spectrum):
            return found
        reason = found
    if method == "exact":
        raise ValueError(f"model has no exact spectrum here: {reason}")
    return estimate(
        H,
        k,
        which=which,
        tol=tol,
        rng=rng,
        probes=probes,
        steps=steps,
        memory=memory,
        reason=reason,
    )


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
    if everything and size > DENSE_MOST:
        raise ValueError(
            f"k={k}, all eigenvalues, works up to {DENSE_MOST} parameters, but there are {size}: "
            "give a smaller k, or use hs.density."
        )
    needed = _matrices(size)
    if everything and size > DENSE_LIMIT and needed > H.setting.memory:
        raise ValueError(
            f"k={k} takes the whole matrix and some {needed / 1e9:.1f} GB, more than memory= or "
            "half of what is free: give a smaller k."
        )
    if everything or size <= DENSE_LIMIT:
        return _dense(H, k, which, reason)
    assert k is not None
    pairs = eigenpairs(H, k=k, which=which, tol=tol, rng=rng)
    found = trace(H, products=TRACE_PRODUCTS, rng=rng, memory=memory)
    # The estimate may live long, and holds the operator for its density: without the graphs.
    H.release()
    return Estimate(
        eigenvalues=pairs.eigenvalues,
        errors=pairs.errors,
        eigenvectors=pairs.vectors,
        trace=like(found.value, pairs.eigenvalues),
        trace_error=like(found.error, pairs.eigenvalues),
        size=size,
        converged=pairs.converged,
        method=pairs.method,
        message=pairs.message,
        reason=reason,
        which=which,
        _products=pairs.products + found.products,
        _norm=float(pairs.norm),
        _density=lambda: (
            _whole_density(H)
            if size <= min(probes * steps, WHOLE) and _matrices(size) <= H.setting.memory
            else density(H, probes, steps, rng, memory=memory)
        ),
    )


def _matrices(size: int) -> float:
    """Return how many bytes the dense route takes."""
    return float(DENSE_COPIES * size**2 * 8)


def _whole_density(H: ModelHessian) -> Density:
    """Return the density of all eigenvalues, for fewer products than an estimate of it takes."""
    pairs = eigenpairs(H, k=H.shape[0])
    H.release()
    return replace(known_density(pairs.eigenvalues), products=pairs.products)


def _dense(H: ModelHessian, k: int | None, which: str, reason: str) -> Estimate:
    """Solve the whole matrix, and keep the k eigenvalues asked for."""
    size = H.shape[0]
    pairs = eigenpairs(H, k=size)
    ascending = to_numpy(pairs.eigenvalues)[::-1]
    wanted = preference(ascending, cast(Which, which))[: size if k is None else k]
    index = torch.as_tensor(np.sort(size - 1 - wanted), device=H.device)
    values = to_numpy(pairs.eigenvalues).astype(np.float64)
    rounding = size * epsilon(pairs.eigenvalues) * float(np.abs(values).max())
    return Estimate(
        eigenvalues=pairs.eigenvalues[index],
        errors=pairs.errors[index],
        eigenvectors=pairs.vectors[:, index],
        trace=like(values.sum(), pairs.eigenvalues),
        trace_error=like(rounding, pairs.eigenvalues),
        size=size,
        converged=pairs.converged,
        method=pairs.method,
        message=pairs.message,
        reason=reason,
        which=which,
        _products=pairs.products,
        _norm=float(pairs.norm),
        _density=known_density(values),
    )


def _exact(H: ModelHessian, model: Any, params: Any) -> Spectrum | str:
    """Return the spectrum by a theorem that products confirm, or the reason why there is none."""
    setting = H.setting
    try:
        if params is not None:
            raise NotRecognised("only some of the parameters were asked for.")
        if not isinstance(setting.criterion, PairCriterion):
            raise NotRecognised("the loss is a closure, which may do anything with the model.")
        with setting.snapshot.mode():
            recognition = recognise(unwrap(model), *_all_data(setting), setting.criterion)
    except NotRecognised as error:
        return str(error)
    found = recognition.spectrum()
    defect = _defect(H, recognition, found)
    if not defect <= AGREEMENT[H.dtype]:
        return (
            f"it looks like {recognition.network}, but its products differ from those of automatic "
            f"differentiation by {defect:.1e}, relative."
        )
    found.reason = f"{recognition.network}: {recognition.theorem}"
    return found


def _all_data(setting: Setting) -> tuple[Tensor, Any]:
    """Return all data as one batch, with the shares of all ranks in it."""
    if not ranks.parallel():
        return _own_data(setting)
    # All ranks must do the same, whatever one of them finds; so they tell each other first.
    own: Any = None
    try:
        own = _own_data(setting)
        if not is_sample_pair(own):
            raise NotRecognised("the data of several processes are not pairs of tensors.")
        word: str | int = byte_count(own)
    except NotRecognised as error:
        word = str(error)
    kinds = [(part.shape[1:], part.dtype) for part in tensors_in(own)]
    told = ranks.gather((word, kinds, setting.memory))
    for said, _, _ in told:
        if isinstance(said, str):
            raise NotRecognised(said)
    if any(other != told[0][1] for _, other, _ in told):
        raise NotRecognised("the data of several processes differ in shape.")
    if sum(size for size, _, _ in told) > min(memory for _, _, memory in told):
        raise NotRecognised("the data of all processes do not fit into memory= at once.")
    shares = ranks.gather(tuple(part.cpu() for part in own))
    device = setting.snapshot.device
    x, y = (torch.cat(parts).to(device) for parts in zip(*shares, strict=True))
    return x, y


def _own_data(setting: Setting) -> tuple[Tensor, Any]:
    batches = setting.batches.kept
    if batches is None:
        raise NotRecognised("the data do not fit into memory= at once.")
    if len(batches) == 1:
        return cast(tuple[Tensor, Any], tuple(batches[0]))
    joined = list(merged(batches, sys.maxsize))
    if len(joined) > 1 or not is_sample_pair(joined[0]):
        raise NotRecognised("the batches differ in shape, so they cannot be joined.")
    return cast(tuple[Tensor, Any], joined[0])


def _defect(H: ModelHessian, recognition: Recognition, found: Spectrum) -> float:
    """Return how far exact products and the ends of the spectrum are from H, relative.

    A random vector meets little of a few large eigenvalues, so its image is the scale of its error.
    """
    drawn = np.random.default_rng(0).normal(size=(H.shape[0], 2))
    columns = like(drawn / np.linalg.norm(drawn, axis=0), found.values)
    ends = [found.space(0), found.space(-1)]
    vectors = torch.cat([space.vectors(1) for space in ends], dim=1)
    values = torch.stack([space.value for space in ends])
    images = H @ torch.cat([columns, vectors], dim=1)
    expected = torch.cat([recognition.operator @ columns, values * vectors], dim=1)
    gaps = (images - expected).norm(dim=0)
    scales = torch.cat([images[:, :2].norm(dim=0), found.norm.expand(2)])
    return float((gaps / torch.where(scales > 0, scales, 1.0)).max())
