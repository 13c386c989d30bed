"""A model with loss and data, as far as the theorems care, and why none of them may apply."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
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
        text = f"{rule}{self.reason}{hint}"
        return text if text.endswith(".") else f"{text}."


@dataclass(frozen=True)
class Recognition:
    """A model's spectrum, exactly.

    Attributes
    ----------
    why : Reason
        The network that the model is, or the layers whose twin was taken, and the theorem.
    spectrum : Spectrum
        All eigenvalues and eigenvectors, in the order of ``model.parameters()``.
    """

    why: Reason
    spectrum: Spectrum


class NotRecognised(Exception):  # noqa: N818 - an ordinary answer, not a mistake of the user's
    """No theorem covers the model; ``why`` says what is in the way.

    Where one covers a part of it, ``rest`` is what is left of the Hessian, beside that part.
    """

    def __init__(
        self, reason: str, *, rule: str = "", hint: str = "", rest: Reduced | None = None
    ) -> None:
        self.why, self.rest = Reason(reason, rule, hint), rest
        super().__init__(str(self.why))


@dataclass(frozen=True, eq=False)
class Candidate:
    """Our copy of a model, its loss and its data, to find a theorem for.

    Attributes
    ----------
    operator : ModelHessian
        The Hessian that is asked about.
    model : torch.nn.Module
        A copy of the operator's model.
    batches : list of (inputs, target)
        The data; of several processes that multiply together, the share of this one.
    criterion : PairCriterion
        The loss.
    memory : float
        How many bytes operators may keep, and all data may have.
    program : Program
        What the model was seen to do.
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
        if batches is None:
            _agree("the data do not fit into memory= at once", hint="raise memory=")
        elif not isinstance(batches[0][0], Tensor):
            _agree(f"the input is a {type(batches[0][0]).__name__}, not a single tensor")
        else:
            _agree(None)
        assert batches is not None
        try:
            model = problem.copy.clone().model
            program = read(model, batches[0][0])
            candidate = cls(H, model, batches, criterion, problem.memory, program)
            _ = candidate.kinds and candidate.factor
        except Exception as error:
            # Also from a model that runs as it is, but not where its functions are looked at.
            text = f"the model cannot be watched while it runs: {error}"
            raise NotRecognised(text) from error
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
        used = {name for layer in self.layers for name in layer.parameters}
        steps = self.program.steps
        return "" if steps is None or used != set(self.parameters) else _kinds(steps)

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
    def data(self) -> tuple[Tensor, Any] | None:
        """All data as one batch, those of other processes too; None if they cannot be joined."""
        parts: list[Any] = self.batches
        if len(parts) > 1:
            parts = list(merged(parts, sys.maxsize))
        if not parallel():
            return parts[0] if len(parts) == 1 else None
        own = parts[0] if len(parts) == 1 and is_sample_pair(parts[0]) else None
        # All ranks must do the same, whatever one of them finds; so they tell each other first.
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
        """Return what the first layer takes of inputs, after steps without parameters."""
        first = self.model.get_parameter(self.layers[0].weight)
        return entering(lambda: self.model(inputs.clone()), first)

    @property
    def x(self) -> Tensor:
        """What the first layer takes, (..., d0)."""
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
        """What the first layer takes and the targets of a squared error, (n, d0) and (n, dL)."""
        assert self.data is not None
        x, targets = self.x, self.data[1].detach().to(self.x)
        return x.reshape(-1, x.shape[-1]), targets.reshape(-1, targets.shape[-1])

    def anywhere(self, holds: Callable[[Tensor], Tensor]) -> bool:
        """Whether something holds for an entry of what the first layer takes, on any rank."""
        return any(gather(any(bool(holds(self.features(x)).any()) for x, _ in self.batches)))

    def hessian(
        self, model: nn.Module, prepare: Callable[[Tensor], Tensor] | None = None
    ) -> ModelHessian:
        """Return the Hessian of the same loss for another model, which may take prepared inputs.

        A small model that stands for a large one tells all derivatives that are needed of it.
        """
        batches = self.batches
        if prepare is not None:
            batches = [(prepare(inputs), target) for inputs, target in batches]
        return hessian(model, batches, self.criterion, memory=self.memory)

    def order(self, places: Mapping[str, Tensor]) -> Tensor | None:
        """Return the place of each parameter in a network's vector; None if the orders agree.

        `places` gives, by name, the indices of a parameter's entries in the network's vector.
        """
        order = torch.cat([places[name].reshape(-1) for name in self.parameters])
        same = torch.equal(order, torch.arange(len(order)))
        return None if same else order.to(self.batches[0][0].device)


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


def _agree(missing: str | None, hint: str = "") -> None:
    """Refuse on all ranks what one of them refuses, since all must do the same."""
    for told, remedy in gather((missing, hint)):
        if told is not None:
            raise NotRecognised(told, hint=remedy)
