"""What a module holds beside its parameters, to be put back after a run."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import torch
from torch import Tensor, nn

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)

LARGEST = 2**20
"""Tensors of more numbers that a module holds as plain attributes are not reset after a run."""


class ModuleState:
    """All that a module holds, as it is now, to be put back after a run.

    Attributes, what is in its lists and dictionaries, buffers and small tensors. A tensor that was
    written to is replaced, since a graph may hold it.
    """

    def __init__(self, module: nn.Module) -> None:
        scripted = isinstance(module, torch.jit.ScriptModule)
        self._home: dict[str, Any] = {} if scripted else vars(module)
        self._attributes = dict(self._home)
        self._contents = [
            (value, copy.copy(value))
            for value in self._attributes.values()
            if type(value) in _CONTAINERS
        ]
        self._buffers = module._buffers
        # A scripted module's parameters are not in a dictionary of Python's.
        self._parameters = module._parameters
        self._scripted = list(self._parameters.items()) if scripted else []
        self._tensors = [
            (home, name, tensor, tensor.detach().clone())
            for home in (self._home, self._buffers)
            for name, tensor in home.items()
            if isinstance(tensor, Tensor) and _may_change(tensor)
            if home is self._buffers or tensor.numel() <= LARGEST
        ]

    def restore(self) -> None:
        """Put everything back."""
        if self._home.keys() != self._attributes.keys():
            self._home.clear()
        self._home.update(self._attributes)
        for container, before in self._contents:
            if before or container:
                container.clear()
                (container.extend if hasattr(before, "extend") else container.update)(before)
        for i, (home, name, tensor, values) in enumerate(self._tensors):
            if not torch.equal(tensor, values):
                tensor = values.clone()
                self._tensors[i] = home, name, tensor, values
                if home is self._home:
                    self._attributes[name] = tensor
                else:
                    self._refill(name, tensor)
            if name not in home or home[name] is not tensor:
                home[name] = tensor
        for name, parameter in self._scripted:
            self._parameters[name] = parameter

    def _refill(self, name: str, tensor: Tensor) -> None:
        """Let a fresh buffer be what is put back from now on."""
        for container, before in self._contents:
            if container is self._buffers:
                before[name] = tensor


def _may_change(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor can be compared, and are not those of a parameter."""
    plain = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested
    return plain and not isinstance(tensor, nn.Parameter)


def set_flag(module: nn.Module, name: str, value: Any) -> None:
    """Set an attribute that differs, also of a module that lets nobody change its attributes."""
    if getattr(module, name) != value:
        if isinstance(module, torch.jit.ScriptModule):
            setattr(module, name, value)
        else:
            vars(module)[name] = value
