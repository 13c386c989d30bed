"""The layers and buffers of a PyTorch model, and ways to watch it run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hessence.networks.network import Network

_Dropout = nn.modules.dropout._DropoutNd
_BatchNorm = nn.modules.batchnorm._BatchNorm


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


def flatten(module: nn.Module, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and layers of nested ``nn.Sequential`` in the order in which they act.

    Layers that return their input are left out. A module that is not a plain ``nn.Sequential`` is
    a single layer.
    """
    if is_plain(module, nn.Sequential):
        for key, child in module._modules.items():
            if child is not None:
                yield from flatten(child, f"{name}.{key}" if name else key)
    elif not _is_identity(module):
        yield name, module


def _is_identity(module: nn.Module) -> bool:
    """Whether the module returns its input, as dropout does in evaluation mode."""
    if not is_plain(module, type(module)):
        return False
    if type(module).__module__ == nn.modules.dropout.__name__:
        return not (module.training and module.p > 0)
    return type(module) is nn.Identity


def unwrap(model: Any) -> nn.Module:
    """Return the model inside wrappers for data-parallel training and compilation."""
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return unwrap(model.module)
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        return unwrap(model._orig_mod)
    if not isinstance(model, nn.Module):
        own = "; its own Hessian is net.hessian(x, y)" if isinstance(model, Network) else ""
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}{own}.")
    if isinstance(model, nn.modules.loss._Loss) and not any(True for _ in model.parameters()):
        raise TypeError(
            f"model is a loss, {type(model).__name__}: give model, data and loss, in this order."
        )
    return model


def require_deterministic(model: nn.Module, *, eval_mode: bool = False) -> None:
    """Refuse layers that draw random numbers."""
    for name, module in model.named_modules():
        reason = _random(module) if module.training and not eval_mode else None
        if reason is not None:
            raise ValueError(
                f"model is in training mode and {_where(name, module)} {reason}: call model.eval() "
                "first, or pass eval_mode=True, which leaves the model as it is."
            )


def require_uncoupled(model: nn.Module) -> None:
    """Refuse layers that normalise over the batch, where samples come in several batches."""
    for name, module in model.named_modules():
        alone = getattr(module, "running_mean", None) is None
        if not isinstance(module, _BatchNorm) or not (module.training or alone):
            continue
        said = f"{_where(name, module)} normalises over the batch, so that all data must be one"
        if alone:
            raise ValueError(
                f"model: {said}, given as such; it has no running statistics to use instead."
            )
        raise ValueError(
            f"model is in training mode and {said}, given as such; or call model.eval() first, or "
            "pass eval_mode=True, which leaves the model as it is."
        )


def _where(name: str, module: nn.Module) -> str:
    return f"layer {name!r} ({type(module).__name__})" if name else type(module).__name__


def _random(module: nn.Module) -> str | None:
    """Say what a module in training mode does at random."""
    if isinstance(module, nn.MultiheadAttention) and module.dropout > 0:
        return "drops attention weights at random"
    recurrent = isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1
    if recurrent or (isinstance(module, _Dropout) and module.p > 0):
        return "drops values at random"
    if isinstance(module, nn.RReLU) and module.lower < module.upper:
        return "draws random slopes"
    return None


class Intercepted(TorchFunctionMode):  # type: ignore[misc]
    """Calls ``handle(func, args, kwargs)`` in place of every PyTorch function ``func``."""

    def __init__(self, handle: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._handle = handle

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._handle(func, args, kwargs or {})


def linear_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of ``torch.nn.functional.linear`` by name."""
    return dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs


def entering(run: Callable[[], Any], weight: Tensor) -> Tensor:
    """Return the input of the linear layer with this weight; the run of its model ends there."""

    def handle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is nn.functional.linear:
            given = linear_arguments(args, kwargs)
            if given["weight"] is weight:
                raise _StoppedError(given["input"].detach().clone())
        return func(*args, **kwargs)

    try:
        with torch.no_grad(), Intercepted(handle):
            run()
    except _StoppedError as stopped:
        return stopped.args[0]
    raise AssertionError("the model does not use the weight")


class _StoppedError(Exception):
    """Ends a run of a model; its argument is what the run was for."""


def graph_uses(results: Iterable[Tensor]) -> Counter[Any]:
    """Return the nodes of the results' autograd graphs, and how often each is used.

    Being a result counts as a use.
    """
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


class ModelState:
    """The attributes and buffers of a model as they are now, to be restored after a run.

    A buffer that was written to is replaced, since a graph may hold it. Lists that have grown, such
    as logs of activations, are cut back; otherwise they would keep the graph of every run. Anything
    else that a run writes into tensors and objects stays. If the loss depends on it, the model is
    refused as random.
    """

    def __init__(self, model: nn.Module) -> None:
        scripted = torch.jit.ScriptModule
        homes = [vars(m) for m in model.modules() if not isinstance(m, scripted)]
        self._attributes = [(home, dict(home)) for home in homes]
        inside = (value for home in homes for value in home.values())
        self._lists = [(value, len(value)) for value in inside if type(value) is list]
        known: dict[int, _Buffer] = {}
        self._buffers = [
            (m._buffers, name, known.setdefault(id(tensor), _Buffer(tensor)))
            for m in model.modules()
            for name, tensor in m._buffers.items()
        ]

    def restore(self) -> None:
        """Restore everything. After an interrupt, this can be called again."""
        for attributes, before in self._attributes:
            for name in attributes.keys() - before.keys():
                del attributes[name]
            attributes.update(before)
        for listed, length in self._lists:
            del listed[length:]
        for home, name, buffer in self._buffers:
            buffer.restore()
            if name not in home or home[name] is not buffer.tensor:
                home[name] = buffer.tensor


class _Buffer:
    """A buffer, and a copy of its values if it is no parameter and they can be compared."""

    def __init__(self, tensor: Tensor | None) -> None:
        self.tensor, self._values = tensor, None
        if tensor is None or isinstance(tensor, nn.Parameter):
            return
        if tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested:
            self._values = tensor.detach().clone()

    def restore(self) -> None:
        if self._values is not None and not torch.equal(self.tensor, self._values):
            self.tensor = self._values.clone()
