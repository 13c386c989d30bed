"""A PyTorch model, or its last two linear layers, read as a two-layer network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hessence._common.arrays import Numbers
from hessence.data.losses import CrossEntropy, Huber, Squared
from hessence.models._criteria import PointwiseCriterion, TorchCriterion
from hessence.models._elementwise import Elementwise, Tape, as_numbers
from hessence.models._loss_hessian import sample_blocks
from hessence.models._problem import Problem
from hessence.models.batch_parts import some_rows, widened
from hessence.models.criterion import PairCriterion, predict
from hessence.models.model_layers import entering
from hessence.networks.two_layer.problem import ULPS, UNIT, LossAt, TwoLayer, stable_norm

TRIED = 2**21
"""A model is tried on samples with about so many hidden numbers in all."""

BETWEEN = "what is between the two layers is not a function of each hidden unit"

CONFIRMED = 1e-8
"""Two ways to compute a second derivative agree up to this share of its terms."""


class NotTwoLayersError(Exception):
    """The model is something else; the message says what was met first."""


@dataclass(frozen=True)
class _Layers:
    """The names of the parameters of two linear layers; of biases that do not move, None."""

    V: str
    W: str
    b: str | None
    c: str | None


def read(problem: Problem) -> TwoLayer:
    """Read a problem in double precision as a two-layer network, or say why it is none.

    The function between the layers is read off a run of the model, and the second derivative of
    the loss along a random direction is compared with automatic differentiation.
    """
    if not isinstance(problem.criterion, PairCriterion):
        raise NotTwoLayersError("a closure does not tell where the model ends and the loss begins")
    layers = _layers(problem)
    batches = [widened(batch) for batch in problem.batches]
    model, copy = problem.copy.model, problem.copy
    weight = {name: model.get_parameter(name) for name in (layers.V, layers.W)}
    rows = slice(0, max(1, TRIED // len(weight[layers.V])))
    few = _counted(problem, [some_rows(batch, rows) for batch in batches])
    tape = Tape(weight[layers.V], weight[layers.W])
    output = copy.run(lambda m, inputs: _watched(m, inputs, tape), few[0])
    function = _require(tape, output, few)
    inputs = [_entering(problem, weight[layers.V], batch[0]) for batch in batches]
    first, last = (_biased(model, name) for name in (layers.V, layers.W))
    targets = [batch[1] for batch in batches]
    losses = _Losses(
        problem.criterion, targets, inputs, output.shape[1:], problem.criterion.averaged
    )
    found = TwoLayer(
        inputs=np.concatenate(inputs),
        V=as_numbers(weight[layers.V]),
        W=as_numbers(weight[layers.W]),
        b=first,
        c=last,
        activation=function,
        loss=losses,
        moves_b=layers.b is not None,
        moves_c=layers.c is not None,
    )
    _confirm(problem, found, layers, few, output.shape[1:])
    return found


def _layers(problem: Problem) -> _Layers:
    """Find the two linear layers that the chosen parameters belong to, in the model's order."""
    chosen = list(problem.copy.parameters.names)
    modules = {
        name: module
        for name, module in problem.copy.model.named_modules()
        if type(module) is nn.Linear and "weight" in module._parameters
    }
    if problem.copy.parameters.outside:
        raise NotTwoLayersError("some parameters are not the model's")
    owners: dict[str, list[str]] = {}
    for name in chosen:
        owner, _, kind = name.rpartition(".")
        if owner not in modules:
            raise NotTwoLayersError(f"parameter {name!r} is not that of a linear layer")
        owners.setdefault(owner, []).append(kind)
    if len(owners) != 2 or any("weight" not in kinds for kinds in owners.values()):
        raise NotTwoLayersError(
            f"the parameters belong to {len(owners)} linear layers, and not to two with their "
            "weights"
        )

    def names(owner: str) -> tuple[str, str | None]:
        bias = f"{owner}.bias" if "bias" in owners[owner] else None
        return f"{owner}.weight", bias

    (V, b), (W, c) = map(names, owners)
    return _Layers(V, W, b, c)


def _counted(problem: Problem, batches: Sequence[Any]) -> Any:
    """Return the first batch whose targets are not all ignored, or the first of all."""
    counted = (b for b in batches if problem.copy.run(problem.criterion.total, b)[1] > 0)
    return next(counted, batches[0])


def _watched(model: nn.Module, inputs: Any, tape: Tape) -> Any:
    with torch.no_grad(), tape:
        return predict(model, inputs)


def _require(tape: Tape, output: Any, batch: Any) -> Elementwise:
    """Return the function between the layers; refuse what is not two layers."""
    function, hidden = tape.function, tape.between
    if function is None or hidden is None or tape.output is None or tape.inputs is None:
        raise NotTwoLayersError(BETWEEN)
    if not isinstance(output, Tensor) or output.shape[0] != len(hidden):
        raise NotTwoLayersError("the model does not return one prediction for each sample")
    if hidden.ndim != 2 or not torch.equal(output.flatten(), tape.output.flatten()):
        raise NotTwoLayersError("the second layer does not make the predictions")
    if not function.is_elementwise(hidden):
        raise NotTwoLayersError(BETWEEN)
    return function


def _entering(problem: Problem, weight: Tensor, inputs: Any) -> Numbers:
    def run(model: nn.Module, taken: Any) -> Tensor:
        return entering(lambda: predict(model, taken), weight)

    return as_numbers(problem.copy.run(run, inputs))


