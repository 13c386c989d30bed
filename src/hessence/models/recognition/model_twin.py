r"""The narrow twin of adjacent Linear layers inside a PyTorch model.

Two Linear layers with nothing between them, :math:`A` (K × m) after :math:`B` (m × D), reach the
loss only through :math:`M = AB`; a bias of the first is a column more of B. The second variation of
the loss in A, B and all other parameters ψ is

.. math:: T[(dM, d\psi), (dM, d\psi)] + 2\langle G, dA\,dB\rangle, \qquad dM = dA\,B + A\,dB,

with G and T the first and second derivatives of the loss in (M, ψ): those of a small model in which
one Linear layer stands for two. With Q an orthonormal basis of row(A) + col(B), of dimension r, and
the singular values σ of G, whose singular vectors turn the outputs and inputs of the pair, the
Hessian is

- a bulk ±σᵢ, m − r times each, on hidden directions outside Q;
- a *core*: ψ, the rows of dA and columns of dB inside Q that meet a σᵢ > 0, and what dM sees of the
  others;
- zeros.

The core's matrix comes from T and G alone; neither the samples nor the width m is seen again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessence.models.interrupts import HeldBack
from hessence.models.model_layers import Layer, NotRecognised
from hessence.models.randomness import seeded
from hessence.models.recognition.linear_runs import linear_runs
from hessence.models.recognition.model_derivatives import (
    VARIABLES,
    derivatives,
    flat_gradient,
    flatten_like,
    gradient_of,
)
from hessence.models.recognition.model_pair import LayerPairReduction, Pair, Places
from hessence.models.recognition.model_stacks import Candidate
from hessence.models.recognition.twin_hessian import TwinHessian
from hessence.models.state_swap import StateSwap
from hessence.networks.linear.ggn_blocks import LARGEST_BLOCK


def hessian_by_twin(candidate: Candidate) -> TwinHessian:
    """Return the exact Hessian of a model with pairs of layers that are wide enough.

    Raises
    ------
    NotRecognised
        If no pair of layers is wide enough to gain anything, the twin is too large for a dense
        solver, or the model uses the layers in another way than one after the other.
    """
    chosen = _choose(candidate)
    try:
        hessian = _collapse(candidate, chosen)
        _verify(candidate, hessian)
    except (ValueError, TypeError, RuntimeError) as error:
        raise NotRecognised(f"the loss cannot be differentiated twice: {error}") from error
    return hessian


# Which pairs.


def _choose(candidate: Candidate) -> list[tuple[Layer, Layer]]:
    """Return disjoint pairs of adjacent layers, in order, chosen by how much they save."""
    runs = linear_runs(candidate.model, candidate.inputs)
    if not runs:
        other = next((layer for layer in candidate.layers if not layer.is_linear), None)
        found = f": {other.described}" if other else ""
        raise NotRecognised(
            f"the model is none of the solvable networks{found}, and it has no two Linear layers "
            "with nothing between them."
        )
    candidates = [(run[i], run[i + 1]) for run in runs for i in range(len(run) - 1)]
    chosen: list[tuple[Layer, Layer]] = []
    for pair in sorted(candidates, key=_saving, reverse=True):
        taken = {layer.name for other in chosen for layer in other}
        if _saving(pair) > 0 and not taken & {layer.name for layer in pair}:
            chosen.append(pair)
    if not chosen:
        pair = max(candidates, key=_saving)
        outputs, width, inputs = _sizes(pair)
        raise NotRecognised(
            f"layers {pair[0].name!r} and {pair[1].name!r} have nothing between them, but their "
            f"hidden width {width} is no more than the {inputs} + {outputs} that they can use."
        )
    return [pair for pair in candidates if pair in chosen]


def _saving(pair: tuple[Layer, Layer]) -> int:
    """Return how many dimensions the twin of a pair leaves out at least."""
    outputs, width, inputs = _sizes(pair)
    used, rank = min(width, outputs + inputs), min(outputs, inputs)
    all_of_them = width * (outputs + inputs)
    return all_of_them - min(used * (outputs + inputs), 2 * used * rank + outputs * inputs)


def _sizes(pair: tuple[Layer, Layer]) -> tuple[int, int, int]:
    """Return K, m and D of a pair, D with a column for the bias."""
    first, second = (layer.module for layer in pair)
    return second.out_features, first.out_features, first.in_features + (first.bias is not None)


# The small model.


def _collapse(candidate: Candidate, chosen: list[tuple[Layer, Layer]]) -> TwinHessian:
    """Differentiate the model in which one Linear layer stands for each pair."""
    parameters = {name: p.detach() for name, p in candidate.model.named_parameters()}
    places = _places(parameters)
    factors = [_factors(pair) for pair in chosen]
    replaced = {f"{second.name}.weight" for _, second in chosen}
    replaced |= {f"{first.name}.{kind}" for first, _ in chosen for kind in ("weight", "bias")}
    others = [name for name in parameters if name not in replaced]
    leaves = [A @ B for A, B in factors] + [parameters[name] for name in others]
    size = sum(leaf.numel() for leaf in leaves)
    if size > VARIABLES:
        names = ", ".join(repr(layer.name) for pair in chosen for layer in pair)
        raise NotRecognised(
            f"with one layer in place of each two of {names} the model still has {size} "
            f"parameters, more than the {VARIABLES} in which a loss is differentiated twice."
        )

    def loss(variables: Sequence[Tensor]) -> Tensor:
        values = dict(zip(others, variables[len(chosen) :], strict=True))
        for (first, second), M in zip(chosen, variables, strict=False):
            values[f"{first.name}.weight"] = M[:, : first.module.in_features]
            if first.module.bias is not None:
                values[f"{first.name}.bias"] = M[:, -1]
            values[f"{second.name}.weight"] = torch.eye(len(M), dtype=M.dtype, device=M.device)
        return model_loss(candidate, values)

    pairs = _pairs(chosen, factors, gradient_of(loss, leaves), places)
    indices = [torch.arange(places[name].start, places[name].stop) for name in others]
    rest = torch.cat([torch.arange(0), *indices]).to(candidate.inputs.device)
    _require_small(pairs, len(rest))
    return TwinHessian(pairs, derivatives(loss, leaves, candidate.inputs)[1], rest)


def _pairs(
    chosen: list[tuple[Layer, Layer]],
    factors: list[tuple[Tensor, Tensor]],
    gradient: Tensor,
    places: dict[str, slice],
) -> tuple[Pair, ...]:
    pairs, start = [], 0
    for layers, (A, B) in zip(chosen, factors, strict=True):
        end = start + len(A) * B.shape[1]
        slope = gradient[start:end].reshape(len(A), -1)
        first, second = layers
        pairs.append(Pair(A, B, slope, _places_of(layers, places), (first.name, second.name)))
        start = end
    return tuple(pairs)


def _require_small(pairs: tuple[Pair, ...], others: int) -> None:
    """Refuse a twin that is too large, before its second derivatives are worked out."""
    size = sum(LayerPairReduction(pair).bound for pair in pairs) + others
    if size > LARGEST_BLOCK:
        names = ", ".join(repr(name) for pair in pairs for name in pair.names)
        raise NotRecognised(
            f"the narrow twin of layers {names} leaves an eigenproblem of size {size}, more than "
            f"the {LARGEST_BLOCK} that a dense solver is given."
        )


def _factors(pair: tuple[Layer, Layer]) -> tuple[Tensor, Tensor]:
    """Return A and B of a pair, B with a column for the bias."""
    first, second = (layer.module for layer in pair)
    A, B = second.weight.detach(), first.weight.detach()
    return A, B if first.bias is None else torch.cat([B, first.bias.detach()[:, None]], dim=1)


def _places(parameters: dict[str, Tensor]) -> dict[str, slice]:
    """Return where each parameter is in the parameter vector."""
    places, start = {}, 0
    for name, parameter in parameters.items():
        places[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return places


def _places_of(pair: tuple[Layer, Layer], places: dict[str, slice]) -> Places:
    """Return where the parameters of a pair are in the parameter vector."""
    first, second = (layer.name for layer in pair)
    return places[f"{first}.weight"], places.get(f"{first}.bias"), places[f"{second}.weight"]


def model_loss(candidate: Candidate, parameters: dict[str, Tensor]) -> Tensor:
    """Return the loss of a model with other parameters; the model itself is not touched."""
    # Copies, because a layer may write to them: to its buffers batch normalisation does in training
    # mode, to its weight an embedding with a largest norm.
    buffers = {name: buffer.clone() for name, buffer in candidate.model.named_buffers()}
    own = {name: parameter.clone() for name, parameter in parameters.items()}
    # The fused kernels of attention have no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        with HeldBack() as interrupts, StateSwap(candidate.model).hold({**own, **buffers}):
            prediction = interrupts.interruptible(lambda: candidate.model(candidate.inputs.clone()))
        value: Tensor = candidate.criterion.mean(prediction, candidate.y)
    if value.ndim:
        raise ValueError(f"it has shape {tuple(value.shape)} and is not a single number.")
    return value


def _verify(candidate: Candidate, hessian: TwinHessian) -> None:
    """Compare one product with the model's own, which sees every use of every parameter."""
    parameters = {name: p.detach() for name, p in candidate.model.named_parameters()}
    leaves = [p.clone().requires_grad_() for p in parameters.values()]
    with torch.enable_grad():
        loss = model_loss(candidate, dict(zip(parameters, leaves, strict=True)))
        gradient = flat_gradient(loss, leaves)
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(len(gradient), generator=generator, dtype=torch.float64)
        direction = (direction / direction.norm()).to(gradient)
        theirs = torch.zeros_like(gradient)
        if gradient.requires_grad:
            found = torch.autograd.grad(gradient, leaves, direction, allow_unused=True)
            theirs = flatten_like(found, leaves)
    epsilon = torch.finfo(theirs.dtype).eps
    with torch.no_grad(), seeded(1, theirs.device):
        again = model_loss(candidate, parameters)
    if not (again - loss).abs() <= 1000 * epsilon * loss.abs():
        raise NotRecognised("the loss is random: it changes from one call to the next.")
    # A random direction of unit length sees this much of H on average.
    size = torch.sqrt(hessian.squared_norm() / len(gradient))
    gap = (hessian @ direction - theirs).norm()
    if not gap <= 3 * math.sqrt(epsilon) * torch.maximum(size, theirs.norm()):
        raise NotRecognised(
            f"layers {hessian.names} are used in another way than one after the other: a product "
            "with the model's own Hessian comes out differently."
        )
