"""What a PyTorch model is made of: plain layers, random ones, and state that a run may change."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_DROPOUTS = (nn.modules.dropout._DropoutNd,)
_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)

LARGEST = 2**20
"""Tensors of more numbers that a module holds as plain attributes are not reset after a run."""

DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@dataclass(frozen=True)
class Layer:
    """A module and its name in the model."""

    name: str
    module: Any


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module computes what its class does: no subclass, hook or patched forward.

    A parametrisation makes a subclass of its module, so it is not plain either.
    """
    return type(module) is kind and "forward" not in vars(module) and not has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """Whether anything of the user's runs when the module does, or when any module does."""
    names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    own = any(getattr(module, f"_{name}", None) for name in names)
    return own or any(getattr(nn.modules.module, f"_global_{name}", None) for name in names)


def flatten(module: nn.Module, name: str = "") -> Iterator[Layer]:
    """Yield the layers of nested ``nn.Sequential`` in the order they act, without idle ones.

    A module that is not a plain ``nn.Sequential`` is a single layer.
    """
    if not is_plain(module, nn.Sequential):
        if not _is_skipped(module):
            yield Layer(name, module)
        return
    for key, child in module._modules.items():
        if child is not None:
            yield from flatten(child, f"{name}.{key}" if name else key)


def _is_skipped(module: nn.Module) -> bool:
    """Whether the module passes on what it is given."""
    if has_hooks(module) or "forward" in vars(module):
        return False
    if type(module) in DROPOUT:
        return not (module.training and module.p > 0)
    return type(module) is nn.Identity


def unwrap(model: Any) -> nn.Module:
    """Look through wrappers for data-parallel training and compilation."""
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod
        else:
            break
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    return model


class TrainingModeError(ValueError):
    """A layer draws random numbers, or couples samples, only because of training mode."""


def require_deterministic(model: nn.Module, *, eval_mode: bool = False) -> None:
    """Refuse layers that draw random numbers, or let the samples of a batch interact."""
    for name, module in model.named_modules():
        reason = _random_or_coupled(module, training=module.training and not eval_mode)
        if reason is None:
            continue
        where = f"layer {name!r} ({type(module).__name__})" if name else type(module).__name__
        if isinstance(module, _BATCH_NORMS) and module.running_mean is None:
            raise ValueError(
                f"model cannot be used: {where} {reason}, and has no running statistics to use "
                "instead."
            )
        raise TrainingModeError(
            f"model is in training mode and {where} {reason}: call model.eval() first, or pass "
            "eval_mode=True, which leaves the model as it is."
        )


def _random_or_coupled(module: nn.Module, *, training: bool) -> str | None:
    if isinstance(module, _BATCH_NORMS) and (training or module.running_mean is None):
        return "normalises over the batch"
    if not training:
        return None
    if isinstance(module, _DROPOUTS) and module.p > 0:
        return "drops values at random"
    if isinstance(module, nn.MultiheadAttention) and module.dropout > 0:
        return "drops attention weights at random"
    if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
        return "drops values at random"
    if isinstance(module, nn.RReLU) and module.lower < module.upper:
        return "draws random slopes"
    return None


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
