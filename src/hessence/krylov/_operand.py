"""What counts as a symmetric operator, the kind of its vectors, and random vectors of that kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    Numbers,
    constant,
    epsilon,
    floating,
    kind,
    largest,
    like,
    require_finite,
)

ORDINARY = (2.0**-32, 2.0**16)
"""Squares of entries between these, and sums of them, stay in range in single precision too."""


@dataclass(frozen=True)
class Operand:
    """An operator behind one interface: columns (*batch, n, b) in, the same shape and kind out."""

    H: Any
    batch: tuple[int, ...]
    size: int
    reference: Array  # of the kind, type and device that vectors must have

    def __call__(self, columns: Array) -> Array:
        """Multiply columns (*batch, n, b)."""
        times = getattr(self.H, "times", None)
        if callable(times):
            # An operator of this library takes columns of its own kind without further checks.
            image = constant(times(columns))
            require_finite(image, "check the operator H")
            return image
        # One vector goes as a vector: foreign operators may be fast, or right, only for these.
        single = not self.batch and columns.shape[-1] == 1
        image = self.H @ (columns[..., 0] if single else columns)
        if not api.is_array_api_obj(image) or kind(image) != kind(self.reference):
            raise TypeError(
                f"H @ v must return a {kind(self.reference)} array like v, "
                f"got {type(image).__module__}.{type(image).__name__}; if H takes arrays of "
                "another kind, let H.reference be one."
            )
        image = constant(image)[..., None] if single else constant(image)
        if tuple(image.shape) != tuple(columns.shape):
            raise ValueError(
                f"H @ v must have the shape of v, {tuple(columns.shape)}, got {tuple(image.shape)}."
            )
        xp = api.array_namespace(image)
        require_finite(image, "check the operator H")
        return xp.astype(image, self.reference.dtype, copy=False)


def operand(H: Any, v0: Any = None) -> Operand:
    """Check that H can be multiplied with, and find out the kind of its vectors.

    The docstring of ``hs.eigenpairs`` has the whole contract.
    """
    if not hasattr(H, "shape") or not hasattr(type(H), "__matmul__"):
        raise TypeError(
            f"H must be a matrix or an operator with .shape and @, got {type(H).__name__}; "
            "for a model, give hs.hessian(model, data, loss)."
        )
    shape = tuple(int(length) for length in H.shape)
    if len(shape) < 2 or shape[-1] != shape[-2] or 0 in shape:
        raise ValueError(f"H must be square and not empty, of shape (..., n, n), got {shape}.")
    if api.is_array_api_obj(H):
        xp, H = floating(H=constant(H))
        defect = float(xp.max(xp.abs(H - xp.matrix_transpose(H))))
        if defect > epsilon(H) ** 0.5 * float(xp.max(xp.abs(H))):
            raise ValueError(
                f"H must be symmetric, but its entries differ by {defect:.3g} from Hᵀ."
            )
    return Operand(H, shape[:-2], shape[-1], _reference(H, v0))


def unit(peak: Any) -> Numbers:
    """Return a power of two near the largest entry of an image, 1 if that is of ordinary size."""
    low, high = ORDINARY
    power = np.ldexp(1.0, np.frexp(peak)[1] - 1)
    return np.where((low <= peak) & (peak <= high), 1.0, power)


def _reference(H: Any, v0: Any) -> Array:
    for candidate in (H, getattr(H, "reference", None), v0):
        if api.is_array_api_obj(candidate):
            found = constant(candidate)
            break
    else:
        dtype = getattr(H, "dtype", None)
        if type(dtype).__module__.split(".")[0] == "torch":
            import torch

            found = torch.zeros(1, dtype=dtype, device=getattr(H, "device", None))
        else:
            found = np.zeros(1, dtype=dtype)
    xp = api.array_namespace(found)
    if found.dtype not in (xp.float32, xp.float64):
        # Integers and booleans become float64; half precision and complex numbers are refused.
        _, found = floating(H=xp.zeros(1, dtype=found.dtype, device=api.device(found)))
    return xp.zeros(1, dtype=found.dtype, device=api.device(found))


LEVEL = 0.975
"""The quantile on either side of a band of 95 %."""


class Probes:
    """Independent vectors (size,), uniform on the unit sphere, of the reference's kind.

    Unlike with random signs, the variance of a quadratic form of such a vector depends only on the
    spectrum (see ``_smoothing``). Each has its own seed, so that grouping does not change them.
    """

    def __init__(self, rng: np.random.Generator, count: int, size: int, reference: Array) -> None:
        self._seeds = rng.integers(0, 2**63, size=(count, 2))
        self._size, self._reference = size, reference

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._seeds)

    def draw(self, i: int) -> Array:
        """Return vector i, (n,)."""
        rng = np.random.default_rng([int(word) for word in self._seeds[i]])
        vector = rng.standard_normal(self._size)
        vector /= np.linalg.norm(vector)
        return like(vector, self._reference)

    def columns(self, start: int, stop: int) -> Array:
        """Return vectors start, …, stop − 1 as columns (n, stop − start)."""
        xp = api.array_namespace(self._reference)
        return xp.matrix_transpose(xp.stack([self.draw(i) for i in range(start, stop)]))


class ScaledProduct:
    """Multiplies by H / scale and counts the products.

    The scale is the unit of the first image that is not zero, a power of two, and 1 until then.
    """

    def __init__(self, subject: Operand) -> None:
        self._subject = subject
        self._known = False
        self.scale = 1.0
        self.products = 0

    def __call__(self, columns: Array) -> Array:
        """Multiply columns (n, b)."""
        images = self._subject(columns)
        self.products += int(columns.shape[-1])
        if not self._known:
            xp = api.array_namespace(images)
            peak = largest(xp.max(xp.abs(images)))
            if peak > 0:
                self.scale, self._known = float(unit(peak)), True
        return images if self.scale == 1 else images / self.scale


def student(freedom: int) -> float:
    """Return the quantile of Student's distribution that a band of 95 % takes."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, LEVEL))
