"""Chains of linear layers and ReLUs as the solvable networks that they are.

The weights, loss and data of the chain become those of one of our networks. A squared error is
given by its moments, times the factor of the user's normalisation. Any other loss is given by its
first two derivatives in the few coefficients that the network computes; a small model in place of
the chain provides them.

A residual layer h + W h is the layer I + W, and its Hessian in W is that in I + W: a shift of the
parameters changes no derivative. A chain x + W_L ⋯ W_1 x has the end-to-end matrix I + W_L ⋯ W_1;
the loss sees a shifted argument, and a squared error the targets y − x.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from hessence._common.arrays import to_numpy
from hessence.data.matrix_objectives import Dense, Separable
from hessence.data.rounding import DerivativeErrors
from hessence.models.recognition._candidate import VARIABLES, Candidate
from hessence.models.recognition._derivatives import LossDerivatives
from hessence.networks.linear.deep_linear import DeepLinear
from hessence.networks.linear.hessian import LinearHessian, twin_of
from hessence.networks.linear.network import LinearNetwork
from hessence.networks.linear.range_reduction import range_of, range_size
from hessence.networks.linear.residual_linear import ResidualLinear
from hessence.networks.linear.two_layer_linear import TwoLayerLinear
from hessence.networks.scalar.cells import CellProducts, Cells
from hessence.networks.scalar.scalar_affine import ScalarAffine
from hessence.networks.scalar.scalar_linear import ScalarLinear
from hessence.networks.scalar.scalar_relu import ScalarReLU
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import LARGEST_BLOCK, Subspaces

# Scalar networks.


def scalar_linear(candidate: Candidate) -> Spectrum:
    """Return the spectrum of f(x) = ⟨w, v⟩ x for the squared error."""
    first, second = candidate.weights
    return _of_scalar(candidate, ScalarLinear(second[0], first[:, 0]))


def scalar_affine(candidate: Candidate) -> Spectrum:
    """Return the spectrum of f(x) = ⟨w, v x + b⟩ for the squared error."""
    first, second = candidate.weights
    return _of_scalar(candidate, ScalarAffine(second[0], first[:, 0], candidate.biases[0]))


def scalar_relu(candidate: Candidate) -> Spectrum:
    """Return the spectrum of f(x) = ⟨w, max(v x, 0)⟩."""
    first, second = candidate.weights
    if candidate.factor is not None:
        return _of_scalar(candidate, ScalarReLU(second[0], first[:, 0]))
    hessian = _relu_of_any_loss(candidate, second[0], first[:, 0])
    return _placed(hessian.spectrum(), 1.0, candidate, joined=False)


def _of_scalar(candidate: Candidate, net: Any) -> Spectrum:
    x, y = (column[:, 0] for column in candidate.rows)
    found = net.hessian(x, y).spectrum()
    return _placed(found, candidate.factor or 1.0, candidate, joined=False)


class _TwoSlopes(nn.Module):  # type: ignore[misc]
    """A scalar function with one slope for x > 0 and another for x < 0."""

    def __init__(self, slopes: Tensor) -> None:
        super().__init__()
        self.slopes = nn.Parameter(slopes)

    def forward(self, x: Tensor) -> Tensor:
        plus, minus = self.slopes
        return torch.where(x > 0, plus * x, minus * x)


def _relu_of_any_loss(candidate: Candidate, w: Tensor, v: Tensor) -> CellProducts:
    """Return the Hessian from the derivatives of the loss in the cells' coefficients."""
    if (v == 0).any():
        raise ValueError(
            f"layer {candidate.layers[0].name!r} has a weight of zero, where a ReLU has a kink and "
            "the loss no Hessian."
        )
    cells = Cells(w, v)
    found = LossDerivatives.of(candidate, _TwoSlopes(cells.gram.inner))
    if found.hessian[0, 1] != 0:
        raise ValueError("the loss couples samples, and is not a sum over them.")
    populated = candidate.anywhere(lambda x: x > 0), candidate.anywhere(lambda x: x <= 0)
    return cells.hessian(
        found.gradient, found.hessian.diagonal(), populated, derivatives=found.errors
    )


