"""A model with loss and data, as far as the theorems care, and why none of them may apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from hessence._common.arrays import dtype_name
from hessence.models.criterion import PairCriterion
from hessence.models.model_layers import has_hooks
from hessence.models.model_matrices import ModelHessian, hessian
from hessence.models.recognition.program import Layer, Program, Relu, Skip, Steps, features, read

VARIABLES = 2048
"""In how many variables a loss is differentiated twice: each takes a pass over the data."""


@dataclass(frozen=True)
class Reason:
    """Why a spectrum is exact, or why it is not.

    Attributes
    ----------
    reason : str
        The theorem, or what is in its way.
    rule : str
        The rule of recognition that says so, if one does.
    hint : str
        What to do about it, if there is something.
    """

    reason: str
    rule: str = ""
    hint: str = ""

    def __str__(self) -> str:
        rule = f"{self.rule}: " if self.rule else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{rule}{self.reason}{hint}."


class NotRecognised(Exception):  # noqa: N818 - an ordinary answer, not a mistake of the user's
    """No theorem covers the model; ``why`` says what is in the way."""

    def __init__(self, reason: str, *, rule: str = "", hint: str = "") -> None:
        self.why = Reason(reason, rule, hint)
        super().__init__(str(self.why))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model of our own with loss and data to find a theorem for.

    Attributes
    ----------
    model : torch.nn.Module
        A copy of the user's model.
    inputs : tensor
        What the model takes.
    y : object
        The targets.
    criterion : PairCriterion
        The loss.
    share : (inputs, y)
        The part of the data that this process has, of several that multiply together.
    program : Program
        What the model was seen to do.
    """

    model: nn.Module
    inputs: Tensor
    y: Any
    criterion: PairCriterion
    share: tuple[Tensor, Any]
    program: Program

    @classmethod
    def of(
        cls, model: nn.Module, inputs: Tensor, y: Any, criterion: PairCriterion, share: Any
    ) -> Candidate:
        """Watch a model, and refuse one that does not go with its data."""
        try:
            candidate = cls(model, inputs, y, criterion, share, read(model, inputs))
            if candidate.kinds:
                _ = candidate.factor
        except Exception as error:
            # A mistake of the user's, which will show, and be explained, where the model is run as
            # it is; here it only means that there is nothing to recognise.
            text = f"model, loss and data do not go together: {error}"
            raise NotRecognised(text.rstrip(".")) from error
        return candidate

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters by name, in the order of the parameter vector."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    @cached_property
    def kinds(self) -> str:
        """The steps to the prediction, a letter each; empty if there are others among them.

        (l)inear, (a)ffine and (r)elu; capitals for h + g(h), parentheses if g has several layers.
        A model whose parameters are not all in its steps has none.
        """
        steps = self.program.steps
        if steps is None or {n for layer in self.layers for n in layer.parameters} != set(
            self.parameters
        ):
            return ""
        return _kinds(steps)

    @property
    def layers(self) -> list[Layer]:
        """The linear layers on the way to the prediction."""
        return _layers(self.program.steps or ())

    @property
    def weights(self) -> list[Tensor]:
        """Their weights."""
        return [self.parameters[layer.weight] for layer in self.layers]

    @property
    def biases(self) -> list[Tensor | None]:
        """Their biases."""
        names = [layer.bias for layer in self.layers]
        return [None if name is None else self.parameters[name] for name in names]

    @property
    def is_scalar(self) -> bool:
        """Whether there is one input and one output."""
        return bool(self.weights[0].shape[1] == 1 and self.weights[-1].shape[0] == 1)

    @cached_property
    def x(self) -> Tensor:
        """What the first layer takes, (..., d0)."""
        return features(self.model, self.inputs)

    @cached_property
    def factor(self) -> float | None:
        """The factor c if the loss is c · ½ E‖f − y‖², the average over the rows of x."""
        with torch.no_grad():
            prediction = self.model(self.inputs.clone())
            self.criterion.mean(prediction, self.y)
            factor = self.criterion.half_mse_factor(prediction, self.y)
        if factor is None or not isinstance(self.y, Tensor) or self.y.shape != prediction.shape:
            return None
        # The criterion counts samples along the first dimension, the moments all rows.
        return float(factor * (self.x.numel() // self.x.shape[-1]) / prediction.shape[0])

    @property
    def targets(self) -> Tensor:
        """The targets (n, dL) of a squared error."""
        targets: Tensor = self.y.detach().to(self.x)
        return targets.reshape(-1, targets.shape[-1])

    def hessian(
        self, model: nn.Module, prepare: Callable[[Tensor], Tensor] | None = None
    ) -> ModelHessian:
        """Return the Hessian of the same loss for another model, which may take prepared inputs.

        A small model that stands for a large one tells all derivatives that are needed of it.
        """
        inputs, y = self.share
        return hessian(model, (inputs if prepare is None else prepare(inputs), y), self.criterion)

    def order(self, places: Mapping[str, Tensor]) -> Tensor | None:
        """Return where each entry of the parameter vector is in a network's; None if it is there.

        `places` gives, by name, the indices of a parameter's entries in the network's vector.
        """
        order = torch.cat([places[name].reshape(-1) for name in self.parameters])
        same = torch.equal(order, torch.arange(len(order)))
        return None if same else order.to(self.inputs.device)


def _layers(steps: Steps) -> list[Layer]:
    found: list[Layer] = []
    for step in steps:
        found += _layers(step.steps) if isinstance(step, Skip) else []
        found += [step] if isinstance(step, Layer) else []
    return found


def _kinds(steps: Steps) -> str:
    kinds = ""
    for step in steps:
        match step:
            case Layer():
                kinds += "l" if step.bias is None else "a"
            case Relu():
                kinds += "r"
            case Skip((Layer(),)):
                kinds += _kinds(step.steps).upper()
            case Skip():
                kinds += f"({_kinds(step.steps)})"
    return kinds


def require_ordinary(model: Any, x: Any) -> None:
    """Refuse models and inputs that no theorem is for, in one sentence."""
    if not isinstance(model, nn.Module):
        raise NotRecognised(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if not isinstance(x, Tensor):
        raise NotRecognised(f"the input is a {type(x).__name__}, not a single tensor")
    if x.numel() == 0:
        raise NotRecognised(f"the input has shape {tuple(x.shape)}: there are no samples")
    _require_ordinary_parameters(model, x)
    for name, module in model.named_modules():
        of = f"layer {name!r}" if name else "the model"
        if has_hooks(module):
            raise NotRecognised(f"{of} has hooks, and what they do is not known")
        if is_parametrized(module):
            raise NotRecognised(f"{of} is parametrised: its weights are not its parameters")


def _require_ordinary_parameters(model: nn.Module, x: Tensor) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if not parameters:
        raise NotRecognised("the model has no parameters")
    first_name: dict[int, str] = {}
    first = next(iter(parameters.values()))
    for name, parameter in parameters.items():
        of = f"parameter {name!r}"
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise NotRecognised(f"{of} has no shape yet", hint="run the model once first")
        if not parameter.requires_grad:
            raise NotRecognised(f"{of} is frozen: requires_grad is False")
        if id(parameter) in first_name:
            raise NotRecognised(
                f"parameters {first_name[id(parameter)]!r} and {name!r} are tied to each other"
            )
        first_name[id(parameter)] = name
        if parameter.dtype not in (torch.float32, torch.float64) or parameter.dtype != first.dtype:
            raise NotRecognised(
                f"{of} has type {dtype_name(parameter)}: all must be float32, or all float64"
            )
        if not parameter.isfinite().all():
            raise NotRecognised(f"{of} contains NaN or infinity")
        if parameter.device != first.device or parameter.device != x.device:
            raise NotRecognised(f"{of} is on device {parameter.device} and the input on {x.device}")
    if (x.is_floating_point() or x.is_complex()) and x.dtype != first.dtype:
        raise NotRecognised(
            f"the input has type {dtype_name(x)}, the parameters {dtype_name(first)}"
        )
