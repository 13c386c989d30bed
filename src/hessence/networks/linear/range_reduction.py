r"""The part of parameter space on which the Hessian of a product of matrices acts at all.

A change :math:`dW_\ell` enters the second variation only through :math:`dW_\ell P_\ell` or
:math:`S_\ell\, dW_\ell`. In bases of the hidden layers that begin with col(P_ℓ) and row(S_ℓ), of
dimensions a and b, everything but the first a columns and the first b rows is flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, constant, integers, numerical_rank, transpose
from hessence.spectra.subspaces import Isometry, Subspaces

CHUNK = 256
"""How many columns are multiplied with the Hessian at a time."""


class LayerHessian(Protocol):
    """A Hessian that can tell the layers' matrices in a parameter vector apart."""

    def split(self, columns: Array) -> list[Array]:
        """Cut parameter vectors (p, n) into matrices (n, d_ℓ, d_{ℓ−1})."""

    def join(self, pieces: list[Array]) -> Array:
        """Stack matrices (n, d_ℓ, d_{ℓ−1}) to parameter vectors (p, n)."""

    def _apply(self, columns: Array) -> Array:
        """Multiply columns (p, n)."""


class RangeReduction:
    """The reduction of one network, its bases kept for the eigenvectors.

    Parameters
    ----------
    H : LayerHessian
        The Hessian.
    before, after : sequence of array
        For each layer the product P of those before it and S of those after it: the Hessian sees a
        change dW only in dW P and in S dW.
    """

    def __init__(self, H: LayerHessian, before: Sequence[Array], after: Sequence[Array]) -> None:
        self._xp = api.array_namespace(*before)
        self._hessian = H
        self._bases = [
            (self._leading(transpose(s)), self._leading(p))
            for p, s in zip(before, after, strict=True)
        ]

    def _leading(self, matrix: Array) -> tuple[Array, int]:
        """Return an orthogonal matrix whose first columns span a matrix's, and how many do."""
        # The basis is a constant: eigenvalues do not depend on it, and so gradients are right.
        left, singular, _ = self._xp.linalg.svd(constant(matrix), full_matrices=True)
        return left, numerical_rank(singular, matrix.shape)

    @cached_property
    def _active(self) -> Any:
        """Tell for every coordinate in the turned bases whether the Hessian sees it, (p,)."""
        masks = []
        for (rows, b), (columns, a) in self._bases:
            mask = np.zeros((int(rows.shape[0]), int(columns.shape[0])), dtype=bool)
            mask[:b, :] = True
            mask[:, :a] = True
            masks.append(mask.ravel())
        return np.concatenate(masks)

    @property
    def size(self) -> int:
        """The dimension of the eigenproblem that is left."""
        return int(self._active.sum())

    def blocks(self) -> list[Subspaces]:
        """Return the block that matters and the flat rest."""
        xp, H, reference = self._xp, self._hessian, self._bases[0][0][0]
        eye = xp.eye(self.size, dtype=reference.dtype, device=api.device(reference))
        columns = []
        for start in range(0, self.size, CHUNK):
            part = eye[:, start : min(start + CHUNK, self.size)]
            columns.append(self._restrict(H._apply(self._carry(part, active=True))))
        matrix = xp.concat(columns, axis=-1)
        matrix = (matrix + transpose(matrix)) / 2

        def isometry(active: bool) -> Isometry:
            return lambda coordinates, copies: self._carry(coordinates[..., None] * copies, active)

        flat = int(self._active.size) - self.size
        label = ("range",) * self.size
        return [
            Subspaces(label, lambda _: isometry(True), matrix=matrix),
            Subspaces(("flat",), lambda _: isometry(False), flat, matrix=0 * matrix[:1, :1]),
        ]

    def _carry(self, coordinates: Array, active: bool) -> Array:
        """Carry coordinates (count, n) of the seen or the flat directions to vectors (p, n)."""
        xp = self._xp
        own = self._active if active else ~self._active
        source = np.full(own.shape, int(own.sum()))
        source[own] = np.arange(int(own.sum()))
        padded = xp.concat([coordinates, 0 * coordinates[:1, :]], axis=0)
        if padded.shape[0] == 0:
            padded = xp.zeros((1, int(coordinates.shape[-1])), dtype=coordinates.dtype)
        spread = xp.take(padded, integers(source, coordinates), axis=0)
        pieces = [
            xp.matmul(xp.matmul(rows, piece), transpose(columns))
            for piece, ((rows, _), (columns, _)) in zip(
                self._hessian.split(spread), self._bases, strict=True
            )
        ]
        return self._hessian.join(pieces)

    def _restrict(self, vectors: Array) -> Array:
        """Return the seen coordinates (count, n) of vectors (p, n)."""
        xp = self._xp
        pieces = [
            xp.matmul(xp.matmul(transpose(rows), piece), columns)
            for piece, ((rows, _), (columns, _)) in zip(
                self._hessian.split(vectors), self._bases, strict=True
            )
        ]
        chosen = integers(np.flatnonzero(self._active), vectors)
        return xp.take(self._hessian.join(pieces), chosen, axis=0)


def range_size(before: Sequence[Array], after: Sequence[Array]) -> int:
    """Return the ``size`` of a reduction without its bases, which a wide layer makes large."""
    xp, total = api.array_namespace(*before), 0
    for p, s in zip(before, after, strict=True):
        a, b = (numerical_rank(xp.linalg.svdvals(constant(m)), m.shape) for m in (p, s))
        total += s.shape[1] * a + b * p.shape[0] - a * b
    return total
