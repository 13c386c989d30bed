r"""The factors of a layer's derivatives: what it takes, and gradients at what it makes.

A linear layer z = W h has :math:`\partial f/\partial W = \sum_s \delta_s h_s^\top` over its
positions s, with δ the gradient of f in z. A convolution is that with patches of its image for h,
and each of its groups on its own; a transposed convolution is that with patches for δ; an embedding
is that with unit vectors for h, in the rows of its weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hessence.models._layer_calls import Call

IMAGES = ("convolution", "transposed convolution")
"""The kinds of layers that take images."""


class MisfitError(ValueError):
    """A tensor whose first dimension does not count samples."""


@dataclass(frozen=True, eq=False)
class Use:
    """What a layer took, sample by sample, before it is cut into positions.

    Patches of an image overlap, and take several times its memory.

    Attributes
    ----------
    kind, options
        See ``Call``.
    taken : Tensor (n, S, in), or (n, images, channels, ...), or (n, S)
        What a linear layer, a convolution of either kind, or an embedding took. Indices of words
        that PyTorch takes for constants are −1.
    """

    kind: str
    options: Mapping[str, Any]
    taken: Tensor

    @classmethod
    def of(cls, call: Call, samples: int) -> Use:
        """Read what a layer took in one call."""
        h = call.taken
        if call.kind == "embedding":
            padding = call.options.get("padding_idx")
            if padding is not None:
                rows = call.options["weight"].shape[0]
                h = torch.where(h == padding % rows, -1, h)
            h = h.reshape(-1)
        elif call.kind in IMAGES:
            h = _images(h, call.options)
        else:
            h = h.reshape(-1, h.shape[-1])
        return cls(call.kind, call.options, _by_sample(h, samples))

    @property
    def width(self) -> int:
        """How many numbers are taken at each position."""
        if self.kind == "transposed convolution":
            return int(self.taken.shape[2]) // int(self.options.get("groups", 1))
        if self.kind == "convolution":
            return int(self.options["weight"][0].numel())
        return 1 if self.kind == "embedding" else int(self.taken.shape[2])

    def positions(self) -> Tensor:
        """Return what was taken by groups, samples and positions (g, n, S, in); indices (n, S)."""
        if self.kind == "embedding":
            return self.taken
        if self.kind == "convolution":
            return _grouped(_patches(self.taken.flatten(0, 1), self.options), len(self.taken))
        if self.kind == "transposed convolution":
            return _grouped(_pixels(self.taken.flatten(0, 1), self.options), len(self.taken))
        return self.taken[None]


def taken(call: Call, samples: int) -> Tensor:
    """Return what a layer took, by groups, samples and positions (g, n, S, in); indices (n, S)."""
    return Use.of(call, samples).positions()


def extent(call: Call) -> tuple[int, int, int]:
    """Return how many groups a layer's weight has, and how many numbers each makes and takes.

    The weight is as large as an outer product of what is made and taken, for each group.
    """
    weight = call.options["weight"]
    if call.kind == "embedding":
        return 1, weight.shape[1], weight.shape[0]
    groups = call.options.get("groups", 1)
    rows, columns = weight.shape[0] // groups, weight[0].numel()
    # A transposed convolution has its weight the other way round.
    return (
        (groups, columns, rows) if call.kind.startswith("transposed") else (groups, rows, columns)
    )


def made(call: Call, samples: int, gradient: Tensor) -> Tensor:
    """Return gradients at what a layer made, by groups, samples and positions (g, n, S, out)."""
    if call.kind == "convolution":
        return _grouped(_pixels(_images(gradient, call.options), call.options), samples)
    if call.kind == "transposed convolution":
        size = _images(call.taken, call.options).shape[2:]
        return _grouped(_patches(_images(gradient, call.options), call.options, size), samples)
    return _by_sample(gradient.reshape(-1, gradient.shape[-1]), samples)[None]


def shift_rows(call: Call, samples: int, gradient: Tensor) -> Tensor:
    """Return the gradients in the bias of a layer, (n, q)."""
    if call.kind in IMAGES:
        flat = _images(gradient, call.options).flatten(2).sum(-1)
        return _by_sample(flat, samples).sum(1)
    if "normalized_shape" in call.options:
        flat = gradient.reshape(-1, math.prod(call.options["normalized_shape"]))
    elif call.kind == "linear":
        flat = gradient.reshape(-1, gradient.shape[-1])
    else:
        flat = gradient.reshape(*gradient.shape[:2], -1).sum(-1)
    return _by_sample(flat, samples).sum(1)


def scale_rows(call: Call, samples: int, gradient: Tensor) -> Tensor:
    """Return the gradients in the weight of a normalisation, (n, q)."""
    return shift_rows(call, samples, gradient * call.taken)


def _by_sample(flat: Tensor, samples: int) -> Tensor:
    """Cut the first dimension into samples and positions."""
    if flat.shape[0] % samples:
        raise MisfitError
    return flat.reshape(samples, -1, *flat.shape[1:])


def _grouped(flat: Tensor, samples: int) -> Tensor:
    """Return what there is at positions of images (images · positions, g, q) as (g, n, S, q)."""
    return _by_sample(flat, samples).permute(2, 0, 1, 3)


def _images(tensor: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return images (images, channels, ...), also of one alone."""
    return tensor if tensor.ndim == options["weight"].ndim else tensor[None]


def _pixels(image: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return the channels of all positions, by groups: (images · positions, g, channels)."""
    lined = image.flatten(2).transpose(1, 2).unflatten(2, (options.get("groups", 1), -1))
    return lined.flatten(0, 1)


def _patches(
    image: Tensor, options: Mapping[str, Any], size: Sequence[int] | None = None
) -> Tensor:
    """Return the patches of all positions, by groups: (images · positions, g, in).

    `size` is how many positions there are in each dimension, if not as many as fit.
    """
    kernel, groups = options["weight"].shape[2:], options.get("groups", 1)
    stride, dilation = (_each(options.get(name, 1), kernel) for name in ("stride", "dilation"))
    margins = _margins(options.get("padding", 0), kernel, dilation)
    image = F.pad(image, [side for pair in reversed(margins) for side in pair])
    for axis, (width, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True)):
        # The window becomes the last dimension.
        image = image.unfold(axis + 2, gap * (width - 1) + 1, step)[..., ::gap]
        if size is not None:
            image = image.narrow(axis + 2, 0, size[axis])
    count = len(kernel)
    # Positions, then channels and places in the kernel, as they lie in the weight.
    order = (0, *range(2, 2 + count), 1, *range(2 + count, 2 + 2 * count))
    return image.permute(order).flatten(0, count).flatten(1).unflatten(1, (groups, -1))


def _margins(
    padding: int | str | tuple[int, ...], kernel: torch.Size, dilation: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Return how many zeros are put before and after each dimension."""
    if padding == "same":
        totals = [gap * (size - 1) for size, gap in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    if isinstance(padding, str):
        return [(0, 0)] * len(kernel)
    return [(width, width) for width in _each(padding, kernel)]


def _each(value: int | tuple[int, ...], kernel: torch.Size) -> tuple[int, ...]:
    """Return an option for each dimension, which PyTorch also takes for all of them at once."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * len(kernel) if len(values) == 1 else values
