"""Losses as users give them, and what each means for data that come in batches.

A criterion turns one batch into a *total* and a *count*. The loss of all data is the sum of the
totals, divided by the sum of the counts if the loss is an average: over samples, over elements, or
over the class weights of the targets that are not ignored. Batches of unequal size, in any order,
then give the loss of the whole data set, which averaging the batches' means would not.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessence.curvature import loss_curvature
from hessence.curvature.loss_curvature import LossHessian
from hessence.losses import NAMED, PointwiseLoss, as_loss

ELEMENTWISE = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss, nn.SoftMarginLoss, nn.KLDivLoss, nn.HingeEmbeddingLoss,
)  # fmt: skip
"""Their mean is over elements. Most would let a target of another shape broadcast in silence."""

SAMPLEWISE = (nn.MultiLabelSoftMarginLoss, nn.MultiLabelMarginLoss, nn.MultiMarginLoss)
"""Their mean is over samples."""

CLASSWISE = (nn.CrossEntropyLoss, nn.NLLLoss)
"""Their mean is over the class weights of the targets that are not ignored."""

FUNCTIONS: dict[Callable[..., Any], type[nn.Module]] = {
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.kl_div: nn.KLDivLoss,
}
"""PyTorch's functions that are the same as one of its losses."""

MODEL_NAMES = frozenset({"model", "module", "net", "network"})
"""A function whose first parameter has one of these names is a closure."""


class Criterion(ABC):
    """A loss of a model on a batch."""

    averaged: bool
    """Whether the totals are divided by the counts."""

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


