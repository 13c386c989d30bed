"""Hessian and Gauss–Newton matrix of a PyTorch model on data, as operators."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from hessence.curvature import ranks
from hessence.curvature.checks import Check, check_products, perturbed
from hessence.curvature.criteria import PairCriterion, predict
from hessence.curvature.parameters import matching
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
        names = self.setting.snapshot.parameters.names
        mine = [names[i] for i in self._chosen]
        patterns = [params] if isinstance(params, str) else list(params)
        wanted = {name for pattern in patterns for name in matching(mine, pattern)}
        chosen = [i for i in self._chosen if names[i] in wanted]
        return type(self)(self.setting, self._terms, chosen)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Cut a vector (p,) into tensors shaped like the parameters, by name."""
        if tuple(vector.shape) != (self.parameters.size,):
            raise ValueError(
                f"vector must have shape ({self.parameters.size},), got {tuple(vector.shape)}."
            )
        return dict(zip(self.parameters.names, self.parameters.split(vector), strict=True))

    def loss(self) -> float:
        """Return the loss on all data."""
        total, count = 0.0, 0.0
        for batch in self.setting.batches:
            with torch.no_grad():
                value, weight = self.setting.snapshot.run(self.setting.criterion.total, batch)
            total, count = total + float(value), count + weight
        total = ranks.sum_number(total, self.device)
        count = ranks.sum_number(count, self.device)
        return total / count if self.setting.criterion.averaged else total

    def gradient(self) -> Tensor:
        """Return the gradient of the loss on all data, (p,)."""
        result = torch.zeros(self.parameters.size, dtype=self.dtype, device=self.device)
        count = 0.0
        for batch in self.setting.batches:
            term = HessianTerm(self.setting.snapshot, self.setting.criterion, batch)
            result += self.parameters.join([term.gradient[i] for i in self._chosen])
            count += term.count
        ranks.sum_tensor(result)
        count = ranks.sum_number(count, self.device)
        return result / count if self.setting.criterion.averaged else result

    def check(self, *, rng: int = 0) -> Check:
        """Test that the loss is the same twice, and that products are symmetric and right.

        Right is what finite differences of the gradient say, up to their own error. On the first
        batch only.
        """
        term, batch = self._terms.first(), self._terms.first_chunk
        snapshot, mine = self.setting.snapshot, self.parameters

        def multiply(v: Tensor) -> Tensor:
            return mine.join(term.multiply(mine.split(v), self._chosen))

        def move(step: Tensor) -> Tensor:
            leaves = list(snapshot.parameters.leaves)
            moved = perturbed(mine.leaves, mine.split(step))
            for i, leaf in zip(self._chosen, moved, strict=True):
                leaves[i] = leaf
            return mine.join([self._moved(batch, tuple(leaves))[i] for i in self._chosen])

        def loss() -> float:
            with torch.no_grad():
                return float(snapshot.run(self.setting.criterion.total, batch)[0])

        own = set(snapshot.own_names)
        movable = all(name in own for name in mine.names)
        size = float(torch.stack([leaf.detach().norm() for leaf in mine.leaves]).norm())
        reference = torch.zeros(mine.size, dtype=self.dtype, device=self.device)
        return check_products(multiply, move if movable else None, loss, reference, size, rng)

    def release(self) -> None:
        """Let go of all kept graphs; they are built again when needed."""
        self._terms.release()

    @abstractmethod
    def _moved(self, batch: Any, leaves: tuple[Tensor, ...]) -> Sequence[Tensor]:
        """Return what changes by a product, to first order, when the parameters move."""

    def _apply(self, columns: Tensor) -> Tensor:
        rows = columns.detach().mT.contiguous()
        result = torch.zeros_like(rows)
        for term in self._terms:
            self._add(term, rows, result)
        ranks.sum_tensor(result)
        if self.setting.criterion.averaged:
            result /= self._count()
        return result.mT

    def _count(self) -> float:
        if self.setting.count is None:
            assert self._terms.count is not None
            self.setting.count = ranks.sum_number(self._terms.count, self.device)
            if self.setting.count == 0:
                raise ValueError("data has no targets that count: all of them are ignored.")
        return self.setting.count

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
            parts = self.parameters.split(some)
            with warnings.catch_warnings():
                # An operation that PyTorch cannot batch is looped over, as without blocks.
                warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
                images += self.parameters.join(term.multiply(parts, self._chosen, batched=True))

    def _width(self) -> int:
        room = self.setting.memory / 4 / max(self._terms.chunk_bytes, 1.0)
        return max(2, min(WIDEST, int(room)))

    def _use_blocks(self, term: Term, rows: Tensor) -> bool:
        """Decide once, by a trial on the first term, whether blocks are faster."""
        if self._blocks_pay is None:
            trial = rows[:TRIAL]
            single = _seconds(lambda: self._add_vectors(term, trial, torch.zeros_like(trial)))
            try:
                block = _seconds(lambda: self._add_blocks(term, trial, torch.zeros_like(trial)))
            except RuntimeError:
                block = float("inf")
            # All ranks must choose alike, or their sums would differ in the last digit.
            single = ranks.sum_number(single, self.device)
            block = ranks.sum_number(block, self.device)
            self._blocks_pay = block < CLEARLY * single
        return self._blocks_pay


class ModelHessian(ModelOperator):
    """The Hessian of a model's loss; ``H.ggn`` is its Gauss–Newton part."""

    def _moved(self, batch: Any, leaves: tuple[Tensor, ...]) -> Sequence[Tensor]:
        total, _ = self.setting.snapshot.run(self.setting.criterion.total, batch, leaves=leaves)
        return torch.autograd.grad(total, leaves, materialize_grads=True)

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
        with torch.no_grad():
            there = self.setting.snapshot.run(predict, inputs, leaves=leaves)
        here = self.setting.snapshot.run(predict, inputs)
        bent = criterion.hessian(here, target)(there - here.detach())
        own = self.setting.snapshot.parameters.leaves
        return torch.autograd.grad(here, own, bent, materialize_grads=True)


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
    """DOC"""
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
    """DOC2"""
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
