"""Plain stacks of Linear layers and ReLUs as the solvable networks that they are.

Weights, loss and data of the stack become those of one of our networks. A squared error goes by its
moments, with the factor of the user's normalisation; any other loss by its first two derivatives in
the few coefficients that the network computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hessence.data.matrix_objectives import Dense, Separable
from hessence.models.model_layers import Layer, flatten, is_plain
from hessence.models.recognition.affine_chain import AffineChain, require_small
from hessence.models.recognition.model_derivatives import VARIABLES, derivatives
from hessence.models.recognition.rearranged import OneLayer, Rearranged
from hessence.networks.linear.deep_linear import DeepLinear
from hessence.networks.linear.linear_hessian import LinearHessian
from hessence.networks.linear.range_reduction import range_size
from hessence.networks.linear.twin_blocks import TwinReduction
from hessence.networks.linear.two_layer_linear import TwoLayerLinear
from hessence.networks.scalar.cellwise import CellwiseHessian
from hessence.networks.scalar.products import gram
from hessence.networks.scalar.scalar_affine import ScalarAffine
from hessence.networks.scalar.scalar_linear import ScalarLinear
from hessence.networks.scalar.scalar_relu import ScalarReLU


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model with loss and data to find a theorem for, taken apart as far as it is a plain stack.

    Attributes
    ----------
    model : torch.nn.Module
        The model.
    inputs : tensor
        What the model takes.
    y : object
        The targets.
    criterion : object
        The loss.
    layers : tuple of Layer
        What acts on x, one after the other.
    x : tensor (..., d0)
        What the first of them takes.
    """

    model: nn.Module
    inputs: Tensor
    y: Any
    criterion: Any
    layers: tuple[Layer, ...]
    x: Tensor

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor, y: Any, criterion: Any) -> Candidate:
        """Take a model apart, and refuse one that does not go with its data."""
        layers, x = list(flatten(model)), inputs
        while layers and is_plain(layers[0].module, nn.Flatten):
            x = layers.pop(0).module(x)
        if x.ndim == 2:
            layers = [layer for layer in layers if not _flattens_nothing(layer)]
        candidate = cls(model, inputs, y, criterion, tuple(layers), x)
        if "o" not in candidate.kinds:
            candidate._require_shapes()
            _ = candidate.factor
        return candidate

    @cached_property
    def kinds(self) -> str:
        """One letter for each layer: (l)inear, (a)ffine, (r)elu, (o)ther."""

        def kind(layer: Layer) -> str:
            if layer.is_linear:
                return "l" if layer.module.bias is None else "a"
            return "r" if is_plain(layer.module, nn.ReLU) else "o"

        return "".join(map(kind, self.layers))

    @property
    def linear(self) -> list[Any]:
        """The Linear modules."""
        return [layer.module for layer in self.layers if layer.is_linear]

    @property
    def weights(self) -> list[Tensor]:
        """Their weights."""
        return [module.weight.detach() for module in self.linear]

    @property
    def is_scalar(self) -> bool:
        """Whether there is one input and one output."""
        return bool(self.linear[0].in_features == 1 and self.linear[-1].out_features == 1)

    @cached_property
    def factor(self) -> float | None:
        """The factor c if the loss is c · ½ E‖f − y‖², the average over the rows of x."""
        with torch.no_grad():
            prediction = self.x.clone()  # a layer may work in place
            for layer in self.layers:
                prediction = layer.module(prediction)
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

    def _require_shapes(self) -> None:
        if not self.x.is_floating_point():
            raise TypeError(f"the input has type {self.x.dtype}, which no Linear layer takes.")
        width, before = self.x.shape[-1] if self.x.ndim else 0, "the input"
        for layer in self.layers:
            if layer.is_linear:
                taken = layer.module.in_features
                if taken != width:
                    raise ValueError(
                        f"layer {layer.name!r} takes {taken} features, {before} has {width}."
                    )
                width, before = layer.module.out_features, f"the output of layer {layer.name!r}"


def _flattens_nothing(layer: Layer) -> bool:
    """Whether this flattens samples of a single dimension."""
    return is_plain(layer.module, nn.Flatten) and layer.module.start_dim == 1


def scalar_linear(candidate: Candidate) -> Rearranged:
    """Return the Hessian of f(x) = ⟨w, v⟩ x for the squared error."""
    first, second = candidate.weights
    return _squared_error(candidate, ScalarLinear(second[0], first[:, 0]))


def scalar_affine(candidate: Candidate) -> Rearranged:
    """Return the Hessian of f(x) = ⟨w, v x + b⟩ for the squared error."""
    first, second = candidate.weights
    bias = candidate.linear[0].bias.detach()
    return _squared_error(candidate, ScalarAffine(second[0], first[:, 0], bias))


def scalar_relu(candidate: Candidate) -> Rearranged:
    """Return the Hessian of f(x) = ⟨w, max(v x, 0)⟩."""
    first, second = candidate.weights
    if candidate.factor is not None:
        return _squared_error(candidate, ScalarReLU(second[0], first[:, 0]))
    return Rearranged(_cells_of_any_loss(candidate, second[0], first[:, 0]), 1.0)


def _squared_error(candidate: Candidate, net: Any) -> Rearranged:
    return Rearranged(
        net.hessian(candidate.x.reshape(-1), candidate.targets[:, 0]), candidate.factor or 1.0
    )


