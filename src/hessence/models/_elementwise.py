"""A function of each number alone, read off a model that applies it between two linear layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from hessence._common.arrays import Numbers
from hessence.models.model_layers import linear_arguments

HOMOGENEOUS = frozenset({
    "abs", "abs_", "clone", "contiguous", "dropout", "leaky_relu", "leaky_relu_", "neg", "neg_",
    "prelu", "relu", "relu_",
})  # fmt: skip
"""Functions that are linear on either side of zero, without an intercept."""

PIECEWISE = HOMOGENEOUS | frozenset({
    "clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "hardtanh",
    "hardtanh_", "relu6", "threshold", "threshold_",
})  # fmt: skip
"""Functions that are linear between kinks."""

SCALED = frozenset({"mul", "mul_", "__mul__", "__rmul__", "div", "div_", "__truediv__"})
SHIFTED = frozenset({"add", "add_", "__add__", "__radd__", "sub", "sub_", "__sub__", "__rsub__"})
"""Functions that are linear if the other operand is a number."""

AGREEMENT = 1e-12
"""Up to this share of the largest value, two evaluations of one function agree."""


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor that the function makes on its way."""

    index: int


@dataclass(frozen=True)
class _Step:
    """A call of a PyTorch function."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    made: int

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", self.function))

    @property
    def alone(self) -> bool:
        """Whether the call uses at most one tensor."""
        leaves = tree_leaves((self.args, self.kwargs), is_leaf=lambda a: isinstance(a, _Place))
        return sum(isinstance(leaf, (_Place, Tensor)) for leaf in leaves) <= 1


@dataclass(frozen=True)
class Elementwise:
    """The steps from what one linear layer makes to what the next one takes."""

    steps: tuple[_Step, ...]
    last: int

    @property
    def piecewise_linear(self) -> bool:
        """Whether the second derivative is zero between kinks."""
        return all(
            step.name in PIECEWISE or (step.name in SCALED | SHIFTED and step.alone)
            for step in self.steps
        )

    @property
    def homogeneous(self) -> bool:
        """Whether φ(z) = φ′(z) z everywhere."""
        return all(
            step.name in HOMOGENEOUS or (step.name in SCALED and step.alone) for step in self.steps
        )

    def __call__(self, z: Tensor) -> Tensor:
        """Apply the function to a tensor of any shape."""
        # On a copy, since a step may write to what it takes.
        made = {0: z.clone()}
        for step in self.steps:
            args, kwargs = tree_map(
                lambda part: made[part.index] if isinstance(part, _Place) else part,
                (step.args, step.kwargs),
                is_leaf=lambda part: isinstance(part, _Place),
            )
            made[step.made] = step.function(*args, **kwargs)
        return made[self.last]

    def derivatives(self, z: Numbers, order: int) -> tuple[Numbers, ...]:
        """Return φ(z), φ′(z), … up to the order."""
        with torch.enable_grad():
            leaf = torch.from_numpy(z).requires_grad_()
            found = [self(leaf)]
            for i in range(order):
                if not found[-1].requires_grad:
                    found.append(torch.zeros_like(leaf))
                    continue
                (slope,) = torch.autograd.grad(
                    found[-1].sum(), leaf, create_graph=i + 1 < order, materialize_grads=True
                )
                found.append(slope)
        # PyTorch may give zeros that hold no memory, which are filled in first.
        return tuple(part.numpy(force=True) for part in found)

    def is_elementwise(self, z: Tensor) -> bool:
        """Whether no number depends on its neighbours, which is tried out in another order."""
        try:
            with torch.no_grad():
                whole, mixed = self(z), self(z.flatten().flip(0)[: max(1, z.numel() // 2)])
        except (RuntimeError, IndexError, ValueError):
            return False  # it needs the shape of what it takes, as layer norm does
        if whole.shape != z.shape or mixed.ndim != 1:
            return False
        gap = (whole.flatten().flip(0)[: len(mixed)] - mixed).abs().max()
        return bool(gap <= AGREEMENT * whole.abs().max())


@dataclass(eq=False)
class Tape(TorchFunctionMode):  # type: ignore[misc]
    """Watches a model run, and keeps what happens between two of its linear layers."""

    first: Tensor
    second: Tensor
    inputs: Tensor | None = None
    between: Tensor | None = None
    output: Tensor | None = None
    calls: int = 0
    usable: bool = True
    taken: int | None = None
    _steps: list[_Step] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)
    _alive: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def function(self) -> Elementwise | None:
        """What is between the layers, if each was called once and nothing but numbers came in."""
        if not self.usable or self.calls != 2 or self.taken is None:
            return None
        return Elementwise(tuple(self._steps), self.taken)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.linear:
            return self._linear(func, args, kwargs)
        result = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if self.output is None and made and any(id(t) in self._places for t in tensors):
            self._note(func, args, kwargs, tensors, made)
        return result

    def _linear(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = linear_arguments(args, kwargs)
        result = func(*args, **kwargs)
        if given["weight"] is self.first:
            self.calls += 1
            self.inputs, self.between = given["input"], result.detach().clone()
            self._places[id(result)] = 0
            self._alive.append(result)
        elif given["weight"] is self.second:
            self.calls += 1
            self.output, self.taken = result, self._places.get(id(given["input"]))
        elif id(given["input"]) in self._places:
            self.usable = False
        return result

    def _note(
        self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], made: list[Tensor]
    ) -> None:
        foreign = [t for t in tensors if id(t) not in self._places]
        if len(made) != 1 or any(t.numel() != 1 for t in foreign):
            self.usable = False
            return
        places = dict(self._places)

        def placed(part: Any) -> Any:
            if isinstance(part, Tensor):
                return _Place(places[id(part)]) if id(part) in places else part.detach().double()
            return part

        place = self._places.setdefault(id(made[0]), 1 + len(self._steps))
        args, kwargs = tree_map(placed, (args, kwargs))
        self._steps.append(_Step(func, args, kwargs, place))
        self._alive += [*tensors, *made]


def as_numbers(tensor: Tensor) -> Numbers:
    """Return a tensor as NumPy's, in double precision."""
    return np.ascontiguousarray(tensor.detach().cpu().double().numpy())