def _biased(model: nn.Module, weight: str) -> Numbers:
    """Return the bias of the layer with a weight, zeros if it has none."""
    layer = model.get_submodule(weight.rpartition(".")[0])
    assert isinstance(layer, nn.Linear)
    return np.zeros(layer.out_features) if layer.bias is None else as_numbers(layer.bias)


@dataclass(frozen=True, eq=False)
class _Losses:
    """The loss of all batches, as a function of the predictions (n, K)."""

    criterion: PairCriterion
    targets: Sequence[Any]
    inputs: Sequence[Numbers]
    tail: Sequence[int]
    averaged: bool

    def __call__(self, predictions: Numbers) -> LossAt:
        """Return the derivatives of the loss of all data."""
        outputs = predictions.shape[1]
        parts, start, count = [], 0, 0.0
        for target, inputs in zip(self.targets, self.inputs, strict=True):
            rows = torch.from_numpy(predictions[start : start + len(inputs)])
            start += len(inputs)
            z = rows.reshape(len(inputs), *self.tail)
            count += self.criterion.count(z, target)
            gradient = self.criterion.gradient(z, target)
            parts.append((gradient, self._blocks(z, target), _aims(z, target)))
        divisor = count if self.averaged else 1.0
        gradient = torch.cat([part[0].reshape(-1, outputs) for part in parts]) / divisor
        hessian = torch.cat([part[1] for part in parts]) / divisor
        targets = torch.cat([part[2].reshape(-1, outputs) for part in parts])
        return self._at(gradient.numpy(), hessian.numpy(), predictions, targets.numpy(), divisor)

    def _blocks(self, z: Tensor, target: Any) -> Tensor:
        """Return the loss Hessian of each sample; refuse a loss that couples samples."""
        hessian, outputs = self.criterion.hessian(z, target), math.prod(self.tail)
        blocks = sample_blocks(hessian, z, len(z))
        drawn = np.random.default_rng(0).normal(size=(len(z), outputs))
        u = torch.from_numpy(drawn)
        whole = hessian(u.reshape(z.shape)).reshape(len(z), outputs)
        gap = (whole - (blocks @ u[..., None])[..., 0]).abs().max()
        if not gap <= CONFIRMED * blocks.abs().max():
            raise NotTwoLayersError("the loss does not treat each sample on its own")
        return blocks

    def _at(
        self,
        gradient: Numbers,
        hessian: Numbers,
        predictions: Numbers,
        targets: Numbers,
        divisor: float,
    ) -> LossAt:
        criterion = self.criterion
        known: Any = None
        if isinstance(criterion, (TorchCriterion, PointwiseCriterion)):
            known = criterion._loss
        quadratic = isinstance(known, (nn.MSELoss, nn.HuberLoss, Squared, Huber))
        size = stable_norm(gradient, 1)
        if not quadratic:
            curved = stable_norm(hessian, (1, 2)) * (1 + np.abs(predictions).max(axis=1))
            size = size + curved + size.max() + 1 / divisor
        return LossAt(
            gradient=gradient,
            hessian=hessian,
            noise=ULPS * UNIT * size,
            steepness=0.0 if quadratic else 2.0,
            targets=targets,
            shifts=isinstance(known, (nn.CrossEntropyLoss, CrossEntropy)),
        )


def _aims(prediction: Tensor, target: Any) -> Tensor:
    """Return the targets that predictions are to be equal to, or zeros if they mean otherwise."""
    if isinstance(target, Tensor) and target.shape == prediction.shape:
        return target.to(prediction)
    return torch.zeros_like(prediction)


def _confirm(
    problem: Problem, found: TwoLayer, layers: _Layers, batch: Any, tail: Sequence[int]
) -> None:
    """Compare the second derivative along a direction with automatic differentiation."""
    copy, criterion = problem.copy, problem.criterion
    assert isinstance(criterion, PairCriterion)
    names, leaves = copy.parameters.names, copy.parameters.leaves
    rng = np.random.default_rng(1)
    direction = {
        name: rng.normal(size=tuple(leaf.shape)) for name, leaf in zip(names, leaves, strict=True)
    }
    total, _ = copy.run(criterion.total, batch)
    parts = [
        torch.from_numpy(direction[name]).to(leaf) for name, leaf in zip(names, leaves, strict=True)
    ]
    gradients = torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)
    along = sum((g * part).sum() for g, part in zip(gradients, parts, strict=True))
    assert isinstance(along, Tensor)
    images = torch.autograd.grad(along, leaves, materialize_grads=True)
    reference = float(sum((i * part).sum() for i, part in zip(images, parts, strict=True)))
    inputs = _entering(problem, copy.model.get_parameter(layers.V), batch[0])
    losses = _Losses(criterion, [batch[1]], [inputs], tail, averaged=False)
    few = TwoLayer(
        inputs, found.V, found.W, found.b, found.c, found.activation, losses, found.moves_b,
        found.moves_c,
    )  # fmt: skip
    own, scale, noise = few.curvature(
        direction[layers.V],
        direction[layers.W],
        direction[layers.b] if layers.b else np.zeros_like(found.b),
        direction[layers.c] if layers.c else np.zeros_like(found.c),
    )
    # Of a confident prediction, automatic differentiation knows the curvature to rounding only.
    if not abs(own - reference) <= CONFIRMED * scale + 16 * noise:
        raise NotTwoLayersError(
            "the second derivative of the loss along a direction is not that of two layers"
        )
