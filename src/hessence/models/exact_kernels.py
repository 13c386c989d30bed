"""What a model is run with, so that its derivatives of second order exist and are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint

from hessence._common.precision import full_precision
from hessence.models.kernels.elementwise import activate
from hessence.models.kernels.higher_order import is_plain_reverse_mode
from hessence.models.kernels.layer_norm import elementary_layer_norm, layer_norm
from hessence.models.kernels.log_softmax import cross_entropy, log_softmax
from hessence.models.kernels.softmax import attention, softmax


class ExactKernels:
    """Kernels whose second derivatives exist, are right and are cheap, in place of a model's own.

    The fused kernels of scaled dot-product attention and of cuDNN's recurrent layers have no second
    derivative. That of weight normalisation is wrong, and so is the third one of layer norm, which
    a loss with gradients in it needs: what they save is taken for constants. Activation checkpoints
    run parts of the model again during a backward pass, when it has its own parameters back.
    """

    def __init__(self, model: nn.Module) -> None:
        self._recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use the kernels, and record what they do."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(mode=False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(full_precision())
            stack.enter_context(_without_checkpoints())
            if self._recurrent and torch.backends.cudnn.is_available():
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            stack.enter_context(_StandIns())
            yield


class _StandIns(TorchFunctionMode):  # type: ignore[misc]
    """Calls other functions in place of some of PyTorch's."""

    def __exit__(self, *error: Any) -> None:
        # PyTorch takes it off for each call, and an interrupt may have come before it was back.
        if self in _get_current_function_mode_stack():
            super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        stand_in = (STAND_INS if is_plain_reverse_mode() else ELEMENTARY).get(func)
        if stand_in is None:
            return func(*args, **(kwargs or {}))
        return stand_in(func, *args, **(kwargs or {}))


def _weight_norm(original: Callable[..., Tensor], v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Write w = g v / ‖v‖ out in operations that can be differentiated twice."""
    # As for PyTorch, −1 is not the last dimension, but a norm over all of them.
    others = [i for i in range(v.ndim) if dim == -1 or i != dim % v.ndim]
    return v * (g / torch.linalg.vector_norm(v, dim=others, keepdim=dim != -1))


def _hardsigmoid(original: Callable[..., Tensor], z: Tensor, inplace: bool = False) -> Tensor:
    """Write it out, since PyTorch has no second derivative of it; a copy does for its place."""
    return F.relu6(z + 3) / 6


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Let ``torch.utils.checkpoint`` call its functions and do nothing else.

    Models have imported it under names of their own, so what it is made of is exchanged.
    """
    stand_ins = {"_checkpoint_without_reentrant_generator": _pause, "CheckpointFunction": _Call}
    before = {name: getattr(checkpoint, name) for name in stand_ins if hasattr(checkpoint, name)}
    try:
        for name in before:
            setattr(checkpoint, name, stand_ins[name])
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


ELEMENTARY: dict[Callable[..., Any], Callable[..., Any]] = {
    torch._weight_norm: _weight_norm,
    F.hardsigmoid: _hardsigmoid,
    **dict.fromkeys([F.layer_norm, torch.layer_norm], elementary_layer_norm),
}
"""What is called instead where a model is differentiated in other ways than by backward passes."""

STAND_INS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch._weight_norm: _weight_norm,
    F.hardsigmoid: _hardsigmoid,
    F.scaled_dot_product_attention: attention,
    F.cross_entropy: cross_entropy,
    **dict.fromkeys([F.log_softmax, torch.log_softmax, Tensor.log_softmax], log_softmax),
    **dict.fromkeys([F.softmax, torch.softmax, Tensor.softmax], softmax),
    **dict.fromkeys([F.layer_norm, torch.layer_norm], layer_norm),
    **dict.fromkeys([F.gelu, F.silu, F.mish], activate),
}
"""What is called instead; each gets the function that it stands in for as its first argument."""
