"""Losses as users give them, and what each means for data that come in batches.

PyTorch's losses know what their means are over: samples, elements, or the class weights of the
targets that are not ignored. Of a user's own function nothing is known but what the user says.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessence._common.arrays import dtype_name
from hessence.data.losses import NAMED, PointwiseLoss, as_loss
from hessence.models import _loss_hessian as loss_hessian
from hessence.models._loss_hessian import LossHessian
from hessence.models.batch_parts import is_pair, tensors_in
from hessence.models.criterion import (
    ClosureCriterion,
    Criterion,
    FunctionCriterion,
    PairCriterion,
    Reduction,
)

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


class TorchCriterion(PairCriterion):
    """One of PyTorch's losses, with its reduction and weights."""

    def __init__(self, loss: nn.Module, target: Any = None) -> None:
        # A copy, since the user may change its weights.
        self._loss = copy.deepcopy(loss)
        self._loss.reduction = "sum"
        self.averaged, self._batchmean = loss.reduction != "sum", loss.reduction == "batchmean"
        self.separable = not _weighs_samples(loss, target)

    @classmethod
    def knows(cls, loss: Any) -> bool:
        """Whether a loss is PyTorch's own; a subclass with another formula is not."""
        if not isinstance(loss, ELEMENTWISE + SAMPLEWISE + CLASSWISE) or loss.reduction == "none":
            return False
        own = {kind.forward for kind in ELEMENTWISE + SAMPLEWISE + CLASSWISE}
        return type(loss).forward in own

    def doubled(self) -> Self:
        twin = copy.copy(self)
        twin._loss = copy.deepcopy(self._loss).double()
        return twin

    def sum(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum that PyTorch's mean divides."""
        self._require_shapes(prediction, target)
        total: Tensor = self._loss(prediction, target)
        return total

    def count(self, prediction: Tensor, target: Tensor) -> float:
        """Return what PyTorch's mean divides by."""
        loss = self._loss
        if isinstance(loss, CLASSWISE):
            return _class_weights(loss, prediction, target)
        if isinstance(loss, ELEMENTWISE) and not self._batchmean:
            return float(prediction.numel())
        unbatched = isinstance(loss, SAMPLEWISE) and prediction.ndim == 1
        return 1.0 if unbatched else float(prediction.shape[0])

    def hessian(self, prediction: Tensor, target: Tensor) -> LossHessian:
        """Return the closed form for squared error, cross-entropy and binary cross-entropy."""
        self._require_shapes(prediction, target)
        loss = self._loss
        if isinstance(loss, nn.MSELoss):
            return lambda u: 2.0 * u
        if isinstance(loss, nn.CrossEntropyLoss):
            return loss_hessian.cross_entropy(loss, prediction, target)
        if isinstance(loss, nn.BCEWithLogitsLoss):
            return loss_hessian.binary_cross_entropy_with_logits(loss, prediction, target)
        if isinstance(loss, nn.BCELoss):
            return loss_hessian.binary_cross_entropy(loss, prediction, target)
        return super().hessian(prediction, target)

    def _require_shapes(self, prediction: Any, target: Tensor) -> None:
        _require_tensor(prediction)
        if isinstance(self._loss, ELEMENTWISE):
            _require_same_shape(prediction, target)
        binary = isinstance(self._loss, (nn.BCELoss, nn.BCEWithLogitsLoss))
        if binary and not target.is_floating_point():
            raise ValueError(
                "data: the target must hold real numbers for this loss, got "
                f"{dtype_name(target)}: use y.float()."
            )
        if isinstance(self._loss, CLASSWISE):
            _require_classes(prediction, target, self._loss)

    def half_mse_factor(self, prediction: Tensor, target: Tensor) -> float | None:
        """Return 2/d for a mean over n samples of d elements each, 2n for a sum."""
        if not isinstance(self._loss, nn.MSELoss):
            return None
        samples = prediction.shape[0]
        return float(2 * samples / (self.count(prediction, target) if self.averaged else 1.0))


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


def as_criterion(
    loss: Any,
    batch: Any,
    reduction: Reduction | None = None,
    *,
    closure: bool | None = None,
    several: bool = False,
) -> Criterion:
    """Find out what kind of loss this is; the arguments are those of ``hs.hessian``.

    `batch` is the first one, and `several` says whether there are more. If it is not a pair (input,
    target), a function is a closure.
    """
    if reduction not in (None, *get_args(Reduction)):
        raise ValueError(f'reduction must be "mean", "sum" or None, got {reduction!r}.')
    known = _known(loss, batch)
    if known is not None:
        if closure:
            raise ValueError("closure=True is for functions of (model, batch), not for this loss.")
        if reduction is not None and (reduction == "mean") != known.averaged:
            raise ValueError(f"reduction={reduction!r} is not that of the loss.")
        if not is_pair(batch):
            raise ValueError(
                "data must have batches that are pairs (input, target) for this loss; for others "
                "give a closure loss(model, batch)."
            )
        _require_tensors(*batch)
        return known
    if not callable(loss):
        raise TypeError(
            'loss must be a torch.nn loss, a function of (prediction, target), "mse", or a closure '
            f"loss(model, batch), got {type(loss).__name__}."
        )
    if closure is False and not is_pair(batch):
        raise ValueError("data must have batches that are pairs (input, target) if closure=False.")
    function = is_pair(batch) if closure is None else not closure
    return (FunctionCriterion if function else ClosureCriterion)(loss, reduction, several=several)


def _require_tensors(inputs: Any, target: Any) -> None:
    """Refuse lists of numbers, and anything but a tensor as the target of a loss of PyTorch's."""
    first = inputs
    while isinstance(first, (list, tuple)) and first and not tensors_in(inputs):
        first = first[0]
    if isinstance(first, (int, float)) or not isinstance(target, Tensor):
        kinds = f"{type(inputs).__name__} and {type(target).__name__}"
        raise TypeError(
            f"data must hold torch tensors as input and target, got {kinds}: use torch.as_tensor."
        )


def is_own(loss: Any) -> bool:
    """Whether a loss is a function or a closure that the user has written."""
    return callable(loss) and not isinstance(loss, type) and _known(loss, None) is None


def _known(loss: Any, batch: Any) -> PairCriterion | None:
    """Return PyTorch's losses and this library's, which know how they reduce."""
    if loss is None or isinstance(loss, str):
        name = "mse" if loss is None else loss
        if name.replace("_", "-") == "cross-entropy":
            return TorchCriterion(nn.CrossEntropyLoss())
        return PointwiseCriterion(as_loss(name))
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
    return PointwiseCriterion(loss) if isinstance(loss, PointwiseLoss) else None


def _class_weights(
    loss: nn.CrossEntropyLoss | nn.NLLLoss, prediction: Tensor, target: Tensor
) -> float:
    """Return the weight of all targets that are not ignored."""
    unbatched = prediction.ndim == 1
    if target.is_floating_point():
        return float(prediction.numel() // prediction.shape[0 if unbatched else 1])
    valid = target[target != loss.ignore_index]
    if loss.weight is None:
        return float(valid.numel())
    return float(loss.weight[valid.long()].sum())


def _weighs_samples(loss: nn.Module, target: Any) -> bool:
    """Whether a loss has a weight for each sample, and so is for batches of one size only."""
    if not isinstance(loss, (nn.BCELoss, nn.BCEWithLogitsLoss)):
        return False
    weights = [loss.weight, getattr(loss, "pos_weight", None)]
    dimensions = target.ndim if isinstance(target, Tensor) else 1
    return any(w is not None and w.numel() > 1 and w.ndim >= dimensions for w in weights)


def _require_tensor(prediction: Any) -> None:
    if not isinstance(prediction, Tensor):
        raise TypeError(
            f"model must return a tensor for this loss, got {type(prediction).__name__}; else give "
            "a closure loss(model, batch)."
        )


def _require_same_shape(prediction: Any, target: Tensor) -> None:
    _require_tensor(prediction)
    if tuple(prediction.shape) != tuple(target.shape):
        wanted, got = _shapes(prediction, target)
        hint = "" if target.is_floating_point() else "; class numbers need a loss for them"
        raise ValueError(
            f"data: the target must have the prediction's shape {wanted}, got {got}{hint}."
        )


def _require_classes(prediction: Tensor, target: Tensor, loss: Any) -> None:
    weight, classes = loss.weight, prediction.shape[1 if prediction.ndim > 1 else 0]
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"loss has weights for {weight.numel()} classes, but there are {classes}.")
    if weight is not None and weight.dtype != prediction.dtype:
        raise ValueError(
            f"loss has weights of {dtype_name(weight)}, but the predictions are "
            f"{dtype_name(prediction)}: use loss.to(torch.{dtype_name(prediction)})."
        )
    if target.is_floating_point():
        shares = isinstance(loss, nn.CrossEntropyLoss)
        if not shares or target.shape != prediction.shape:
            also = ", or probabilities of the prediction's shape" if shares else ""
            raise ValueError(
                f"data: the target must hold class numbers as integers{also}, got "
                f"{dtype_name(target)} of shape {tuple(target.shape)}."
            )
        return
    if target.dtype not in (torch.int64, torch.uint8):
        raise ValueError(
            f"data: the target must hold class numbers of type int64, got {dtype_name(target)}: "
            "use y.long()."
        )
    *samples, _ = prediction.movedim(1 if prediction.ndim > 1 else 0, -1).shape
    if list(target.shape) != samples:
        raise ValueError(_misfit(prediction, target))
    wrong = target[(target != loss.ignore_index) & ((target < 0) | (target >= classes))]
    if wrong.numel():
        raise ValueError(
            f"data: the target must hold class numbers from 0 to {classes - 1}, "
            f"got {int(wrong[0])}."
        )


def _misfit(prediction: Tensor, target: Tensor) -> str:
    """Say how class numbers and a prediction do not fit together, and what to do."""
    if target.ndim and prediction.ndim > 1 and len(target) != len(prediction):
        return f"data: there are {len(prediction)} predictions and {len(target)} targets."
    given, got = _shapes(prediction, target)
    said = f"data: the prediction has shape {given} and the target {got}"
    if prediction.ndim > 2 and target.shape == prediction.shape[:-1]:
        return (
            f"{said}, but classes are dimension 1 of a prediction: give a loss such as "
            "lambda f, y: F.cross_entropy(f.flatten(0, 1), y.flatten())."
        )
    if target.shape == prediction.shape:
        return f"{said}; of one-hot targets give the class numbers, y.argmax(1)."
    return f"{said}; class numbers have the prediction's shape without dimension 1."


def _shapes(*tensors: Tensor) -> list[str]:
    """Write out shapes, with n for the number of samples if all have the same."""
    shapes: list[list[Any]] = [list(t.shape) for t in tensors]
    if len({t.shape[:1] for t in tensors}) == 1 and all(shapes):
        shapes = [["n", *shape[1:]] for shape in shapes]
    texts = [", ".join(map(str, shape)) for shape in shapes]
    return [
        f"({text},)" if len(s) == 1 else f"({text})" for s, text in zip(shapes, texts, strict=True)
    ]