def _cells_of_any_loss(candidate: Candidate, w: Tensor, v: Tensor) -> CellwiseHessian:
    """Return the Hessian from the derivatives of the loss in the cells' coefficients."""
    if (v == 0).any():
        raise ValueError(
            f"layer {candidate.layers[0].name!r} has a weight of zero, where a ReLU has a kink and "
            "the loss no Hessian."
        )
    masks = torch.stack([v > 0, v < 0])
    cell_w, cell_v = (torch.where(masks, a, torch.zeros_like(a)) for a in (w, v))
    numbers, x = gram(cell_w, cell_v), candidate.x

    def loss(leaves: list[Tensor]) -> Tensor:
        plus, minus = leaves[0]
        value: Tensor = candidate.criterion.mean(
            torch.where(x > 0, plus * x, minus * x), candidate.y
        )
        return value

    slope, curvature = derivatives(loss, [numbers.inner], x)
    if curvature[0, 1] != 0:
        raise ValueError("the loss couples samples, and is not a sum over them.")
    populated = (bool((x > 0).any()), bool((x <= 0).any()))
    return CellwiseHessian(cell_w, cell_v, masks, slope, curvature.diagonal(), numbers, populated)


def linear_chain(candidate: Candidate) -> Rearranged:
    """Return the Hessian of Linear layers; a bias of the first is a column more of its weight."""
    weights, x, order = candidate.weights, candidate.x, None
    bias = candidate.linear[0].bias
    if bias is not None:
        order = _biases_last(candidate.linear)
        weights = [torch.cat([weights[0], bias.detach()[:, None]], dim=1), *weights[1:]]
        x = _with_constant(x)
    hessian, factor = _of_product(weights, x, candidate)
    if len(weights) == 1 and isinstance(hessian.loss_hessian, Separable):
        return OneLayer(hessian, factor, order)
    if hessian.gradient.any() and not _may_be_aligned(hessian):
        require_small(_size(hessian), hessian.shape[-1])
    return Rearranged(hessian, factor, order)


def _size(hessian: LinearHessian) -> int:
    """Return the size of the eigenproblem that the exact routes for any weights lead to."""
    if len(hessian.weights) == 2:
        return TwinReduction(hessian).bound
    return range_size(hessian.before[:-1], hessian.after[1:])


def _may_be_aligned(hessian: LinearHessian) -> bool:
    """Whether the network could be aligned with its data, which takes long to find out.

    Then its first layer and the data share singular vectors, and so do its last layer and the
    slope: their Gram matrices commute.
    """
    if not isinstance(hessian.loss_hessian, Separable):
        return False
    first, last, slope = hessian.weights[0], hessian.weights[-1], hessian.gradient
    return all(
        (a @ b - b @ a).norm() <= 1e5 * torch.finfo(a.dtype).eps * a.norm() * b.norm()
        for a, b in (
            (first.T @ first, hessian.loss_hessian.variance),
            (last @ last.T, slope @ slope.T),
        )
    )


def affine_chain(candidate: Candidate) -> Rearranged:
    """Return the Hessian of Linear layers with biases anywhere."""
    modules = candidate.linear
    raised = [_raised(module, last=module is modules[-1]) for module in modules]
    hessian, factor = _of_product(raised, _with_constant(candidate.x), candidate)
    chain = AffineChain(hessian, tuple(module.bias is not None for module in modules))
    return Rearranged(chain, factor, _biases_last(modules))


def _of_product(
    weights: list[Tensor], x: Tensor, candidate: Candidate
) -> tuple[LinearHessian, float]:
    """Return the Hessian of the loss of f(x) = W_L ⋯ W_1 x, up to a factor that comes with it."""
    net = TwoLayerLinear(*weights) if len(weights) == 2 else DeepLinear(weights)
    if candidate.factor is not None:
        return net.hessian(x.reshape(-1, x.shape[-1]), candidate.targets), candidate.factor
    outputs, inputs = net.product.shape
    if outputs * inputs > VARIABLES:
        raise ValueError(
            f"the product of its layers has {outputs * inputs} entries, more than the "
            f"{VARIABLES} in which a loss other than the squared error is differentiated twice."
        )

    def loss(leaves: list[Tensor]) -> Tensor:
        value: Tensor = candidate.criterion.mean(x @ leaves[0].T, candidate.y)
        return value

    slope, bend = derivatives(loss, [net.product], x)
    tensor = Dense(bend.reshape(outputs, inputs, outputs, inputs))
    return LinearHessian(net.weights, slope.reshape(outputs, inputs), tensor), 1.0


def _with_constant(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


def _raised(module: nn.Linear, last: bool) -> Tensor:
    """Return the matrix [[W, b], [0, 1]] that passes on a constant; only [W, b] if it is last."""
    weight = module.weight.detach()
    bias = torch.zeros_like(weight[:, 0]) if module.bias is None else module.bias.detach()
    raised = torch.cat([weight, bias[:, None]], dim=1)
    if last:
        return raised
    constant = torch.zeros_like(raised[:1])
    constant[0, -1] = 1
    return torch.cat([raised, constant])


def _biases_last(modules: list[nn.Linear]) -> Tensor:
    """Return where (W1, b1, W2, …) are found in ([W1 | b1], W2, …), row by row."""
    places, start = [], 0
    for module in modules:
        width = module.in_features + (module.bias is not None)
        own = torch.arange(start, start + module.out_features * width).reshape(-1, width)
        places += [
            own[:, : module.in_features].reshape(-1),
            own[:, module.in_features :].reshape(-1),
        ]
        start += own.numel()
    return torch.cat(places).to(modules[0].weight.device)
