"""``H.check()``: products on one batch beside finite differences, and losses of joined batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from hessence._common.arguments import Seed
from hessence.models._differences import Differences
from hessence.models._parameters import Parameters, length
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


class BatchCheck:
    """Products of an operator on its first batch, and what finite differences say instead.

    PyTorch takes the padding of embeddings for constant, so it has no part in either. The operator
    is a ``ModelOperator``.
    """

    def __init__(self, operator: Any) -> None:
        self._problem: Problem = operator.problem
        self._parameters: Parameters = operator.parameters
        self._chosen, self._moved = operator._chosen, operator._moved
        self._build = operator._graphs.build
        self._graph, self._batch = operator._graphs.first()
        copy = self._problem.copy
        self._padding, self._movable = (
            copy.padding_rows,
            copy.owned and not self._parameters.foreign,
        )
        self._mover, self._moved_batch = self._widened()
        self._there = self._mover.copy.clone() if self._movable else self._mover.copy

    def check(self, rng: Seed) -> Check:
        """Compare products with finite differences, up to the errors of both."""
        problem, leaves = self._problem, self._parameters.leaves
        u, v = unit_vectors(leaves[0].new_zeros(self._parameters.size).detach(), rng)
        image_u, image_v = self._multiply(self._graph, u), self._multiply(self._graph, v)
        norm = float(length(image_u) + length(image_v))
        symmetry = abs(float(u @ image_v) - float(v @ image_u)) / norm if norm else 0.0
        rounding = 0.0
        if not is_symmetric(symmetry, u.dtype):
            rounding = (self._rounding(u) + self._rounding(v)) / norm
        size = float(length(torch.stack([length(leaf.detach()) for leaf in leaves])))
        difference = uncertainty = None
        if self._movable:
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
        runs = self._problem.copy.run, self._problem.copy.run_plainly

        def total(run: Callable[..., Any]) -> Tensor:
            found = run(self._problem.criterion.total, self._batch)
            numbers = [float(torch.as_tensor(part).detach()) for part in found]
            return torch.tensor(numbers, dtype=torch.float64)

        (mine, count), (theirs, _) = (total(run).tolist() for run in runs)
        gap = abs(mine - theirs) - SAME_LOSS * (abs(theirs) + abs(count))
        dtype = self._parameters.leaves[0].dtype
        return bool(gap <= 0 or gap <= sum(measured(partial(total, run), dtype) for run in runs))

    def _rounding(self, v: Tensor) -> float:
        """Return what rounding may do to a product, in norm."""
        return measured(lambda: self._multiply(self._build(self._batch), v), v.dtype)

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
        if self._movable and self._parameters.leaves[0].dtype != torch.float64:
            # The model or the loss may be made for single precision only, and raise anything.
            with suppress(Exception):
                problem, batch = self._problem.doubled(), widened(self._batch)
                gradients = self._moved(problem, batch, problem.copy)
                if all(gradient.dtype == torch.float64 for gradient in gradients):
                    return problem, batch
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
    criterion, run = problem.criterion, problem.copy.run

    def total_and_count(batch: Any) -> tuple[float, float]:
        if isinstance(criterion, FunctionCriterion):
            total, count = criterion.evaluate(*batch)
        else:
            total, count = run(criterion.total, batch)
        return float(total.detach()), count

    with torch.no_grad():
        if isinstance(criterion, FunctionCriterion):
            # A model may treat samples differently in a larger batch, which is not about the loss.
            one, two = ((run(predict, x), y) for x, y in (one, two))
            if not (can_join(one) and can_join(two)):
                return True
        try:
            both = joined(one, two)
        except (RuntimeError, ValueError):
            # Samples of other shapes cannot be joined.
            return True
        (total, count), *parts = map(total_and_count, (both, one, two))
    parts_total, parts_count = (sum(values) for values in zip(*parts, strict=True))
    if not criterion.averaged:
        count = parts_count = 1.0
    if not count or not parts_count or not math.isfinite(total / count):
        return True
    eps = torch.finfo(problem.copy.parameters.leaves[0].dtype).eps
    size = sum(abs(value) for value, _ in parts) / parts_count
    return bool(abs(total / count - parts_total / parts_count) <= 1e3 * eps * size)
