"""What a PyTorch model is made of, as far as the theorems care: plain layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from hessence._common.arrays import dtype_name

_DROPOUTS = (nn.modules.dropout._DropoutNd,)
_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)

DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


class NotRecognised(Exception):  # noqa: N818 - an ordinary answer, not a mistake of the user's
    """No theorem covers the model; the message says why, and which layer is in the way."""


@dataclass(frozen=True)
class Layer:
    """A module and its name in the model."""

    name: str
    module: Any

    @property
    def is_linear(self) -> bool:
        """Whether this is a plain ``torch.nn.Linear``."""
        return is_plain(self.module, nn.Linear)

    @property
    def described(self) -> str:
        """What it is, in words."""
        of = f"layer {self.name!r}" if self.name else "it"
        return f"{of} is a {type(self.module).__name__}"


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


def require_ordinary(model: Any, x: Any) -> None:
    """Refuse models and inputs that no theorem is for, in one sentence."""
    if not isinstance(model, nn.Module):
        raise NotRecognised(f"the model is a {type(model).__name__}, not a torch.nn.Module.")
    if not isinstance(x, Tensor):
        raise NotRecognised(f"the input is a {type(x).__name__}, not a single tensor.")
    if x.numel() == 0:
        raise NotRecognised(f"the input has shape {tuple(x.shape)}: there are no samples.")
    _require_ordinary_parameters(model, x)
    for name, module in model.named_modules():
        of = f"layer {name!r}" if name else "the model"
        if has_hooks(module):
            raise NotRecognised(f"{of} has hooks, and what they do is not known.")
        if is_parametrized(module):
            raise NotRecognised(f"{of} is parametrised: its weights are not its parameters.")
        if type(module) in DROPOUT and not _is_skipped(module):
            raise NotRecognised(
                f"{of} drops units at random: the loss has no Hessian before model.eval()."
            )


def _require_ordinary_parameters(model: nn.Module, x: Tensor) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if not parameters:
        raise NotRecognised("the model has no parameters.")
    first_name: dict[int, str] = {}
    first = next(iter(parameters.values()))
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise NotRecognised(f"parameter {name!r} has no shape yet: run the model once first.")
        if not parameter.requires_grad:
            raise NotRecognised(f"parameter {name!r} is frozen: requires_grad is False.")
        if id(parameter) in first_name:
            raise NotRecognised(
                f"parameters {first_name[id(parameter)]!r} and {name!r} are tied to each other."
            )
        first_name[id(parameter)] = name
        if parameter.dtype not in (torch.float32, torch.float64) or parameter.dtype != first.dtype:
            raise NotRecognised(
                f"parameter {name!r} has type {dtype_name(parameter)}: all must be float32, or "
                "all float64."
            )
        if not parameter.isfinite().all():
            raise NotRecognised(f"parameter {name!r} contains NaN or infinity.")
        if parameter.device != first.device or parameter.device != x.device:
            raise NotRecognised(
                f"parameter {name!r} is on device {parameter.device} and the input on {x.device}."
            )
    if (x.is_floating_point() or x.is_complex()) and x.dtype != first.dtype:
        raise NotRecognised(
            f"the input has type {dtype_name(x)}, the parameters {dtype_name(first)}."
        )


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
        raise ValueError(
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
