"""What counts as a symmetric operator, and of which kind its vectors are."""

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
    require_finite,
)

ORDINARY = (2.0**-32, 2.0**16)
"""Entries of images between these have squares, and sums of them, in single precision too."""


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
        # One vector goes as a vector: foreign operators of a single network are quickest, or only
        # right, on what `@` means for them in everyday use.
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
        # Integers and booleans have no products of their own; half precision and complex numbers
        # are refused by name.
        _, found = floating(H=xp.zeros(1, dtype=found.dtype, device=api.device(found)))
    return xp.zeros(1, dtype=found.dtype, device=api.device(found))
