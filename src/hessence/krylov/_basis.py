r"""An orthonormal basis that grows by products, and the operator's coefficients in it.

The basis has two parts: vectors Q whose image under H is known, and pending vectors F, orthonormal
to Q, whose image is not. Together they span all images,

.. math:: H Q = Q T + F C,

so that a vector :math:`z = Q y` has the residual
:math:`\|Hz - \theta z\|^2 = \|(T - \theta) y\|^2 + \|C y\|^2`, without another product.
Multiplying a pending vector moves it into Q, and the part of its image outside of the basis becomes
a new pending vector. With one pending vector this is Lanczos' recurrence with full
reorthogonalisation, with b of them block (or band) Lanczos. A random vector may join the pending
ones at any time, and Q may be replaced by any QY whose columns Y span an invariant subspace of T
(Wu & Simon's thick restart, SIAM J. Matrix Anal. Appl. 22, 2000).

Unlike in the textbook, T is kept as measured, not as the recurrence says it should be. Its
asymmetry, from rounding or from an operator that is not symmetric, is part of the residual above.
"""

from __future__ import annotations

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, like, to_double
from hessence.krylov._linear_algebra import eigensystem, lengths, orthogonalise, with_rows
from hessence.krylov._operand import Operand, unit

NEGLIGIBLE = 8
"""A remainder below this many ε · ‖H‖ is rounding and gives no new direction."""


