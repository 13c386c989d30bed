"""Losses that users write themselves: of predictions and targets, or of the model and a batch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from hessence.curvature import ranks
from hessence.curvature.batch_parts import first_length, tensors_in
from hessence.curvature.criterion import Criterion, PairCriterion
from hessence.curvature.parameters import wave

NOT_A_REDUCTION = (
    "loss must be a mean or a sum over samples for data in several batches, but its value on some "
    "samples is neither the mean nor the sum of its values on two parts of them, as if it were a "
    "mean over targets that are not ignored, or over words; give all data as one batch, a torch.nn "
    "loss, or a closure loss(model, batch) that returns a pair (mean, weight), the weight being "
    "how many the mean is over."
)

UNTOLD = (
    "whether the loss is a mean or a sum over samples cannot be found out on these batches, and it "
    "is taken for a mean; to be sure, return a pair (mean, weight) from a closure "
    "loss(model, batch)."
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
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Tensor],
        *,
        averaged: bool = True,
    ) -> None:
        self.function = function
        self.averaged = averaged

    def sum(self, prediction: Any, target: Any) -> Tensor:
        """Return the mean times the count, or the sum."""
        # On a copy, since the function may write to it.
        value = _require_loss(self.function(prediction, tree_map(_copied, target)))
        if value.numel() > 1:
            return value.mean() * _samples(prediction, target)
        value = value.reshape(())
        return value * _samples(prediction, target) if self.averaged else value

    def count(self, prediction: Any, target: Any) -> float:
        """Return the number of samples."""
        return float(_samples(prediction, target))

    def settled(self, pairs: Iterable[tuple[Any, Any]]) -> FunctionCriterion:
        """Find out from the batches whether the function is a mean over samples or a sum.

        Each is cut in two; and some samples of each are joined with some of the batch before, which
        may have another number of what the mean is over, such as words. With all data in one batch
        there is nothing to find out.

        Parameters
        ----------
        pairs : iterable of (prediction, target)
            Of the batches.
        """
        trial = _Trial()
        before = None
        for prediction, target in pairs:
            batch = _wide((prediction, target))
            if not _is_cut(*batch):
                continue
            samples, few = _samples(*batch), _rows(batch, slice(FEW))
            half = max(1, samples // 2)
            first = _rows(batch, slice(half))
            rest = _rows(batch, slice(half, None)) if samples > 1 else first
            # Elsewhere too: where all samples have one loss, any mean is a mean over samples.
            for move in (lambda part: part, _elsewhere):
                trial.add(self._value, *(tree_map(move, part) for part in (first, rest)))
                if before is not None:
                    trial.add(self._value, *(tree_map(move, part) for part in (before, few)))
            before = few
        return FunctionCriterion(self.function, averaged=trial.averaged())

    def _value(self, batch: tuple[Any, Any]) -> Tensor:
        """Return the value in double precision, if the function can be called on that."""
        with torch.no_grad():
            try:
                value = self.function(*tree_map(_copied, batch))
            except Exception:  # of whatever kind, from what is made for single precision
                value = self.function(*_narrow(batch))
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
        trial = _Trial()
        for run in runs:
            self._try(trial, partial(run, self._function), batches())
            if trial.decided:
                break
        return ClosureCriterion(self._function, averaged=trial.averaged(), decided=True)

    def _try(self, trial: _Trial, value: Callable[[Any], Any], batches: Iterable[Any]) -> None:
        """Compare values on parts of batches, as far as these can be cut."""
        before = None
        for batch in batches:
            samples = first_length(batch)
            leaves = tree_leaves(batch)
            can_cut = all(leaf is None or isinstance(leaf, (str, Tensor)) for leaf in leaves)
            if not can_cut or {t.shape[:1] for t in tensors_in(batch)} != {(samples,)}:
                continue
            cut = max(1, samples // 3)
            part = _rows(batch, slice(cut))
            trial.add(value, part, _rows(batch, slice(cut, None)) if samples > 1 else part)
            if before is not None:
                trial.add(value, before, part)
            before = part

    def total(self, model: nn.Module, batch: Any) -> tuple[Tensor, float]:
        """Return the closure's value times the number of samples, or times its own weight."""
        value = self._function(model, batch)
        if not self.averaged:
            return _require_loss(value).reshape(()), float(first_length(batch))
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


class _Trial:
    """Tries whether a loss is a mean over samples, or a sum, by its values on parts of batches."""

    def __init__(self) -> None:
        self._possible = {True, False}
        self._tried = self._missed = self._told = False

    @property
    def decided(self) -> bool:
        """Whether it cannot be both any more."""
        return len(self._possible) < 2

    def add(self, value: Callable[[Any], Any], first: Any, second: Any) -> None:
        """Compare the value on two parts with that on both."""
        try:
            both = _joined(first, second)
        except (RuntimeError, ValueError):  # of samples of other shapes
            self._missed = True
            return
        try:
            whole, one, two = (value(part) for part in (both, first, second))
        except Exception:  # on what is too few samples for it, or out of its domain
            return
        self._tried = True
        if not all(isinstance(v, Tensor) and v.numel() == 1 for v in (whole, one, two)):
            # A pair (mean, weight), or one number for each sample: there is nothing to find out.
            self._told = True
            return
        share = first_length(first) / first_length(both)
        self._possible &= _reductions(whole, one, two, share)

    def averaged(self) -> bool:
        """Return whether it is a mean; refuse what is neither, and warn where nothing told."""
        # All ranks together: they must not decide each for itself.
        everyone = ranks.gather(self) if ranks.parallel() else [self]
        possible = set.intersection(*(trial._possible for trial in everyone))
        if not possible:
            raise ValueError(NOT_A_REDUCTION)
        tried = any(trial._tried for trial in everyone)
        missed = any(trial._missed and not trial._told for trial in everyone)
        # A mean over words looks like one over samples, but a sum like nothing else.
        if True in possible and (missed or not tried):
            warnings.warn(UNTOLD, stacklevel=6)
        return True in possible


def _reductions(whole: Tensor, first: Tensor, second: Tensor, share: float) -> set[bool]:
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
    def cut(leaf: Any) -> Any:
        return leaf[rows] if isinstance(leaf, (Tensor, list)) else leaf

    return tree_map(cut, batch, is_leaf=_is_texts)


def _joined(first: Any, second: Any) -> Any:
    def join(a: Any, b: Any) -> Any:
        if isinstance(a, Tensor):
            return torch.cat([a, b])
        return a + b if isinstance(a, list) else a

    return tree_map(join, first, second, is_leaf=_is_texts)


def _is_texts(part: Any) -> bool:
    """Whether this is a text for each sample."""
    return isinstance(part, list) and all(isinstance(text, str) for text in part)


def _samples(prediction: Any, target: Any) -> int:
    return first_length([prediction, target])


def _elsewhere(leaf: Any) -> Any:
    """Move real numbers, each in its own way, and probabilities to others."""
    if not _is_real(leaf):
        return leaf
    return 0.9 * leaf + 0.05 + 0.04 * wave(leaf)


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


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
