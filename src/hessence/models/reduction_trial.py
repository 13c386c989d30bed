"""Whether a loss that users write is a mean over samples or a sum, told by its values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hessence._common.messages import warn
from hessence.models import ranks
from hessence.models.batch_parts import first_length, joined

NOT_A_REDUCTION = (
    "loss must be a mean or a sum over samples for data in several batches, but its value on some "
    "samples is neither the mean nor the sum of its values on two parts of them, as if it were a "
    "mean over targets that are not ignored, or over words; give all data as one batch, a torch.nn "
    "loss, or a closure loss(model, batch) that returns a pair (mean, weight), the weight being "
    "how many the mean is over."
)

UNTOLD = (
    "whether the loss is a mean or a sum over samples cannot be found out on these batches, and it "
    "is taken for a mean; to be sure, return a pair (mean, weight) from a closure "
    "loss(model, batch)."
)


class ReductionTrial:
    """Tries whether a loss is a mean over samples, or a sum, by its values on parts of batches.

    Parameters
    ----------
    precision : torch.dtype
        In which the values are computed, or in a lower one, if that is theirs.
    """

    def __init__(self, precision: torch.dtype) -> None:
        self._precision = precision
        self._possible = {True, False}
        self._tried = self._missed = self._told = False

    @property
    def decided(self) -> bool:
        """Whether it cannot be both any more, or there is nothing to find out."""
        return len(self._possible) < 2 or self._told

    def needless(self, value: Callable[[Any], Any], batch: Any) -> bool:
        """Whether the loss has its weight beside it, so that there is nothing to find out."""
        try:
            self._told = isinstance(value(batch), tuple)
        except Exception:  # of a loss that cannot be had for these parameters
            return False
        self._tried = self._tried or self._told
        return self._told

    def add(self, value: Callable[[Any], Any], first: Any, second: Any) -> None:
        """Compare the value on two parts with that on both."""
        try:
            both = joined(first, second)
        except (RuntimeError, ValueError):  # of samples of other shapes
            self._missed = True
            return
        try:
            whole, one, two = (value(part) for part in (both, first, second))
        except Exception:  # on what is too few samples for it, or out of its domain
            return
        self._tried = True
        if not all(isinstance(v, Tensor) and v.numel() == 1 for v in (whole, one, two)):
            # A pair (mean, weight), or one number for each sample: there is nothing to find out.
            self._told = True
            return
        share = first_length(first) / first_length(both)
        spacing = max(torch.finfo(kind).eps for kind in (self._precision, whole.dtype))
        values = [float(value.detach()) for value in (whole, one, two)]
        self._possible &= _reductions(*values, share=share, spacing=spacing)

    def averaged(self) -> bool:
        """Return whether it is a mean; refuse what is neither, and warn where nothing told."""
        # All ranks together: they must not decide each for itself.
        everyone = ranks.gather(self) if ranks.parallel() else [self]
        possible = set.intersection(*(trial._possible for trial in everyone))
        if not possible:
            raise ValueError(NOT_A_REDUCTION)
        tried = any(trial._tried for trial in everyone)
        told = all(trial._told for trial in everyone)
        missed = any(trial._missed and not trial._told for trial in everyone)
        # A mean over words looks like one over samples, but a sum like nothing else. And what is
        # zero wherever it was tried may be either.
        if True in possible and (missed or not tried or (False in possible and not told)):
            warn(UNTOLD)
        return True in possible


def _reductions(
    whole: float, first: float, second: float, *, share: float, spacing: float
) -> set[bool]:
    """Return what a loss can be, a mean (True) or a sum, by its values on a batch and its parts."""
    if not math.isfinite(whole):
        return {True, False}
    if not math.isfinite(first + second):
        return set()  # a mean over nothing, on a part of which all is ignored
    # In half precision, errors of a thousand spacings would hide the difference.
    tolerance = min(1e3 * spacing, max(16 * spacing, 1e-4)) * (abs(first) + abs(second))
    expected = {True: share * first + (1 - share) * second, False: first + second}
    return {kind for kind, guess in expected.items() if abs(guess - whole) <= tolerance}
