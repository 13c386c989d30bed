"""What a model is run with, so that its second derivatives exist and are right.

Only what PyTorch gets wrong, or cannot do, is replaced. Second derivatives of activations,
softmaxes, attention and cross-entropies that were written out by hand made products of a GPT, of a
convolutional classifier and of a ConvNeXt 1.07 to 1.16 times as fast, all of them together; that
is not worth their code.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint

from hessence._common.device import full_precision


class ExactKernels:
    """Kernels whose second derivatives exist and are right, in place of a model's own.

    The fused kernels of scaled dot-product attention and of cuDNN's recurrent layers have no second
    derivative, nor has a hard sigmoid. That of weight normalisation is wrong. So are the third
    derivative of layer norm, which a loss with gradients in it needs, and its second one in forward
    mode: what the forward pass saves is taken for constants. Activation checkpoints run parts of
    the model again in every backward pass. What is compiled has one derivative.
    """

    def __init__(self, model: nn.Module) -> None:
        self._recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use the kernels, and record what they do."""
        settings = [_SETTINGS, _RECURRENT_SETTINGS] if self._recurrent else [_SETTINGS]
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(mode=False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(full_precision())
            for shared in settings:
                stack.enter_context(shared.used())
            stack.enter_context(_Replacements())
            yield


class _ProcessSettings:
    """Settings that PyTorch has for the whole process, made by the first run that needs them.

    The last run undoes them: if each run undid its own, runs in several threads would take them
    from each other, or leave them behind. Another thread that uses the same model meanwhile gets
    the same outputs up to rounding.

    Parameters
    ----------
    *contexts : callable
        Make the context managers of the settings.
    """

    def __init__(self, *contexts: Callable[[], AbstractContextManager[Any]]) -> None:
        self._contexts, self._lock = contexts, threading.Lock()
        self._runs, self._made = 0, ExitStack()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have the settings made, for as long as this and other runs need them."""
        with self._lock:
            if not self._runs:
                with ExitStack() as stack:
                    for context in self._contexts:
                        stack.enter_context(context())
                    self._made = stack.pop_all()
            self._runs += 1
        try:
            yield
        finally:
            with self._lock:
                self._runs -= 1
                if not self._runs:
                    self._made.close()


class _Replacements(TorchFunctionMode):  # type: ignore[misc]
    """Calls other functions in place of some of PyTorch's, in this thread."""

    def __exit__(self, *error: Any) -> None:
        # PyTorch takes it off for each call, and an interrupt may have come before it was back.
        if self in _get_current_function_mode_stack():
            super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return REPLACEMENTS.get(func, func)(*args, **(kwargs or {}))


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


REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch._weight_norm: _weight_norm,
    F.hardsigmoid: _hardsigmoid,
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
}
"""What is called instead."""


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Let ``torch.utils.checkpoint`` call its functions and do nothing else.

    Models have imported it under names of their own, so what it is made of is exchanged.
    """
    replacements = {"_checkpoint_without_reentrant_generator": _pause, "CheckpointFunction": _Call}
    before = {name: getattr(checkpoint, name) for name in replacements if hasattr(checkpoint, name)}
    try:
        for name in before:
            setattr(checkpoint, name, replacements[name])
        yield
    finally:
        for name, value in before.items():
            setattr(checkpoint, name, value)


def _pause(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Do nothing before or after the function that has a checkpoint is called."""
    yield


class _Call:
    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        """Call the function."""
        return function(*args)


def _uncompiled() -> AbstractContextManager[Any]:
    """Let compiled parts run as they were written."""
    if "torch._dynamo" not in sys.modules or torch.compiler.is_compiling():
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


_SETTINGS = _ProcessSettings(
    lambda: sdpa_kernel(SDPBackend.MATH), _without_checkpoints, _uncompiled
)
_RECURRENT_SETTINGS = _ProcessSettings(lambda: torch.backends.cudnn.flags(enabled=False))
