"""Hessian and Gauss–Newton matrix of a PyTorch model on data, as operators."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from hessence.curvature import ranks
from hessence.curvature.checks import Check, check_products, perturbed
from hessence.curvature.criteria import PairCriterion, predict
from hessence.curvature.setting import Mode, Setting
from hessence.curvature.term_store import TermStore
from hessence.curvature.terms import GgnTerm, HessianTerm, Term
from hessence.operators import Operator

WIDEST = 16
"""How many vectors go through a graph at once at most."""

TRIAL = 8
"""How many vectors the two ways to multiply are timed with."""

CLEARLY = 0.9
"""Blocks must take less than this share of the time of single vectors."""


Method = TypeVar("Method", bound=Callable[..., Any])


def _recordable(method: Method) -> Method:
    """Leave inference mode: what is made there cannot be part of a graph."""
    return cast(Method, torch.inference_mode(mode=False)(method))


class ModelOperator(Operator):
    """A symmetric matrix over a model's parameters, made of one term for each batch.

    ``H @ v`` takes a vector (p,) or columns (p, k). The flat order is that of
    ``model.parameters()``; ``split`` cuts a vector into tensors by name. The operator belongs to
    the parameters that the model had when it was made, whatever becomes of the model.
    """

    def __init__(
        self, setting: Setting, terms: TermStore, chosen: Sequence[int] | None = None
    ) -> None:
        self.setting = setting
        self._terms = terms
        everything = setting.snapshot.parameters
        self._chosen = tuple(range(len(everything.names)) if chosen is None else chosen)
        self.parameters = everything.block(self._chosen)
        self._products = 0
        self._watcher: Callable[[int], None] | None = None
        self._blocks_pay: bool | None = {"auto": None, "vectors": False, "blocks": True}[
            setting.mode
        ]

    @property
    def shape(self) -> tuple[int, int]:
        """(p, p), p the number of parameters."""
        return (self.parameters.size, self.parameters.size)

    @property
    def device(self) -> torch.device:
        """Where vectors must be."""
        return self._reference.device

    @property
    def _reference(self) -> Tensor:
        return self.parameters.leaves[0].detach()

    @property
    def kept_graphs(self) -> int:
        """How many batches have their graph in memory."""
        return self._terms.kept

    def block(self, params: str | Sequence[str]) -> Self:
        """Return the diagonal block of some of the parameters, by name pattern.

        It shares the graphs of this operator.
        """
        chosen = [self._chosen[i] for i in self.parameters.indices(params)]
        return type(self)(self.setting, self._terms, chosen)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Cut a vector (p,) into tensors shaped like the parameters, by name."""
        if not isinstance(vector, Tensor):
            raise TypeError(f"vector must be a torch tensor, got {type(vector).__name__}.")
        if tuple(vector.shape) != (self.parameters.size,):
            raise ValueError(
                f"vector must have shape ({self.parameters.size},), got {tuple(vector.shape)}."
            )
        return dict(zip(self.parameters.names, self.parameters.split(vector), strict=True))

    @_recordable
    def loss(self) -> float:
        """Return the loss on all data."""
        total, count = 0.0, 0.0
        for chunk in self._terms.chunks():
            value, weight = self.setting.snapshot.run(self.setting.criterion.total, chunk)
            total, count = total + float(value.detach()), count + weight
        total = ranks.sum_number(total, self.device)
        return total / self._divisor(count)

    @_recordable
    def gradient(self) -> Tensor:
        """Return the gradient of the loss on all data, (p,)."""
        result = torch.zeros(self.parameters.size, dtype=self.dtype, device=self.device)
        count = 0.0
        for chunk in self._terms.chunks():
            slopes, weight = self._slopes(chunk)
            result += self.parameters.join([slopes[i] for i in self._chosen])
            count += weight
        ranks.sum_tensor(result)
        return result / self._divisor(count)

    @_recordable
    def check(self, *, rng: int = 0) -> Check:
        """Test that the loss is the same twice, and that products are symmetric and right.

        Right is what finite differences of the gradient say, up to their own error. On the first
        batch only.
        """
        term, batch = self._terms.first()
        snapshot, mine = self.setting.snapshot, self.parameters

        def multiply(v: Tensor) -> Tensor:
            return mine.join(term.multiply(mine.split(v), self._chosen))

        def move(step: Tensor) -> Tensor:
            leaves = list(snapshot.parameters.leaves)
            moved = perturbed(mine.leaves, mine.split(step))
            for i, leaf in zip(self._chosen, moved, strict=True):
                leaves[i] = leaf
            slopes = self._moved(batch, tuple(leaves))
            return mine.join([slopes[i] for i in self._chosen])

        def loss() -> float:
            return float(snapshot.run(self.setting.criterion.total, batch)[0].detach())

        own = set(snapshot.own_names)
        movable = all(name in own for name in mine.names)
        size = float(torch.stack([leaf.detach().norm() for leaf in mine.leaves]).norm())
        reference = torch.zeros(mine.size, dtype=self.dtype, device=self.device)
        return check_products(multiply, move if movable else None, loss, reference, size, rng)

    def watch(self, callback: Callable[[int], None] | None) -> None:
        """Call back with the number of products of this operator so far, whenever some are made."""
        self._watcher = callback

    def release(self) -> None:
        """Let go of all kept graphs; they are built again when needed."""
        self._terms.release()

    @abstractmethod
    def _moved(self, batch: Any, leaves: tuple[Tensor, ...]) -> Sequence[Tensor]:
        """Return what changes by a product, to first order, when the parameters move."""

    @_recordable
    def _apply(self, columns: Tensor) -> Tensor:
        rows = columns.detach().mT.contiguous()
        result = torch.zeros_like(rows)
        for term in self._terms:
            self._add(term, rows, result)
            del term  # before the next one is built
        ranks.sum_tensor(result)
        assert self._terms.count is not None
        result /= self._divisor(self._terms.count)
        self._products += len(rows)
        if self._watcher is not None:
            self._watcher(self._products)
        return result.mT

    def _divisor(self, count: float) -> float:
        """Return what totals are divided by, from the count of the batches of this rank."""
        if not self.setting.criterion.averaged:
            return 1.0
        if self.setting.count is None:
            self.setting.count = ranks.sum_number(count, self.device)
        if self.setting.count == 0:
            raise ValueError("data has no targets that count: all of them are ignored.")
        return self.setting.count

    def _slopes(
        self, chunk: Any, leaves: tuple[Tensor, ...] | None = None
    ) -> tuple[Sequence[Tensor], float]:
        """Return the gradient of the total over a chunk, here or elsewhere, and its count."""
        snapshot = self.setting.snapshot
        total, count = snapshot.run(self.setting.criterion.total, chunk, leaves=leaves)
        leaves = snapshot.parameters.leaves if leaves is None else leaves
        if not total.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves], count
        return torch.autograd.grad(total, leaves, materialize_grads=True), count

    def _add(self, term: Term, rows: Tensor, result: Tensor) -> None:
        if len(rows) == 1 or not self._use_blocks(term, rows):
            self._add_vectors(term, rows, result)
        else:
            self._add_blocks(term, rows, result)

    def _add_vectors(self, term: Term, rows: Tensor, result: Tensor) -> None:
        for row, image in zip(rows, result, strict=True):
            parts = term.multiply(self.parameters.split(row), self._chosen)
            image += self.parameters.join(parts)

    def _add_blocks(self, term: Term, rows: Tensor, result: Tensor) -> None:
        width = self._width()
        for some, images in zip(rows.split(width), result.split(width), strict=True):
            try:
                images += self._block(term, some)
            except RuntimeError:  # from an operation that cannot be batched
                self._blocks_pay = False
                self._add_vectors(term, some, images)

    def _block(self, term: Term, rows: Tensor) -> Tensor:
        with warnings.catch_warnings():
            # An operation that PyTorch cannot batch is looped over, as without blocks.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            parts = term.multiply(self.parameters.split(rows), self._chosen, batched=True)
        return self.parameters.join(parts)

    def _width(self) -> int:
        room = self.setting.memory / 4 / max(self._terms.chunk_bytes, 1.0)
        return max(2, min(WIDEST, int(room)))

    def _use_blocks(self, term: Term, rows: Tensor) -> bool:
        """Decide once, by a trial on the first term, whether blocks are faster."""
        if self._blocks_pay is None:
            trial = rows[:TRIAL]
            single = _seconds(lambda: self._add_vectors(term, trial, torch.zeros_like(trial)))
            block = _seconds(lambda: self._add_blocks(term, trial, torch.zeros_like(trial)))
            # All ranks must choose alike, or their sums would differ in the last digit.
            single = ranks.sum_number(single, self.device)
            block = ranks.sum_number(block, self.device)
            self._blocks_pay = block < CLEARLY * single
        return self._blocks_pay


