r"""Balanced networks on white data: the block of a pair of modes splits in two.

Where every mode i has one singular value s_i in all layers, and all have one variance c, exchanging
:math:`D_\ell[i, j]` with :math:`D_{L+1-\ell}[j, i]` leaves the block of a pair unchanged. So its
eigenvectors are even or odd, :math:`D_\ell[i, j] = \pm D_{L+1-\ell}[j, i]`, and its 2L eigenvalues
are those of two Hankel matrices of order L. With m = k + l − L − 1,

.. math:: B^\pm_{kl} = c\, s_i^{L-1-m} s_j^{L-1+m} \pm h_m, \qquad
    h_m = \omega_i\, s_i^{L-1-m} s_j^{m-1} \ (m > 0), \quad
    h_m = \omega_j\, s_j^{L-1+m} s_i^{-m-1} \ (m < 0), \quad h_0 = 0.

Two layers have closed forms: the eigenvalues of
:math:`[[c s_i^2 \pm \omega_j,\ c s_i s_j],\ [c s_i s_j,\ c s_j^2 \pm \omega_i]]`, and
:math:`2 c s_i^2 + \omega_i` and :math:`-\omega_i` for a mode with itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hessence._common.arrays import Numbers
from hessence.networks.linear._jacobi import small_eigenvalues
from hessence.networks.linear._modes import Modes
from hessence.spectra.small_eigen import eigenvalues

TOLERANCE = 8
"""How far from balanced modes may be that count as balanced, in ε times the root of the width."""

ROTATED = 4
"""Blocks up to this order are left to rotations, larger ones to LAPACK."""

CHUNK = 2**14
"""How many pairs are worked on at a time, so that their blocks stay in the cache."""


def balanced(modes: Modes, precision: float) -> Modes | None:
    """Return the modes of the balanced network on white data nearby, None if there is none.

    Each mode gets the mean of its singular values, and all get one variance. How far that moves
    layers and data becomes part of ``rests``, and so of the errors.
    """
    singular, seen = modes.singular, modes.place[0] >= 0
    mean = singular.mean(axis=0)
    moved = np.abs(singular - mean).max(axis=1)
    variance = float(modes.variance[seen].mean())
    coloured = float(np.abs(modes.variance[seen] - variance).max())
    allowed = TOLERANCE * precision * max(len(basis) for basis in modes.bases) ** 0.5
    if moved.max() > allowed * np.abs(mean).max() or coloured > allowed * abs(variance):
        return None
    return replace(
        modes,
        singular=np.broadcast_to(mean, singular.shape),
        variance=np.where(seen, variance, 0.0),
        rests=modes.rests + np.asarray([*moved, coloured, 0.0]),
    )


@dataclass(frozen=True)
class BalancedBlocks:
    """The blocks of pairs of modes that exist in all layers of a balanced network."""

    modes: Modes

    def eigenvalues(self, i: Numbers, j: Numbers) -> Numbers:
        """Return the 2L eigenvalues of the blocks of pairs, largest first, (pairs, 2L)."""
        depth = len(self.modes.singular)
        values = np.empty((len(i), 2 * depth))
        for start in range(0, len(i), CHUNK):
            own = slice(start, start + CHUNK)
            ggn, functional = self._diagonals(i[own], j[own])
            for at, both in ((0, ggn + functional), (depth, ggn - functional)):
                values[own, at : at + depth] = -_of_hankel(both, depth)
        values.sort(axis=1)
        return np.negative(values, out=values)

    @cached_property
    def _powers(self) -> Numbers:
        """The powers 0 to 2L − 2 of the modes' singular values, (2L − 1, N)."""
        singular: Numbers = self.modes.singular[0]
        return singular ** np.arange(2 * len(self.modes.singular) - 1)[:, None]

    def _diagonals(self, i: Numbers, j: Numbers) -> tuple[Numbers, Numbers]:
        """Return the parts of B⁺ along its antidiagonals, m from 1 − L to L − 1, (2L − 1, n)."""
        modes, depth = self.modes, len(self.modes.singular)
        of_i, of_j = self._powers[:, i], self._powers[:, j]
        ggn = modes.variance[i] * of_i[::-1] * of_j
        functional = np.zeros_like(ggn)
        up, low = modes.gradient[i], modes.gradient[j]
        for m in range(1, depth):
            functional[depth - 1 + m] = up * of_i[depth - 1 - m] * of_j[m - 1]
            functional[depth - 1 - m] = low * of_j[depth - 1 - m] * of_i[m - 1]
        return ggn, functional


def _of_hankel(diagonals: Numbers, order: int) -> Numbers:
    """Return the eigenvalues of Hankel matrices from their antidiagonals (2L − 1, n), (n, L)."""
    # A view: entry (k, l) of matrix n is diagonals[k + l, n].
    matrices = np.lib.stride_tricks.sliding_window_view(diagonals, order, axis=0)
    if order in range(3, ROTATED + 1):
        return small_eigenvalues(np.moveaxis(matrices, -1, 1)).T
    matrices = np.moveaxis(matrices, 1, 0)
    # Up to two layers in closed form.
    return eigenvalues(matrices) if order <= 2 else np.linalg.eigvalsh(matrices)
