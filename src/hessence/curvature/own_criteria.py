"""Losses that users write themselves: of predictions and targets, or of the model and a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from hessence.curvature import ranks
from hessence.curvature.batch_parts import first_length, tensors_in
from hessence.curvature.criterion import Criterion, PairCriterion

NOT_A_REDUCTION = (
    "loss must be a mean or a sum over samples for data in several batches, but its value on some "
    "samples is neither the mean nor the sum of its values on two parts of them, as if it were a "
    "mean over targets that are not ignored, or over words; give all data as one batch, a torch.nn "
    "loss, or a closure loss(model, batch) that returns a pair (mean, weight), the weight being "
    "how many the mean is over."
)

FEW = 8
"""How many samples of a batch are joined with some of the next one."""

LARGE = 2**24
"""Tensors of more numbers than this are not copied to double precision."""


class FunctionCriterion(PairCriterion):
    """A function of (prediction, target): a mean over samples, or a sum where told so.

    If it returns one number for each sample or element, their mean is taken.

    Parameters
    ----------
    function : callable
        The function.
    averaged : bool
        Whether it is a mean.
    several : bool
        Whether there are several batches, on each of which it must then be what it is said to be.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Tensor],
        *,
        averaged: bool = True,
        several: bool = False,
    ) -> None:
        self.function = function
        self.averaged = averaged
        self._several = several

    def sum(self, prediction: Any, target: Any) -> Tensor:
        """Return the mean times the count, or the sum."""
        value = _require_loss(self.function(prediction, target))
        if value.ndim:
            return value.mean() * _samples(prediction, target)
        if self._several and self.averaged not in self._reductions(prediction, target):
            raise ValueError(NOT_A_REDUCTION)
        return value * _samples(prediction, target) if self.averaged else value

    def count(self, prediction: Any, target: Any) -> float:
        """Return the number of samples."""
        return float(_samples(prediction, target))

    def settled(self, pairs: Iterable[tuple[Any, Any]]) -> FunctionCriterion:
        """Find out from some batches whether the function is a mean over samples or a sum.

        Each is cut in two; and some samples of each are joined with some of the batch before, which
        may have another number of what the mean is over, such as words. With all data in one batch
        there is nothing to find out.

        Parameters
        ----------
        pairs : iterable of (prediction, target)
            Of the batches.
        """
        found, elsewhere = {True, False}, {True, False}
        before = None
        for prediction, target in pairs:
            here = _wide(prediction), _wide(target)
            if not _is_cut(*here):
                continue
            # At zero loss the two are the same: look elsewhere, but among probabilities.
            there = tree_map(_elsewhere, here[0]), here[1]
            found &= self._reductions(*here)
            elsewhere &= self._reductions(*there)
            few = _rows(here, slice(FEW))
            if before is not None and _alike(before, few):
                found &= self._parts(before, few)
            before = few
        found = _agreed(found & elsewhere if len(found) == 2 else found)
        if not found:
            raise ValueError(NOT_A_REDUCTION)
        return FunctionCriterion(self.function, averaged=True in found, several=True)

    def _reductions(self, prediction: Any, target: Any) -> set[bool]:
        """Return what it can be, a mean (True) or a sum, by its values on parts of a batch."""
        batch = _wide(prediction), _wide(target)
        if not _is_cut(*batch):
            return {True, False}
        samples = _samples(*batch)
        half = max(1, samples // 2)
        rest = _rows(batch, slice(half, None)) if samples > 1 else batch
        return self._parts(_rows(batch, slice(half)), rest)

    def _parts(self, first: Any, second: Any) -> set[bool]:
        """Return what it can be by its values on two parts and on both."""
        both = _joined(first, second)
        whole, one, two = (self._value(*part) for part in (both, first, second))
        return reductions(whole, one, two, _samples(*first) / _samples(*both))

    def _value(self, prediction: Any, target: Any) -> Tensor:
        """Return the value in double precision, if the function can be called on that."""
        with torch.no_grad():
            try:
                value = self.function(prediction, target)
            except RuntimeError:
                value = self.function(_narrow(prediction), _narrow(target))
            return _require_loss(value).mean()


class ClosureCriterion(Criterion):
    """A function of (model, batch): a mean over samples, a sum, or a pair (mean, weight).

    Parameters
    ----------
    function : callable
        The function.
    averaged : bool
        Whether it is a mean.
    decided : bool
        Whether that has been found out.
    """

    def __init__(
        self,
        function: Callable[[nn.Module, Any], Any],
        *,
        averaged: bool = True,
        decided: bool = False,
    ) -> None:
        self._function = function
        self.averaged, self.decided = averaged, decided

    def settled(
        self, runs: Sequence[Callable[..., Any]], batches: Callable[[], Iterable[Any]]
    ) -> ClosureCriterion:
        """Find out from some batches whether the closure is a mean over samples or a sum.

        Each is cut in two; and a part of each is joined with one of the batch before, which may
        have another number of what the mean is over, such as words. There is no telling if the
        tensors of a batch differ in length, or there is more than tensors in it; the closure is
        then taken for a mean.

        Parameters
        ----------
        runs : sequence of callable
            Each calls a function of (model, batch) on a copy of the model's state; the next one is
            asked if the one before cannot tell.
        batches : callable
            Goes through the batches.
        """
        found = {True, False}
        for run in runs:
            if len(found) == 2:
                found = self._tried(run, batches())
        found = _agreed(found)
        if not found:
            raise ValueError(NOT_A_REDUCTION)
        return ClosureCriterion(self._function, averaged=True in found, decided=True)

    def _tried(self, run: Callable[..., Any], batches: Iterable[Any]) -> set[bool]:
        """Return what it can be, a mean (True) or a sum, by its values on parts of batches."""
        found, before = {True, False}, None
        for batch in batches:
            samples = first_length(batch)
            leaves = tree_leaves(batch)
            only_tensors = all(leaf is None or isinstance(leaf, Tensor) for leaf in leaves)
            if not only_tensors or {t.shape[:1] for t in tensors_in(batch)} != {(samples,)}:
                continue
            cut = max(1, samples // 3)
            part = _rows(batch, slice(cut))
            rest = _rows(batch, slice(cut, None)) if samples > 1 else part
            found &= self._reductions(run, part, rest)
            if before is not None and _alike(before, part):
                found &= self._reductions(run, before, part)
            before = part
        return found

    def _reductions(self, run: Callable[..., Any], first: Any, second: Any) -> set[bool]:
        """Return what it can be, a mean (True) or a sum, by its values on two parts and on both."""
        both = _joined(first, second)
        try:
            whole, one, two = (run(self._function, part) for part in (both, first, second))
        except Exception:  # from a model that knows the number of samples
            return {True, False}
        if not all(isinstance(value, Tensor) and value.ndim == 0 for value in (whole, one, two)):
            return {True, False}
        return reductions(whole, one, two, first_length(first) / first_length(both))

    def total(self, model: nn.Module, batch: Any) -> tuple[Tensor, float]:
        """Return the closure's value times the number of samples, or times its own weight."""
        value = self._function(model, batch)
        if not self.averaged:
            return _require_loss(value), float(first_length(batch))
        weight = float(first_length(batch)) if isinstance(value, Tensor) else None
        if isinstance(value, tuple) and len(value) == 2:
            value, weight = value[0], _number(value[1])
        if weight is None:
            raise TypeError(
                "loss must return a mean over samples, or a pair (mean, weight) with a number for "
                f"the weight, got {type(value).__name__}."
            )
        value = _require_loss(value)
        if value.numel() > 1 and value.shape != (first_length(batch),):
            raise TypeError(
                "loss must return one number, or one for each sample, got a tensor of shape "
                f"{tuple(value.shape)}."
            )
        # The mean over nothing is not a number, and must not become a part of the sum.
        total = value.mean() * weight if weight else value.new_zeros(())
        return total, weight


def reductions(whole: Tensor, first: Tensor, second: Tensor, share: float) -> set[bool]:
    """Return what a loss can be, a mean (True) or a sum, by its values on a batch and its parts."""
    a, b = float(first.detach()), float(second.detach())
    tolerance = 1e3 * torch.finfo(whole.dtype).eps * (abs(a) + abs(b))
    expected = {True: share * a + (1 - share) * b, False: a + b}
    value = float(whole.detach())
    if not math.isfinite(value):
        return {True, False}
    if not math.isfinite(a + b):
        return set()  # a mean over nothing, on a part of which all is ignored
    return {kind for kind, guess in expected.items() if abs(guess - value) <= tolerance}


def _is_cut(prediction: Any, target: Any) -> bool:
    """Whether a batch can be cut: all tensors have as many samples, and there is nothing else."""
    leaves = [leaf for leaf in tree_leaves((prediction, target)) if not _is_plain(leaf)]
    samples = _samples(prediction, target)
    return all(isinstance(t, Tensor) and t.shape[:1] == (samples,) for t in leaves)


def _wide(batch: Any) -> Any:
    """Return real tensors in double precision, in which a small difference shows."""

    def wide(leaf: Any) -> Any:
        if not _is_real(leaf):
            return leaf
        return leaf.detach() if leaf.numel() > LARGE else leaf.detach().double()

    return tree_map(wide, batch)


def _narrow(batch: Any) -> Any:
    return tree_map(lambda leaf: leaf.float() if _is_real(leaf) else leaf, batch)


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _rows(batch: Any, rows: slice) -> Any:
    return tree_map(lambda leaf: leaf[rows] if isinstance(leaf, Tensor) else leaf, batch)


def _agreed(found: set[bool]) -> set[bool]:
    """Return what all ranks have found possible: they must not decide each for itself."""
    return set.intersection(*ranks.gather(found)) if ranks.parallel() else found


def _alike(first: Any, second: Any) -> bool:
    """Whether two batches of tensors can be joined."""
    one, two = tensors_in(first), tensors_in(second)
    return [t.shape[1:] for t in one] == [t.shape[1:] for t in two]


def _joined(first: Any, second: Any) -> Any:
    return tree_map(lambda a, b: torch.cat([a, b]) if isinstance(a, Tensor) else a, first, second)


def _samples(prediction: Any, target: Any) -> int:
    return first_length([prediction, target])


def _elsewhere(leaf: Any) -> Any:
    return 0.9 * leaf + 0.05 if _is_real(leaf) else leaf


def _is_plain(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, (bool, int, float, str))


def _number(weight: Any) -> float | None:
    """Return a number or a tensor of one as a number, and None for anything else."""
    if isinstance(weight, Tensor):
        return float(weight.detach()) if weight.numel() == 1 else None
    return float(weight) if isinstance(weight, (int, float)) else None


def _require_loss(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise TypeError(f"loss must return a tensor of real numbers, got {type(value).__name__}.")
    return value