class Basis:
    """Vectors, pending vectors and coefficients; leading dimensions are a batch in lock-step.

    Every member of a batch has as many vectors: `count` with a known image, rows [0, count) of the
    storage, then `pending` ones. Coefficients are those of H/scale, so that no square over- or
    underflows; `scale` (*batch,) is the unit of H's images, zero until one is not zero. In that
    unit, `norm` is a lower bound of ‖H‖, the longest image or largest Ritz value so far, and `lost`
    bounds what restarts have left out of HQ = QT + FC.
    """

    def __init__(self, operand: Operand, rng: np.random.Generator) -> None:
        batch, size, reference = operand.batch, operand.size, operand.reference
        self._product, self._rng, self._reference = operand, rng, reference
        self._batch, self._size = batch, size
        self._xp = xp = api.array_namespace(reference)
        place = api.device(reference)
        self._vectors = xp.zeros((*batch, 0, size), dtype=reference.dtype, device=place)
        self._image = np.zeros((*batch, 0, 0))
        self.count = self.pending = self.products = self.restarts = 0
        self._complete = True
        self.scale, self.norm, self.lost = (np.zeros(batch) for _ in range(3))
        self._divisor: Array | float | None = None
        self._negligible = NEGLIGIBLE * epsilon(reference)

    @property
    def total(self) -> int:
        """How many vectors are stored."""
        return self.count + self.pending

    @property
    def inside(self) -> Numbers:
        """The coefficients T (*batch, count, count)."""
        return self._image[..., : self.count, : self.count]

    @property
    def outside(self) -> Numbers:
        """The coefficients C (*batch, pending, count)."""
        return self._image[..., self.count : self.total, : self.count]

    def reserve(self, rows: int) -> None:
        """Make room for so many vectors."""
        missing = rows - int(self._vectors.shape[-2])
        if missing <= 0:
            return
        shape, old = (*self._batch, rows, self._size), self._vectors
        larger = self._xp.empty(shape, dtype=old.dtype, device=api.device(old))
        self._vectors = with_rows(larger, 0, old[..., : self.total, :])
        self._image = np.pad(self._image, [(0, 0)] * len(self._batch) + [(0, missing)] * 2)

    def add(self, columns: Array) -> None:
        """Add columns (*batch, n, b) to the pending vectors, up to n vectors in all.

        Columns that depend on the basis are replaced by random ones.
        """
        xp = self._xp
        peak = xp.max(xp.abs(columns), axis=-2, keepdims=True)
        columns = columns / xp.where(peak == 0, xp.ones_like(peak), peak)
        norms = lengths(columns)
        _, columns = self._orthogonalise(columns)
        self._append(columns, lengths(columns), self._negligible * norms)

    def add_random(self, count: int = 1) -> None:
        """Add random vectors, uniform in the complement of the basis, to the pending ones."""
        self.add(self._draw(count))

    def expand(self, count: int = 1) -> None:
        """Multiply the first pending vectors; the rest of their images becomes pending, last."""
        old, end = self.count, self.total
        images = self._scaled(self._product(self._vectors[..., old : old + count, :].mT))
        self.products += count
        coefficients, remainder = self._orthogonalise(images, self._first_coupled(count))
        left = lengths(remainder)
        norms = np.hypot(np.linalg.norm(coefficients, axis=-2), left)
        self.norm = np.maximum(self.norm, norms.max(axis=-1))
        self.count, self.pending = old + count, self.pending - count
        threshold = np.full(left.shape, self._negligible * self.norm[..., None])
        factor = self._append(remainder, left, threshold)
        self._image[..., :end, old : old + count] = coefficients
        self._image[..., end : self.total, old : old + count] = factor

    def rotate(self, rotation: Numbers) -> None:
        """Replace the pending vectors F by F U, for an orthogonal U (*batch, pending, pending)."""
        rows = self._combine(rotation, self._vectors[..., self.count : self.total, :])
        self._vectors = with_rows(self._vectors, self.count, rows)
        turned = np.swapaxes(rotation, -1, -2) @ self.outside
        self._image[..., self.count : self.total, : self.count] = turned

    def set_aside(self) -> tuple[Array, Numbers]:
        """Take the pending vectors out; return them as columns F (*batch, n, c), and C."""
        columns = self._vectors[..., self.count : self.total, :].mT
        columns, couplings = self._xp.asarray(columns, copy=True), np.array(self.outside)
        self._image[..., self.count : self.total, :] = 0.0
        self.pending, self._complete = 0, False
        return columns, couplings

    def take_back(self, columns: Array, couplings: Numbers) -> None:
        """Return vectors that were set aside to the pending ones, after the basis has grown.

        Part of F may lie in the new vectors O: F = OG + F′R gives HQ = QT + OGC + F′RC.
        """
        before, known, self._complete = self.total, couplings.shape[-1], True
        inside, remainder = self._orthogonalise(columns)
        left = lengths(remainder)
        factor = self._append(remainder, left, np.full(left.shape, self._negligible))
        self._image[..., :before, :known] += inside @ couplings
        self._image[..., before : self.total, :known] += factor @ couplings

    def restart(self, coordinates: Numbers) -> None:
        """Replace Q by QY, for orthonormal Y (*batch, count, kept) of a span invariant under T."""
        kept, pending = coordinates.shape[-1], self.pending
        transposed = np.swapaxes(coordinates, -1, -2)
        inside, outside = transposed @ self.inside @ coordinates, self.outside @ coordinates
        waiting = self._vectors[..., self.count : self.total, :]
        waiting, rows = self._xp.asarray(waiting, copy=True), self.lift_rows(coordinates)
        # The span is invariant up to T's asymmetry; what is lost here counts in the residuals.
        self.lost = self.lost + np.linalg.norm(
            self.inside @ coordinates - coordinates @ inside, axis=(-2, -1)
        )
        self._image[...] = 0.0
        self._image[..., :kept, :kept] = inside
        self._image[..., kept : kept + pending, :kept] = outside
        self._vectors = with_rows(with_rows(self._vectors, 0, rows), kept, waiting)
        self.count = kept
        self.restarts += 1

    def lift_rows(self, coordinates: Numbers) -> Array:
        """Return the vectors QY of coordinates Y (*batch, count, k) as rows (*batch, k, n)."""
        return self._combine(coordinates, self._vectors[..., : self.count, :])

    def ritz(self) -> tuple[Numbers, Numbers]:
        """Return the Ritz values, ascending, and the coordinates Y (*batch, count, count)."""
        values, coordinates = eigensystem(self.inside, self._reference)
        self.norm = np.maximum(self.norm, np.abs(values).max(axis=-1))
        return values, coordinates

    def residuals(self, values: Numbers, coordinates: Numbers) -> tuple[Numbers, Numbers]:
        """Return ‖(T − θ)y‖ and Cy for values θ (*batch, k) and coordinates Y (*batch, count, k).

        For an exact symmetric product the first would be zero, if θ and y are an eigenpair of T.
        """
        defect = self.inside @ coordinates - coordinates * values[..., None, :]
        inside = np.linalg.norm(defect, axis=-2) + self.lost[..., None]
        return inside, self.outside @ coordinates

    def _combine(self, coordinates: Numbers, rows: Array) -> Array:
        return like(np.array(np.swapaxes(coordinates, -1, -2), order="C"), rows) @ rows

    def _scaled(self, images: Array) -> Array:
        if (self.scale == 0).any():
            xp = self._xp
            peak = to_double(xp.max(xp.abs(images), axis=(-2, -1)))
            self.scale = np.where((self.scale == 0) & (peak > 0), unit(peak), self.scale)
            divisor = np.where(self.scale == 0, 1.0, self.scale)
            self._divisor = None if (divisor == 1).all() else self._for_each(divisor)
        return images if self._divisor is None else images / self._divisor

    def _orthogonalise(self, columns: Array, first: int = 0) -> tuple[Numbers, Array]:
        """Return the coefficients along all stored vectors, and what is left of the columns."""
        return orthogonalise(self._vectors[..., : self.total, :], columns, first)

    def _first_coupled(self, count: int) -> int:
        """Return the first vector whose image meets the first pending ones.

        By symmetry their images are orthogonal to all vectors before it, in Lanczos' recurrence to
        all but the last. Only known if no couplings are set aside.
        """
        if not self._complete:
            return 0
        couplings = self.outside[..., :count, :]
        met = (couplings != 0).any(axis=tuple(range(couplings.ndim - 1)))
        return int(met.argmax()) if met.any() else self.count

    def _append(self, columns: Array, norms: Numbers, threshold: Numbers) -> Numbers:
        """Store columns, already orthogonal to the basis, as orthonormal vectors.

        A column no longer than its threshold is replaced by a random direction. Returns the
        triangular R with columns = vectors · R, up to what was replaced. Once there are n vectors,
        they span all further columns.
        """
        first, width = self.total, int(columns.shape[-1])
        stored = min(width, self._size - first)
        self.reserve(first + stored)
        factor = np.zeros((*self._batch, stored, width))
        for j in range(width):
            column, length = columns[..., j : j + 1], norms[..., j]
            if j:
                # A column that almost depends on its neighbours is mostly rounding once they are
                # taken out, so the whole basis is taken out again.
                coefficients, column = self._orthogonalise(column)
                factor[..., :j, j] = coefficients[..., first:, 0]
                length = lengths(column)[..., 0]
            if j >= stored:
                continue
            factor[..., j, j] = np.where(length > threshold[..., j], length, 0.0)
            column = self._fill(column, factor[..., j, j])
            self._vectors = with_rows(self._vectors, first + j, column.mT)
            self.pending += 1
        return factor

    def _fill(self, column: Array, length: Numbers) -> Array:
        """Normalise columns of known length; where that is zero put a random direction."""
        xp, lost = self._xp, length == 0
        if not lost.any():
            return column / self._for_each(length)
        _, fresh = self._orthogonalise(self._draw(1))
        fresh = fresh / self._for_each(lengths(fresh)[..., 0])
        mask = xp.asarray(lost[..., None, None], device=api.device(column))
        return xp.where(mask, fresh, column / self._for_each(np.where(lost, 1.0, length)))

    def _for_each(self, numbers: Numbers) -> Array | float:
        """Return numbers (*batch,) as what columns can be divided by."""
        return like(numbers[..., None, None], self._reference) if self._batch else float(numbers)

    def _draw(self, count: int) -> Array:
        return like(self._rng.normal(size=(*self._batch, self._size, count)), self._reference)
