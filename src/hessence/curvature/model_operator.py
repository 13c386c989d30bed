"""A matrix over the parameters of a PyTorch model, as an operator: a sum of terms over batches."""

from __future__ import annotations

import copy
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from hessence.curvature import ranks
from hessence.curvature.batch_parts import tensors_in
from hessence.curvature.checks import (
    HELD_ELSEWHERE,
    NOT_FINITE,
    Check,
    CheckWarning,
    check_products,
    perturbed,
)
from hessence.curvature.setting import Setting
from hessence.curvature.term_store import TermStore
from hessence.curvature.terms import Term
from hessence.notices import warn
from hessence.operators import Operator, require_finite
from hessence.precision import full_precision, reduced

WIDEST = 16
"""How many vectors go through a graph at once at most."""

TRIAL = 4
"""How many vectors the two ways to multiply are timed with."""

CLEARLY = 0.8
"""Blocks must take less than this share of the time of single vectors."""

BRIEF, REPEATS = 0.05, 5
"""A trial of less than so many seconds is repeated up to so many times."""


WHERE = "it comes from the data or the parameters, or the model overflows"

Method = TypeVar("Method", bound=Callable[..., Any])


def _recordable(method: Method) -> Method:
    """Leave inference mode, whose results cannot be part of a graph, and half precision."""

    @wraps(method)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if not reduced() and not torch.is_inference_mode_enabled():
            return method(*arguments, **named)
        with torch.inference_mode(mode=False), full_precision():
            return method(*arguments, **named)

    return cast(Method, wrapped)


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

    def join(self, parts: Mapping[str, Tensor] | Sequence[Tensor]) -> Tensor:
        """Make a vector (p,) of tensors shaped like the parameters: what ``split`` cut, undone.

        They are given by name, or in the order of the parameters, as gradients are.
        """
        if isinstance(parts, Mapping):
            if parts.keys() != set(self.parameters.names):
                wanted = ", ".join(self.parameters.names[:3])
                raise ValueError(f"parts must have the names of the parameters, {wanted}, ….")
            parts = [parts[name] for name in self.parameters.names]
        shapes = [tuple(part.shape) for part in parts]
        if shapes != [tuple(shape) for shape in self.parameters.shapes]:
            raise ValueError("parts must be tensors of the parameters' shapes, in their order.")
        return self.parameters.join(list(parts))

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

        Right is what finite differences of the gradient say, up to their own error. They are taken
        in double precision, if the model can be run in it. On the first batch only.
        """
        term, batch = self._terms.first()
        snapshot, mine = self.setting.snapshot, self.parameters
        mover, moved_batch = self._widened(batch)
        there = mover.setting.snapshot.parameters

        def without_padding(vector: Tensor) -> list[Tensor]:
            """Cut a vector into parts; PyTorch takes the padding of embeddings for constant."""
            parts = dict(zip(mine.names, mine.split(vector.clone()), strict=True))
            for name in parts.keys() & padding.keys():
                parts[name][padding[name]] = 0
            return list(parts.values())

        def multiply(v: Tensor) -> Tensor:
            image = mine.join(term.multiply(without_padding(v), self._chosen))
            return mine.join(without_padding(image))

        def move(step: Tensor) -> Tensor:
            leaves = list(there.leaves)
            moved = perturbed([leaves[i] for i in self._chosen], without_padding(step))
            for i, leaf in zip(self._chosen, moved, strict=True):
                leaves[i] = leaf
            slopes = mover._moved(moved_batch, tuple(leaves))
            return mine.join(without_padding(mine.join([slopes[i] for i in self._chosen])))

        def loss() -> float:
            return float(snapshot.run(self.setting.criterion.total, batch)[0].detach())

        padding = snapshot.padding_rows
        own = set(snapshot.own_names)
        movable = all(name in own for name in mine.names)
        size = float(torch.stack([leaf.detach().norm() for leaf in mine.leaves]).norm())
        reference = torch.zeros(mine.size, dtype=self.dtype, device=self.device)
        precision = there.leaves[0].dtype
        checked = check_products(
            multiply, move if movable else None, loss, reference, size, rng, precision
        )
        elsewhere = snapshot.held_elsewhere(snapshot.run(self.setting.criterion.total, batch)[0])
        if elsewhere and checked.passed:
            return replace(checked, message=f"{HELD_ELSEWHERE}: {', '.join(elsewhere[:3])}.")
        return checked

    def require_sound(self) -> None:
        """Refuse a loss that is random or not finite, and warn of products that look wrong."""
        checked = self.check()
        if not checked.deterministic or checked.message == NOT_FINITE:
            tensors = tensors_in(self.setting.batches.first)
            owner = "data" if any(bool((t != t).any()) for t in tensors) else "model"
            raise ValueError(f"{owner}: {checked.message}")
        if not checked.passed:
            warn(f"products are suspect: {checked.message}", CheckWarning)

    def _widened(self, batch: Any) -> tuple[Self, Any]:
        """Return operator and batch in double precision, or as they are if that fails."""
        if self.dtype == torch.float64 or not set(self.parameters.names) <= set(
            self.setting.snapshot.own_names
        ):
            return self, batch
        try:
            twin, wide = copy.copy(self), tree_map(_wide, batch)
            twin.setting = self.setting.doubled()
            leaves = twin.setting.snapshot.parameters.leaves
            if all(slope.dtype == torch.float64 for slope in twin._moved(wide, leaves)):
                return twin, wide
        except Exception:  # from a model or a loss that is made for single precision
            pass
        return self, batch

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
        require_finite(result, WHERE)
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
        if len(rows) == 1 or not term.takes_blocks or not self._use_blocks(term, rows):
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
            single, block = self._trial(term, rows[:TRIAL])
            self._blocks_pay = block < CLEARLY * single
        return self._blocks_pay

    def _trial(self, term: Term, rows: Tensor) -> tuple[float, float]:
        """Return how long one by one and at once take; the shortest times where they are short.

        Short times scatter, and the choice should be the same whenever it is made.
        """
        image = torch.zeros_like(rows)
        single: list[float] = []
        block: list[float] = []
        while not single or (single[0] < BRIEF and len(single) < REPEATS):
            single.append(self._seconds(lambda: self._add_vectors(term, rows, image)))
            block.append(self._seconds(lambda: self._add_blocks(term, rows, image)))
        return min(single), min(block)

    def _seconds(self, work: Callable[[], None]) -> float:
        start = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start


def _wide(part: Any) -> Any:
    return part.double() if isinstance(part, Tensor) and part.is_floating_point() else part
