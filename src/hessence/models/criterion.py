"""What a loss has to tell: a total and a count for each batch, and its second derivative.

The loss of all data is the sum of the totals, divided by the sum of the counts if the loss is an
average. Batches of unequal size, in any order, then give the loss of the whole data set, which
averaging the batches' means would not.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from hessence._common.arrays import dtype_name
from hessence.models import _loss_hessian as loss_hessian
from hessence.models._exact_kernels import with_exact_kernels
from hessence.models._loss_hessian import LossHessian
from hessence.models.batch_parts import copied, first_length

Reduction = Literal["mean", "sum"]

UNTOLD = (
    'loss: with several batches say reduction="mean" if it returns a mean over the samples of a '
    'batch, or reduction="sum"; if it is a mean over something else, such as words or targets that '
    "are not ignored, return a pair (mean, weight), the weight being how many the mean is over."
)


class Criterion(ABC):
    """A loss of a model on a batch."""

    averaged: bool
    """Whether the totals are divided by the counts."""

    def doubled(self) -> Self:
        """Return the same for predictions in double precision."""
        return self

    @abstractmethod
    def total(self, model: nn.Module, batch: Any) -> tuple[Tensor, float]:
        """Return the total over the batch, and its count."""


class PairCriterion(Criterion):
    """A loss of predictions and targets: batches are pairs (input, target)."""

    separable = False
    """Whether samples are known not to interact, so that batches may be merged and split."""

    def total(self, model: nn.Module, batch: Any) -> tuple[Tensor, float]:
        inputs, target = batch
        prediction = predict(model, inputs)
        return self.sum(prediction, target), self.count(prediction, target)

    @abstractmethod
    def sum(self, prediction: Any, target: Any) -> Tensor:
        """Return the total of a batch."""

    @abstractmethod
    def count(self, prediction: Any, target: Any) -> float:
        """Return what the totals are to be divided by."""

    def gradient(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the total's gradient in the prediction."""
        z = prediction.detach().requires_grad_()

        def differentiated() -> Any:
            total = self.sum(z, target)
            if not total.requires_grad:
                return torch.zeros_like(prediction)
            return torch.autograd.grad(total, z, materialize_grads=True)[0]

        found: Tensor = with_exact_kernels(differentiated)
        return found

    def hessian(self, prediction: Tensor, target: Any) -> LossHessian:
        """Return how the total's second derivative in the prediction acts on a direction."""
        return loss_hessian.by_autograd(lambda p: self.sum(p, target), prediction)

    def half_mse_factor(self, prediction: Tensor, target: Any) -> float | None:
        """Return c if the loss is c · ½ E‖f − y‖², the norm over all outputs; else None."""
        return None


def predict(model: nn.Module, inputs: Any) -> Any:
    """Call the model: with a tensor, with several as arguments, or with a mapping.

    A mapping is given by name where the model has arguments of these names, else as it is.
    """
    if isinstance(inputs, Mapping):
        return model(**inputs) if _takes_by_name(model, inputs) else model(inputs)
    several = isinstance(inputs, (tuple, list)) and not isinstance(inputs, PackedSequence)
    return model(*inputs) if several else model(inputs)


def _takes_by_name(model: nn.Module, inputs: Mapping[Any, Any]) -> bool:
    try:
        inspect.signature(model.forward).bind(**inputs)
    except TypeError:
        return False
    except ValueError:
        pass  # what is compiled in C++ does not tell its arguments
    return True


class OwnCriterion(Criterion):
    """A function that a user has written.

    It returns a mean over samples, a sum, one number for each sample, of which the mean is taken,
    or a pair (mean, weight). Where there are several batches, `reduction` must say which.
    """

    def __init__(
        self, function: Callable[..., Any], reduction: Reduction | None, *, several: bool
    ) -> None:
        self._function, self.averaged = function, reduction != "sum"
        self._untold = several and reduction is None

    def _total(self, value: Any, samples: Callable[[], int]) -> tuple[Tensor, float]:
        """Read what the function has returned for so many samples as a total and a count."""
        single = isinstance(value, Tensor) and value.numel() == 1
        if self._untold and single and (value.ndim == 0 or samples() > 1):
            raise ValueError(UNTOLD)
        weight: float | None = None
        if isinstance(value, tuple) and len(value) == 2 and self.averaged:
            weight = _number(value[1])
            value = value[0] if weight is not None else value
        if isinstance(value, tuple):
            wanted = "a mean over samples, or a pair (mean, weight) with a number for the weight"
            kinds = ", ".join(type(part).__name__ for part in value)
            raise TypeError(
                f"loss must return {wanted if self.averaged else 'a sum'}, got a tuple of {kinds}."
            )
        if weight is not None and not 0 <= weight < math.inf:
            raise ValueError(f"loss must return a weight that is not negative, got {weight:g}.")
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = dtype_name(value) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"loss must return a tensor of real numbers, got {kind}.")
        if not self.averaged:
            return value.sum(), 1.0
        weight = float(samples()) if weight is None else weight
        # The mean over nothing is not a number, and must not become a part of the sum.
        return value.mean() * weight if weight else value.new_zeros(()), weight


class FunctionCriterion(OwnCriterion, PairCriterion):
    """A function of (prediction, target)."""

    def total(self, model: nn.Module, batch: Any) -> tuple[Tensor, float]:
        inputs, target = batch
        return self.evaluate(predict(model, inputs), target)

    def sum(self, prediction: Any, target: Any) -> Tensor:
        """Return the mean times the count, or the sum."""
        return self.evaluate(prediction, target)[0]

    def count(self, prediction: Any, target: Any) -> float:
        """Return the number of samples, or the function's own weight."""
        with torch.no_grad():
            return self.evaluate(prediction, target)[1]

    def evaluate(self, prediction: Any, target: Any) -> tuple[Tensor, float]:
        """Return the total of predictions, and its count."""
        return self.read(self.call(prediction, target), prediction, target)

    def call(self, prediction: Any, target: Any) -> Any:
        """Return what the function returns."""
        # On a copy, since the function may write to it.
        return self._function(prediction, copied(target))

    def read(self, value: Any, prediction: Any, target: Any) -> tuple[Tensor, float]:
        """Return the total and the count that the function's value stands for."""
        return self._total(value, lambda: first_length([prediction, target]))


class ClosureCriterion(OwnCriterion):
    """A function of (model, batch)."""

    def total(self, model: nn.Module, batch: Any) -> tuple[Tensor, float]:
        """Return the closure's value times the number of samples, or times its own weight."""
        try:
            value = self._function(model, batch)
        except AttributeError as error:
            if error.obj is not model:
                raise
            raise TypeError(
                f"loss, called as loss(model, batch) since batches are not pairs (input, target), "
                f"found no {error.name!r} in the model; for that of the model's output give "
                f"lambda model, batch: model(**batch).{error.name}."
            ) from error
        total = self._total(value, lambda: first_length(batch))
        each = value.shape if isinstance(value, Tensor) and value.numel() > 1 else None
        if each is not None and each != (first_length(batch),):
            raise TypeError(
                "loss must return one number, or one for each sample, got a tensor of shape "
                f"{tuple(each)}."
            )
        return total


def _number(weight: Any) -> float | None:
    """Return a number or a tensor of one as a number, and None for anything else."""
    if isinstance(weight, Tensor):
        return float(weight.detach()) if weight.numel() == 1 else None
    return float(weight) if isinstance(weight, Real) else None
