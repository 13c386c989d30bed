r"""What rounding inside a PyTorch model does to its Hessian, measured.

No bound of it can be proved: a model is any program. So it is measured, by stochastic arithmetic
(Vignes 1993; Parker 1997). Every operation that rounds, forward and backward, is given arguments
that are moved by one rounding each, up or down at random, and the product H̃v is compared with Hv.
Terms that cancel inside the model, such as a mean that a normalisation subtracts, show by what is
left of them.

For a normal random v and any matrix A, :math:`\|A\| \le 10 \sqrt{2/\pi}\, \max_i \|A v_i\|` over r
draws but with a probability of at most :math:`10^{-r}` (Halko, Martinsson & Tropp 2011, Lemma 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hessence.models._parameters import length

DRAWS = 3
"""How often a product is compared with one whose operations round otherwise."""

FACTOR = 10 * math.sqrt(2 / math.pi)
"""From the largest difference that was met to a bound."""

WHOLE = 1024
"""Whole numbers up to here are taken for exact, such as those of masks."""

LARGE = 2**16
"""Arguments of more numbers than this are moved only if no other argument has fewer."""

EXACT = (
    # They choose,
    "abs amax amin aminmax clamp clamp_max clamp_min cummax cummin fmax fmin gather index "
    "index_select kthvalue max maximum median min minimum mode nan_to_num relu sort threshold "
    "threshold_backward topk where max_pool2d_with_indices max_pool2d_with_indices_backward "
    "max_pool3d_with_indices max_pool3d_with_indices_backward adaptive_max_pool2d "
    "adaptive_max_pool3d "
    # move and copy,
    "_to_copy _unsafe_view cat clone constant_pad_nd copy embedding fill flip full_like im2col "
    "index_put masked_fill neg ones_like repeat roll scatter select_backward slice_backward stack "
    "tril triu unfold zeros_like "
    # step, or compare.
    "_local_scalar_dense _unique2 all any argmax argmin bucketize ceil count_nonzero eq equal "
    "floor floor_divide ge gt heaviside isinf isnan le lt ne nonzero remainder round searchsorted "
    "sgn sign trunc"
)
"""The operations that round nothing, or that jump where their arguments are moved."""


CANCELLING = {"gelu": "self", "gelu_backward": "grad_output"}
"""Operations that take a difference inside, and the argument whose roundings it is off by.

Both add 1 to an error function that may be close to −1.
"""


class RandomRounding(TorchDispatchMode):  # type: ignore[misc]
    """While it is on, operations take arguments that are moved by one rounding at random.

    The seed decides which go up and which down. What is computed in a lower precision than `dtype`
    counts as exact.
    """

    def __init__(self, seed: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._seed, self._exact = seed, frozenset(EXACT.split())
        self._most = math.inf if dtype is None else torch.finfo(dtype).eps
        self._generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and loading the compiler would take seconds.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__.rstrip("_") in self._exact:
            return func(*args, **kwargs)
        # What an operation writes to or returns a view of stays what it is.
        free = {a.name: a.alias_info is None for a in func._schema.arguments}
        given = dict(zip(free, args, strict=False)) | kwargs
        own = {name: value for name, value in given.items() if free[name] and _rounds(value)}
        # Of a sum of products it is enough to move the smaller factors: weights may be large.
        most = max(LARGE, min((value.numel() for value in own.values()), default=0))
        moved = {name: self._moved(v) for name, v in own.items() if v.numel() <= most}
        moved |= {
            name: [self._moved(v) if _rounds(v) else v for v in value]
            for name, value in given.items()
            if isinstance(value, (list, tuple)) and any(map(_rounds, value))
        }
        names = list(free)[: len(args)]
        result = func(
            *(moved.get(name, value) for name, value in zip(names, args, strict=True)),
            **{name: moved.get(name, value) for name, value in kwargs.items()},
        )
        inside = CANCELLING.get(func.overloadpacket.__name__)
        if inside is not None:
            result = result + self._roundings(given[inside])
        return result

    def _moved(self, value: Tensor) -> Tensor:
        noise, size = self._roundings(value).add_(value), value.abs()
        # Infinity and its like, as in masks, stay what they are; so does NaN.
        largest = torch.finfo(value.dtype).max / 2
        kept = ((size.frac() == 0) & (size <= WHOLE)) | ~(size < largest)
        return torch.where(kept, value, noise)

    def _roundings(self, value: Tensor) -> Tensor:
        """Return one rounding of each number, up or down at random."""
        generator = self._generator(value.device)
        noise = torch.rand(value.shape, dtype=value.dtype, device=value.device, generator=generator)
        eps = min(torch.finfo(value.dtype).eps, self._most)
        return noise.sub_(0.5).sign_().mul_(eps).mul_(value)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def _rounds(value: Any) -> bool:
    """Whether something is a tensor whose numbers can be moved."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    return not (value.is_meta or value.is_nested) and value.layout == torch.strided


def measured(compute: Callable[[], Tensor], dtype: torch.dtype, draws: int = DRAWS) -> float:
    r"""Return how much rounding may change a vector that is computed, in norm.

    Let e be what it changes, and e_i what it changes when arguments are moved at random. To first
    order both are sums of one vector for each rounding, with random coefficients, those of e the
    smaller ones. The worst case is a single coordinate, where both are normal: then
    :math:`\|e\| > 8 \max_i \|e_i\|` has a probability of 0.1 for one draw, and 0.002 for three.
    """
    exact, worst = compute(), 0.0
    for seed in range(draws):
        with RandomRounding(seed, dtype):
            moved = compute()
        gap = float(length(moved - exact))
        worst = max(worst, gap if math.isfinite(gap) else math.inf)
    return FACTOR * worst
