"""What a model computes, found by watching it run.

The class of a model does not say what its ``forward`` does. So the model runs once while we watch
its calls of PyTorch functions: ``linear`` with the model's own parameters, ReLUs, and sums
``h + g(h)``. They tell

- the *steps* from the data to the prediction, if there are no steps of other kinds;
- the *pairs* of linear layers of which the second takes the first one's output, directly or after
  an activation of two slopes, and nothing else takes it. The graph that PyTorch records must agree:
  it knows what compiled functions take, and what the model returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from hessence.models.model_layers import graph_uses
from hessence.models.recognition._slopes import activation

SAMPLES = 64
"""How many samples the model is given."""

Key = tuple[int, int]
"""Identity and version of a tensor; a write to the tensor changes the version."""


@dataclass(frozen=True)
class Layer:
    """A linear layer, by the names of its parameters."""

    weight: str
    bias: str | None

    @property
    def name(self) -> str:
        """The name of the module, where it has one of its own."""
        return self.weight.removesuffix(".weight")

    @property
    def parameters(self) -> list[str]:
        """The names of weight and bias."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]


@dataclass(frozen=True)
class Pair:
    """Two linear layers, and the name of the activation between them, if there is one."""

    first: Layer
    second: Layer
    activation: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of the layers."""
        return [self.first.name, self.second.name]


@dataclass(frozen=True)
class Relu:
    """max(h, 0)."""


@dataclass(frozen=True)
class Skip:
    """h + g(h), where g takes some steps."""

    steps: Steps


Steps = tuple[Layer | Relu | Skip, ...]


@dataclass(frozen=True)
class Program:
    """What a model computes.

    Attributes
    ----------
    steps : tuple or None
        The steps from the data to the prediction; None if some step is of another kind.
    pairs : list of Pair
        Linear layers that always follow one another, in the order in which they act.
    obstacle : str or None
        The first function other than a linear layer that acts on something that depends on the
        parameters.
    """

    steps: Steps | None
    pairs: list[Pair]
    obstacle: str | None


def read(model: nn.Module, inputs: Tensor) -> Program:
    """Run a model of our own once, and return what it does."""
    try:
        return _watched(model, inputs[:SAMPLES])
    except Exception:
        # A model may require its number of samples, so run it with all of them.
        return _watched(model, inputs)


def _watched(model: nn.Module, inputs: Tensor) -> Program:
    watch = _Watch({id(p): name for name, p in model.named_parameters()})
    own = inputs.clone()
    with torch.enable_grad(), watch.naming(model), watch:
        output = model(own)
    leaves = tree_leaves(output)
    pairs = []
    # An object may hold any tensor, so that every layer might have another use.
    if all(leaf is None or isinstance(leaf, (Tensor, str, int, float)) for leaf in leaves):
        pairs = watch.pairs(graph_uses(leaf for leaf in leaves if isinstance(leaf, Tensor)))
    return Program(watch.steps(output), pairs, watch.obstacle)


@dataclass(frozen=True)
class _Path:
    """The data that a tensor was computed from, and the steps."""

    start: Key
    steps: Steps


@dataclass(frozen=True)
class _Call:
    """A call of a linear layer: its input and output, and the node of the graph.

    If only an activation takes the output, layer and activation count as one call.
    """

    layer: Layer
    taken: Key
    made: Key
    node: Any
    activation: str | None = None


@dataclass(eq=False)
class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Records what a model does with its parameters, given by identity and name."""

    parameters: Mapping[int, str]
    obstacle: str | None = None
    _calls: list[_Call] = field(default_factory=list)
    _activated: dict[Key, tuple[str, Key, Any]] = field(default_factory=dict)
    _paths: dict[Key, _Path] = field(default_factory=dict)
    _uses: Counter[Key] = field(default_factory=Counter)
    _other_uses: set[str] = field(default_factory=set)
    _alive: list[Tensor] = field(default_factory=list)
    _modules: list[tuple[str, nn.Module]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @contextmanager
    def naming(self, model: nn.Module) -> Iterator[None]:
        """Keep track of which module is running, by hooks; the model is our own copy."""

        def leave(*_: Any) -> None:
            self._modules.pop()

        with ExitStack() as hooks:
            for entry in model.named_modules():
                if not isinstance(entry[1], torch.jit.ScriptModule):
                    enter = partial(lambda entry, *_: self._modules.append(entry), entry)
                    hooks.callback(entry[1].register_forward_pre_hook(enter).remove)
                    hooks.callback(entry[1].register_forward_hook(leave).remove)
            yield

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        taken = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        keys = [_key(tensor) for tensor in taken]
        paths = [self._path(tensor) for tensor in taken]
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        # Reading a tensor's shape, or returning it unchanged, does not count as a use.
        if made and not (len(made) == 1 and _key(made[0]) in keys):
            self._alive += [*taken, *made]
            self._uses.update(set(keys))
            if func is not nn.functional.linear or not self._linear(result, *args, **kwargs):
                self._other_uses |= {self.parameters.get(id(tensor), "") for tensor in taken} - {""}
                name = getattr(func, "__name__", str(func))
                path = _sum(paths, args) if name in ("add", "add_") and not kwargs else None
                if name in ("relu", "relu_"):
                    path = _rectified(paths)
                kind = activation(func, args, kwargs)
                if kind is not None:
                    self._activated[keys[0]] = kind, _key(made[0]), made[0].grad_fn
                if path is not None:
                    self._paths[_key(made[0])] = path
                if path is None or path.steps[-1:] == (Relu(),):
                    self._note_obstacle(name, made)
        return result

    def _linear(
        self, result: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> bool:
        """Record a call of ``linear`` and return True if its parameters are the model's own."""
        name, of_bias = (self.parameters.get(id(tensor)) for tensor in (weight, bias))
        foreign = bias is not None and of_bias is None
        if name is None or foreign or id(input) in self.parameters:
            return False
        layer, path = Layer(name, of_bias), self._path(input)
        self._calls.append(_Call(layer, _key(input), _key(result), result.grad_fn))
        if path is not None:
            self._paths[_key(result)] = _Path(path.start, (*path.steps, layer))
        return True

    def _path(self, tensor: Tensor) -> _Path | None:
        """Return the path to a tensor; a tensor that needs no gradient counts as data."""
        start = None if tensor.requires_grad else _Path(_key(tensor), ())
        return self._paths.get(_key(tensor), start)

    def _note_obstacle(self, function: str, made: list[Tensor]) -> None:
        if self.obstacle is None and any(tensor.requires_grad for tensor in made):
            name, module = self._modules[-1] if self._modules else ("", None)
            of = f"layer {name!r}" if name else "the model"
            leaf = name and module is not None and next(module.children(), None) is None
            self.obstacle = (
                f"{of} is a {type(module).__name__}" if leaf else f"{of} calls {function}"
            )

    def steps(self, output: Any) -> Steps | None:
        """Return the steps to a prediction if all are known and each layer acts once."""
        path = self._paths.get(_key(output)) if isinstance(output, Tensor) else None
        if path is None or self._other_uses:
            return None
        uses = Counter(name for call in self._calls for name in call.layer.parameters)
        return path.steps if set(uses.values()) == {1} else None

    def pairs(self, recorded: Counter[Any]) -> list[Pair]:
        """Return the pairs of layers that always follow one another, and have no other use.

        `recorded` counts, for each node of the graph, the nodes that use it.
        """
        made_by = [self._with_activation(call, recorded) for call in self._calls]
        maker = {call.made: call for call in made_by}
        calls = Counter(call.layer for call in made_by)
        owners = Counter(name for layer in calls for name in layer.parameters)
        uses, nodes = Counter[Layer](), Counter[Layer]()
        for call in made_by:
            uses[call.layer] += self._uses[call.made]
            nodes[call.layer] += recorded[call.node]
        steps = Counter(
            Pair(before.layer, call.layer, before.activation)
            for call in made_by
            if (before := maker.get(call.taken)) is not None
        )
        clean = {
            layer for layer in calls
            if not self._other_uses & set(layer.parameters)
            and all(owners[name] == 1 for name in layer.parameters)
        }  # fmt: skip
        return [
            pair
            for pair, count in steps.items()
            if count == calls[pair.first] == calls[pair.second]
            and count == uses[pair.first] == nodes[pair.first]
            and {pair.first, pair.second} <= clean
        ]

    def _with_activation(self, call: _Call, recorded: Counter[Any]) -> _Call:
        found = self._activated.get(call.made)
        if found is None or self._uses[call.made] != 1 or recorded[call.node] != 1:
            return call
        name, made, node = found
        return replace(call, activation=name, made=made, node=node)


def _key(tensor: Tensor) -> Key:
    return id(tensor), tensor._version


def _rectified(paths: list[_Path | None]) -> _Path | None:
    path = paths[0]
    return _Path(path.start, (*path.steps, Relu())) if path and path.steps else None


def _sum(paths: list[_Path | None], args: tuple[Any, ...]) -> _Path | None:
    """Return the path to h + g(h); adding the number zero, as ``sum`` does, changes nothing."""
    numbers = [arg for arg in args if not isinstance(arg, Tensor)]
    if numbers:
        return paths[0] if numbers == [0] else None
    known = [path for path in paths if path is not None]
    if len(known) != 2 or args[0].shape != args[1].shape:
        return None
    before, after = sorted(known, key=lambda path: len(path.steps))
    count = len(before.steps)
    same = before.start == after.start and before.steps == after.steps[:count]
    if not same or count == len(after.steps):
        return None
    return _Path(before.start, (*before.steps, Skip(after.steps[count:])))
