"""Losses that users write themselves: of predictions and targets, or of the model and a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from hessence._common.arrays import dtype_name
from hessence.models.batch_parts import (
    SEVERAL,
    copied,
    first_length,
    leaves_in,
    rebuilt,
    some_rows,
)
from hessence.models.criterion import Criterion, PairCriterion
from hessence.models.reduction_trial import ReductionTrial
from hessence.models.wave import wave

FEW = 8
"""How many samples of a batch are compared with the others at most."""

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
        value = _require_loss(self.function(prediction, copied(target)))
        if value.numel() > 1:
            return value.mean() * _samples(prediction, target)
        value = value.reshape(())
        return value * _samples(prediction, target) if self.averaged else value

    def count(self, prediction: Any, target: Any) -> float:
        """Return the number of samples."""
        return float(_samples(prediction, target))

    def settled(self, batches: Iterable[tuple[Any, Any]]) -> FunctionCriterion:
        """Find out from the batches whether the function is a mean over samples or a sum.

        With all data in one batch there is nothing to find out.

        Parameters
        ----------
        batches : iterable of (prediction, target)
            What the model makes of the batches, and their targets.
        """
        trial = ReductionTrial(torch.float64)
        for one, two in _parts(map(_wide, batches), besides=(bool, str)):
            trial.add(self._value, one, two)
            # Elsewhere too: where all samples have one loss, any mean is a mean over samples.
            trial.add(self._value, _elsewhere(one), _elsewhere(two))
        return FunctionCriterion(self.function, averaged=trial.averaged())

    def _value(self, batch: tuple[Any, Any]) -> Tensor:
        """Return the value in double precision, if the function can be called on that."""
        with torch.no_grad():
            try:
                value = self.function(*copied(batch))
            except Exception:  # of whatever kind, from what is made for single precision
                value = self.function(*_narrow(copied(batch)))
            return _require_loss(value).mean()


class ClosureCriterion(Criterion):
    """A function of (model, batch): a mean over samples, a sum, or a pair (mean, weight).

    Parameters
    ----------
    function : callable
        The function.
    averaged : bool
        Whether it is a mean.
    """

    def __init__(self, function: Callable[[nn.Module, Any], Any], *, averaged: bool = True) -> None:
        self._function, self.averaged = function, averaged

    def settled(
        self,
        runs: Sequence[Callable[..., Any]],
        batches: Callable[[], Iterable[Any]],
        precision: torch.dtype,
    ) -> ClosureCriterion:
        """Find out from the batches whether the closure is a mean over samples or a sum.

        There is no telling if the tensors of a batch differ in length, or there is more than
        tensors and texts in it; the closure is then taken for a mean, with a warning.

        Parameters
        ----------
        runs : sequence of callable
            Each calls a function of (model, batch) on a copy of the model's state; the next one is
            asked if the one before cannot tell.
        batches : callable
            Goes through the batches.
        precision : torch.dtype
            Of the model.
        """
        trial = ReductionTrial(precision)
        for run in runs:
            self._try(trial, partial(run, self._function), batches())
            if trial.decided:
                break
        return ClosureCriterion(self._function, averaged=trial.averaged())

    def _try(
        self, trial: ReductionTrial, value: Callable[[Any], Any], batches: Iterable[Any]
    ) -> None:
        """Compare values on parts of batches, as far as these can be cut."""
        rest = iter(batches)
        first = next(rest)
        if not trial.needless(value, first):
            for one, two in _parts(chain([first], rest), besides=(str,)):
                trial.add(value, one, two)

    def total(self, model: nn.Module, batch: Any) -> tuple[Tensor, float]:
        """Return the closure's value times the number of samples, or times its own weight."""
        value = self._function(model, batch)
        if not self.averaged:
            return _require_loss(value).reshape(()), float(first_length(batch))
        weight = float(first_length(batch)) if isinstance(value, Tensor) else None
        if isinstance(value, tuple) and len(value) == 2:
            weight = _number(value[1])
            if weight is not None:
                value = value[0]
        if weight is None:
            raise TypeError(
                "loss must return a mean over samples, or a pair (mean, weight) with a number for "
                f"the weight, got {_described(value)}."
            )
        if not 0 <= weight < math.inf:
            raise ValueError(f"loss must return a weight that is not negative, got {weight:g}.")
        value = _require_loss(value)
        if value.numel() > 1 and value.shape != (first_length(batch),):
            raise TypeError(
                "loss must return one number, or one for each sample, got a tensor of shape "
                f"{tuple(value.shape)}."
            )
        # The mean over nothing is not a number, and must not become a part of the sum.
        total = value.mean() * weight if weight else value.new_zeros(())
        return total, weight


def _parts(batches: Iterable[Any], besides: tuple[type, ...]) -> Iterator[tuple[Any, Any]]:
    """Yield parts of batches on which a mean over samples shows as such.

    Each batch is cut in two, and its first part goes with that of the batch before. A mean over
    something else, such as words, is one over samples if there are as many for each sample in both
    of every two; then there are in all of the data.
    """
    before = None
    for batch in batches:
        if not _can_cut(batch, besides):
            continue
        samples = first_length(batch)
        cut = max(1, min(FEW, samples // 3))
        part = some_rows(batch, slice(cut))
        yield part, some_rows(batch, slice(cut, None)) if samples > 1 else part
        if before is not None:
            yield before, part
        before = part


def _can_cut(batch: Any, besides: tuple[type, ...]) -> bool:
    """Whether a batch is of tensors and lists with as many samples each, or of these besides."""
    leaves = leaves_in(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    lists = [leaf for leaf in leaves if isinstance(leaf, (list, tuple))]
    known = all(isinstance(leaf, (*SEVERAL, type(None), *besides)) for leaf in leaves)
    if not known or not tensors or any(t.ndim == 0 or t.layout != torch.strided for t in tensors):
        return False
    return len({len(leaf) for leaf in (*tensors, *lists)}) == 1


def _wide(batch: Any) -> Any:
    """Return real tensors in double precision, in which a small difference shows."""

    def wide(leaf: Any) -> Any:
        if not _is_real(leaf):
            return leaf
        return leaf.detach() if leaf.numel() > LARGE else leaf.detach().double()

    return rebuilt(wide, batch)


def _narrow(batch: Any) -> Any:
    return rebuilt(lambda leaf: leaf.float() if _is_real(leaf) else leaf, batch)


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _samples(prediction: Any, target: Any) -> int:
    return first_length([prediction, target])


def _elsewhere(batch: Any) -> Any:
    """Move real numbers, each in its own way, and probabilities to others."""
    places = count()

    def moved(leaf: Any) -> Any:
        place = next(places)
        # Predictions and targets that are the same must not stay so.
        return 0.9 * leaf + 0.05 + 0.04 * wave(leaf, phase=2.0 * place) if _is_real(leaf) else leaf

    return rebuilt(moved, batch)


def _number(weight: Any) -> float | None:
    """Return a number or a tensor of one as a number, and None for anything else."""
    if isinstance(weight, Tensor):
        return float(weight.detach()) if weight.numel() == 1 else None
    return float(weight) if isinstance(weight, Real) else None


def _described(value: Any) -> str:
    kinds = [type(part).__name__ for part in value] if isinstance(value, tuple) else []
    return f"a tuple of {', '.join(kinds)}" if kinds else type(value).__name__


def _require_loss(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = dtype_name(value) if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"loss must return a tensor of real numbers, got {kind}.")
    return value
