"""``hs.spectrum``: the Hessian spectrum of any PyTorch model, exact where a theorem allows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

from hessence._common.arguments import Seed, require_options
from hessence._common.device import full_precision
from hessence._common.messages import warn
from hessence._common.progress import ProgressBar
from hessence.models._model_checks import misfit
from hessence.models._range import LARGEST, NoRange, on_range, range_spectrum
from hessence.models.checks import CheckWarning
from hessence.models.criterion import FunctionCriterion, Reduction
from hessence.models.model_matrices import ModelHessian, hessian
from hessence.models.recognition.recognise import NotRecognised, exact_spectrum
from hessence.spectra.estimate import Estimate
from hessence.spectra.estimating import estimate
from hessence.spectra.spectrum import Spectrum

Method = Literal["exact", "estimate"]


def spectrum(
    model: Any,
    data: Any,
    loss: Any = None,
    k: int | None = 10,
    *,
    params: Any = None,
    reduction: Reduction | None = None,
    closure: bool | None = None,
    method: Method | None = None,
    which: str = "LA",
    tol: float = 1e-6,
    rng: Seed = 0,
    eval_mode: bool = False,
    memory: float | None = None,
    copy: bool = True,
    probes: int = 16,
    steps: int = 64,
    trace_products: int = 50,
    progress: bool | Callable[[int], None] = False,
) -> Spectrum | Estimate:
    """Return the Hessian spectrum of a model's loss: exact if there is a theorem, else estimated.

    A model gets a ``Spectrum`` with all eigenvalues in three cases: if it is one of the solvable
    networks; if it has two linear layers with nothing, or a piecewise linear activation such as
    ReLU, between them, and a narrow twin or cells shrink it enough; and if so many directions are
    flat, as with few samples, that at most 4096 dimensions are left (see ``hs.flat_directions``).
    Products by automatic differentiation have confirmed it. Any other model gets an ``Estimate``: k
    eigenvalues with proved error bounds, the trace with a standard error, a density with a band.
    The model is not changed.

    Parameters
    ----------
    model : torch.nn.Module
        The model, at the point of training it is at.
    data : (x, y), DataLoader, or iterable of batches
        See ``hs.hessian``.
    loss : torch.nn loss, function, str or closure
        See ``hs.hessian``; by default ½ E‖f − y‖².
    k : int or None
        How many eigenvalues an estimate has, or all if there are fewer. None for all of them, of
        at most 16384 parameters.
    params : optional
        Which parameters, see ``hs.hessian``. A choice can be exact by its range.
    method : {"exact", "estimate"}, optional
        Require one of the two. A whole spectrum by many flat directions takes a product for each
        of the others, up to 4096; an estimate of a few eigenvalues takes some hundred.
    which, tol, rng : optional
        See ``hs.eigenpairs``.
    reduction, closure, eval_mode, memory, copy : optional
        See ``hs.hessian``.
    probes, steps : int
        Of the density of an estimate, see ``hs.density``.
    trace_products : int
        How many products an estimate of the trace takes, at least 4.
    progress : bool or callable
        Whether to count the products on standard error, as they are made; or what to call with
        their number so far.

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
    rounding. Beyond, Lanczos finds the k eigenvalues, and `trace_products` go into the trace. The
    density is computed when ``estimate.density`` is first looked at.

    Labels of an exact spectrum: "outlier" and "bulk" as in the papers, with the cell, input or
    singular value after a slash; "twin" for eigenvalues of a narrow twin, beside "bulk/layer name"
    and, where there is an activation, "bulk/layer name/cell c", after the first of two layers;
    "range" for eigenvalues on the range of the Hessian; "flat" for zeros by a theorem, "flat/dead"
    for those of units that are never on.

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
    H = hessian(model, data, loss, params, reduction, eval_mode, memory, closure=closure, copy=copy)
    with _counted(H, progress):
        return _solve(
            H, k, method=method, which=which, tol=tol, rng=rng, probes=probes, steps=steps,
            trace_products=trace_products, memory=memory,
        )  # fmt: skip


@contextmanager
def _counted(H: ModelHessian, progress: bool | Callable[[int], None]) -> Iterator[None]:
    """Show how many products were made, or call back with their number."""
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress must be True, False or a function, got {progress!r}.")
    if progress is not True:
        H.watch(progress or None)
        yield
        return
    bar = ProgressBar(sys.stderr, "products", shown=True)
    bar.begin("eigenvalues and trace", None)
    H.watch(bar.update)
    try:
        yield
    finally:
        H.watch(None)
        bar.clear()


def _solve(
    H: ModelHessian,
    k: int | None = 10,
    *,
    method: Method | None = None,
    which: str = "LA",
    tol: float = 1e-6,
    rng: Seed = 0,
    probes: int = 16,
    steps: int = 64,
    trace_products: int = 50,
    memory: float | None = None,
) -> Spectrum | Estimate:
    """Return the spectrum of a model's Hessian, with the arguments of ``hs.spectrum``."""
    if method is not None and method not in get_args(Method):
        raise ValueError(f'method must be "exact", "estimate" or None, got {method!r}.')
    # Also where they are not used, and before any work.
    require_options(k, which, tol, rng, probes, steps)
    reason, rest = "an estimate was asked for.", None
    if method != "estimate":
        try:
            with full_precision():
                found = exact_spectrum(H)
                _warn_of_misfit(H)
                return found
        except NotRecognised as refusal:
            reason, rest = str(refusal), refusal.rest
        try:
            with full_precision():
                # Few dimensions are solved completely. A search pays if half of them are flat.
                most = max(H.shape[0] // 2, min(H.shape[0] - 1, LARGEST))
                inside = on_range(H, most)
                rest = inside if rest is None or inside.order < rest.order else rest
                found = range_spectrum(inside)
            # Like an estimate, this spectrum comes from products by automatic differentiation.
            H.require_sound()
            return found
        except NoRange:
            # The reason already says that the model is none of the solvable networks.
            pass
    if method == "exact":
        raise ValueError(f"model has no exact spectrum here: {reason}")
    H.require_sound()
    estimated = partial(estimate, H) if rest is None else rest.spectrum
    return estimated(
        k, which=which, tol=tol, rng=rng, probes=probes, steps=steps,
        trace_products=trace_products, memory=memory, reason=reason,
    )  # fmt: skip


def _warn_of_misfit(H: ModelHessian) -> None:
    """Warn if the user's own loss does not combine batches as declared."""
    # PyTorch's losses do.
    told = misfit(H.problem) if isinstance(H.problem.criterion, FunctionCriterion) else None
    if told is not None:
        warn(told, CheckWarning)


ModelHessian.solver = _solve
