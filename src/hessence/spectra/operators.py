"""Symmetric operators on parameter space: what ``net.hessian(x, y)`` returns."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, floating, like, nonzero, to_numpy
from hessence._common.memory import available
from hessence.spectra.spectrum import Spectrum


class Operator(ABC):
    """A symmetric matrix that is applied rather than stored.

    ``H @ V`` follows ``matmul``: V is a vector (p,) or columns (p, k); where H stands for a batch
    of networks, V may have the batch dimensions in front.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix, batch dimensions in front."""

    @abstractmethod
    def _apply(self, columns: Array) -> Array:
        """Multiply columns (..., p, k)."""

    @property
    @abstractmethod
    def _reference(self) -> Array:
        """Some array of the operator, for its kind, type and device."""

    @property
    def reference(self) -> Array:
        """Some array of the kind, type and device that vectors must have."""
        return self._reference

    @property
    def dtype(self) -> Any:
        """The floating-point type."""
        return self._reference.dtype

    def __matmul__(self, other: Array) -> Array:
        _, columns = floating(("H", self._reference), **{"the operand of @": other})
        size = self.shape[-1]
        vector = columns.ndim == 1
        if (
            not 0 < columns.ndim <= max(2, len(self.shape))
            or columns.shape[0 if vector else -2] != size
        ):
            raise ValueError(
                f"the operand of @ must be a vector ({size},) or columns ({size}, k), "
                f"got {tuple(columns.shape)}."
            )
        return self._apply(columns[:, None])[..., 0] if vector else self._apply(columns)

    def dense(self) -> Array:
        """Return the matrix itself, all p² entries of it."""
        xp, size = api.array_namespace(self._reference), math.prod(self.shape)
        needed = 2 * size * xp.finfo(self.dtype).bits / 8
        if needed > available(self._reference):
            raise ValueError(
                f"H has {size:.1e} entries, which would take {needed / 1e9:.0f} GB: use "
                "hs.eigenpairs, hs.density or hs.trace instead."
            )
        return self._apply(
            xp.eye(self.shape[-1], dtype=self.dtype, device=api.device(self._reference))
        )

    def to_scipy(self) -> Any:
        """Return the operator for SciPy, which has NumPy vectors of any floating-point type.

        Examples
        --------
        >>> import hessence as hs
        >>> from scipy.sparse.linalg import eigsh
        >>> H = hs.ScalarLinear([1.0, 2.0, 0.5], [0.5, 1.0, 1.0]).hessian([1.0, -1.0], [2.0, -1.0])
        >>> eigsh(H.to_scipy(), k=1, which="LA", return_eigenvectors=False).round(4)
        array([8.7812])
        """
        # Loading SciPy's solvers would slow down the import of the library.
        from scipy.sparse.linalg import LinearOperator

        if len(self.shape) != 2:
            raise ValueError(f"SciPy takes one matrix, but H is a batch of shape {self.shape}.")
        reference = self._reference

        def multiply(columns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return to_numpy(self @ like(columns, reference))

        return LinearOperator(
            self.shape, matvec=multiply, matmat=multiply, rmatvec=multiply, rmatmat=multiply,
            dtype=to_numpy(reference).dtype,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"{type(self).__name__} of shape {self.shape}"


class Hessian(Operator):
    """The Hessian of a loss, split as H = ggn + functional.

    The Gauss–Newton part is what remains if the network is linearised; the functional part is the
    residual times the network's own second derivative, and vanishes at zero residual.
    """

    @abstractmethod
    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""

    @abstractmethod
    def trace(self) -> Array:
        """Return the sum of the diagonal, from the entries and not from eigenvalues."""

    @abstractmethod
    def squared_norm(self) -> Array:
        """Return the sum of all squared entries, from the entries and not from eigenvalues."""

    @property
    @abstractmethod
    def ggn(self) -> Hessian:
        """The Gauss–Newton part."""

    @property
    @abstractmethod
    def functional(self) -> Hessian:
        """The functional part."""

    def ggn_error(self) -> Array:
        """Return how far the Gauss–Newton part's largest eigenvalue is off, relative to H's.

        Zero where the residual vanishes; NaN where the largest eigenvalue of H is zero and that of
        the Gauss–Newton part is not.
        """
        xp = api.array_namespace(self._reference)
        mine, theirs = self.spectrum().sharpness, self.ggn.spectrum().sharpness
        gap = xp.abs(mine - theirs)
        missing = xp.where(gap == 0, 0 * gap, float("nan") + 0 * gap)
        return xp.where(mine == 0, missing, gap / xp.abs(nonzero(mine)))[()]
