"""What a check of an operator's products needs: products and gradients on one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from hessence._common.arguments import Seed
from hessence.models._differences import Differences
from hessence.models._model_copy import ModelCopy
from hessence.models._parameters import Parameters
from hessence.models._problem import Problem
from hessence.models._products import Graph
from hessence.models.batch_parts import can_join, first_length, joined, some_rows, widened
from hessence.models.checks import Check, agree, is_symmetric, outcome, unit_vectors
from hessence.models.criterion import FunctionCriterion, OwnCriterion, predict
from hessence.models.data import Batches
from hessence.models.rounding import measured

COMPARED = 4
"""How many batches are joined with the first one to see whether losses combine as declared."""

MISFIT = (
    "the loss of two batches together is not the combination of their losses that was asked for, "
    "as if it were a mean over targets that are not ignored, or over words: return a pair (mean, "
    "weight), the weight being how many the mean is over, or give all data as one batch."
)

COUPLED = (
    "predictions for two batches together are not those for each: the model normalises over the "
    "batch, or its samples interact in another way, so the loss depends on how they are batched; "
    "give all data as one batch."
)

SAME_LOSS = 1e-4
"""How much the loss may differ between kernels, beside its own size and one for each sample."""

OTHER_LOSS = (
    "the loss as it is differentiated is not the loss that PyTorch computes: a kernel that stands "
    "in for one of PyTorch's is wrong for this model. Please report it."
)

Moved = Callable[[Problem, Any, ModelCopy], Sequence[Tensor]]
"""What changes by a product, to first order, when a copy's parameters have moved, on a batch."""


class BatchCheck:
    """Products of an operator on one batch, and what finite differences take instead.

    PyTorch takes the padding of embeddings for constant, so it has no part in either.

    Parameters
    ----------
    problem : Problem
        Model and loss.
    chosen : sequence of int
        Which of the parameters the operator is for.
    build : callable
        Makes a batch's share of the operator.
    graph : Graph
        That of the batch.
    batch : object
        The batch.
    moved : callable
        See ``Moved``.
    """

    def __init__(
        self,
        problem: Problem,
        chosen: Sequence[int],
        build: Callable[[Any], Graph],
        graph: Graph,
        batch: Any,
        moved: Moved,
    ) -> None:
        self._problem, self._chosen, self._graph, self._batch = problem, chosen, graph, batch
        self._build, self._moved = build, moved
        self._parameters: Parameters = problem.copy.parameters.restricted(chosen)
        self._padding = problem.copy.padding_rows
        self._mover, self._moved_batch = self._widened()
        self._there = self._mover.copy.clone() if self._is_the_models else self._mover.copy

    def check(self, rng: Seed) -> Check:
        """Compare products with finite differences, up to the errors of both."""
        problem, leaves = self._problem, self._parameters.leaves
        u, v = unit_vectors(leaves[0].new_zeros(self._parameters.size).detach(), rng)
        image_u, image_v = self._multiply(self._graph, u), self._multiply(self._graph, v)
        norm = float(image_u.norm() + image_v.norm())
        symmetry = abs(float(u @ image_v) - float(v @ image_u)) / norm if norm else 0.0
        rounding = 0.0
        if not is_symmetric(symmetry, u.dtype):
            rounding = (self._rounding(u) + self._rounding(v)) / norm
        size = float(torch.stack([leaf.detach().norm() for leaf in leaves]).norm())
        difference = uncertainty = None
        if self._is_the_models:
            difference, uncertainty = self._compare(v, image_v, size)
        total, _ = problem.copy.run(problem.criterion.total, self._batch)
        finite = math.isfinite(float(total.detach())) and math.isfinite(size)
        steady = problem.is_steady(self._batch)
        found = outcome(steady, finite, symmetry, difference, uncertainty, u.dtype, rounding)
        if found.passed and not self._is_pytorchs():
            return replace(found, passed=False, message=OTHER_LOSS)
        return found

    def _compare(self, v: Tensor, image: Tensor, size: float) -> tuple[float, float]:
        """Return the distance of Hv from finite differences and the error of both, relative.

        What rounding does is measured only where they would disagree without it.
        """
        wide = self._mover.copy.parameters.leaves[0].dtype
        differences = Differences(self._move, v.to(wide), size)
        found = differences.distance(image.to(wide))
        if agree(*found, v.dtype):
            return found
        differences.refine(lambda step: measured(partial(self._move, step), wide, draws=1))
        return differences.distance(image.to(wide), self._rounding(v))

    def _is_pytorchs(self) -> bool:
        """Whether kernels with second derivatives compute the loss that PyTorch's own do.

        Finite differences use the same kernels as products do, and would not tell.
        """
        copy, batch = self._problem.copy, self._batch

        def total(run: Callable[..., Any]) -> Tensor:
            found = run(self._problem.criterion.total, batch)
            numbers = [float(torch.as_tensor(part).detach()) for part in found]
            return torch.tensor(numbers, dtype=torch.float64)

        (mine, count), (theirs, _) = (total(run).tolist() for run in (copy.run, copy.run_plainly))
        gap = abs(mine - theirs) - SAME_LOSS * (abs(theirs) + abs(count))
        if gap <= 0:
            return True
        dtype = self._parameters.leaves[0].dtype
        runs = copy.run, copy.run_plainly
        return bool(gap <= sum(measured(partial(total, run), dtype) for run in runs))

    def _rounding(self, v: Tensor) -> float:
        """Return what rounding may do to a product, in norm."""
        return measured(lambda: self._multiply(self._build(self._batch).plain, v), v.dtype)

    @property
    def _is_the_models(self) -> bool:
        return self._problem.copy.owned and not self._parameters.foreign

    def _multiply(self, graph: Graph, v: Tensor) -> Tensor:
        parts = graph.multiply(self._without_padding(v), self._chosen)
        return self._parameters.join(self._without_padding(self._parameters.join(parts)))

    def _move(self, step: Tensor) -> Tensor:
        values = [leaf.detach() for leaf in self._mover.copy.parameters.leaves]
        for i, part in zip(self._chosen, self._without_padding(step), strict=True):
            values[i] = values[i] + part
        self._there.move(values)
        gradients = self._moved(self._mover, self._moved_batch, self._there)
        image = self._parameters.join([gradients[i] for i in self._chosen])
        return self._parameters.join(self._without_padding(image))

    def _without_padding(self, vector: Tensor) -> list[Tensor]:
        """Cut a vector into parts, with zeros for padding."""
        cut = self._parameters.split(vector.clone())
        parts = dict(zip(self._parameters.names, cut, strict=True))
        for name in parts.keys() & self._padding.keys():
            parts[name][self._padding[name]] = 0
        return list(parts.values())

    def _widened(self) -> tuple[Problem, Any]:
        """Return problem and batch in double precision, or as they are if that fails."""
        double = self._parameters.leaves[0].dtype == torch.float64
        if double or not self._is_the_models:
            return self._problem, self._batch
        try:
            problem, batch = self._problem.doubled(), widened(self._batch)
            gradients = self._moved(problem, batch, problem.copy)
            if all(gradient.dtype == torch.float64 for gradient in gradients):
                return problem, batch
        except Exception:
            # The model or the loss is made for single precision only.
            pass
        return self._problem, self._batch


