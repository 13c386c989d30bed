r"""The blocks of an aligned linear network, one for each pair of modes.

In the coordinates :math:`D_\ell = U_\ell^\top dW_\ell U_{\ell-1}` the pair {i, j} of modes owns
the numbers :math:`D_\ell[i, j]` and :math:`D_\ell[j, i]`, at most 2L of them. The Gauss–Newton
part of its block is :math:`c_j\, g g^\top` with
:math:`g_\ell = \prod_{k>\ell} s_{k,i} \prod_{k<\ell} s_{k,j}`, and the same with i and j
exchanged; the functional part couples :math:`D_k[t, j]` with :math:`D_l[j, t]`, k > l, by
:math:`\omega_t \prod_{m>k} s_{m,t} \prod_{l<m<k} s_{m,j} \prod_{m<l} s_{m,t}`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hessence._common.arrays import Numbers
from hessence.networks.linear._modes import Modes

CHUNK = 2048
"""How many pairs are worked on at a time, so that their blocks stay in the cache."""


@dataclass(frozen=True)
class PairBlocks:
    """The blocks of pairs of modes, from the modes' numbers."""

    modes: Modes

    def matrices(
        self, i: Numbers, j: Numbers, forward: tuple[int, ...], backward: tuple[int, ...]
    ) -> Numbers:
        """Return the blocks of pairs (i, j) over the given layers, (pairs, size, size)."""
        size = len(forward) + len(backward)
        # Entry by entry, the pairs are contiguous; the solver wants it the other way round.
        matrix = np.zeros((size, size, len(i)))
        self._add_ggn(matrix, i, j, forward, 0)
        self._add_ggn(matrix, j, i, backward, len(forward))
        if not backward:
            self._couple(matrix, i, j, forward, forward, 0, 0)
        else:
            self._couple(matrix, i, j, forward, backward, 0, len(forward))
            self._couple(matrix, j, i, backward, forward, len(forward), 0)
        return np.ascontiguousarray(np.moveaxis(matrix, -1, 0))

    def eigenvalues(
        self, i: Numbers, j: Numbers, forward: tuple[int, ...], backward: tuple[int, ...]
    ) -> Numbers:
        """Return the eigenvalues of the blocks of pairs, largest first, (pairs, size).

        A stretch of pairs at a time: the blocks of all would not fit in the cache.
        """
        values = np.empty((len(i), len(forward) + len(backward)))
        for start in range(0, len(i), CHUNK):
            own = slice(start, start + CHUNK)
            matrix = self.matrices(i[own], j[own], forward, backward)
            values[own] = np.linalg.eigvalsh(matrix)[:, ::-1]
        return values

    def _add_ggn(
        self, matrix: Numbers, i: Numbers, j: Numbers, layers: tuple[int, ...], at: int
    ) -> None:
        place = self.modes.place
        if not layers:
            return
        seen = (place[-1, i] >= 0) & (place[0, j] >= 0)
        weight = np.where(seen, self.modes.variance[j], 0.0)
        if not weight.any():
            return
        rows, own = np.asarray(layers)[:, None] - 1, slice(at, at + len(layers))
        g = self.modes.above[rows, i] * self.modes.below[rows, j]
        matrix[own, own] += weight * (g[:, None] * g)

    def _couple(
        self,
        matrix: Numbers,
        t: Numbers,
        j: Numbers,
        upper: tuple[int, ...],
        lower: tuple[int, ...],
        row: int,
        column: int,
    ) -> None:
        """Couple D_k[t, j] with D_l[j, t] for k > l."""
        gradient = self.modes.gradient[t]
        if not gradient.any():
            return
        for a, k in enumerate(upper):
            for b, l in enumerate(lower):  # noqa: E741
                if k <= l:
                    continue
                outer = self.modes.above[k - 1, t] * self.modes.below[l - 1, t]
                value = gradient * outer * np.prod(self.modes.singular[l : k - 1, j], axis=0)
                matrix[row + a, column + b] += value
                matrix[column + b, row + a] += value


