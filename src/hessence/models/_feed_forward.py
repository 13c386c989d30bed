r"""Products for plain chains of linear layers and activations, written out.

Automatic differentiation records many small steps of which most products need few. For a chain
:math:`z_l = W_l a_{l-1} + b_l,\ a_l = \varphi(z_l)` the derivative of everything in the direction
:math:`(V_l, c_l)` is Pearlmutter's R-operator (Neural Computation 6, 1994),

.. math::
    \dot z_l &= W_l \dot a_{l-1} + V_l a_{l-1} + c_l, & \dot a_l &= \varphi'(z_l)\, \dot z_l, \\
    \dot g_{l-1} &= W_l^\top \dot\delta_l + V_l^\top \delta_l, &
    \dot\delta_l &= \varphi'(z_l)\, \dot g_l + \varphi''(z_l)\, g_l\, \dot z_l,

with :math:`g_l = \partial\ell/\partial a_l`, :math:`\delta_l = \partial\ell/\partial z_l`, and
:math:`\dot g_L = \nabla^2\ell(a_L)\, \dot a_L`. The image is
:math:`\dot\delta_l a_{l-1}^\top + \delta_l \dot a_{l-1}^\top` and :math:`\dot\delta_l`. All that
has no dot is computed once. The Gauss–Newton part leaves out what has a :math:`\delta` or a
:math:`\varphi''` without a dot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hessence.models._model_copy import ModelCopy
from hessence.models._products import Graph
from hessence.models.batch_parts import CHUNK_BYTES
from hessence.models.criterion import PairCriterion
from hessence.models.model_layers import flatten, is_plain

ELEMENTWISE = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU,
    nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus,
    nn.Softsign, nn.Tanh, nn.Tanhshrink,
)  # fmt: skip
"""Activations that act on every number alone."""

CACHED_BYTES = 2.0**23
"""On a CPU a graph should not hold more than this: products of wide networks were 1.6 to 3.3 times
as fast if what they pass on stays in the cache."""

WEIGHTS = 16
"""But it should hold this many times the weights, which are read, and their image written, once for
every graph."""


@dataclass(frozen=True)
class Stage:
    """A linear layer, by the names of its parameters, and the activations that follow it."""

    weight: str
    bias: str | None
    activations: tuple[nn.Module, ...]


@dataclass(frozen=True)
class Chain:
    """A plain chain: modules that act on the inputs first, then linear layers with activations."""

    before: tuple[nn.Module, ...]
    stages: tuple[Stage, ...]

    @property
    def names(self) -> set[str]:
        """The names of all parameters that take part."""
        both = (name for stage in self.stages for name in (stage.weight, stage.bias))
        return {name for name in both if name is not None}

    @classmethod
    def read(cls, model: nn.Module) -> Chain | None:
        """Read a model; None if it is anything else, or has weights that are shared."""
        before: list[nn.Module] = []
        stages: list[Stage] = []
        seen: set[int] = set()
        for name, module in flatten(model):
            if is_plain(module, nn.Linear) and "weight" in module._parameters:
                own = {id(parameter) for parameter in module.parameters()}
                if own & seen:
                    return None
                seen |= own
                prefix = f"{name}." if name else ""
                bias = None if module.bias is None else f"{prefix}bias"
                stages.append(Stage(f"{prefix}weight", bias, ()))
            elif any(is_plain(module, kind) for kind in ELEMENTWISE):
                if stages:
                    last = stages[-1]
                    stages[-1] = Stage(last.weight, last.bias, (*last.activations, module))
                else:
                    before.append(module)
            elif is_plain(module, nn.Flatten) and not stages:
                before.append(module)
            else:
                return None
        return cls(tuple(before), tuple(stages)) if stages else None

    def bytes(self, copy: ModelCopy, batch: tuple[Tensor, Any]) -> float:
        """Return how many bytes the graph of a batch holds."""
        weights = [copy.value(stage.weight) for stage in self.stages]
        rows = batch[0].numel() // max(weights[0].shape[1], 1)
        found = sum(weight.nbytes for weight in weights)
        for stage, weight in zip(self.stages, weights, strict=True):
            after, before = weight.shape
            # The signal before the layer; the gradient after it; φ′ and φ″.
            numbers = before + after * (3 if stage.activations else 1)
            found += rows * numbers * weight.itemsize
        return float(found)

    def best_bytes(self, copy: ModelCopy) -> float:
        """Return how many bytes a graph should hold at most."""
        weights = [copy.value(stage.weight) for stage in self.stages]
        if weights[0].device.type != "cpu":
            return CHUNK_BYTES
        read = float(sum(weight.nbytes for weight in weights))
        return min(CHUNK_BYTES, max(CACHED_BYTES, WEIGHTS * read))


class FeedForwardGraph(Graph):
    """The Hessian of a plain chain's total loss over a batch, perhaps without `functional` part."""

    def __init__(
        self,
        chain: Chain,
        copy: ModelCopy,
        criterion: PairCriterion,
        batch: Any,
        *,
        functional: bool,
    ) -> None:
        inputs, target = batch
        place: dict[str | None, int] = {name: i for i, name in enumerate(copy.parameters.names)}
        self._functional = functional
        with torch.no_grad():
            for module in chain.before:
                inputs = module(inputs.clone())
        shape = inputs.shape[:-1]
        signal = inputs.detach().reshape(-1, inputs.shape[-1])
        self._layers: list[_Layer] = []
        for stage in chain.stages:
            weight = copy.value(stage.weight)
            bias = None if stage.bias is None else copy.value(stage.bias)
            layer = _Layer(weight, signal, place.get(stage.weight), place.get(stage.bias))
            before = torch.nn.functional.linear(signal, weight, bias)
            signal, layer.first, layer.second = _activate(stage.activations, before)
            self._layers.append(layer)
        prediction = signal.reshape(*shape, signal.shape[-1])
        self.count = criterion.count(prediction, target)
        hessian = criterion.hessian(prediction, target)
        # With targets in double precision the loss is in double precision; products are not.
        self._loss_hessian: Callable[[Tensor], Tensor] = lambda u: (
            hessian(u.reshape(*u.shape[:-2], *prediction.shape)).reshape(u.shape).to(signal.dtype)
        )
        self._go_back(criterion.gradient(prediction, target).reshape(signal.shape))

    def _go_back(self, pulled: Tensor) -> None:
        """Compute the gradients in all signals once."""
        for layer in reversed(self._layers):
            if layer.first is not None and layer.second is not None:
                bends = self._functional and bool(layer.second.any())
                layer.second = layer.second * pulled if bends else None
                pulled = layer.first * pulled
            layer.delta = pulled
            if layer is not self._layers[0]:
                pulled = pulled @ layer.weight

    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Multiply by a vector, or by several."""
        dtype = self._layers[0].weight.dtype
        given: dict[int | None, Tensor] = {
            i: part.to(dtype) for i, part in zip(chosen, directions, strict=True)
        }
        with torch.no_grad():
            images_by_place = self._images(given, *self._forward(given))
        return [images_by_place[i] for i in chosen]

    def _forward(
        self, given: dict[int | None, Tensor]
    ) -> tuple[list[Tensor | None], list[Tensor | None], Tensor]:
        """Return ȧ before and ż at every layer, and ȧ in the end."""
        moving: Tensor | None = None
        incoming: list[Tensor | None] = []
        moved: list[Tensor | None] = []
        for layer in self._layers:
            incoming.append(moving)
            moving = layer.push(moving, given)
            moved.append(moving)
            if layer.first is not None and moving is not None:
                moving = layer.first * moving
        last = self._layers[-1]
        return incoming, moved, torch.zeros_like(last.delta) if moving is None else moving

    def _images(
        self,
        given: dict[int | None, Tensor],
        incoming: list[Tensor | None],
        moved: list[Tensor | None],
        outgoing: Tensor,
    ) -> dict[int | None, Tensor]:
        images: dict[int | None, Tensor] = {}
        pulled = self._loss_hessian(outgoing)
        for index in reversed(range(len(self._layers))):
            layer, motion = self._layers[index], moved[index]
            if layer.first is not None:
                pulled = pulled.mul_(layer.first)
            if layer.second is not None and motion is not None:
                pulled = pulled.addcmul_(layer.second, motion)
            entered = incoming[index]
            if layer.weight_place in given:
                image = pulled.mT @ layer.signal
                if self._functional and entered is not None:
                    image = _add_product(image, layer.delta.T, entered)
                images[layer.weight_place] = image
            if layer.bias_place in given:
                images[layer.bias_place] = pulled.sum(-2)
            if len(images) == len(given):
                break
            pulled = pulled @ layer.weight
            if self._functional and layer.weight_place in given:
                pulled = _add_product(pulled, layer.delta, given[layer.weight_place])
        return images


@dataclass
class _Layer:
    """What one layer needs: its weight and the signals before it; φ′, φ″ g and δ after it."""

    weight: Tensor
    signal: Tensor
    weight_place: int | None
    bias_place: int | None
    first: Tensor | None = None
    second: Tensor | None = None
    delta: Tensor = field(init=False)

    def push(self, moving: Tensor | None, given: dict[int | None, Tensor]) -> Tensor | None:
        """Return ż for the motion ȧ of what comes in, and of the layer's own parameters."""
        shift, turn = given.get(self.bias_place), given.get(self.weight_place)
        if turn is not None and turn.ndim == 2:
            # A single product adds the bias as it multiplies, without another pass.
            out = nn.functional.linear(self.signal, turn, shift)
            return out if moving is None else out.addmm_(moving, self.weight.T)
        if turn is not None:
            out = self.signal @ turn.mT
            out = out if moving is None else _add_product(out, moving, self.weight.T)
        elif moving is not None:
            out = moving @ self.weight.T
        elif shift is not None:
            return shift[..., None, :].expand(*shift.shape[:-1], len(self.signal), -1)
        else:
            return None
        return out if shift is None else out.add_(shift[..., None, :])


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Add left @ right in place, and for a single product without another array."""
    return total.addmm_(left, right) if total.ndim == 2 else total.add_(left @ right)


def _activate(
    activations: tuple[nn.Module, ...], before: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return φ(z), and φ′ and φ″ if there is an activation."""
    if not activations:
        return before, None, None
    with torch.enable_grad():
        z = after = before.detach().requires_grad_()
        for activation in activations:
            after = activation(after.clone() if getattr(activation, "inplace", False) else after)
        (first,) = torch.autograd.grad(after.sum(), z, create_graph=True)
        if not first.requires_grad:
            return after.detach(), first, torch.zeros_like(first)
        (second,) = torch.autograd.grad(first.sum(), z, materialize_grads=True)
    return after.detach(), first.detach(), second
