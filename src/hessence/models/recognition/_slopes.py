"""Activations of two slopes: which of them a model's hidden units have, and models that keep them.

ReLU, leaky ReLU, PReLU with one slope and the absolute value multiply by one number where their
argument is positive and by another elsewhere. A model whose hidden units are turned into others
must keep the slopes of the units that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {
    "relu": lambda z, inplace=False: torch.zeros_like(z),
    "leaky_relu": lambda z, negative_slope=0.01, inplace=False: negative_slope * z,
    "prelu": lambda z, weight: weight * z,
    "abs": lambda z: -z,
}
"""What each makes of numbers that are not positive, with the arguments that it takes."""

NAMES = {f"{name}{tail}": name for name in ACTIVATIONS for tail in ("", "_")} | {
    "absolute": "abs",
    "absolute_": "abs",
}
"""What PyTorch calls them."""


def activation(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return the name of the activation that is called; None if it is none of these."""
    name = NAMES.get(getattr(func, "__name__", ""))
    if name == "prelu":
        slope = kwargs["weight"] if "weight" in kwargs else args[1]
        return name if slope.numel() == 1 else None
    return name if args and isinstance(args[0], Tensor) else None


class _Hidden(TorchFunctionMode):  # type: ignore[misc]
    """Sees the activations of the hidden layers whose incoming weights are given."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self._layers = {id(weight): i for i, weight in enumerate(weights)}
        self._made: dict[int, tuple[int, Tensor, Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if activation(func, args, kwargs) is not None and id(args[0]) in self._made:
            i, taken, z = self._made.pop(id(args[0]))
            return self._activate(i, taken, z, func, args, kwargs)
        result = func(*args, **kwargs)
        if func is nn.functional.linear:
            weight = kwargs["weight"] if "weight" in kwargs else args[1]
            if id(weight) in self._layers:
                taken = kwargs["input"] if "input" in kwargs else args[0]
                # Kept alive, so that no other tensor gets its identity.
                self._made[id(result)] = self._layers[id(weight)], taken, result
        return result

    def _activate(
        self, i: int, taken: Tensor, z: Tensor, func: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        raise NotImplementedError


class SignRecord(_Hidden):
    """Records which hidden units are positive: for each layer, a tensor (…, m) for each call.

    Attributes
    ----------
    positive : list of list of Tensor
        By layer and call.
    kinks : list of int
        How many units of each layer are exactly zero for a sample that can move them.
    """

    def __init__(self, weights: Sequence[Tensor], biased: Sequence[bool]) -> None:
        super().__init__(weights)
        self._biased = biased
        self.positive: list[list[Tensor]] = [[] for _ in weights]
        self.kinks = [0] * len(weights)

    def _activate(
        self, i: int, taken: Tensor, z: Tensor, func: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        self.positive[i].append(z > 0)
        moves = (taken != 0).any(dim=-1, keepdim=True) | self._biased[i]
        self.kinks[i] += int(((z == 0) & moves).reshape(-1, z.shape[-1]).any(dim=0).sum())
        return func(*args, **kwargs)


class _Replay(_Hidden):
    """Gives hidden units the slopes of others, which were recorded."""

    def __init__(self, weights: Sequence[Tensor], positive: Sequence[Sequence[Tensor]]) -> None:
        super().__init__(weights)
        self._positive = [iter(calls) for calls in positive]

    def _activate(
        self, i: int, taken: Tensor, z: Tensor, func: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        name = activation(func, args, kwargs)
        assert name is not None
        below = ACTIVATIONS[name](z, *args[1:], **{k: v for k, v in kwargs.items() if k != "input"})
        return torch.where(next(self._positive[i]), z, below)


class FixedSlopes(nn.Module):  # type: ignore[misc]
    """A model of other widths, whose hidden units have the slopes of units of the model it is from.

    Parameters
    ----------
    origin : torch.nn.Module
        The model whose slopes count.
    model : torch.nn.Module
        The model of other widths.
    hidden : mapping of str to Tensor
        For the name of each hidden layer's incoming weight, the unit of `origin` that each unit
        has its slopes from.
    """

    def __init__(self, origin: nn.Module, model: nn.Module, hidden: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = model
        # In a tuple, so that its parameters do not become this model's.
        self._origin = (origin,)
        self._hidden = dict(hidden)

    def forward(self, inputs: Tensor) -> Any:
        """Run the one to see slopes, and then the other with them."""
        weights = dict(self._origin[0].named_parameters())
        record = SignRecord([weights[name] for name in self._hidden], [True] * len(self._hidden))
        with torch.no_grad(), record:
            self._origin[0](inputs.clone())
        positive = [
            [call[..., units] for call in calls]
            for calls, units in zip(record.positive, self._hidden.values(), strict=True)
        ]
        own = dict(self.model.named_parameters())
        with _Replay([own[name] for name in self._hidden], positive):
            return self.model(inputs)
