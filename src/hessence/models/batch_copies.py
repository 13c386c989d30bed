"""Copies of batches, so that nothing that becomes of the user's data matters any more."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hessence.models.batch_parts import rebuilt


class Copier:
    """Puts batches on a device, and copies what is there already.

    Whoever gives batches may write to them later, or put the next one into the same memory. What
    is the same as in the batch before is not copied again.

    Parameters
    ----------
    device : torch.device
        The device.
    copies : bool
        Whether to copy.
    parameters : mapping of int to Tensor
        The tensors, by identity, that are differentiated by.
    """

    def __init__(
        self, device: torch.device, *, copies: bool, parameters: Mapping[int, Tensor]
    ) -> None:
        self._device, self._copies, self._parameters = device, copies, parameters
        self._before: dict[int, Tensor] = {}
        self._now: dict[int, Tensor] = {}

    def __call__(self, batch: Any) -> Any:
        """Return a batch to keep."""
        self._before, self._now = self._now, {}
        return rebuilt(self._moved, batch)

    def _moved(self, part: Any) -> Any:
        if not isinstance(part, Tensor):
            return _kept(part, self._parameters) if self._copies else part
        if part.is_meta:
            raise ValueError("data is on the meta device: it has no values.")
        moved = part.to(self._device)
        return self._copied(part) if moved is part else moved

    def _copied(self, tensor: Tensor) -> Tensor:
        if tensor.is_inference():  # what was made in inference mode cannot be part of a graph
            return tensor.clone()
        # What depends on a parameter, or is one, would be another tensor as a copy.
        if not self._copies or not tensor.is_leaf or id(tensor) in self._parameters:
            return tensor
        if tensor.requires_grad or tensor.layout != torch.strided:
            return tensor.detach().clone().requires_grad_(tensor.requires_grad)
        place = tensor.data_ptr()
        for known in (self._now, self._before):
            other = known.get(place)
            if other is not None and other.dtype == tensor.dtype and equal(other, tensor):
                self._now[place] = other
                return other
        self._now[place] = tensor.clone()
        return self._now[place]


def _kept(part: Any, parameters: Mapping[int, Tensor]) -> Any:
    """Return a copy of what is no tensor and may have some inside; of functions there is one."""
    if part is None or callable(part) or isinstance(part, (bool, int, float, complex, str, bytes)):
        return part
    if isinstance(part, (list, tuple)):  # of numbers or texts
        return part[:]
    try:
        return copy.deepcopy(part, dict(parameters))
    except Exception:  # of what cannot be copied, such as a tensor that depends on a parameter
        return part


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers; of sparse ones, only the shapes are looked at."""
    if a.layout != torch.strided or b.layout != torch.strided:
        return bool(a.shape == b.shape)
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
