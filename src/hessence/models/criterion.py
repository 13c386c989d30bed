"""What a loss has to tell: a total and a count for each batch, and its second derivative."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from hessence.models import loss_curvature
from hessence.models.loss_curvature import LossHessian


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
        """Return the total over the batch, and its count."""
        inputs, target = batch
        prediction = predict(model, inputs)
        return self.sum(prediction, target), self.count(prediction, target)

    @abstractmethod
    def sum(self, prediction: Any, target: Any) -> Tensor:
        """Return the total of a batch."""

    @abstractmethod
    def count(self, prediction: Any, target: Any) -> float:
        """Return what the totals are to be divided by."""

    def mean(self, prediction: Any, target: Any) -> Tensor:
        """Return the loss if these are all predictions and targets."""
        total = self.sum(prediction, target)
        return total / self.count(prediction, target) if self.averaged else total

    def hessian(self, prediction: Tensor, target: Any) -> LossHessian:
        """Return how the total's second derivative in the prediction acts on a direction."""
        return loss_curvature.by_autograd(lambda p: self.sum(p, target), prediction)

    def half_mse_factor(self, prediction: Tensor, target: Any) -> float | None:
        """Return c if the loss is c · ½ E‖f − y‖², the norm over all outputs; else None."""
        return None


def predict(model: nn.Module, inputs: Any) -> Any:
    """Call the model: with a tensor, with several as arguments, or with a dictionary by name."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    several = isinstance(inputs, (tuple, list)) and not isinstance(inputs, PackedSequence)
    return model(*inputs) if several else model(inputs)
