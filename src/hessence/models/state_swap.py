"""A model's parameters and buffers, put aside for others while something runs.

PyTorch's own ``functional_call`` puts back a copy, not the parameter, where a module is registered
under two names. So the places that hold tensors are swapped here, each once.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hessence.models.randomness import random_states, set_random_states

_COMMON = vars(nn.Module()).keys()

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)

MOST = 2**12
"""Containers of more things than this are not looked into; lists are only cut to their length."""

LARGEST = 2**20
"""Tensors and arrays of more numbers are left as a run leaves them."""

_GROWING = ("_modules", "_forward_hooks", "_forward_pre_hooks", "_non_persistent_buffers_set")
"""What all modules have and a forward pass may add to."""

LOCK = threading.RLock()
"""Whoever changes a user's model, or PyTorch's own ways, for a while holds this meanwhile."""


@dataclass(frozen=True)
class _Place:
    """Where a module holds a tensor, and the first of the names that the tensor has."""

    module: nn.Module
    kind: str
    attribute: str
    name: str

    @property
    def home(self) -> dict[str, Tensor]:
        """The module's dictionary that the tensor is in."""
        home: dict[str, Tensor] = getattr(self.module, self.kind)
        return home


class StateSwap:
    """All places of a model that hold a parameter or a buffer, as they are now.

    Attributes
    ----------
    draws : bool
        Whether random numbers were drawn while others were in these places, so far.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = list(model.modules())
        self._places = tuple(_places(model))
        self._parameters = _parameter_places(self._places)
        self.draws = False

    @contextmanager
    def hold(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Put tensors into their places by name, and the model's own back afterwards.

        What a forward pass adds, such as a cache, or takes away is undone too, also in a module's
        other attributes: plain tensors, arrays, and what is in lists and dictionaries. Generators
        of random numbers go back to where they were. Compiled parts run as they were written:
        compiled ones have one derivative. One thread at a time may do this, since it is the user's
        own model.
        """
        with LOCK, _uncompiled():
            self._require_same()
            own = [[dict(home.items()) for home in _homes(module)] for module in self._modules]
            attributes = [_Attributes(module) for module in self._modules]
            device = next((t.device for t in tensors.values()), torch.device("cpu"))
            numbers = random_states(device)
            try:
                for place in self._places:
                    place.home[place.attribute] = tensors[place.name]
                yield
            finally:
                for module, contents in zip(self._modules, own, strict=True):
                    for home, before in zip(_homes(module), contents, strict=True):
                        _put_back(home, before)
                for kept in attributes:
                    kept.put_back()
                if set_random_states(numbers, device):
                    self.draws = True

    def _require_same(self) -> None:
        modules = {id(module) for module in self._model.modules()}
        gone = any(id(module) not in modules for module in self._modules)
        if gone or _parameter_places(_places(self._model)) != self._parameters:
            raise ValueError(
                "model has other layers or parameters than when this was made: make it anew."
            )


class _Attributes:
    """The attributes that a module has beside those of all modules, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        scripted = isinstance(module, torch.jit.ScriptModule)
        self._home: dict[str, Any] = {} if scripted else vars(module)
        self._own = {name: value for name, value in self._home.items() if name not in _COMMON}
        things = list(_inside(self._own.values()))
        self._contents = [
            (container, copy.copy(container)) for container in things if _is_container(container)
        ]
        self._contents += [
            (container, container.copy() if container else None)
            for container in map(self._home.get, _GROWING)
            if container is not None
        ]
        self._tensors = [
            (tensor, tensor.detach().clone())
            for tensor in things
            if isinstance(tensor, Tensor) and _may_change(tensor) and tensor.numel() <= LARGEST
        ]
        self._arrays = [
            (array, array.copy())
            for array in things
            if isinstance(array, np.ndarray) and array.size <= LARGEST
        ]
        self._lengths = [(c, len(c)) for c in things if type(c) is list and len(c) > MOST]

    def put_back(self) -> None:
        """Undo what has changed, and touch nothing else."""
        for name in self._home.keys() - self._own.keys() - _COMMON:
            del self._home[name]
        for name, value in self._own.items():
            if self._home.get(name, self) is not value:
                self._home[name] = value
        for container, before in self._contents:
            if before is None:  # it was empty
                container.clear()
            elif not _same(container, before):
                container.clear()
                (container.extend if hasattr(before, "extend") else container.update)(before)
        for container, length in self._lengths:
            del container[length:]
        for tensor, values in self._tensors:
            if not torch.equal(tensor, values):
                with torch.no_grad():
                    tensor.copy_(values)
        for array, numbers in self._arrays:
            if array.tobytes() != numbers.tobytes():
                array[...] = numbers


def _is_container(thing: Any) -> bool:
    return type(thing) in _CONTAINERS and len(thing) <= MOST


def _inside(things: Iterable[Any]) -> Iterator[Any]:
    """Go through some things and what is in containers among them, each once.

    What is nearest comes first, and no more than so many things.
    """
    waiting, seen = deque(things), set[int]()
    while waiting and len(seen) <= MOST:
        thing = waiting.popleft()
        if id(thing) not in seen:
            seen.add(id(thing))
            yield thing
            if _is_container(thing):
                waiting.extend(thing.values() if isinstance(thing, dict) else thing)


def has_plain_memory(tensor: Tensor) -> bool:
    """Whether a tensor's numbers can be compared, one by one."""
    return tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested


def _may_change(tensor: Tensor) -> bool:
    """Whether numbers can be written back to a tensor, each to a place of its own."""
    if not has_plain_memory(tensor) or not tensor.is_leaf or tensor.is_inference():
        return False
    return all(step or n < 2 for step, n in zip(tensor.stride(), tensor.shape, strict=True))


def _same(container: Any, before: Any) -> bool:
    """Whether a container holds the very same things as before, in the same order."""
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        pairs = zip(container.items(), before.items(), strict=True)
        return all(a is c and b is d for (a, b), (c, d) in pairs)
    return all(a is b for a, b in zip(container, before, strict=True))


def _uncompiled() -> AbstractContextManager[Any]:
    if "torch._dynamo" not in sys.modules or torch.compiler.is_compiling():
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _places(model: nn.Module) -> Iterator[_Place]:
    """Go through them in the order of ``named_parameters``, and through each module once."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for prefix, module in model.named_modules():
        for kind in ("_parameters", "_buffers"):
            for attribute, tensor in getattr(module, kind).items():
                if tensor is not None:
                    full = f"{prefix}.{attribute}" if prefix else attribute
                    yield _Place(module, kind, attribute, names.setdefault(id(tensor), full))


def _parameter_places(places: Iterable[_Place]) -> set[tuple[int, str]]:
    return {(id(p.module), p.attribute) for p in places if p.kind == "_parameters"}


def _homes(module: nn.Module) -> tuple[Any, Any]:
    return module._parameters, module._buffers


def _put_back(home: Any, own: dict[str, Tensor]) -> None:
    if isinstance(home, dict) and home.keys() != own.keys():
        home.clear()
    for attribute, tensor in own.items():
        if isinstance(home, dict) or tensor is not None:  # a scripted module takes no None
            home[attribute] = tensor
