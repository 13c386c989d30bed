"""First and second derivatives of a PyTorch loss in few variables, dense."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[[list[Tensor]], Tensor]
"""A function of several tensors with a number for its value."""

VARIABLES = 2048
"""In how many variables a loss is differentiated twice: each takes a pass over the data."""

CHUNK = 64
"""How many second derivatives are taken at a time, at most."""

ENTRIES = 2**24
"""How many entries the copies of the inputs for them may have together."""


def derivatives(
    function: Function, variables: Sequence[Tensor], inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gradient (q,) and Hessian (q, q) of a function of tensors with q entries in all.

    By differentiating backwards twice, which unlike forward over backward is right for every layer
    of PyTorch that has a second derivative. `inputs` are the data that the function sees.
    """
    leaves = [v.detach().clone().requires_grad_() for v in variables]
    size = sum(leaf.numel() for leaf in leaves)
    with torch.enable_grad():
        gradient = flat_gradient(function(leaves), leaves)
        if not gradient.requires_grad:  # the function is linear
            return gradient, gradient.new_zeros(size, size)
        eye = torch.eye(size, dtype=gradient.dtype, device=gradient.device)
        parts = eye.split(max(1, min(CHUNK, ENTRIES // inputs.numel())))
        hessian = torch.cat([_rows(gradient, leaves, directions) for directions in parts])
    if not (gradient.isfinite().all() and hessian.isfinite().all()):
        raise ValueError("its derivatives are not finite.")
    return gradient.detach(), (hessian + hessian.T) / 2


def gradient_of(function: Function, variables: Sequence[Tensor]) -> Tensor:
    """Return the gradient (q,) of a function of tensors with q entries in all."""
    leaves = [v.detach().clone().requires_grad_() for v in variables]
    with torch.enable_grad():
        return flat_gradient(function(leaves), leaves).detach()


def flat_gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """Return the gradient of a number, flat and itself differentiable."""
    if not value.requires_grad:
        return torch.cat([torch.zeros_like(leaf).reshape(-1) for leaf in leaves]).detach()
    gradients = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
    return flatten_like(gradients, leaves)


def _rows(gradient: Tensor, leaves: list[Tensor], directions: Tensor) -> Tensor:
    """Return products of the Hessian with directions (n, q), as rows."""

    def rows(v: Tensor, batched: bool) -> Tensor:
        found = torch.autograd.grad(
            gradient, leaves, v, retain_graph=True, allow_unused=True, is_grads_batched=batched
        )
        return flatten_like(found, leaves, lead=v.shape[:-1])

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that some operation batches slowly
            return rows(directions, batched=True)
    except RuntimeError:  # that some operation does not batch at all
        return torch.stack([rows(direction, batched=False) for direction in directions])


def flatten_like(
    tensors: Sequence[Tensor | None], leaves: list[Tensor], lead: tuple[int, ...] = ()
) -> Tensor:
    """Join tensors along one last axis, with zeros for what does not matter."""
    parts = [
        leaf.new_zeros(*lead, leaf.numel()) if t is None else t.reshape(*lead, leaf.numel())
        for t, leaf in zip(tensors, leaves, strict=True)
    ]
    return torch.cat(parts, dim=-1)
