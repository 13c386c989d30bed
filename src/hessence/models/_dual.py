r"""The dual: every eigenvalue of the Gauss–Newton matrix of any model, on few samples.

With S the loss Hessian at the predictions, :math:`S = L L^\top`, the nonzero eigenvalues of
:math:`G = J^\top S J` are those of :math:`L^\top J J^\top L`, which has as many rows as there are
samples times outputs, however many parameters there are. An eigenvector u of it with the eigenvalue
γ gives :math:`J^\top L u / \sqrt\gamma`; directions that J does not see are flat.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessence._common.arrays import NotFiniteError
from hessence._common.device import available, return_freed_memory
from hessence.models._dual_spaces import Dual, LossFactors
from hessence.models._gram import CHUNK_BYTES, Rows
from hessence.models._jacobian import Jacobian
from hessence.models._layer_factors import MisfitError
from hessence.models._loss_hessian import LossHessian, sample_blocks
from hessence.models._parameters import length
from hessence.models._products import GgnGraph
from hessence.models.criterion import PairCriterion
from hessence.models.data import parallel
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import ROUNDING

LARGEST = 4096
"""The most predicted numbers, samples times outputs, of which the spectrum is found by the dual."""

AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-3}
"""How far two ways to a product may differ, relative."""

SUMMED = 2**12
"""How many squares are added up at once: in single precision, a sum of more loses digits."""

THEOREM = (
    "the nonzero eigenvalues of JᵀSJ are those of S^½ J Jᵀ S^½, J the Jacobian of the predictions "
    "and S the loss Hessian at them"
)


class NoDual(Exception):  # noqa: N818 - an ordinary answer, not a mistake of the user's
    """Why the dual cannot be had; a sentence."""


def kernel(G: Any) -> Tensor:
    """Return J Jᵀ of a model's Gauss–Newton matrix, (N, N).

    Raises
    ------
    NoDual
        If it does not fit into memory, or automatic differentiation disagrees.
    """
    rows, reference = _rows(G), G.reference
    needed = float(rows.count) ** 2 * reference.itemsize
    if needed > available(reference):
        raise NoDual(
            f"there are {rows.count} predicted numbers, and the kernel of all of them would take "
            f"{needed / 1e9:.0f} GB."
        )
    return _gram(G, rows)


def dual_spectrum(G: Any) -> Spectrum:
    """Return all eigenvalues of a model's Gauss–Newton matrix by the dual.

    Raises
    ------
    NoDual
        If there are too many predicted numbers, or the loss is not convex.
    """
    rows = _rows(G)
    if rows.count > LARGEST:
        raise NoDual(
            f"there are {rows.count} predicted numbers, and the dual is taken of at most {LARGEST}."
        )
    factors = _loss_factors(G, rows)
    gram = _gram(G, rows)
    rounding = float(torch.finfo(gram.dtype).eps) * factors.size(gram)
    w = _random_column(gram, len(gram))
    image = factors.apply(gram @ factors.apply(w, transposed=False), transposed=True)
    gram = factors.between(gram)
    _require_small(
        "Lᵀ (J Jᵀ) L differs from its three factors", gram @ w - image, image, rounding * w.norm()
    )
    _confirm_by_product(G, rows, factors, rounding)
    dual = Dual(Jacobian(G.problem, rows.step, G._chosen), gram, factors, rounding)
    # What rounding does inside of the model is measured where errors are asked for.
    found = Spectrum(dual.families(), "dual", operator=_lean(G), defect=dual.defect)
    found.reason = f"{THEOREM}."
    return found


def _rows(G: Any) -> Rows:
    """Read how the predictions depend on the parameters, or say why that cannot be done."""
    if parallel():
        raise NoDual("the data are shared among processes, and the dual needs all of them.")
    if G.problem.batches.kept is None:
        raise NoDual("the data do not fit into memory= at once, which the dual needs.")
    G.problem.require_steady()
    rows = Rows(G.problem, G._chosen)
    _require_finite(G, rows.predictions, "the predictions contain")
    return rows


def _gram(G: Any, rows: Rows) -> Tensor:
    """Return the Gram matrix J Jᵀ, confirmed.

    Layers may take more of some samples than of others; then it is found from one at a time.
    """
    try:
        return _confirmed(G, rows, rows.gram())
    except (MisfitError, NoDual):
        pass
    return _confirmed(G, rows, Rows(G.problem, G._chosen, alone=True).gram())


def _confirmed(G: Any, rows: Rows, gram: Tensor) -> Tensor:
    """Compare wᵀ J Jᵀ w, with a random w, with ‖Jᵀ w‖² by automatic differentiation.

    It is a sum over parameters, which are taken a few at a time to save memory.
    """
    w = _random_column(gram, len(gram))
    whole = (w.mT @ (gram @ w))[0]
    rest = whole.clone()
    for chosen in _small_sets(G):
        return_freed_memory()
        v = Jacobian(G.problem, rows.step, chosen).pull(w)[:, 0]
        rest -= sum(part @ part for part in v.split(SUMMED))
        del v  # before the next is made
    return_freed_memory()
    _require_small(
        "the Gram matrix of the Jacobian differs from automatic differentiation", rest, whole
    )
    return gram


def _confirm_by_product(G: Any, rows: Rows, factors: LossFactors, rounding: float) -> None:
    """Compare Jᵀ L Lᵀ J v with the product of the matrix itself and a vector v.

    L is the same for all parameters, so the last few that the predictions depend on are enough.
    """
    for chosen in reversed(list(_small_sets(G))):
        jacobian = Jacobian(G.problem, rows.step, chosen)
        v = jacobian.pull(_random_column(G.reference, rows.count))
        if v.any():
            pushed = factors.apply(jacobian.push(v), transposed=True)
            ours = jacobian.pull(factors.apply(pushed, transposed=False))
            return_freed_memory()
            build = partial(GgnGraph, G.problem.copy, G.problem.criterion, only=chosen)
            graphs = G.problem.graphs(build, functional=False).within(0)
            product = type(G)(G.problem, graphs, chosen) @ v
            return_freed_memory()
            return _require_small(
                "Jᵀ L Lᵀ J differs from products with the matrix",
                ours - product,
                product,
                rounding * v.norm(),
            )


def _require_finite(G: Any, tensors: list[Tensor], said: str) -> None:
    """Refuse NaN and infinity, which no solver takes, and say where they come from."""
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise NotFiniteError(f"{said} NaN or infinity: {G._culprit()}.")


def _loss_factors(G: Any, rows: Rows) -> LossFactors:
    """Return the factors of the loss Hessian, averaged as the loss is."""
    criterion = G.problem.criterion
    assert isinstance(criterion, PairCriterion)
    pairs = list(zip(rows.predictions, rows.targets, strict=True))
    divisor = G._divisor(sum(criterion.count(*pair) for pair in pairs))
    hessians = [criterion.hessian(*pair) for pair in pairs]
    samples = [n if criterion.separable else 1 for n in rows.samples]
    blocks = [
        _loss_blocks(hessian, f, n) / divisor
        for hessian, f, n in zip(hessians, rows.predictions, samples, strict=True)
    ]
    _require_finite(G, blocks, "the Hessian of the loss at the predictions contains")
    factors = LossFactors([_root(block) for block in blocks])
    u = _random_column(G.reference, rows.count)
    parts = u.split([f.numel() for f in rows.predictions])
    images = [
        hessian(part.reshape(f.shape)).reshape(-1, 1) / divisor
        for hessian, part, f in zip(hessians, parts, rows.predictions, strict=True)
    ]
    image = torch.cat(images)
    ours = factors.apply(factors.apply(u, transposed=True), transposed=False)
    _require_small("the loss Hessian differs from its parts, sample by sample", ours - image, image)
    return factors


def _loss_blocks(hessian: LossHessian, prediction: Tensor, samples: int) -> Tensor:
    """Return the loss Hessian of every sample (n, K, K), or its diagonal (n, K) if that is all."""
    found = sample_blocks(hessian, prediction, samples)
    diagonal = found.diagonal(dim1=1, dim2=2)
    entries, beside = torch.count_nonzero(found), torch.count_nonzero(diagonal)
    return diagonal.clone() if entries == beside else found


def _root(blocks: Tensor) -> Tensor:
    """Return L of positive semidefinite blocks L Lᵀ, or of their diagonals."""
    values, vectors = (blocks, None) if blocks.ndim == 2 else torch.linalg.eigh(blocks)
    least, size = float(values.min()), float(values.abs().max())
    if least < -10 * values.shape[-1] * torch.finfo(values.dtype).eps * size:
        raise NoDual(
            f"the loss is not convex at the predictions: its Hessian there has the eigenvalue "
            f"{least:.3g}, and the dual needs a square root of it."
        )
    roots = values.clamp(min=0).sqrt()
    return roots if vectors is None else vectors * roots[..., None, :]


def _lean(G: Any) -> Any:
    """Return the same matrix, whose graphs take no more memory than a chunk of rows."""
    return type(G)(G.problem, G._graphs.within(CHUNK_BYTES), G._chosen)


def _random_column(like: Tensor, rows: int) -> Tensor:
    return torch.as_tensor(np.random.default_rng(0).normal(size=(rows, 1))).to(like)


def _require_small(
    what: str, difference: Tensor, of: Tensor, rounding: float | Tensor = 0.0
) -> None:
    """Refuse a difference that is large beside a product and beside rounding on the way to it."""
    gap, scale = float(length(difference)), float(length(of))
    if not gap <= AGREEMENT[of.dtype] * scale + ROUNDING * float(rounding):
        raise NoDual(f"{what} by {gap / (scale or 1.0):.1e}, relative.")


def _small_sets(G: Any) -> Iterator[list[int]]:
    """Cut the parameters of a matrix into sets that are small beside a chunk of rows, or single."""
    leaves, size = G.problem.copy.parameters.leaves, 0.0
    chosen: list[int] = []
    for i in G._chosen:
        if chosen and size + leaves[i].nbytes > CHUNK_BYTES / 8:
            yield chosen
            chosen, size = [], 0.0
        chosen.append(i)
        size += leaves[i].nbytes
    if chosen:
        yield chosen
