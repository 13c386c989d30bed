r"""The matrix :math:`C(\lambda) = I + T (F - \lambda)^{-1} T^\top` at both ends of an interval.

The terms of eigenvalues f of F that are *far* from λ, by Δ or more, are summed once, with P those
above λ and N those below: at λ ± δ each differs from what it is at λ by at most the share
:math:`\rho = \delta/(\Delta-\delta)` of itself, so that C is at least
:math:`(1-\rho)P - (1+\rho)N` and at most :math:`(1+\rho)P - (1-\rho)N` there, apart from the other
terms. Those *near* λ are summed at both ends. What the sums and the eigensolver may round off is
added to the eigenvalues of C against what is claimed of their signs.
"""

from __future__ import annotations

import numpy as np

from hessence._common.arrays import Numbers
from hessence.networks.two_layer.gauss_newton import GaussNewton
from hessence.networks.two_layer.problem import ULPS, UNIT, accumulated


class Sums:
    """The sums, over rows J q for eigenvectors q of F, without S.

    Parameters
    ----------
    part : GaussNewton
        The loss Hessians S.
    spread : float
        δ.
    far : float
        From which distance of f and λ on a term is far.
    batch : int
        How many near rows are waited for before they are summed.
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
        self._weight, self._dsyrk = float(part.weight.max()), dsyrk

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
            self._near_trace[end] += self._weight * float(np.vdot(weighted, weighted))
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
        whole = self._part.congruent(triangle + np.triu(triangle, 1).T)
        whole = (whole + whole.T) / 2
        whole[np.diag_indices_from(whole)] += 1
        eigenvalues = np.linalg.eigvalsh(whole)
        norm = max(abs(eigenvalues[0]), abs(eigenvalues[-1]))
        trace = self._weight * float(np.trace(above + below)) + self._near_trace[end]
        terms = self._longest + self._calls + 4 * self._part.root.shape[1] + ULPS
        doubt = 2 * share + (ULPS + 4 * len(whole)) * UNIT * norm
        doubt += accumulated(terms) * trace
        against = doubt if end == 0 else -doubt
        return int((eigenvalues < against).sum()), int((eigenvalues < 0).sum()), eigenvalues