def neglected(modes: Modes, precision: float) -> float:
    """Return how far the blocks of all pairs may be from the Hessian, as a norm, to first order.

    What is off the diagonals, and the rounding of turning matrices, adds a matrix of norm e_m to
    layer m. It enters a product of layers between products whose norms are those of the modes.
    """
    depth, dims = len(modes.singular), [len(basis) for basis in modes.bases]
    size = np.abs(modes.singular)
    errors = modes.rests[:depth] + precision * np.sqrt(dims[1:]) * size.max(axis=1)
    # ‖W_{b−1} ⋯ W_a‖, layers counted from 0, and how far it may be off.
    norm, off = np.ones((depth + 1, depth + 1)), np.zeros((depth + 1, depth + 1))
    for a in range(depth):
        norm[a, a + 1 :] = np.cumprod(size[a:], axis=0).max(axis=1)
    for a in range(depth):
        for b in range(a + 1, depth + 1):
            m = np.arange(a, b)
            off[a, b] = np.sum(norm[a, m] * errors[m] * norm[m + 1, b])
    first, last = np.arange(depth), np.arange(1, depth + 1)
    P, S, dP, dS = norm[0, first], norm[last, depth], off[0, first], off[last, depth]
    spread = float(np.abs(modes.variance).max()) + modes.rests[-2]
    gradient = float(np.abs(modes.gradient).max()) + modes.rests[-1]
    J, dJ = float(np.linalg.norm(S * P)), float(np.linalg.norm(dS * P + S * dP))
    ggn = (2 * J + dJ) * dJ * spread + J**2 * (
        modes.rests[-2] + precision * dims[0] ** 0.5 * spread
    )
    lost = modes.rests[-1] + precision * dims[0] ** 0.5 * gradient
    outer = gradient * np.outer(S, P)
    d_outer = gradient * (np.outer(dS, P) + np.outer(S, dP)) + lost * np.outer(S, P)
    # Between the layers l < k lie l + 1, …, k − 1.
    middle, d_middle = np.tril(norm[last, :depth].T, -1), np.tril(off[last, :depth].T, -1)
    table = outer * d_middle + d_outer * middle
    return float(ggn + np.linalg.norm(table + table.T, 2))


def largest_eigenvalue(modes: Modes) -> float:
    """Return the sharpness of an aligned network, solving only the pairs that can hold it.

    A pair's largest eigenvalue is at most that of its Gauss–Newton part plus the Frobenius norm of
    its functional part. Both bounds come for all pairs from two matrix products; the exact solver
    sees the pairs whose bound exceeds the best value found among the modes with themselves.
    """
    exists = modes.place >= 0
    below, above = modes.below * exists[:-1], modes.above * exists[1:]
    reach = np.where(exists[-1], 1.0, 0.0)
    ggn = ((above**2) * reach).T @ (below**2 * np.where(exists[0], modes.variance, 0.0))
    functional = _functional_squares(modes, below, above)
    bound = np.maximum(ggn, ggn.T) + np.sqrt(2 * (functional + functional.T))
    every = np.arange(modes.count)
    best = float(_largest_of_pairs(modes, every, every).max(initial=0.0))
    first, second = np.nonzero(np.triu(bound, k=1) > best)
    # The likeliest pairs first: they raise the bar for the rest.
    order = np.argsort(-bound[first, second], kind="stable")
    for start in range(0, len(order), 4096):
        own = order[start : start + 4096]
        i, j = first[own], second[own]
        open_pairs = bound[i, j] > best
        if not open_pairs.any():
            break
        values = _largest_of_pairs(modes, i[open_pairs], j[open_pairs])
        best = max(best, float(values.max()))
    return best


def _functional_squares(modes: Modes, below: Numbers, above: Numbers) -> Numbers:
    """Return Σ_{k>l} of the squared couplings for gradient of t and middle of j, (N, N)."""
    depth, count = modes.singular.shape
    outer, middle = [], []
    for k in range(2, depth + 1):
        for l in range(1, k):  # noqa: E741 - the papers' letter
            outer.append((above[k - 1] * below[l - 1] * modes.gradient) ** 2)
            middle.append(np.prod(modes.singular[l : k - 1], axis=0) ** 2)
    if not outer:
        return np.zeros((count, count))
    return np.asarray(np.stack(outer).T @ np.stack(middle))


def _largest_of_pairs(modes: Modes, i: Numbers, j: Numbers) -> Numbers:
    """Return the largest eigenvalue of the block of each pair (i, j), (pairs,)."""
    depth = modes.singular.shape[0]
    layers = tuple(range(1, depth + 1))
    same = bool((i == j).all())
    matrix = PairBlocks(modes).matrices(i, j, layers, () if same else layers)
    # Coordinates that a pair does not have become zero rows, which add eigenvalues 0 only.
    exists = modes.place >= 0
    has = np.stack([exists[ell, i] & exists[ell - 1, j] for ell in layers], axis=-1)
    if not same:
        back = np.stack([exists[ell, j] & exists[ell - 1, i] for ell in layers], axis=-1)
        has = np.concatenate([has, back], axis=-1)
    matrix = matrix * has[:, :, None] * has[:, None, :]
    return np.asarray(np.linalg.eigvalsh(matrix)[:, -1])
