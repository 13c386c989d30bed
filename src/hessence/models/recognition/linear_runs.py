"""Which Linear layers of a model act one right after the other, told by watching it run.

What a model is made of does not say what it does with it, unless it is an ``nn.Sequential``. So the
model is run once, and every call of a PyTorch function is looked at: two layers are neighbours if
the second takes what the first has made, as it is, and nothing else takes it. The graph that is
recorded must say so too: it knows what compiled functions take, and what the model returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from hessence.models.interrupts import HeldBack
from hessence.models.model_layers import Layer, is_plain
from hessence.models.state_swap import StateSwap

SAMPLES = 64
"""How many samples the model is watched with."""


def linear_runs(model: nn.Module, inputs: Tensor) -> list[list[Layer]]:
    """Return the runs of two or more Linear layers, in the order in which they act.

    A few of the inputs tell as much as all of them.
    """
    layers = [Layer(name, m) for name, m in model.named_modules() if is_plain(m, nn.Linear)]
    if len(layers) < 2:
        return []
    try:
        return _watched(model, layers, inputs[:SAMPLES])
    except Exception:  # from a model that knows the number of samples
        return _watched(model, layers, inputs)


def _watched(model: nn.Module, layers: Sequence[Layer], inputs: Tensor) -> list[list[Layer]]:
    state = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    for name, parameter in model.named_parameters():
        state[name] = parameter.detach().clone().requires_grad_(parameter.is_floating_point())
    watch = _Watch(layers, state)
    with HeldBack() as interrupts, torch.enable_grad(), StateSwap(model).hold(state), watch:
        output = interrupts.interruptible(lambda: model(inputs.clone()))
    leaves = tree_leaves(output)
    if not all(leaf is None or isinstance(leaf, (Tensor, str, int, float)) for leaf in leaves):
        return []  # there may be anything in what the model returns
    return watch.runs(_uses([leaf for leaf in leaves if isinstance(leaf, Tensor)]))


def _uses(results: Sequence[Tensor]) -> Counter[Any]:
    """Return how many nodes of a graph take what each node makes; to be a result is a use too."""
    waiting = [tensor.grad_fn for tensor in results if tensor.grad_fn is not None]
    uses, seen = Counter(waiting), set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            taken = [before for before, _ in node.next_functions if before is not None]
            uses.update(taken)
            waiting += taken
    return uses


@dataclass(frozen=True)
class _Made:
    """What a layer has made, which version of it, and by which node of the graph."""

    layer: str
    tensor: Tensor
    version: int
    node: Any


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Notes which Linear layer takes what another one has made.

    Parameters
    ----------
    layers : sequence of Layer
        The layers.
    state : dict
        The tensors that the model runs with, by name.
    """

    def __init__(self, layers: Sequence[Layer], state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._layers = {id(state[f"{layer.name}.weight"]): layer for layer in layers}
        self._parameters = {
            id(state[name]): layer.name
            for layer in layers
            for name in (f"{layer.name}.weight", f"{layer.name}.bias")
            if name in state
        }
        self._spoilt: set[str] = set()
        self._made: dict[int, _Made] = {}
        self._calls: Counter[str] = Counter()
        self._uses: Counter[str] = Counter()
        self._steps: Counter[tuple[str, str]] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        taken = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = [self._made[id(tensor)] for tensor in taken if id(tensor) in self._made]
        result = func(*args, **(kwargs or {}))
        # Reading a tensor's shape, or returning it unchanged, is no use of it.
        used = any(isinstance(leaf, Tensor) for leaf in tree_leaves(result))
        for made in known if used else ():
            if result is not made.tensor or result._version != made.version:
                self._uses[made.layer] += 1
        if func is nn.functional.linear:
            self._note(result, *args, **(kwargs or {}))
        elif used:
            self._spoilt |= {self._parameters[id(t)] for t in taken if id(t) in self._parameters}
        return result

    def _note(self, result: Tensor, input: Tensor, weight: Tensor, bias: Any = None) -> None:
        layer = self._layers.get(id(weight))
        if layer is None:
            return
        self._calls[layer.name] += 1
        made = self._made.get(id(input))
        if made is not None and input._version == made.version:
            self._steps[made.layer, layer.name] += 1
        self._made[id(result)] = _Made(layer.name, result, result._version, result.grad_fn)

    def runs(self, uses: Counter[Any]) -> list[list[Layer]]:
        """Return the runs of layers that always follow one another, and have no other use.

        Parameters
        ----------
        uses : Counter
            How many nodes of the graph take what each node makes.
        """
        recorded = Counter[str]()
        for made in self._made.values():
            recorded[made.layer] += uses[made.node]
        follower = {
            first: second
            for (first, second), count in self._steps.items()
            if count == self._calls[first] == self._calls[second] == self._uses[first]
            and count == recorded[first]
            and not {first, second} & self._spoilt
        }
        own = {layer.name: layer for layer in self._layers.values()}
        runs = []
        for name in self._calls:
            if name in follower and name not in follower.values():
                run = [name]
                while run[-1] in follower:
                    run.append(follower[run[-1]])
                runs.append([own[name] for name in run])
        return runs
