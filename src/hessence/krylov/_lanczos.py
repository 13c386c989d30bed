r"""Thick-restart Lanczos for the ends of a spectrum, for one operator or a batch in lock-step.

The basis grows along the residuals of the wanted Ritz vectors: of several pending vectors, the
combinations in which the unresolved residuals are longest are multiplied first. A full basis is
replaced by the Ritz vectors nearest to the wanted ends (Wu & Simon 2000). The iteration ends when
the residual of every wanted pair is small and ``copies`` finds no further copies.

A Ritz value may also look converged while it only averages many eigenvalues: for H = I + 5 z zᵀ in
a million dimensions a random vector sees little but the identity. In the notation of ``copies``, a
Ritz pair (θ, z) has K(θ + d) = (1 + d²/r²)/ω, with r its residual and ω = cos² its overlap with the
random start. So :math:`r \sqrt{n\omega}` measures how far out an eigenvalue may hide; where nω is
larger than chance makes it, that must be small too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon
from hessence.krylov._basis import Basis
from hessence.krylov._copies import hiding_places, search_for_copies
from hessence.krylov._operand import Operand
from hessence.krylov.request import ROUNDING, Request, RitzPairs, preference

SEARCH_ROOM = 16
"""A search for overlooked copies may always add this many vectors to the basis."""

HIDDEN = 0.003
"""How far out, in ‖H‖, the weight of an eigenvalue in a random start may hide."""

USUAL = 10.0
"""A random vector and one direction have a larger nω only once in six hundred times."""


@dataclass(frozen=True)
class _Ritz:
    """Ritz values and coordinates, the most wanted first; residuals of the first k."""

    values: Numbers
    coordinates: Numbers
    inside: Numbers
    couplings: Numbers
    excess: Numbers

    @property
    def residuals(self) -> Numbers:
        """The norms ‖Hz − θz‖."""
        return np.asarray(np.hypot(self.inside, np.linalg.norm(self.couplings, axis=-2)))


class Search:
    """One run of the iteration, from a start (*batch, n, b), or at random."""

    def __init__(
        self, operand: Operand, request: Request, start: Array | None, rng: np.random.Generator
    ) -> None:
        self._size, self._request = operand.size, request
        self._epsilon = epsilon(operand.reference)
        self._tol = request.tol
        self._ncv, self._limit = min(request.ncv, operand.size), min(request.limit, operand.size)
        self._basis = basis = Basis(operand, rng)
        width = request.columns if start is None else int(start.shape[-1])
        search = SEARCH_ROOM if request.confidence and request.k > 1 else 0
        basis.reserve(min(self._ncv + search + 2 * width, operand.size))
        if start is None:
            basis.add_random(width)
        else:
            basis.add(start)
        # The coordinates of the start, if that is random, in the basis as it changes.
        self._origin = np.broadcast_to(np.eye(width), (*operand.batch, width, width))
        self._random = start is None
        self._last: tuple[int, float] | None = None
        self._confidence: float | None = None

    def run(self) -> RitzPairs:
        """Iterate until all pairs are resolved and no copy is overlooked, or products run out."""
        basis, request = self._basis, self._request
        basis.expand(min(basis.pending, request.max_products))
        self._grow(request.k - basis.count)
        while True:
            ritz = self._ritz()
            if (ritz.excess <= 1).all():
                if not self._search_for_copies(ritz):
                    return self._found(ritz)
            elif self._exhausted(ritz):
                return self._found(ritz)
            else:
                steps = self._steps_to_next_look(ritz)
                self._turn_to_residuals(ritz)
                if basis.count >= self._ncv:
                    self._make_room(ritz)
                self._grow(steps)

    def _ritz(self) -> _Ritz:
        basis, k = self._basis, self._request.k
        values, vectors = basis.ritz()
        order = preference(values, self._request.which)
        values = np.take_along_axis(values, order, axis=-1)
        vectors = np.take_along_axis(vectors, order[..., None, :], axis=-1)
        inside, couplings = basis.residuals(values[..., :k], vectors[..., :k])
        outer = np.linalg.norm(couplings, axis=-2)
        aim = self._tol * np.where(basis.norm > 0, basis.norm, 1.0)[..., None]
        excess = np.hypot(inside, outer * self._suspicion(vectors[..., :k])) / aim
        return _Ritz(values, vectors, inside, couplings, excess)

    def _suspicion(self, coordinates: Numbers) -> Numbers | float:
        """Return how much smaller residuals must be since the vectors are close to the start."""
        if not self._random:
            return 1.0
        *_, rows, width = self._origin.shape
        overlap = np.swapaxes(coordinates[..., :rows, :], -1, -2) @ self._origin
        weight = np.square(overlap).sum(axis=-1) * (self._size / width)
        factor = np.maximum(1.0, np.sqrt(weight) * self._tol / HIDDEN)
        return np.where(weight > USUAL, factor, 1.0)

    def _exhausted(self, ritz: _Ritz) -> bool:
        """Whether products are used up, or too noisy for what is asked."""
        basis = self._basis
        if basis.pending == 0 or basis.products >= self._request.max_products:
            return True
        aim = self._tol * basis.norm[..., None]
        noise = (ritz.inside > aim) & (np.linalg.norm(ritz.couplings, axis=-2) <= aim)
        return bool((noise | (ritz.excess <= 1)).all())

    def _grow(self, steps: int) -> None:
        """Multiply up to so many vectors, as far as basis and products allow."""
        basis, request = self._basis, self._request
        end = min(basis.count + steps, max(self._ncv, request.k))
        while basis.count < end and basis.pending:
            left = request.max_products - basis.products
            if left <= 0:
                return
            basis.expand(min(request.columns, basis.pending, left))

    def _steps_to_next_look(self, ritz: _Ritz) -> int:
        """Return how many products to make before looking at the Ritz pairs again.

        Judged by how fast the worst residual falls. Solving the projected problem after every
        product would cost more than a cheap product does, above all for a batch.
        """
        basis = self._basis
        if basis.pending > self._request.columns:
            return 1
        worst = float(np.log(ritz.excess.max()))
        last, self._last = self._last, (basis.products, worst)
        # A batch pays for a look once for every operator in it.
        single = ritz.excess.ndim == 1
        most = 1 + basis.count // (8 if single else 2)
        if last is None or worst >= last[1]:
            return most
        predicted = worst * (basis.products - last[0]) / (last[1] - worst)
        return max(1, min(int((0.6 if single else 0.9) * predicted), most))

    def _turn_to_residuals(self, ritz: _Ritz) -> None:
        """Bring the combinations of pending vectors with the longest residuals to the front."""
        if self._basis.pending > self._request.columns:
            missing = np.where((ritz.excess > 1)[..., None, :], ritz.couplings, 0.0)
            self._basis.rotate(np.linalg.svd(missing)[0])

    def _make_room(self, ritz: _Ritz) -> None:
        """Let a full basis grow while allowed, since a restart costs products; else restart."""
        k = self._request.k
        if self._ncv < self._limit:
            self._ncv = min(2 * self._ncv, self._limit)
            self._basis.reserve(min(self._ncv + 2 * self._basis.pending, self._size))
        else:
            self._restart(ritz.coordinates[..., : k + (self._ncv - k) // 2])

    def _restart(self, coordinates: Numbers) -> None:
        rows = self._origin.shape[-2]
        self._origin = np.swapaxes(coordinates[..., :rows, :], -1, -2) @ self._origin
        self._basis.restart(coordinates)

    def _search_for_copies(self, ritz: _Ritz) -> bool:
        """Search for copies, once all is resolved; return whether the basis has changed."""
        basis, request = self._basis, self._request
        if not request.confidence or self._confidence is not None:
            return False
        # A random start meets every eigenvalue; a given one may have overlooked more than copies.
        wanted, margin = ritz.values[..., : request.k], self._tol * basis.norm
        places = hiding_places(wanted, request.which, margin, copies_only=self._random)
        products = min(max(SEARCH_ROOM, basis.products // 2), request.max_products - basis.products)
        if np.isnan(places).all() or basis.total >= self._size:
            return False
        if products <= 0:
            self._confidence = 0.0
            return False
        coordinates = self._deflation(ritz, places)
        if coordinates.shape[-1] < basis.count:
            self._restart(coordinates)
        products = min(products, max(1, self._limit - basis.count))
        basis.reserve(min(basis.total + products + 2, self._size))
        self._confidence = search_for_copies(
            basis, places, confidence=request.confidence, products=products,
            complement=self._size - basis.total,
        )  # fmt: skip
        return True

    def _deflation(self, ritz: _Ritz, places: Numbers) -> Numbers:
        """Return coordinates of the Ritz vectors to keep: the wanted and other accurate ones.

        The search is in the complement of these, and has less to do the more there are. But an
        overlooked eigenvector z must not hide among them: a Ritz vector with residual r holds at
        most r/d of it, if their values differ by d. So the most accurate are kept while the squares
        of these shares add up to at most a quarter.
        """
        basis, k = self._basis, self._request.k
        inside, couplings = basis.residuals(ritz.values, ritz.coordinates)
        residuals = np.hypot(inside, np.linalg.norm(couplings, axis=-2))
        gaps = np.stack([places[..., i, 1:] - s * ritz.values for i, s in ((0, 1), (1, -1))])
        gap = np.min(np.where(np.isnan(gaps), np.inf, gaps), axis=0)
        share = np.square(residuals / np.where(gap > 0, gap, np.nan))
        share = np.where(np.arange(share.shape[-1]) < k, -1.0, np.nan_to_num(share, nan=np.inf))
        order = np.argsort(share, axis=-1, kind="stable")
        hidden = np.cumsum(np.maximum(np.take_along_axis(share, order, axis=-1), 0.0), axis=-1)
        count = int((hidden <= 0.25).sum(axis=-1).min())
        room = max(k, min(count, self._limit - SEARCH_ROOM))
        return np.take_along_axis(ritz.coordinates, order[..., None, :room], axis=-1)

    def _found(self, ritz: _Ritz) -> RitzPairs:
        basis, values = self._basis, ritz.values[..., : self._request.k]
        order = np.argsort(-values, axis=-1, kind="stable")

        def sort(numbers: Numbers) -> Numbers:
            return np.take_along_axis(numbers, order, axis=-1)

        return RitzPairs(
            values=sort(values),
            rows=basis.lift_rows(np.take_along_axis(ritz.coordinates, order[..., None, :], -1)),
            residuals=sort(ritz.residuals),
            resolved=sort(ritz.excess <= 1),
            asymmetry=sort(ritz.inside),
            scale=basis.scale,
            norm=basis.norm,
            rounding=ROUNDING * self._epsilon * (1 + basis.restarts) ** 0.5,
            products=basis.products,
            confidence=self._confidence,
        )
