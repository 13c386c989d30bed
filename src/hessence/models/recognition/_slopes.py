"""Activations with two slopes, and models of other widths that keep the slopes of their units.

ReLU, leaky ReLU, PReLU with one slope and the absolute value multiply a positive argument by one
number and any other argument by another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hessence.models.model_layers import Intercepted, linear_arguments

NAMES = {
    f"{name}{tail}": activation
    for name, activation in {
        "relu": "relu", "leaky_relu": "leaky_relu", "prelu": "prelu", "abs": "abs",
        "absolute": "abs",
    }.items()
    for tail in ("", "_")
}  # fmt: skip
"""The activations, by the names of PyTorch's functions."""

Activation = Callable[[Tensor], Tensor]


def activation(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return the name of the activation that is called; None if it is none of these."""
    name = NAMES.get(getattr(func, "__name__", ""))
    if name is None or not isinstance(args[0] if args else kwargs.get("input"), Tensor):
        return None
    if name == "prelu" and (kwargs["weight"] if "weight" in kwargs else args[1]).numel() != 1:
        return None
    return name


def run_with(
    activate: Callable[[int, Tensor, Tensor, Activation], Any],
    model: nn.Module,
    inputs: Tensor,
    weights: Sequence[str],
) -> Any:
    """Run a model with other activations in its hidden layers.

    Parameters
    ----------
    activate : callable
        Called as ``activate(i, h, z, activation)`` in place of the activation that takes
        z = W h + b, where W is the i-th of the weights.
    model, inputs
        The model and what it takes.
    weights : sequence of str
        The names of the hidden layers' incoming weights.
    """
    own = dict(model.named_parameters())
    layers = {id(own[name]): i for i, name in enumerate(weights)}
    made: dict[int, tuple[int, Tensor, Tensor]] = {}

    def handle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if activation(func, args, kwargs) is not None:
            z, *options = args or (kwargs["input"],)
            if id(z) in made:
                named = {name: value for name, value in kwargs.items() if name != "input"}
                return activate(*made.pop(id(z)), lambda z: func(z, *options, **named))
        result = func(*args, **kwargs)
        if func is nn.functional.linear:
            given = linear_arguments(args, kwargs)
            if id(given["weight"]) in layers:
                # The tensors are kept alive, so that no other tensor gets the same identity.
                made[id(result)] = layers[id(given["weight"])], given["input"], result
        return result

    with Intercepted(handle):
        return model(inputs)


class FixedSlopes(nn.Module):  # type: ignore[misc]
    """A model of other widths, whose hidden units have the slopes of units of the original model.

    Parameters
    ----------
    origin : torch.nn.Module
        The original model.
    model : torch.nn.Module
        The model of other widths.
    hidden : mapping of str to Tensor
        By the name of a hidden layer's incoming weight: the unit of `origin` from which each unit
        of `model` has its slopes.
    """

    def __init__(self, origin: nn.Module, model: nn.Module, hidden: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = model
        # In a tuple, so that its parameters do not become this model's.
        self._origin = (origin,)
        self._weights, self._units = list(hidden), list(hidden.values())

    def forward(self, inputs: Tensor) -> Any:
        """Run the original model to see its slopes, and then the other one with them."""
        positive: list[list[Tensor]] = [[] for _ in self._units]

        def record(i: int, h: Tensor, z: Tensor, activation: Activation) -> Tensor:
            positive[i].append((z > 0)[..., self._units[i]])
            return activation(z)

        with torch.no_grad():
            run_with(record, self._origin[0], inputs.clone(), self._weights)
        calls = [iter(own) for own in positive]

        def replay(i: int, h: Tensor, z: Tensor, activation: Activation) -> Tensor:
            minus = z.new_full((1,), -1)
            below = activation(minus)
            result = torch.where(next(calls[i]), z, -below * z)
            # An activation in place writes to z, and the model may ignore what it returns.
            return z.copy_(result) if below is minus else result

        return run_with(replay, self.model, inputs, self._weights)
