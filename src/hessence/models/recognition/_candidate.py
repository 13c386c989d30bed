"""A model with its loss and data, as the theorems see it, and reasons why none applies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from hessence.models.batch_parts import byte_count
from hessence.models.criterion import PairCriterion
from hessence.models.data import gather, is_sample_pair, merged, parallel
from hessence.models.model_layers import entering, has_hooks
from hessence.models.model_matrices import ModelHessian, hessian
from hessence.models.recognition._program import Layer, Program, Relu, Skip, Steps, read
from hessence.spectra.reduced import Reduced
from hessence.spectra.spectrum import Spectrum

VARIABLES = 2048
"""The most variables in which a loss is differentiated twice: each takes a pass over the data."""


@dataclass(frozen=True)
class Reason:
    """Why a spectrum is exact, or why it is not.

    Attributes
    ----------
    reason : str
        The theorem, or what prevents one.
    rule : str
        The rule of recognition that says so, if any.
    hint : str
        What the user can do about it, if anything.
    """

    reason: str
    rule: str = ""
    hint: str = ""

    def __str__(self) -> str:
        rule = f"{self.rule}: " if self.rule else ""
        hint = f"; {self.hint}" if self.hint else ""
        text = f"{rule}{self.reason}{hint}"
        return text if text.endswith(".") else f"{text}."


@dataclass(frozen=True)
class Recognition:
    """A model's exact spectrum, and why: the network that it is, or the layers with a twin."""

    why: Reason
    spectrum: Spectrum


class NotRecognised(Exception):  # noqa: N818 - an ordinary answer, not a mistake of the user's
    """No theorem covers the model; ``why`` gives the reason.

    If a theorem covers a part of the Hessian, ``rest`` is the other part.
    """

    def __init__(
        self, reason: str, *, rule: str = "", hint: str = "", rest: Reduced | None = None
    ) -> None:
        self.why, self.rest = Reason(reason, rule, hint), rest
        super().__init__(str(self.why))


