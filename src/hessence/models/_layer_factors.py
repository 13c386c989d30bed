r"""The factors of a layer's derivatives: what it takes, and gradients at what it makes.

A linear layer z = W h has :math:`\partial f/\partial W = \sum_s \delta_s h_s^\top` over its
positions s, with δ the gradient of f in z. A convolution is that with patches of its image for h,
and each of its groups on its own; an embedding is that with unit vectors for h, in the rows of its
weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from hessence.models._layer_calls import Call

SLICE_BYTES = 2.0**25
"""How many bytes rows of the Jacobian in a part of one weight may take, on each side."""


class MisfitError(ValueError):
    """A tensor whose first dimension does not count samples."""


def taken(call: Call, samples: int) -> Tensor:
    """Return what a layer took, by groups, samples and positions (g, n, S, in).

    Of an embedding that is the indices (n, S), −1 for those that PyTorch takes for constants.
    """
    h = call.taken
    if call.kind == "embedding":
        padding = call.options.get("padding_idx")
        if padding is not None:
            rows = call.options["weight"].shape[0]
            h = torch.where(h == padding % rows, -1, h)
        return _by_sample(h.reshape(-1), samples)
    if call.kind == "convolution":
        return _by_sample(_patches(call), samples).permute(2, 0, 1, 3)
    return _by_sample(h.reshape(-1, h.shape[-1]), samples)[None]


def made(call: Call, samples: int, gradient: Tensor) -> Tensor:
    """Return gradients at what a layer made, by groups, samples and positions (g, n, S, out)."""
    if call.kind == "convolution":
        groups = call.options.get("groups", 1)
        image = gradient if gradient.ndim == call.options["weight"].ndim else gradient[None]
        lined = image.flatten(2).transpose(1, 2).unflatten(2, (groups, -1))
        return _by_sample(lined.flatten(0, 1), samples).permute(2, 0, 1, 3)
    return _by_sample(gradient.reshape(-1, gradient.shape[-1]), samples)[None]


def shift_rows(call: Call, samples: int, gradient: Tensor) -> Tensor:
    """Return the gradients in the bias of a layer, (n, q)."""
    if call.kind == "convolution":
        return made(call, samples, gradient).sum(2).transpose(0, 1).flatten(1)
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


def _patches(call: Call) -> Tensor:
    """Return the patches of all positions, by groups: (images · positions, g, in)."""
    weight, options = call.options["weight"], call.options
    kernel, groups = weight.shape[2:], options.get("groups", 1)
    image = call.taken if call.taken.ndim == weight.ndim else call.taken[None]
    stride, dilation = (_each(options.get(name, 1), kernel) for name in ("stride", "dilation"))
    margins = _margins(options.get("padding", 0), kernel, dilation)
    image = F.pad(image, [side for pair in reversed(margins) for side in pair])
    for axis, (size, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True)):
        # The window becomes the last dimension.
        image = image.unfold(axis + 2, gap * (size - 1) + 1, step)[..., ::gap]
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


@dataclass(frozen=True, eq=False)
class Outer:
    """Rows of the Jacobian in one weight: sums of outer products of gradients and inputs.

    Attributes
    ----------
    inputs : Tensor
        (g, n, S, in), or indices (n, S).
    deltas : Tensor (g, n, K, S, out)
        Gradients of the K outputs of each sample.
    """

    inputs: Tensor
    deltas: Tensor

    @property
    def indexed(self) -> bool:
        """Whether the inputs are unit vectors, by index."""
        return bool(self.inputs.ndim == 2)

    @property
    def shape(self) -> torch.Size:
        """The numbers n of samples and K of outputs."""
        return self.deltas.shape[1:3]

    def joined(self, other: Outer) -> Outer:
        """Return the sum with another of the same kind: its positions come on top."""
        axis = 1 if self.indexed else 2
        return Outer(
            torch.cat([self.inputs, other.inputs], axis),
            torch.cat([self.deltas, other.deltas], 3),
        )

    def gram(self, other: Outer) -> Tensor:
        """Return the inner products of all rows with those of another, (n, K, n′, K′)."""
        if self._by_factors(other):
            return self._factored(other)
        if not self.indexed:
            return sliced_gram([self], [other], self.deltas.shape[-1])
        # Words that do not occur are left out.
        words = torch.cat([self.inputs.reshape(-1), other.inputs.reshape(-1)]).unique()
        words = words[words >= 0]
        mine, theirs = (replace(use, inputs=_places(use.inputs, words)) for use in (self, other))
        return sliced_gram([mine], [theirs], len(words))

    def _by_factors(self, other: Outer) -> bool:
        """Whether products of all pairs of positions cost less than the rows themselves."""
        (groups, n, K, S, out), (_, m, L, T, _) = self.deltas.shape, other.deltas.shape
        if S == T == 1:
            return True
        pairs, width = n * K * S * m * L * T, n * S + m * T if self.indexed else out
        across = out if self.indexed else self.inputs.shape[-1]
        rows = n * K * m * L * width * across
        return bool(pairs * groups * 8 <= SLICE_BYTES and pairs * out <= rows)

    def _factored(self, other: Outer) -> Tensor:
        (groups, n, K, S, _), (_, m, L, T, _) = self.deltas.shape, other.deltas.shape
        if self.indexed:
            mine, theirs = self.inputs.reshape(-1, 1), other.inputs.reshape(1, -1)
            meet = ((mine == theirs) & (mine >= 0)).to(self.deltas)[None]
        else:
            meet = self.inputs.flatten(1, 2) @ other.inputs.flatten(1, 2).mT
        both = self.deltas.flatten(1, 3) @ other.deltas.flatten(1, 3).mT
        product = both.view(groups, n, K, S, m, L, T) * meet.view(groups, n, 1, S, m, 1, T)
        return product.sum((0, 3, 6))

    def rows(self, low: int, high: int) -> Tensor:
        """Return the rows in some rows of the weight, all groups', (n · K, q)."""
        if not self.indexed:
            some = self.deltas[..., low:high].mT
            # (g, n, K · out, S) times (g, n, S, in), for all outputs at once.
            found = (some.flatten(2, 3) @ self.inputs).unflatten(2, some.shape[2:4])
            return found.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)
        n, K = self.shape
        width = self.deltas.shape[-1]
        inside = (self.inputs >= low) & (self.inputs < high)
        place = torch.where(inside, self.inputs - low, high - low)
        found = self.deltas.new_zeros(n, K, high - low + 1, width)
        index = place[:, None, :, None].expand(n, K, -1, width)
        found.scatter_add_(2, index, self.deltas[0])
        return found[:, :, :-1].flatten(2).flatten(0, 1)


def _places(indices: Tensor, words: Tensor) -> Tensor:
    """Return where indices are in a sorted list, −1 for those that are negative."""
    return torch.where(indices >= 0, torch.searchsorted(words, indices), -1)


def sliced_gram(mine: list[Outer], others: list[Outer], rows: int) -> Tensor:
    """Return inner products of sums of rows, from some rows of the weight at a time.

    Parameters
    ----------
    mine, others : list of Outer
        All uses of one weight, of the samples of either side.
    rows : int
        How many rows the weight has, in each group.
    """
    (n, K), (m, L) = mine[0].shape, others[0].shape
    first = mine[0]
    width = first.deltas.shape[-1] if first.indexed else first.inputs[..., 0, 0, :].numel()
    step = max(1, int(SLICE_BYTES / (max(n * K, m * L) * width * first.deltas.itemsize)))
    total = first.deltas.new_zeros(n * K, m * L)
    for low in range(0, rows, step):
        high = min(low + step, rows)
        left = _total([use.rows(low, high) for use in mine])
        right = left if mine is others else _total([use.rows(low, high) for use in others])
        total.addmm_(left, right.mT)
    return total.view(n, K, m, L)


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
