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
proved for all these λ'.

**How C is summed.** Terms of eigenvalues f of F that are *far* from λ, by Δ or more, are summed
once, with P those above λ and N those below: at λ ± δ each differs from what it is at λ by at most
the share :math:`\rho = \delta/(\Delta-\delta)` of itself, so that they add at least
:math:`(1-\rho)P - (1+\rho)N` and at most :math:`(1+\rho)P - (1-\rho)N` to C there. Terms *near* λ
are summed at both ends. What the sums and the eigensolver may round off is added to the eigenvalues
of C against what is claimed of their signs.

**Biases of the outputs** have a block of zeros in F, so that their terms :math:`-BB^\top/\lambda`
drown all others where λ is small; B are the columns of T that belong to them. With C′ the sum
without them,

.. math:: n_-(C) = n_-\begin{pmatrix} C' & B \\ B^\top & \lambda \end{pmatrix} - r\,[\lambda < 0]

for r such columns (Haynsworth again), and the larger matrix, where B and λ may be scaled by
:math:`1/\tau` and :math:`1/\tau^2`, has moderate entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from hessence._common.arrays import Numbers
from hessence.networks.two_layer.functional import KEPT, Bases, Blocks, Functional, solver_error
from hessence.networks.two_layer.gauss_newton import GaussNewton, congruent
from hessence.networks.two_layer.problem import CHUNK, ULPS, UNIT, TwoLayer, accumulated
from hessence.spectra.counting import Slice

NEAR, FAR = 0.02, 2.0**18
"""This share of F's eigenvalues is near λ at first, and those that are closer than so many δ."""

SHARE = 2.0**-20
"""The largest α."""

THIN = 2.0**-10
"""Biases are in the larger matrix if they move predictions by this share of what others do."""

QUICK = 2.0**32
"""With fewer multiplications than this for a count, all eigenvalues are taken to be near."""


