"""What a model is run with, so that its second derivatives exist and are right.

Only what PyTorch gets wrong, or cannot do, is replaced, losses of logits among it. Second
derivatives of activations, softmaxes, attention and cross-entropies that were written out by hand
made products of a GPT, of a convolutional classifier and of a ConvNeXt 1.07 to 1.16 times as fast,
all of them together; that is not worth their code.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint

from hessence._common.device import reduced
from hessence.models._loss_kernels import ACCURATE


def outside_inference() -> AbstractContextManager[Any]:
    """Leave inference mode, whose results cannot be part of a graph, if it is on.

    Where it is off, nothing is entered: PyTorch's guard, kept alive by the traceback of an
    interrupt, would put back an old state of recording later.
    """
    inside = torch.is_inference_mode_enabled()
    context: AbstractContextManager[Any] = torch.inference_mode(mode=False)
    return context if inside else nullcontext()


def with_recording(function: Callable[[], Any]) -> Any:
    """Call a function with recording on, whatever mode the user is in."""
    recording = torch.is_grad_enabled()
    try:
        with outside_inference(), torch.enable_grad():
            return function()
    finally:
        # An interrupt may have come before recording was put back.
        torch.set_grad_enabled(recording)


def with_exact_kernels(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with kernels whose second derivatives exist and are right, in this thread.

    The fused kernels of scaled dot-product attention and of cuDNN's recurrent layers have no second
    derivative, nor has a hard sigmoid. That of weight normalisation is wrong. So are the third
    derivative of layer norm, which a loss with gradients in it needs, and its second one in forward
    mode: what the forward pass saves is taken for constants. Activation checkpoints run parts of
    the model again in every backward pass.

    Other threads notice nothing, and neither does this one after an interrupt.
    """
    recording, replacements = torch.is_grad_enabled(), _Replacements()
    for device in reduced():
        function = torch.autocast(device, enabled=False)(function)
    try:
        with outside_inference(), torch.enable_grad(), replacements:
            return function(*arguments)
    finally:
        # An interrupt may have come between a setting and what would undo it.
        replacements.active = False
        torch.set_grad_enabled(recording)
        while isinstance(mode := _innermost(), _Replacements) and not mode.active:
            mode.__exit__(None, None, None)


def _innermost() -> Any:
    """Return the function mode that is asked first in this thread, or None."""
    return next(reversed(_get_current_function_mode_stack()), None)


class _Replacements(TorchFunctionMode):  # type: ignore[misc]
    """Calls other functions in place of some of PyTorch's, in this thread.

    PyTorch takes a mode off for each call and puts it back; after an interrupt, perhaps only when
    the run has ended. So a mode does nothing after its run, and the next run takes it off.
    """

    active = True

    def __exit__(self, *error: Any) -> None:
        if self in _get_current_function_mode_stack():
            super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        replaced = REPLACEMENTS.get(func, func) if self.active else func
        return replaced(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Normalise in elementary steps: as fast in products as PyTorch's own, for a fifth more memory.

    PyTorch's own also has no second derivative for a shift without a scale.
    """
    features = tuple(range(-len(tuple(normalized_shape)), 0))
    centred = input - input.mean(features, keepdim=True)
    normal = centred * (centred.square().mean(features, keepdim=True) + eps).rsqrt()
    scaled = normal if weight is None else normal * weight
    return scaled if bias is None else scaled + bias


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Write w = g v / ‖v‖ out in operations that can be differentiated twice."""
    # As for PyTorch, −1 is not the last dimension, but a norm over all of them.
    others = [i for i in range(v.ndim) if dim == -1 or i != dim % v.ndim]
    return v * (g / torch.linalg.vector_norm(v, dim=others, keepdim=dim != -1))


def _hardsigmoid(z: Tensor, inplace: bool = False) -> Tensor:
    """Write it out, since PyTorch has no second derivative of it; never in place."""
    return F.relu6(z + 3) / 6


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attend in elementary steps, as PyTorch does where it has no fused kernel."""
    if query.is_nested:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # A Boolean mask says which keys are seen; a mask of numbers is added to the scores.
        hidden = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = hidden.masked_fill(~attn_mask, float("-inf"))
    found: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return found


def _with_attention(function: Any) -> types.FunctionType:
    """Return a copy of one of PyTorch's functions that calls our attention."""
    names = {**function.__globals__, "scaled_dot_product_attention": _attention}
    changed = types.FunctionType(function.__code__, names, argdefs=function.__defaults__)
    changed.__kwdefaults__ = function.__kwdefaults__
    # It names itself to the modes below ours, such as that of a default device, and they call that.
    names[function.__name__] = changed
    return changed


def _without_cudnn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recurrent layer that does not use cuDNN.

    That is a setting of the whole process, which on a GPU holds during the call.
    """

    def run(input: Tensor, *args: Any) -> Any:
        if not input.is_cuda:
            return function(input, *args)
        with torch.backends.cudnn.flags(enabled=False):
            return function(input, *args)

    return run


REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch._weight_norm: _weight_norm,
    F.hardsigmoid: _hardsigmoid,
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _with_attention(F.multi_head_attention_forward),
    **{f: _without_cudnn(f) for f in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)},
    **ACCURATE,
}
"""What is called instead."""


def _let_checkpoints_rest() -> None:
    """Let ``torch.utils.checkpoint`` only call its function in a thread that is in a run.

    Models import it under names of their own, so the functions inside of it are replaced, once and
    for good. In any other thread, and after a run, they do what they did before.
    """
    without = "_checkpoint_without_reentrant_generator"
    reentrant = checkpoint.CheckpointFunction
    apply = reentrant.apply

    def resting(generator: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(generator)
        def made(*args: Any, **kwargs: Any) -> Any:
            return _nothing() if _running() else generator(*args, **kwargs)

        return made

    def called(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args) if _running() else apply(function, preserve, *args)

    for name in (without, f"{without}_impl"):
        if hasattr(checkpoint, name):
            setattr(checkpoint, name, resting(getattr(checkpoint, name)))
    reentrant.apply = staticmethod(called)


def _nothing() -> Iterator[None]:
    """Do nothing before and after a call. PyTorch throws its exceptions into this generator."""
    yield


def _running() -> bool:
    """Whether this thread is in a run."""
    modes = _get_current_function_mode_stack()
    return any(isinstance(mode, _Replacements) and mode.active for mode in modes)


_let_checkpoints_rest()