# Chains of any width.


def linear_chain(candidate: Candidate) -> Spectrum:
    """Return the spectrum of linear layers; a bias of the first is a column of its weight."""
    weights, bias = _shifted(candidate), candidate.biases[0]
    if bias is not None:
        weights = [torch.cat([weights[0], bias[:, None]], dim=1), *weights[1:]]
    hessian, factor = _of_product(weights, candidate)
    if len(weights) == 1 and isinstance(hessian.loss_hessian, Separable):
        return _placed(_one_layer(hessian, hessian.loss_hessian.variance), factor, candidate)
    if not (hessian.solved or _may_be_aligned(hessian)):
        # The size of the eigenproblem that the exact routes for any weights lead to.
        two, chain = len(weights) == 2, hessian.chain
        size = twin_of(hessian).bound if two else range_size(chain.before, chain.after)
        _require_small(size, hessian.shape[-1])
    return _placed(hessian.spectrum(), factor, candidate)


def _one_layer(hessian: LinearHessian, variance: Tensor) -> Spectrum:
    """Return the spectrum I ⊗ Σ of the squared error of one layer, the same for each output."""

    def embed(coordinates: Tensor, copies: Tensor) -> Tensor:
        return (copies[:, None, :] * coordinates[:, None]).flatten(0, 1)

    labels = ("outlier",) * len(variance)
    family = Subspaces(labels, lambda _: embed, hessian.dims[-1], matrix=variance)
    return Spectrum([family], "closed form", operator=hessian)


def _may_be_aligned(hessian: LinearHessian) -> bool:
    """Whether the network could be aligned with its data, by a test that costs little.

    If it is, its first layer and the data share singular vectors, and so do its last layer and the
    gradient: their Gram matrices commute.
    """
    if not isinstance(hessian.loss_hessian, Separable):
        return False
    first, last, gradient = hessian.weights[0], hessian.weights[-1], hessian.gradient
    pairs = (
        (first.T @ first, hessian.loss_hessian.variance),
        (last @ last.T, gradient @ gradient.T),
    )
    return all(
        (a @ b - b @ a).norm() <= 1e5 * torch.finfo(a.dtype).eps * a.norm() * b.norm()
        for a, b in pairs
    )


def affine_chain(candidate: Candidate) -> Spectrum:
    r"""Return the spectrum of linear layers with biases anywhere.

    A layer :math:`h \mapsto W h + b` is the matrix [[W, b], [0, 1]] on (h, 1). So a chain of them
    is a product of matrices of which only the blocks V = [W, b] are parameters, and its Hessian is
    part of the Hessian of the product. A change dV matters only through those rows of the product
    of the matrices before it, and those columns of the product after it, that V multiplies.
    """
    biases = candidate.biases
    raised = [_raised(w, b) for w, b in zip(_shifted(candidate), biases, strict=True)]
    raised[-1] = raised[-1][:-1]
    hessian, factor = _of_product(raised, candidate)
    blocks = [
        (slice(len(w)), slice(w.shape[1] + (b is not None)))
        for w, b in zip(candidate.weights, biases, strict=True)
    ]
    before = [p[width] for p, (_, width) in zip(hessian.chain.before, blocks, strict=True)]
    after = [s[:, rows] for s, (rows, _) in zip(hessian.chain.after, blocks, strict=True)]
    _require_small(range_size(before, after), sum(p.numel() for p in candidate.parameters.values()))
    masks = [torch.zeros_like(matrix, dtype=torch.bool) for matrix in raised]
    for mask, block in zip(masks, blocks, strict=True):
        mask[block] = True
    factors = tuple(matrix[block] for matrix, block in zip(raised, blocks, strict=True))
    families = range_of(replace(hessian.chain, factors=factors), before, after).families()
    own = hessian.restrict(torch.cat([mask.flatten() for mask in masks]))
    return _placed(Spectrum(families, "range reduction", operator=own), factor, candidate)


def _require_small(size: int, parameters: int) -> None:
    """Refuse an eigenproblem that is too large, before any work on it."""
    if size > LARGEST_BLOCK:
        raise ValueError(
            f"{size} of the {parameters} dimensions of the parameters matter, more than the "
            f"{LARGEST_BLOCK} that a dense solver is given."
        )