def misfit(problem: Problem) -> str | None:
    """Say so if the loss of two batches together is not the combination that was declared.

    The first batch is joined with a few others; where they differ in shape, it is cut in two.
    PyTorch's losses are known to combine, so that only predictions are compared for them.
    """
    if problem.coupled:
        return COUPLED
    if not isinstance(problem.criterion, OwnCriterion):
        return None
    first, *others = _spread(problem.batches)
    pairs = [(first, other) for other in others]
    if others and can_join(first) and first_length(first) > 1:
        middle = first_length(first) // 2
        pairs.append((some_rows(first, slice(middle)), some_rows(first, slice(middle, None))))
    for one, two in pairs:
        if can_join(one) and can_join(two) and not _fits(problem, one, two):
            return MISFIT
    return None


def _spread(batches: Batches) -> list[Any]:
    """Return the first batch and a few others, from all over the data if they are kept."""
    if batches.kept is None:
        return list(islice(batches, 2))
    step = max(1, (len(batches.kept) - 1) // COMPARED)
    return [batches.kept[0], *batches.kept[1::step][:COMPARED]]


def _fits(problem: Problem, one: Any, two: Any) -> bool:
    """Whether the loss of two batches together is the combination of their losses."""
    criterion, copy = problem.criterion, problem.copy
    with torch.no_grad():
        if isinstance(criterion, FunctionCriterion):
            # A model may treat samples differently in a larger batch, which is not about the loss.
            one, two = ((copy.run(predict, x), y) for x, y in (one, two))
            if not (can_join(one) and can_join(two)):
                return True
        try:
            both = joined(one, two)
        except (RuntimeError, ValueError):
            # Samples of other shapes cannot be joined.
            return True
        (total, count), *parts = (_measured(problem, batch) for batch in (both, one, two))
    parts_total, parts_count = (sum(values) for values in zip(*parts, strict=True))
    if not criterion.averaged:
        count = parts_count = 1.0
    if not count or not parts_count or not math.isfinite(total / count):
        return True
    eps = torch.finfo(copy.parameters.leaves[0].dtype).eps
    size = sum(abs(value) for value, _ in parts) / parts_count
    return bool(abs(total / count - parts_total / parts_count) <= 1e3 * eps * size)


def _measured(problem: Problem, batch: Any) -> tuple[float, float]:
    """Return total and count of a batch, or of a prediction and its target."""
    criterion = problem.criterion
    if isinstance(criterion, FunctionCriterion):
        prediction, target = batch
        return float(criterion.sum(prediction, target)), criterion.count(prediction, target)
    total, count = problem.copy.run(criterion.total, batch)
    return float(total), count
