r"""How many eigenvalues of a two-layer network's Hessian lie below a number, exactly.

For :math:`H = F + T^\top T` and λ no eigenvalue of F, Haynsworth's inertia theorem gives

.. math:: \#\{\lambda_i(H) < \lambda\} = \#\{\lambda_i(F) < \lambda\} - n_-(C(\lambda)), \qquad
    C(\lambda) = I + T (F - \lambda)^{-1} T^\top,

with :math:`n_-` the number of negative eigenvalues of the nK × nK matrix C.

**What is proved.** Let T̃ be T as computed, off by Δ in the Frobenius norm, and F̃ be F as its blocks
were solved, off by ε in norm. For every share α

.. math:: \tilde F + (1-\alpha)\tilde G - \eta \preceq H \preceq
    \tilde F + (1+\alpha)\tilde G + \eta, \qquad \eta = \varepsilon + (1 + 1/\alpha)\,\Delta^2,

so that rounding of T, which would move small eigenvalues by :math:`\|T\|\Delta`, moves them by
much less, and C by α. With any :math:`\delta \ge \eta`, the number of eigenvalues of H below any
λ' with :math:`|\lambda'-\lambda| \le \delta-\eta` is at least that of the right side below λ − δ,
and at most that of the left side below λ + δ. Both are counted. Where they agree, the integer is
proved for all these λ'. The terms of C for eigenvalues f of F that are *far* from λ are summed
once: at λ ± δ each differs from what it is at λ by at most :math:`\delta/(|f-\lambda|-\delta)` of
its norm. Those *near* λ are summed at both ends. These differences, α, and what the sums and the
eigensolver may round off, are added to the eigenvalues of C against the claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hessence._common.arrays import Numbers
from hessence.networks.two_layer.functional import Blocks, Functional, solver_error
from hessence.networks.two_layer.gauss_newton import GaussNewton
from hessence.networks.two_layer.problem import CHUNK, ULPS, UNIT, TwoLayer, accumulated
from hessence.spectra.counting import Slice

FAR = 2.0**12
"""Eigenvalues of F further away than so many δ are far."""

SHARE = 2.0**-20
"""The largest α."""

QUICK = 2.0**32
"""With fewer multiplications than this for a count, all eigenvalues are taken to be near."""

KEPT = 2**25
"""Up to so many entries of eigenvectors of blocks are kept from count to count."""


class Bases(NamedTuple):
    """Eigenvalues (units, d + K) and eigenvectors (units, d + K, d + K) of some blocks."""

    values: Numbers
    vectors: Numbers


class Slicer:
    """Counts the eigenvalues of H below numbers."""

    def __init__(self, problem: TwoLayer, part: GaussNewton, functional: Functional) -> None:
        self.problem, self._part = problem, part
        self._blocks = Blocks(problem, part)
        order = self._blocks.order
        # Of T, then of T times eigenvectors, and of these.
        share = np.sqrt(order) * accumulated(order + ULPS) + solver_error(order)
        share += problem.features_error
        self._factor_error = part.factor_error + float(share * np.sqrt(part.trace))
        self._block_error = functional.error + part.root_error
        self.resolution = accumulated(self._terms) * part.trace
        """Closer to a cluster of eigenvalues of F than this, sums round off all that could tell."""

    def rounding(self, at: float) -> float:
        """Return η for a count at a number."""
        alpha, factor = self._share(at), self._factor_error
        return self._block_error + (1 + 1 / alpha) * factor**2

    def _share(self, at: float) -> float:
        """Return α: that which makes the least of the error near a number."""
        size = np.sqrt(abs(at))
        return min(SHARE, max(self._factor_error, UNIT) / size) if size > 0 else SHARE

    @property
    def size(self) -> int:
        """The number of all eigenvalues."""
        return self.problem.size

    @cached_property
    def _kept(self) -> list[Bases] | None:
        entries = self.problem.width * self._blocks.order**2
        return list(map(self._solved, self._blocks.chunks())) if entries <= KEPT else None

    def _solved(self, units: slice) -> Bases:
        """Solve the blocks of some units; what is exactly zero is set to zero."""
        blocks = self._blocks
        order = 1 if blocks.straight else 2
        _, first, *more = self.problem.hidden(units, order)
        values, vectors = np.linalg.eigh(blocks.matrices(units, first, more[0] if more else None))
        if blocks.structural_zeros:
            smallest = np.argsort(np.abs(values), axis=1)[:, : blocks.structural_zeros]
            np.put_along_axis(values, smallest, 0.0, axis=1)
        return Bases(values, vectors)

    def _bases(self) -> Iterator[tuple[slice, Bases]]:
        kept = self._kept
        for index, units in enumerate(self._blocks.chunks()):
            yield units, self._solved(units) if kept is None else kept[index]

    def cut(self, at: float, spread: float) -> Slice:
        """Bound the number of eigenvalues below `at`, to within `spread` ≥ 2η.

        If that does not decide on a number, all terms are summed at both ends, at twice the cost.
        """
        cost = float(self.size) * (self.problem.samples * self.problem.outputs) ** 2
        if cost > QUICK:
            found = self._cut(at, spread, FAR * spread)
            if found.fewest == found.most:
                return found
        return self._cut(at, spread, np.inf)

    def _cut(self, at: float, spread: float, far: float) -> Slice:
        problem, sums = self.problem, _Sums(self._part, spread)
        edges = np.asarray([at - spread, at + spread])
        poles = (problem.unseen + problem.moves_c * problem.outputs) * (edges > 0)
        for units, bases in self._bases():
            poles = poles + [(bases.values < edge).sum() for edge in edges]
            phi, first = problem.hidden(units, 1)
            for rows, gaps in self._rows(units, bases, phi, first, at, far):
                sums.add(rows, gaps, far)
        if problem.moves_c:
            rows = np.kron(np.eye(problem.outputs), np.ones((1, problem.samples)))
            sums.add(rows, np.full(problem.outputs, -at), far)
        share = self._share(at) + self._part.share_error
        negative = [sums.negative(end, self._terms, share) for end in (0, 1)]
        reach = spread - self.rounding(at)
        return Slice(
            fewest=int(max(poles[0] - negative[0][0], 0)),
            most=int(poles[1] - negative[1][0]),
            interval=(at - reach, at + reach),
            poles=int(poles[1]),
            eigenvalues=negative[1][1],
        )

    @property
    def _terms(self) -> int:
        """How many terms follow one another in a sum, at most."""
        chunks = len(self._blocks.chunks()) * (self._blocks.order + 2)
        each = self._batch
        return each + chunks + self.problem.width * self._blocks.order // each

    @property
    def _batch(self) -> int:
        """How many eigenvectors are summed over at a time."""
        order, rows = self.problem.samples * self.problem.outputs, self._blocks.order
        return min(max(4 * rows, 2 * CHUNK // order), self.problem.width * rows)

    def _rows(
        self, units: slice, bases: Bases, phi: Numbers, first: Numbers, at: float, far: float
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Return J times the eigenvectors of some blocks as rows, and their f − λ.

        Those that belong together have gaps of one sign, or are near λ.
        """
        gaps = bases.values - at
        kinds = np.where(np.abs(gaps) < far, 0, np.sign(gaps)).astype(np.int8)
        # Units whose eigenvalues are alike in kind go together: then rows need not be moved.
        _, group = np.unique(kinds, axis=0, return_inverse=True)
        order = np.argsort(group.ravel(), kind="stable")
        cuts = np.flatnonzero(np.diff(group.ravel()[order])) + 1
        most = max(1, self._batch // self._blocks.order)
        for alike in np.split(order, cuts):
            for start in range(0, len(alike), most):
                chosen = alike[start : start + most]
                rows = self._images(
                    bases.vectors[chosen], self.problem.W[:, units][:, chosen], phi[chosen],
                    first[chosen],
                )  # fmt: skip
                kind, gap = kinds[chosen[0]], gaps[chosen].T
                for sign in (-1, 0, 1):
                    if (kind == sign).any():
                        picked = np.flatnonzero(kind == sign)
                        within = slice(picked[0], picked[-1] + 1)
                        yield rows[within].reshape(-1, rows.shape[-1]), gap[within].ravel()

    def _images(self, vectors: Numbers, W: Numbers, phi: Numbers, first: Numbers) -> Numbers:
        """Return J q for all eigenvectors q of some blocks, (d + K, units, K n)."""
        x, d = self.problem.features, self._blocks.inner
        units, order = len(vectors), self._blocks.order
        by_vector = vectors.transpose(2, 0, 1)
        inner, outer = by_vector[..., :d], by_vector[..., d:]
        moved = np.ascontiguousarray(inner).reshape(-1, d) @ x.T
        moved = moved.reshape(order, units, -1)
        moved *= first
        if self.problem.outputs == 1:
            moved *= W[0][:, None]
            moved += outer * phi
            return moved
        found = moved[:, :, None, :] * W.T[:, :, None]
        found += outer[..., None] * phi[:, None, :]
        return found.reshape(order, units, -1)


class _Sums:
    """The sum T (F − λ)⁻¹ Tᵀ without S, at both ends of an interval of λ."""

    def __init__(self, part: GaussNewton, spread: float) -> None:
        self._part, self._spread = part, spread
        samples, outputs = part.root.shape[:2]
        order = samples * outputs
        self._weight = np.tile(part.weight, outputs)
        self._far, *self._near = (np.zeros((order, order)) for _ in range(3))
        self._trace, self._drift = np.zeros(3), 0.0

    def add(self, rows: Numbers, gaps: Numbers, far: float) -> None:
        """Add rows whose gaps f − λ are all near, or all far and of one sign."""
        spread = self._spread
        if abs(gaps[0]) >= far:
            sizes = self._add(0, rows, gaps)
            # What each term changes by on the way to λ ± δ.
            self._drift += float(sizes @ (spread / (np.abs(gaps) - spread)))
            return
        for end, shift in ((1, spread), (2, -spread)):
            # An eigenvalue of F exactly at an end has no inverse: it is taken to be next to it.
            there = np.where(gaps + shift == 0, np.spacing(spread), gaps + shift)
            for chosen in (there > 0, there < 0):
                if chosen.any():
                    self._add(end, rows[chosen], there[chosen])

    def _add(self, place: int, rows: Numbers, gaps: Numbers) -> Numbers:
        """Add rows with gaps of one sign to one of the sums, and return the terms' norms."""
        scaled = rows / np.sqrt(np.abs(gaps))[:, None]
        target = (self._far, *self._near)[place]
        term = scaled.T @ scaled
        if gaps[0] > 0:
            target += term
        else:
            target -= term
        sizes: Numbers = np.einsum("rk,rk,k->r", scaled, scaled, self._weight)
        self._trace[place] += sizes.sum()
        return sizes

    def negative(self, end: int, terms: int, share: float) -> tuple[int, Numbers]:
        """Count the negative eigenvalues of C: at λ − δ at most, at λ + δ at least."""
        whole = self._part.congruent(self._far + self._near[end])
        whole = (whole + whole.T) / 2
        whole[np.diag_indices_from(whole)] += 1
        eigenvalues = np.linalg.eigvalsh(whole)
        norm = max(abs(eigenvalues[0]), abs(eigenvalues[-1]))
        trace = self._trace[0] + self._trace[1 + end]
        outputs = self._part.root.shape[1]
        doubt = 2 * share + self._drift + (ULPS + 4 * len(whole)) * UNIT * norm
        doubt += accumulated(terms + 4 * outputs + ULPS) * trace
        against = doubt if end == 0 else -doubt
        return int((eigenvalues < against).sum()), eigenvalues