class ModelHessian(ModelOperator):
    """The Hessian of a model's loss; ``H.ggn`` is its Gauss–Newton part."""

    def _moved(self, batch: Any, leaves: tuple[Tensor, ...]) -> Sequence[Tensor]:
        return self._slopes(batch, leaves)[0]

    @property
    def ggn(self) -> ModelGgn:
        """The Gauss–Newton part."""
        return ModelGgn(self.setting, _ggn_terms(self.setting), self._chosen)


class ModelGgn(ModelOperator):
    """The Gauss–Newton part of a model's Hessian: what is left if the model is linearised."""

    def _moved(self, batch: Any, leaves: tuple[Tensor, ...]) -> Sequence[Tensor]:
        inputs, target = batch
        criterion = self.setting.criterion
        assert isinstance(criterion, PairCriterion)
        there = self.setting.snapshot.run(predict, inputs, leaves=leaves).detach()
        here = self.setting.snapshot.run(predict, inputs)
        bent = criterion.hessian(here, target)(there - here.detach())
        own = self.setting.snapshot.parameters.leaves
        if not here.requires_grad:
            return [torch.zeros_like(leaf) for leaf in own]
        return list(torch.autograd.grad(here, own, bent, materialize_grads=True))


def hessian(
    model: Any,
    data: Any,
    loss: Any = None,
    params: Any = None,
    *,
    eval_mode: bool = False,
    memory: float | None = None,
    mode: Mode = "auto",
    compile: bool = False,
) -> ModelHessian:
    r"""Return the Hessian of a model's loss on data, as an operator on flat parameter vectors.

    With batches b of total loss :math:`\ell_b` and count :math:`n_b` it is
    :math:`\nabla^2 \sum_b \ell_b / \sum_b n_b`: the Hessian of the loss on all data, however they
    are cut into batches. The model is not touched: its parameters and buffers are copied, so the
    operator stays what it is while training goes on.

    Parameters
    ----------
    model : torch.nn.Module
        The model, in float32 or float64. Dropout and batch normalisation in training mode are
        refused, since a loss that changes from call to call has no Hessian.
    data : (x, y), DataLoader, Dataset, dict, or iterable of batches
        All data at once, or batches that can be gone through again. An input may be a tensor, a
        tuple of arguments or a dictionary of them. With a closure, batches may be anything.
    loss : optional
        A ``torch.nn`` loss, with its reduction, weights and ignored targets; ``"mse"`` or None for
        ½ E‖f − y‖², or another of this library's names; a function of (prediction, target) that
        returns a mean or a sum over samples; or a closure ``loss(model, batch)``, told by the name
        of its first parameter (model, module, net or network), by batches that are not pairs, or
        because it cannot be called on a prediction. A closure returns a mean over samples, or a
        pair (mean, weight).
    params : optional
        Patterns of names, such as ``"blocks.*.attn.*"``, or tensors; by default all parameters
        that require gradients.
    eval_mode : bool
        Run the model in evaluation mode and restore its mode afterwards.
    memory : float, optional
        How many bytes of data and graphs to keep from product to product; what does not fit is
        computed again each time. By default half of what is free.
    mode : {"auto", "vectors", "blocks"}
        Whether several columns go through a graph one by one or at once. By default a trial tells.
    compile : bool
        Compile the products with ``torch.compile``: takes some ten seconds to minutes, and pays
        after hundreds to thousands of products (see the benchmarks).

    Returns
    -------
    ModelHessian
        With ``@``, ``shape``, ``dense()``, ``to_scipy()``, ``check()``, ``ggn``, ``block(params)``,
        ``split(vector)``, ``loss()`` and ``gradient()``.

    Notes
    -----
    Under ``torch.distributed`` each process gives its own share of the data, and all get the
    product of the whole; they must multiply by the same vectors, as the solvers of this library do.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> H = hs.hessian(model, (torch.randn(50, 3), torch.randn(50, 1)), torch.nn.MSELoss())
    >>> H.shape, (H @ torch.ones(41)).shape
    ((41, 41), torch.Size([41]))
    >>> H.check().passed
    True
    >>> H.block("2").shape
    (9, 9)
    """
    setting = Setting(
        model, data, loss, params, eval_mode=eval_mode, memory=memory, mode=mode, compile=compile
    )
    build = partial(HessianTerm, setting.snapshot, setting.criterion)
    return ModelHessian(setting, setting.terms(build))