class _EndToEnd(nn.Module):  # type: ignore[misc]
    """f(x) = M x, or x + M x for a chain in one skip connection; M may take a constant too."""

    def __init__(self, matrix: Tensor, skip: bool) -> None:
        super().__init__()
        self.matrix = nn.Parameter(matrix)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        out = _fitting(x, self.matrix) @ self.matrix.T
        return out + x if self.skip else out


def _of_product(weights: list[Tensor], candidate: Candidate) -> tuple[LinearHessian, float]:
    """Return the Hessian of the loss of f(x) = W_L ⋯ W_1 x without a factor, and the factor."""
    net: LinearNetwork = TwoLayerLinear(*weights) if len(weights) == 2 else DeepLinear(weights)
    skip = candidate.kinds.startswith("(")
    if candidate.kinds == "(ll)":
        net, skip = ResidualLinear(*weights), False
    if candidate.factor is not None:
        x, y = candidate.rows
        return net.hessian(_fitting(x, net.product), y - x if skip else y), candidate.factor
    outputs, inputs = net.product.shape
    if outputs * inputs > VARIABLES:
        raise ValueError(
            f"the product of its layers has {outputs * inputs} entries, more than the "
            f"{VARIABLES} in which a loss other than the squared error is differentiated twice."
        )
    found = LossDerivatives.of(candidate, _EndToEnd(net.product, skip))
    tensor = Dense(found.hessian.reshape(outputs, inputs, outputs, inputs))

    def errors(share: float) -> DerivativeErrors:
        # What a share of each step on the way to W_L ⋯ W_1 does to its entries.
        size = reduce(lambda product, w: w.abs() @ product, weights[1:], weights[0].abs())
        bounds = found.errors(share * to_numpy(size.double()).ravel())
        return DerivativeErrors(*(bound.reshape(outputs, inputs) for bound in bounds))

    gradient = found.gradient.reshape(outputs, inputs)
    return LinearHessian(net.weights, gradient, tensor, errors), 1.0


def _shifted(candidate: Candidate) -> list[Tensor]:
    """Return W of every layer, I + W where the layer is residual."""
    letters = candidate.kinds.strip("()")
    return [
        w + torch.eye(len(w), dtype=w.dtype, device=w.device) if letter.isupper() else w
        for w, letter in zip(candidate.weights, letters, strict=True)
    ]


def _fitting(x: Tensor, matrix: Tensor) -> Tensor:
    """Return x, with a constant appended if the matrix takes one."""
    if x.shape[-1] == matrix.shape[1]:
        return x
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


def _raised(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the matrix [[W, b], [0, 1]], which keeps the constant 1."""
    raised = weight.new_zeros(weight.shape[0] + 1, weight.shape[1] + 1)
    raised[:-1, :-1] = weight
    raised[-1, -1] = 1
    if bias is not None:
        raised[:-1, -1] = bias
    return raised


def _placed(
    spectrum: Spectrum, factor: float, candidate: Candidate, *, joined: bool = True
) -> Spectrum:
    """Return a network's spectrum times a positive factor, in the order of the model's parameters.

    The network's vector is ([W1 | b1], W2, …), row by row, or (W1, b1, W2, …) if not `joined`.
    """
    parameters = candidate.parameters
    numbers = torch.arange(sum(p.numel() for p in parameters.values()))
    pieces = numbers.split([p.numel() for p in parameters.values()])
    own = dict(zip(parameters, pieces, strict=True))
    parts = []
    for layer, weight in zip(candidate.layers, candidate.weights, strict=True):
        columns = [own[name].reshape(len(weight), -1) for name in layer.parameters]
        parts += [torch.cat(columns, dim=1)] if joined else columns
    order = torch.cat([part.flatten() for part in parts]).argsort()
    if torch.equal(order, numbers):
        return spectrum.mapped(lambda columns: columns, factor)
    order = order.to(candidate.batches[0][0].device)
    return spectrum.mapped(lambda columns: columns[order], factor)