@dataclass(frozen=True, eq=False)
class Candidate:
    """Our copy of a model, with its loss and data, for which a theorem is wanted.

    Attributes
    ----------
    operator : ModelHessian
        The Hessian of the model's loss.
    model : torch.nn.Module
        A copy of the operator's model.
    batches : list of (inputs, target)
        The data; in a data-parallel run, the share of this process.
    criterion : PairCriterion
        The loss.
    memory : float
        How many bytes operators may keep, and all data together may take.
    program : Program
        What the model computes.
    """

    operator: ModelHessian
    model: nn.Module
    batches: list[tuple[Any, Any]]
    criterion: PairCriterion
    memory: float
    program: Program

    @classmethod
    def of(cls, H: ModelHessian) -> Candidate:
        """Watch the model of an operator, and refuse what no theorem covers."""
        problem = H.problem
        criterion, model, batches = problem.criterion, problem.copy.model, problem.batches.kept
        if not isinstance(criterion, PairCriterion):
            raise NotRecognised(
                "the loss is a closure, which may do anything with the model",
                hint="give a loss of (prediction, target) if there is one",
            )
        if not problem.copy.owned:
            raise NotRecognised(
                "the model was not copied, and only copies are looked into",
                hint="leave out copy=False",
            )
        _require_ordinary(model, H.shape[0])
        missing, hint = None, ""
        if batches is None:
            missing, hint = "the data do not fit into memory= at once", "raise memory="
        elif not isinstance(batches[0][0], Tensor):
            missing = f"the input is a {type(batches[0][0]).__name__}, not a single tensor"
        # All ranks must do the same, so they all refuse what one of them refuses.
        for reason, remedy in gather((missing, hint)):
            if reason is not None:
                raise NotRecognised(reason, hint=remedy)
        assert batches is not None
        try:
            model = problem.copy.clone().model
            program = read(model, batches[0][0])
            candidate = cls(H, model, batches, criterion, problem.memory, program)
            _ = candidate.kinds and candidate.factor
        except Exception as error:
            # Some models run, but not while their functions are watched.
            text = f"the model cannot be watched while it runs: {error}"
            raise NotRecognised(text) from error
        return candidate

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters by name, in the order of the parameter vector."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    @cached_property
    def kinds(self) -> str:
        """The steps to the prediction, a letter each; empty if some step is of another kind.

        (l)inear, (a)ffine and (r)elu; capitals for h + g(h), parentheses if g has several layers.
        Empty, too, if some parameters are in none of the steps.
        """
        used = {name for layer in self.layers for name in layer.parameters}
        steps = self.program.steps
        return "" if steps is None or used != set(self.parameters) else _kinds(steps)

    @property
    def layers(self) -> list[Layer]:
        """The linear layers on the way to the prediction."""
        return _layers(self.program.steps or ())

    @property
    def weights(self) -> list[Tensor]:
        """The weights of these layers."""
        return [self.parameters[layer.weight] for layer in self.layers]

    @property
    def biases(self) -> list[Tensor | None]:
        """The biases of these layers."""
        names = [layer.bias for layer in self.layers]
        return [None if name is None else self.parameters[name] for name in names]

    @property
    def is_scalar(self) -> bool:
        """Whether there is one input and one output."""
        return bool(self.weights[0].shape[1] == 1 and self.weights[-1].shape[0] == 1)

    @cached_property
    def data(self) -> tuple[Tensor, Any] | None:
        """The data of all processes as one batch; None if they cannot be joined."""
        parts = list(merged(self.batches, sys.maxsize)) if len(self.batches) > 1 else self.batches
        if not parallel():
            return parts[0] if len(parts) == 1 else None
        own = parts[0] if len(parts) == 1 and is_sample_pair(parts[0]) else None
        # All ranks must do the same, so they exchange what they have found first.
        kinds = None if own is None else [(part.shape[1:], part.dtype) for part in own]
        told = gather((kinds, 0 if own is None else byte_count(own), self.memory))
        fits = sum(size for _, size, _ in told) <= min(memory for *_, memory in told)
        if own is None or any(other != kinds for other, *_ in told) or not fits:
            return None
        shares = gather(tuple(part.cpu() for part in own))
        device = own[0].device
        x, y = (torch.cat(share).to(device) for share in zip(*shares, strict=True))
        return x, y

    def features(self, inputs: Tensor) -> Tensor:
        """Return the input of the first layer, after any steps without parameters."""
        first = self.model.get_parameter(self.layers[0].weight)
        return entering(lambda: self.model(inputs.clone()), first)

    @cached_property
    def x(self) -> Tensor:
        """The input of the first layer, (..., d0)."""
        assert self.data is not None
        return self.features(self.data[0])

    @cached_property
    def factor(self) -> float | None:
        """The factor c if the loss is c · ½ E‖f − y‖², the average over the rows of x."""
        if self.data is None:
            return None
        inputs, y = self.data
        with torch.no_grad():
            prediction = self.model(inputs.clone())
            factor = self.criterion.half_mse_factor(prediction, y)
        if factor is None or not isinstance(y, Tensor) or y.shape != prediction.shape:
            return None
        # The criterion counts samples along the first dimension, the moments all rows.
        return float(factor * (self.x.numel() // self.x.shape[-1]) / prediction.shape[0])

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """The input of the first layer and the targets of a squared error, (n, d0) and (n, dL)."""
        assert self.data is not None
        targets = self.data[1].detach().to(self.x)
        return self.x.reshape(-1, self.x.shape[-1]), targets.reshape(-1, targets.shape[-1])

    def anywhere(self, holds: Callable[[Tensor], Tensor]) -> bool:
        """Whether a condition holds for some entry of the first layer's input, on any rank."""
        return any(gather(any(bool(holds(self.features(x)).any()) for x, _ in self.batches)))

    def hessian(
        self, model: nn.Module, prepare: Callable[[Tensor], Tensor] | None = None
    ) -> ModelHessian:
        """Return the Hessian of the same loss for another model, perhaps on prepared inputs."""
        batches = self.batches
        if prepare is not None:
            batches = [(prepare(inputs), target) for inputs, target in batches]
        return hessian(model, batches, self.criterion, memory=self.memory)


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


def _require_ordinary(model: nn.Module, size: int) -> None:
    """Refuse models that no theorem covers; the operator has `size` parameters."""
    first_name: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            raise NotRecognised(
                f"only some of the parameters count: {name!r} is frozen or was not asked for",
                hint="theorems are about all of them",
            )
        if id(parameter) in first_name:
            raise NotRecognised(
                f"parameters {first_name[id(parameter)]!r} and {name!r} are tied to each other"
            )
        first_name[id(parameter)] = name
    if size != sum(parameter.numel() for parameter in model.parameters()):
        raise NotRecognised("the parameters are not those of the model, and all of them")
    for name, module in model.named_modules():
        of = f"layer {name!r}" if name else "the model"
        if has_hooks(module):
            raise NotRecognised(f"{of} has hooks, and what they do is not known")
        if is_parametrized(module):
            raise NotRecognised(f"{of} is parametrised: its weights are not its parameters")
