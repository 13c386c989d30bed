r"""Layer norm with a scale and a shift.

Let :math:`\hat x = (x - \mu)\, r` be the normalised input with the inverse deviation r, ⟨·⟩ a mean
over the features, and :math:`\Pi(g) = r\, (g - \langle g\rangle - \hat x \langle g \hat x\rangle)`,
which is symmetric, how normalising acts on a change of x. The slope of
:math:`y = \gamma \circ \hat x + \beta` is :math:`s = \Pi(\gamma \circ g)` for x,
:math:`\sum g \circ \hat x` for γ and :math:`\sum g` for β. The slope's own backward pass takes
:math:`(c, c_\gamma, c_\beta)` to

.. math::
    \gamma \circ \Pi(c) + c_\gamma \circ \hat x + c_\beta \quad\text{for } g, \qquad
    \sum g \circ \Pi(c) \quad\text{for } \gamma,

.. math::
    \Pi(c_\gamma \circ g) - r\, \bigl( \Pi(c)\, \langle \gamma g \hat x\rangle
    + s\, \langle c \hat x\rangle + \hat x\, \langle c\, s\rangle \bigr) \quad\text{for } x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hessence.models.kernels.higher_order import gradient, pull_back_through_slope

Shape = tuple[int, ...]


def layer_norm(
    original: Callable[..., Tensor],
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """Apply PyTorch's layer norm."""
    if weight is None and bias is not None:
        # PyTorch's own has no second derivative for a shift without a scale.
        return layer_norm(original, input, normalized_shape, eps=eps) + bias
    given = [t for t in (input, weight, bias) if t is not None]
    mixed = len({t.dtype for t in given}) > 1
    if mixed or not any(t.requires_grad for t in given):
        return original(input, normalized_shape, weight, bias, eps, *rest, **options)
    normed: Tensor = _LayerNorm.apply(input, weight, bias, tuple(normalized_shape), eps)
    return normed


def elementary_layer_norm(
    original: Callable[..., Tensor],
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """Apply PyTorch's layer norm, where it is differentiated more often or by other means."""
    normed = _spelled_out(input, tuple(normalized_shape), eps)
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


class _LayerNorm(Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Shape, eps: float
    ) -> Tensor:
        value, mean, inverse = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.shape, ctx.eps = shape, eps
        ctx.save_for_backward(x, weight, mean, inverse)
        return value

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            slopes = _Slope.apply(x, weight, pulled, mean, inverse, ctx.shape, ctx.eps)
        else:
            slopes = _slopes(pulled, x, ctx.shape, mean, inverse, weight)
        wanted = ctx.needs_input_grad[:3]
        return *(s if w else None for s, w in zip(slopes, wanted, strict=True)), None, None


class _Slope(Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        pulled: Tensor,
        mean: Tensor,
        inverse: Tensor,
        shape: Shape,
        eps: float,
    ) -> tuple[Tensor, ...]:
        slopes = _slopes(pulled, x, shape, mean, inverse, weight)
        normal = (x - mean) * inverse
        weighted = pulled if weight is None else pulled * weight
        onto = _mean(weighted * normal, shape)
        ctx.shape, ctx.eps = shape, eps
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, pulled, mean, inverse, slopes[0], normal, onto)
        return slopes

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> Any:
        x, weight, pulled, mean, inverse, slope, normal, onto = ctx.saved_tensors
        shape = ctx.shape
        if torch.is_grad_enabled():
            images = _differentiable(ctx.shape, ctx.eps, (x, weight, pulled), directions)
            return *images, None, None, None, None
        along, along_weight, along_bias = directions
        for_x = for_weight = for_pulled = None
        if along is not None:
            moved = _slopes(along, x, shape, mean, inverse)[0]
            for_x = moved * onto
            for_x = for_x.addcmul(slope, _mean(along * normal, shape))
            for_x = for_x.addcmul(normal, _mean(along * slope, shape)) * -inverse
            if weight is None:
                for_pulled = moved
            else:
                for_pulled = moved * weight
                for_weight = (pulled * moved).sum_to_size(weight.shape)
        if along_weight is not None:
            turned = _slopes(pulled, x, shape, mean, inverse, along_weight)[0]
            for_x = turned if for_x is None else for_x + turned
            term = normal * along_weight
            for_pulled = term if for_pulled is None else for_pulled + term
        if along_bias is not None:
            term = along_bias.expand_as(pulled)
            for_pulled = term if for_pulled is None else for_pulled + term
        return for_x, for_weight, for_pulled, None, None, None, None


def _slopes(
    pulled: Tensor,
    x: Tensor,
    shape: Shape,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the slopes for the input and, with a scale, for the scale and the shift."""
    affine = weight is not None
    slopes: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
        pulled, x, shape, mean, inverse, weight, weight, [True, affine, affine]
    )
    return slopes


def _mean(values: Tensor, shape: Shape) -> Tensor:
    return values.mean(tuple(range(-len(shape), 0)), keepdim=True)


def _differentiable(
    shape: Shape,
    eps: float,
    inputs: tuple[Tensor, Tensor | None, Tensor],
    directions: tuple[Tensor | None, ...],
) -> tuple[Tensor | None, ...]:
    x, weight, pulled = inputs
    if weight is None:
        for_x, for_pulled = pull_back_through_slope(
            lambda x, g: gradient(lambda x: _spelled_out(x, shape, eps), (x,), g),
            (x, pulled),
            directions[:1],
        )
        return for_x, None, for_pulled
    return pull_back_through_slope(
        lambda x, w, g: (
            *gradient(lambda x, w: _spelled_out(x, shape, eps) * w, (x, w), g),
            g.sum_to_size(w.shape),
        ),
        (x, weight, pulled),
        directions,
    )


def _spelled_out(x: Tensor, shape: Shape, eps: float) -> Tensor:
    """Normalise in elementary steps: PyTorch's own third derivative is wrong."""
    centred = x - _mean(x, shape)
    return centred * (_mean(centred**2, shape) + eps).rsqrt()