def ggn(
    model: Any,
    data: Any,
    loss: Any = None,
    params: Any = None,
    *,
    eval_mode: bool = False,
    memory: float | None = None,
    mode: Mode = "auto",
    compile: bool = False,
) -> ModelGgn:
    r"""Return the Gauss–Newton matrix :math:`\sum J^\top \nabla^2\ell(f) J` of a model's loss.

    It is the Hessian of the loss with the model linearised, and positive semi-definite if the loss
    is convex in the prediction. The loss' own Hessian is in closed form for squared error,
    cross-entropy and binary cross-entropy, and exact by automatic differentiation for others.

    Parameters and result are as for ``hs.hessian``; a closure is refused, since it does not tell
    where the model ends and the loss begins.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    >>> data = torch.randn(50, 3), torch.randint(4, (50,))
    >>> G = hs.ggn(model, data, torch.nn.CrossEntropyLoss())
    >>> bool(torch.linalg.eigvalsh(G.dense()).min() > -1e-6)
    True
    """
    setting = Setting(
        model, data, loss, params, eval_mode=eval_mode, memory=memory, mode=mode, compile=compile
    )
    return ModelGgn(setting, _ggn_terms(setting))


def _ggn_terms(setting: Setting) -> TermStore:
    criterion = setting.criterion
    if not isinstance(criterion, PairCriterion):
        raise ValueError(
            "loss must be a loss of (prediction, target) for the Gauss–Newton matrix; a closure "
            "does not tell where the model ends and the loss begins."
        )
    return setting.terms(partial(GgnTerm, setting.snapshot, criterion))


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