class TorchCriterion(PairCriterion):
    """One of PyTorch's losses, with its reduction and weights."""

    def __init__(self, loss: nn.Module, target: Any = None) -> None:
        self._loss = loss
        self.averaged = loss.reduction != "sum"
        self.separable = not _weighs_samples(loss, target)
        self._sum = copy.copy(loss)
        self._sum.reduction = "sum"  # type: ignore[assignment]

    @classmethod
    def knows(cls, loss: Any) -> bool:
        """Whether a loss is PyTorch's own; a subclass with another formula is not."""
        if not isinstance(loss, ELEMENTWISE + SAMPLEWISE + CLASSWISE) or loss.reduction == "none":
            return False
        own = {kind.forward for kind in ELEMENTWISE + SAMPLEWISE + CLASSWISE}
        return type(loss).forward in own

    def sum(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum that PyTorch's mean divides."""
        self._require_shapes(prediction, target)
        total: Tensor = self._sum(prediction, target)
        return total

    def count(self, prediction: Tensor, target: Tensor) -> float:
        """Return what PyTorch's mean divides by."""
        loss = self._loss
        if isinstance(loss, CLASSWISE):
            return _class_weights(loss, prediction, target)
        if isinstance(loss, ELEMENTWISE) and loss.reduction != "batchmean":
            return float(prediction.numel())
        return float(prediction.shape[0])

    def hessian(self, prediction: Tensor, target: Tensor) -> LossHessian:
        """Return the closed form for squared error, cross-entropy and binary cross-entropy."""
        self._require_shapes(prediction, target)
        loss = self._loss
        if isinstance(loss, nn.MSELoss):
            return loss_curvature.scaled(2.0)
        if isinstance(loss, nn.CrossEntropyLoss):
            return loss_curvature.cross_entropy(loss, prediction, target)
        if isinstance(loss, nn.BCEWithLogitsLoss):
            return loss_curvature.binary_cross_entropy_with_logits(loss, prediction, target)
        if isinstance(loss, nn.BCELoss):
            return loss_curvature.binary_cross_entropy(loss, prediction, target)
        return super().hessian(prediction, target)

    def _require_shapes(self, prediction: Any, target: Tensor) -> None:
        _require_tensor(prediction)
        if isinstance(self._loss, ELEMENTWISE):
            _require_same_shape(prediction, target)

    def half_mse_factor(self, prediction: Tensor, target: Tensor) -> float | None:
        """Return 2/d for a mean over n samples of d elements each, 2n for a sum."""
        if not isinstance(self._loss, nn.MSELoss):
            return None
        samples = prediction.shape[0]
        return 2 * samples / (self.count(prediction, target) if self.averaged else 1.0)


class PointwiseCriterion(PairCriterion):
    """One of this library's losses: summed over outputs, averaged over samples."""

    averaged = True
    separable = True

    def __init__(self, loss: PointwiseLoss) -> None:
        self._loss = loss

    def sum(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum over outputs and samples."""
        _require_same_shape(prediction, target)
        return self._loss.value(prediction, target).sum()

    def count(self, prediction: Tensor, target: Tensor) -> float:
        """Return the number of samples."""
        return float(prediction.shape[0])

    def hessian(self, prediction: Tensor, target: Tensor) -> LossHessian:
        """Return the loss' own second derivative."""
        _require_same_shape(prediction, target)
        second = self._loss.second(prediction.detach(), target)
        if getattr(self._loss, "coupled", False):
            return lambda u: (second @ u[..., None])[..., 0]
        return lambda u: second * u

    def half_mse_factor(self, prediction: Tensor, target: Tensor) -> float | None:
        """Return 1 for the mean-squared error."""
        return 1.0 if self._loss == NAMED["mse"] else None


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

    def settled(self, prediction: Any, target: Any) -> FunctionCriterion:
        """Find out from one batch whether the function is a mean over samples or a sum.

        With all data in one batch there is nothing to find out.
        """
        found = self._reductions(prediction, target)
        if len(found) == 2 and isinstance(prediction, Tensor):
            # At zero loss the two are the same: look elsewhere, but among probabilities.
            found &= self._reductions(0.9 * prediction.detach() + 0.05, target)
        if not found:
            raise ValueError(NOT_A_REDUCTION)
        return FunctionCriterion(self.function, averaged=True in found, several=True)

    def _reductions(self, prediction: Any, target: Any) -> set[bool]:
        """Return what it can be, a mean (True) or a sum, by its values on parts of a batch."""
        samples = _samples(prediction, target)
        parts = [prediction, target]
        if not all(isinstance(part, Tensor) and part.shape[:1] == (samples,) for part in parts):
            return {True, False}
        prediction = prediction.detach()
        if samples == 1:
            prediction, target = torch.cat([prediction] * 2), torch.cat([target] * 2)
        half = max(1, samples // 2)
        whole, first, second = (
            float(_require_loss(self.function(prediction[part], target[part])).detach().mean())
            for part in (slice(None), slice(half), slice(half, None))
        )
        share = half / len(prediction)
        tolerance = 1e3 * torch.finfo(prediction.dtype).eps * (abs(first) + abs(second))
        values = {True: share * first + (1 - share) * second, False: first + second}
        return {kind for kind, value in values.items() if abs(value - whole) <= tolerance}


NOT_A_REDUCTION = (
    "loss must be a mean or a sum over samples for data in several batches, but its value on a "
    "batch is neither of its values on the halves; give all data as one batch (x, y), or a closure "
    "loss(model, batch) that returns a pair (mean, weight)."
)


class ClosureCriterion(Criterion):
    """A function of (model, batch) that returns a mean over samples, or a pair (mean, weight)."""

    averaged = True

    def __init__(self, function: Callable[[nn.Module, Any], Any]) -> None:
        self._function = function

    def total(self, model: nn.Module, batch: Any) -> tuple[Tensor, float]:
        """Return the closure's value times the number of samples, or times its own weight."""
        value = self._function(model, batch)
        weight = first_length(batch) if isinstance(value, Tensor) else None
        if isinstance(value, tuple) and len(value) == 2:
            value, weight = value[0], _number(value[1])
        if weight is None:
            raise TypeError(
                "loss must return a mean over samples, or a pair (mean, weight) with a number for "
                f"the weight, got {type(value).__name__}."
            )
        value = _require_loss(value)
        # The mean over nothing is not a number, and must not become a part of the sum.
        total = value.mean() * weight if weight else value.new_zeros(())
        return total, float(weight)


def as_criterion(loss: Any, batch: Any) -> Criterion:
    """Find out what kind of loss this is, with the first batch to tell closures by.

    Parameters
    ----------
    loss : None, str, torch.nn loss, PointwiseLoss or callable
        None and ``"mse"`` are ½ E‖f − y‖².
    batch : object
        The first batch. One that is not a pair (input, target) leaves only a closure.
    """
    if loss is None or isinstance(loss, str):
        return _named("mse" if loss is None else loss)
    if isinstance(loss, type):
        raise TypeError(f"loss must be an object, not the class {loss.__name__}: call it first.")
    if isinstance(loss, functools.partial) and loss.func in FUNCTIONS and not loss.args:
        # A keyword that only the function has, such as a weight, leaves it a function.
        with contextlib.suppress(TypeError):
            loss = FUNCTIONS[loss.func](**loss.keywords)
    elif inspect.isfunction(loss) and loss in FUNCTIONS:
        loss = FUNCTIONS[loss]()
    if TorchCriterion.knows(loss):
        return TorchCriterion(loss, batch[1] if is_pair(batch) else None)
    if isinstance(loss, PointwiseLoss):
        return PointwiseCriterion(loss)
    if not callable(loss):
        raise TypeError(
            'loss must be a torch.nn loss, a function of (prediction, target), "mse", or a closure '
            f"loss(model, batch), got {type(loss).__name__}."
        )
    if is_pair(batch) and not _takes_model(loss):
        return FunctionCriterion(loss)
    return ClosureCriterion(loss)


def predict(model: nn.Module, inputs: Any) -> Any:
    """Call the model: with a tensor, with several as arguments, or with a dictionary by name."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def is_pair(batch: Any) -> bool:
    """Whether a batch can be an input and a target."""
    return isinstance(batch, (tuple, list)) and len(batch) == 2


def first_length(batch: Any) -> int:
    """Return the number of samples: the length of the first tensor in the batch."""
    for tensor in tensors_in(batch):
        if tensor.ndim:
            return int(tensor.shape[0])
    raise ValueError(
        "data must have batches with at least one tensor whose first dimension counts samples."
    )


def tensors_in(batch: Any) -> list[Tensor]:
    """Return all tensors of nested tuples, lists and dictionaries."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        return [tensor for part in batch for tensor in tensors_in(part)]
    return []


def _named(name: str) -> Criterion:
    if name == "cross-entropy":
        return TorchCriterion(nn.CrossEntropyLoss())
    return PointwiseCriterion(as_loss(name))


def _takes_model(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    if not parameters:
        return False
    annotation = parameters[0].annotation
    is_module = isinstance(annotation, type) and issubclass(annotation, nn.Module)
    return parameters[0].name in MODEL_NAMES or is_module


def _class_weights(
    loss: nn.CrossEntropyLoss | nn.NLLLoss, prediction: Tensor, target: Tensor
) -> float:
    """Return the weight of all targets that are not ignored."""
    classes_last = prediction.ndim == 1
    if target.is_floating_point():
        return float(prediction.numel() // prediction.shape[0 if classes_last else 1])
    valid = target[target != loss.ignore_index]
    if loss.weight is None:
        return float(valid.numel())
    return float(loss.weight[valid].sum())


def _weighs_samples(loss: nn.Module, target: Any) -> bool:
    """Whether a loss has a weight for each sample, and so is for batches of one size only."""
    if not isinstance(loss, (nn.BCELoss, nn.BCEWithLogitsLoss)):
        return False
    weights = [loss.weight, getattr(loss, "pos_weight", None)]
    dimensions = target.ndim if isinstance(target, Tensor) else 1
    return any(w is not None and w.numel() > 1 and w.ndim >= dimensions for w in weights)


def _number(weight: Any) -> float | None:
    """Return a number or a tensor of one as a number, and None for anything else."""
    if isinstance(weight, Tensor):
        return float(weight.detach()) if weight.numel() == 1 else None
    return float(weight) if isinstance(weight, (int, float)) else None


def _require_tensor(prediction: Any) -> None:
    if not isinstance(prediction, Tensor):
        raise TypeError(
            f"model must return a tensor for this loss, got {type(prediction).__name__}; else give "
            "a closure loss(model, batch)."
        )


def _samples(prediction: Any, target: Any) -> int:
    return first_length([prediction, target])


def _require_same_shape(prediction: Any, target: Tensor) -> None:
    _require_tensor(prediction)
    if tuple(prediction.shape) != tuple(target.shape):
        raise ValueError(
            f"data: the target must have the prediction's shape {tuple(prediction.shape)}, "
            f"got {tuple(target.shape)}."
        )


def _require_loss(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise TypeError(f"loss must return a tensor of real numbers, got {type(value).__name__}.")
    return value