class Slicer:
    """Counts the eigenvalues of H below numbers."""

    def __init__(self, problem: TwoLayer, part: GaussNewton, functional: Functional) -> None:
        self.problem, self._part, self._solutions = problem, part, functional.bases
        self._blocks = Blocks(problem, part)
        order = self._blocks.order
        # Of T, then of T times eigenvectors, and of these.
        share = np.sqrt(order) * accumulated(order + ULPS) + solver_error(order)
        share += problem.features_error
        self._factor_error = part.factor_error + float(share * np.sqrt(part.trace))
        self._block_error = functional.error + part.root_error
        terms = self._batch + problem.width * order // self._batch
        self.resolution = accumulated(terms) * part.trace
        """Closer to a cluster of eigenvalues of F than this, sums round off all that could tell."""

    @property
    def size(self) -> int:
        """The number of all eigenvalues."""
        return self.problem.size

    def rounding(self, at: float) -> float:
        """Return η for a count at a number."""
        alpha, factor = self._share(at), self._factor_error
        return self._block_error + (1 + 1 / alpha) * factor**2

    def _share(self, at: float) -> float:
        """Return α: that which makes the least of the error near a number."""
        size = np.sqrt(abs(at))
        return min(SHARE, max(self._factor_error / size, UNIT)) if size > 0 else SHARE

    def cut(self, at: float, spread: float) -> Slice:
        """Bound the number of eigenvalues below `at`, to within `spread` > η.

        If that does not decide on a number, and an eigenvalue does not seem to lie between the
        ends, all terms are summed at both, at twice the cost.
        """
        cost = float(self.size) * (self.problem.samples * self.problem.outputs) ** 2
        if cost > QUICK:
            far = FAR * spread
            if self._kept is not None:
                gaps = np.abs(self._kept.values.ravel() - at)
                far = max(far, float(np.quantile(gaps, NEAR)))
            found, differ = self._cut(at, spread, far)
            if found.fewest == found.most or differ:
                return found
        return self._cut(at, spread, np.inf)[0]

    def _cut(self, at: float, spread: float, far: float) -> tuple[Slice, bool]:
        """Return the bounds, and whether the two ends seem to have different numbers below."""
        problem, edges = self.problem, np.asarray([at - spread, at + spread])
        sums = Sums(self._part, spread, far, self._batch)
        poles = problem.unseen * (edges > 0)
        for bases in self._bases():
            poles = poles + [(bases.values < edge).sum() for edge in edges]
            for rows, gaps in self._rows(bases, at, spread, far):
                sums.add(rows, gaps)
        if problem.moves_c:
            poles = poles + self._add_biases(sums, at, spread)
        share = self._share(at) + self._part.share_error
        negative = [sums.negative(end, share) for end in (0, 1)]
        reach = spread - self.rounding(at)
        found = Slice(
            fewest=int(max(poles[0] - negative[0][0], 0)),
            most=int(poles[1] - negative[1][0]),
            interval=(at - reach, at + reach),
            poles=int(poles[1]),
            eigenvalues=negative[1][2],
        )
        return found, bool(poles[0] - negative[0][1] != poles[1] - negative[1][1])

    def _add_biases(self, sums: Sums, at: float, spread: float) -> Numbers:
        """Add the biases of the outputs, and return how many poles they have below both ends."""
        columns, directions = self._biases
        outputs, samples = len(directions), self.problem.samples
        edges, scale = np.asarray([at - spread, at + spread]), max(abs(at), spread)
        sizes = (columns**2).sum(axis=0)
        large = (sizes > scale) & (sizes > THIN**2 * sizes.max(initial=0.0))
        sums.border = columns[:, large] / np.sqrt(sizes[large]), edges[:, None] / sizes[large]
        rest = directions[:, ~large]
        if rest.shape[1]:
            rows = rest.T @ np.kron(np.eye(outputs), np.ones((1, samples)))
            sums.add(rows / np.sqrt(scale), np.full(rest.shape[1], -at))
        return np.where(edges > 0, outputs, int(large.sum()))

    @cached_property
    def _biases(self) -> tuple[Numbers, Numbers]:
        """T in the biases of the outputs, as orthogonal columns, and directions (K, r) for them.

        What is added to all outputs alike is left out where no prediction changes by it.
        """
        root, outputs = self._part.root, self.problem.outputs
        seen = np.eye(outputs)
        if self._part.at.shifts:
            seen = np.linalg.qr(np.column_stack([np.ones(outputs), seen[:, 1:]]))[0][:, 1:]
        columns = root.transpose(1, 0, 2).reshape(-1, outputs) @ seen
        turn = np.linalg.svd(columns, full_matrices=False)[2].T
        return columns @ turn, seen @ turn

    @cached_property
    def _kept(self) -> Bases | None:
        """The bases of all units, if they are small enough to be kept."""
        if self.problem.width * self._blocks.order**2 > KEPT:
            return None
        parts = self._solutions or list(map(self._solved, self._blocks.chunks()))
        return Bases(*map(np.concatenate, zip(*parts, strict=True)))

    def _bases(self) -> Iterator[Bases]:
        if self._kept is not None:
            yield self._kept
        else:
            yield from map(self._solved, self._blocks.chunks())

    def _solved(self, units: slice) -> Bases:
        """Solve the blocks of some units."""
        _, first, *more = self.problem.hidden(units, 1 if self._blocks.straight else 2)
        return self._blocks.solved(units, self._blocks.matrices(units, first, *more))

    @property
    def _batch(self) -> int:
        """How many eigenvectors are multiplied at a time."""
        order, rows = self.problem.samples * self.problem.outputs, self._blocks.order
        most = max(rows, CHUNK // 2 // order // rows * rows)
        return min(most, self.problem.width * rows)

    def _rows(
        self, bases: Bases, at: float, spread: float, far: float
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Return J times the eigenvectors of some blocks as rows, and their gaps f − λ.

        Those that come together have gaps of one sign, or are near λ. Rows are divided by the root
        of abs(f − λ), or of δ where that is larger. They are overwritten by the next ones.
        """
        gaps = bases.values - at
        scales = 1 / np.sqrt(np.maximum(np.abs(gaps), spread))
        kinds = np.where(np.abs(gaps) < far, 0, np.sign(gaps)).astype(np.int8)
        # Units whose eigenvalues are alike in kind go together: then rows need not be moved.
        _, group = np.unique(kinds, axis=0, return_inverse=True)
        order = np.argsort(group.ravel(), kind="stable")
        cuts = np.flatnonzero(np.diff(group.ravel()[order])) + 1
        most = self._batch // self._blocks.order
        space = [np.empty(self._batch * self.problem.samples) for _ in range(2)]
        for alike in np.split(order, cuts):
            for start in range(0, len(alike), most):
                chosen = alike[start : start + most]
                vectors = bases.vectors[chosen] * scales[chosen, None, :]
                rows = self._images(bases.units[chosen], vectors, space)
                kind, gap = kinds[chosen[0]], gaps[chosen].T
                for sign in (-1, 0, 1):
                    picked = np.flatnonzero(kind == sign)
                    if len(picked):
                        within = slice(picked[0], picked[-1] + 1)
                        yield rows[within].reshape(-1, rows.shape[-1]), gap[within].ravel()

    def _images(self, units: Numbers, vectors: Numbers, space: list[Numbers]) -> Numbers:
        """Return J q for all eigenvectors q of some blocks, (d + K, units, K n).

        One output writes to the space it is given: new memory would cost more than the products.
        """
        problem, d = self.problem, self._blocks.inner
        phi, first = problem.hidden(units, 1)
        W, shape = problem.W[:, units], (self._blocks.order, len(units), problem.samples)
        by_vector = vectors.transpose(2, 0, 1)
        inner, outer = by_vector[..., :d], by_vector[..., d:]
        moved, other = (part[: shape[0] * shape[1] * shape[2]].reshape(shape) for part in space)
        flat = np.ascontiguousarray(inner).reshape(-1, d)
        np.matmul(flat, problem.features.T, out=moved.reshape(len(flat), -1))
        if problem.outputs == 1:
            moved *= first * W[0][:, None]
            moved += np.multiply(outer, phi, out=other)
            return moved
        moved *= first
        found = moved[:, :, None, :] * W.T[:, :, None]
        found += outer[..., None] * phi[:, None, :]
        return np.asarray(found.reshape(*shape[:2], -1))


class Sums:
    """The sums of C at λ ± `spread`, over rows J q for eigenvectors q of F, without S.

    Terms are far if f is at least `far` from λ. Near rows are summed `batch` at a time.
    """

    def __init__(self, part: GaussNewton, spread: float, far: float, batch: int) -> None:
        from scipy.linalg.blas import dsyrk

        self._part, self._spread, self._edge, self._batch = part, spread, far, batch
        order = part.root.shape[0] * part.root.shape[1]
        # Far ones above and below; near ones at λ − δ and at λ + δ. The upper triangles alone.
        self._far, self._near = (
            [np.zeros((order, order), order="F") for _ in range(2)] for _ in range(2)
        )
        self._near_trace = [0.0, 0.0]
        self._calls, self._longest = 0, 0
        self._waiting: list[tuple[Numbers, Numbers]] = []
        # By pairs of output and sample: what a sample's S lets through, and no more.
        self._weights, self._dsyrk = np.tile(part.weight, part.root.shape[1]), dsyrk
        self.border: tuple[Numbers, Numbers] | None = None
        """Columns B beside C, of unit length, and the numbers in their corner at both ends."""

    def add(self, rows: Numbers, gaps: Numbers) -> None:
        """Add rows whose gaps f − λ are all near, or all far and of one sign."""
        if abs(gaps[0]) >= self._edge:
            self._add(self._far, int(gaps[0] < 0), rows, 1.0)
            return
        self._waiting.append((rows.copy(), gaps))
        if sum(len(gaps) for _, gaps in self._waiting) >= self._batch:
            self._flush()

    def _flush(self) -> None:
        """Sum the near rows at both ends."""
        if not self._waiting:
            return
        rows, gaps = map(np.concatenate, zip(*self._waiting, strict=True))
        self._waiting = []
        spread = self._spread
        scales = np.maximum(np.abs(gaps), spread)
        for end, shift in enumerate((spread, -spread)):
            # An eigenvalue of F exactly at an end has no inverse: it is taken to be next to it.
            there = np.where(gaps + shift == 0, np.spacing(spread), gaps + shift)
            weighted = rows * np.sqrt(scales / np.abs(there))[:, None]
            squares = np.einsum("ij,ij->j", weighted, weighted)
            self._near_trace[end] += float(squares @ self._weights)
            for sign in (1.0, -1.0):
                chosen = sign * there > 0
                if chosen.any():
                    self._add(self._near, end, weighted[chosen], sign)

    def _add(self, sums: list[Numbers], place: int, rows: Numbers, sign: float) -> None:
        """Add the products of rows to a sum, or take them away."""
        sums[place] = self._dsyrk(sign, rows.T, beta=1.0, c=sums[place], overwrite_c=1)
        self._calls, self._longest = self._calls + 1, max(self._longest, len(rows))

    def negative(self, end: int, share: float) -> tuple[int, int, Numbers]:
        """Count the negative eigenvalues of C: at λ − δ (0) at most, at λ + δ (1) at least.

        The share is that of G by which G may be off. Returns also how many there seem to be, as if
        nothing were in doubt, and the eigenvalues.
        """
        self._flush()
        (above, below), rho = self._far, self._spread / (self._edge - self._spread)
        rho = rho if end else -rho
        triangle = (1 + rho) * above - (1 - rho) * below + self._near[end]
        whole = congruent(self._part.root, triangle + np.triu(triangle, 1).T)
        whole = (whole + whole.T) / 2
        whole[np.diag_indices_from(whole)] += 1
        turned = 0.0
        if self.border is not None:
            columns, corners = self.border
            whole = np.block([[whole, columns], [columns.T, np.diag(corners[end])]])
            turned = accumulated(4 * len(columns.T) + ULPS) * len(columns.T) / THIN
        eigenvalues = np.linalg.eigvalsh(whole)
        norm = max(abs(eigenvalues[0]), abs(eigenvalues[-1]))
        trace = float(np.diagonal(above + below) @ self._weights) + self._near_trace[end]
        terms = self._longest + self._calls + 4 * self._part.root.shape[1] + ULPS
        doubt = 2 * share + turned + (ULPS + 4 * len(whole)) * UNIT * norm
        doubt += accumulated(terms) * trace
        against = doubt if end == 0 else -doubt
        return int((eigenvalues < against).sum()), int((eigenvalues < 0).sum()), eigenvalues
