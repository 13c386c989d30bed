"""A model as it stands, to be differentiated without touching it.

A snapshot holds copies of all parameters and buffers, and the mode of every layer. The model's own
code is run with them in place, and everything is put back when it is done or stopped. So the
gradients, modes and flags of the user's model stay as they are, in-place updates of buffers fall on
copies of which each run gets a fresh one, and training may go on while an operator made from the
snapshot is in use.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hessence._common.arrays import dtype_name
from hessence.models.batch_parts import copied, tensors_in
from hessence.models.exact_kernels import ExactKernels
from hessence.models.interrupts import HeldBack
from hessence.models.parameters import Parameters
from hessence.models.state_swap import LOCK, StateSwap, has_plain_memory

_DROPOUTS = (nn.modules.dropout._DropoutNd,)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


class Snapshot:
    """Parameters and buffers of a model, copied, and its code.

    Parameters
    ----------
    model : torch.nn.Module
        The user's model; wrappers for data-parallel training and compilation are looked through.
    params : None, str, tensor, or sequence of them
        Which parameters to differentiate by, see :class:`Parameters`.
    eval_mode : bool
        Whether to run the model in evaluation mode, whatever mode it is in.
    """

    def __init__(self, model: Any, params: Any, *, eval_mode: bool) -> None:
        self._model = unwrap(model)
        # Another thread may be running the model with other parameters in place.
        with LOCK:
            require_deterministic(self._model, eval_mode=eval_mode)
            self.parameters = Parameters.select(self._model, params)
            chosen = dict(zip(self.parameters.names, self.parameters.leaves, strict=True))
            self._state = {
                name: chosen[name] if name in chosen else tensor.detach().clone()
                for name, tensor in self._model.named_parameters()
            }
            self._buffers = {name: b.detach().clone() for name, b in self._model.named_buffers()}
            self._state |= {name: b.clone() for name, b in self._buffers.items()}
            self._swap = StateSwap(self._model)
            self._modes = [
                (module, module.training and not eval_mode) for module in self._model.modules()
            ]
            self._kernels = ExactKernels(self._model)

    def doubled(self) -> Snapshot:
        """Return the same in double precision."""
        twin = copy.copy(self)
        wide = {name: _wide(tensor) for name, tensor in self._state.items()}
        leaves = tuple(wide[name].requires_grad_() for name in self.parameters.names)
        twin.parameters = replace(self.parameters, leaves=leaves)
        twin._state = wide
        twin._buffers = {name: _wide(buffer) for name, buffer in self._buffers.items()}
        return twin

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names of all parameters and buffers of the model."""
        return tuple(self._state)

    @property
    def draws(self) -> bool:
        """Whether a run has drawn random numbers, so far."""
        return self._swap.draws

    @property
    def model(self) -> nn.Module:
        """The user's model, to be read and not to be changed."""
        return self._model

    def value(self, name: str) -> Tensor:
        """Return the copy of a parameter."""
        return self._state[name].detach()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.parameters.leaves[0].device

    @property
    def padding_rows(self) -> dict[str, int]:
        """The rows of embeddings, by the name of the weight, that PyTorch takes for constants."""
        return {
            f"{name}.weight" if name else "weight": module.padding_idx
            for name, module in self._model.named_modules()
            if isinstance(module, _EMBEDDINGS) and module.padding_idx is not None
        }

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        leaves: tuple[Tensor, ...] | None = None,
    ) -> Any:
        """Call function(model, *arguments) with the copies, or with other leaves, in place.

        The arguments are copied too, since a model may write to its inputs.
        """
        moved = {} if leaves is None else dict(zip(self.parameters.names, leaves, strict=True))
        try:
            with HeldBack() as interrupts, LOCK, self._fresh_buffers(), self._kernels.used():
                state = {name: moved.get(name, tensor) for name, tensor in self._state.items()}
                with self.mode(), self._swap.hold(state):
                    return interrupts.interruptible(
                        lambda: function(self._model, *copied(arguments))
                    )
        except RuntimeError as error:
            self._require_same_precision(arguments, error)
            raise

    @contextmanager
    def _fresh_buffers(self) -> Iterator[None]:
        """Replace buffers that were written to: a graph may hold them."""
        versions = {name: self._state[name]._version for name in self._buffers}
        try:
            yield
        finally:
            for name, version in versions.items():
                used, own = self._state[name], self._buffers[name]
                # Writing to its ``data`` leaves no trace in the version.
                same = not has_plain_memory(used) or torch.equal(used, own)
                if used._version != version or not same:
                    self._state[name] = self._buffers[name].clone()

    def _require_same_precision(self, arguments: tuple[Any, ...], error: Exception) -> None:
        """Tell of the most likely reason for an error: data in another precision."""
        own = self.parameters.leaves[0]
        for tensor in tensors_in(list(arguments)):
            if tensor.is_floating_point() and tensor.dtype != own.dtype:
                raise TypeError(
                    f"data is {dtype_name(tensor)}, but the model is "
                    f"{dtype_name(own)}: convert one of them."
                ) from error

    def held_elsewhere(self, total: Tensor) -> list[str]:
        """Return the parameters of which a total still sees the model's own and not the copy."""
        named = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        if not total.requires_grad or not named:
            return []
        found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        return [name for name, slope in zip(named, found, strict=True) if slope is not None]

    @contextmanager
    def mode(self) -> Iterator[None]:
        """Use the mode that each layer is to have, and dense gradients of embeddings, for a while.

        The mode is that of when the snapshot was made, or evaluation mode. One thread at a time.
        """
        with LOCK, self._changed_modes():
            yield

    @contextmanager
    def _changed_modes(self) -> Iterator[None]:
        changes: list[tuple[nn.Module, str, bool]] = [
            (module, "training", training) for module, training in self._modes
        ]
        # A gradient that depends on how often a word occurs is none of the loss.
        changes += [
            (module, name, False)
            for module, _ in self._modes
            for name in ("sparse", "scale_grad_by_freq")
            if isinstance(module, _EMBEDDINGS)
        ]
        before = [(module, name, getattr(module, name)) for module, name, _ in changes]
        try:
            _set(changes)
            yield
        finally:
            _set(before)


def _set(values: list[tuple[nn.Module, str, bool]]) -> None:
    """Set attributes of modules that are not so already."""
    for module, name, value in values:
        if getattr(module, name) != value:
            setattr(module, name, value)


def _wide(tensor: Tensor) -> Tensor:
    """Return a copy in double precision, or as it is if it does not hold real numbers."""
    kind = torch.float64 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(kind, copy=True)


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
            "eval_mode=True, which restores the mode afterwards."
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
