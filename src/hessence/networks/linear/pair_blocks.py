r"""The Hessian of an aligned linear network, one block for each pair of singular directions.

In the coordinates :math:`D_\ell = U_\ell^\top dW_\ell U_{\ell-1}` the pair {i, j} of chains owns
the numbers :math:`D_\ell[i, j]` and :math:`D_\ell[j, i]`, at most 2L of them. The Gauss–Newton
part of its block is :math:`c_j\, g g^\top` with
:math:`g_\ell = \prod_{k>\ell} s_{k,i} \prod_{k<\ell} s_{k,j}`, and the same with i and j
exchanged; the functional part couples :math:`D_k[t, j]` with :math:`D_l[j, t]`, k > l, by
:math:`\omega_t \prod_{m>k} s_{m,t} \prod_{l<m<k} s_{m,j} \prod_{m<l} s_{m,t}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from hessence._common.arrays import Array, Numbers, like, to_numpy
from hessence.networks.linear.aligned import Chains
from hessence.networks.linear.linear_hessian import LinearHessian
from hessence.spectra.subspaces import Isometry, Subspaces

CHUNK = 2048
"""How many pairs are worked on at a time, so that their blocks stay in the cache."""


@dataclass(frozen=True)
class Kind:
    """Chains that are alike.

    They exist in the same layers; `whole` ones carry from the input to the output, `null` ones have
    no singular value and no gradient, and can be exchanged.
    """

    layers: tuple[int, ...]
    whole: bool
    null: bool
    members: Numbers

    @property
    def labels(self) -> int:
        """How many of these enter a pair on their own: each one, or one for all null ones."""
        return 1 if self.null else len(self.members)


class PairNames(Sequence[str]):
    """The names of many pairs, made when they are read."""

    def __init__(self, first: Numbers, second: Numbers) -> None:
        self._first, self._second = first, second

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return PairNames(self._first[index], self._second[index])
        return f"/{int(self._first[index])},{int(self._second[index])}"

    def __len__(self) -> int:
        return len(self._first)


@dataclass(frozen=True)
class PairEntries:
    """The entries of pair blocks, from the numbers of the chains."""

    chains: Chains
    variance: Numbers
    gradient: Numbers

    @cached_property
    def _below(self) -> Numbers:
        """Π_{m<ℓ} s_m for ℓ = 1 … L, (L, N)."""
        s = self.chains.singular
        ones = np.ones((1, s.shape[1]))
        return np.concatenate([ones, np.cumprod(s[:-1], axis=0)])

    @cached_property
    def _above(self) -> Numbers:
        """Π_{m>ℓ} s_m for ℓ = 1 … L, (L, N)."""
        s = self.chains.singular
        ones = np.ones((1, s.shape[1]))
        return np.concatenate([np.cumprod(s[:0:-1], axis=0)[::-1], ones])

    def _middle(self, k: int, l: int) -> Numbers:  # noqa: E741 - the papers' letter
        """Π_{l<m<k} s_m, (N,)."""
        return np.asarray(np.prod(self.chains.singular[l : k - 1], axis=0))

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
        place = self.chains.place
        if not layers:
            return
        seen = (place[-1, i] >= 0) & (place[0, j] >= 0)
        weight = np.where(seen, self.variance[j], 0.0)
        if not weight.any():
            return
        g = [self._above[ell - 1, i] * self._below[ell - 1, j] for ell in layers]
        for a in range(len(layers)):
            scaled = weight * g[a]
            for b in range(a + 1):
                value = scaled * g[b]
                matrix[at + a, at + b] += value
                if a != b:
                    matrix[at + b, at + a] += value

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
        gradient = self.gradient[t]
        if not gradient.any():
            return
        for a, k in enumerate(upper):
            for b, l in enumerate(lower):  # noqa: E741
                if k <= l:
                    continue
                outer = self._above[k - 1, t] * self._below[l - 1, t]
                value = gradient * outer * self._middle(k, l)[j]
                matrix[row + a, column + b] += value
                matrix[column + b, row + a] += value


@dataclass(frozen=True)
class PairMatrices:
    """The blocks of many pairs, made when an eigenvector is asked for."""

    entries: PairEntries
    first: Numbers
    second: Numbers
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    reference: Array

    def __call__(self, pair: int) -> Array:
        """Return the block of one pair."""
        own = slice(pair, pair + 1)
        matrix = self.entries.matrices(
            self.first[own], self.second[own], self.forward, self.backward
        )
        return like(matrix[0], self.reference)


class PairReduction:
    """All pair blocks of an aligned network."""

    def __init__(self, H: LinearHessian, chains: Chains) -> None:
        self._hessian, self._chains = H, chains
        self._depth = len(H.weights)
        self._variance = chains.variance if H.part != "functional" else 0 * chains.variance
        self._gradient = chains.gradient if H.part != "ggn" else 0 * chains.gradient
        self._entries = PairEntries(chains, self._variance, self._gradient)

    def blocks(self) -> list[Subspaces]:
        """Return the direct sum that the Hessian is."""
        kinds = list(self._kinds())
        blocks: list[Subspaces | None] = []
        for a, first in enumerate(kinds):
            blocks.append(self._within(first))
            blocks.append(self._diagonal(first))
            blocks += [self._across(first, second) for second in kinds[a + 1 :]]
        return [block for block in blocks if block is not None]

    def _kinds(self) -> Iterator[Kind]:
        """Group chains by the layers they exist in; those without any size are interchangeable."""
        chains = self._chains
        exists = chains.place >= 0
        sizes = np.abs(chains.singular).max(axis=0, initial=0.0)
        null = (sizes == 0) & (self._gradient == 0)
        whole = np.asarray((np.abs(chains.singular) > 0).all(axis=0))
        groups: dict[tuple[Any, ...], list[int]] = {}
        spread = 1e-13 * float(np.abs(chains.variance).max(initial=0.0))
        for i in range(chains.count):
            layers = tuple(int(k) for k in np.flatnonzero(exists[:, i]))
            key: tuple[Any, ...] = (layers, bool(whole[i]), bool(null[i]))
            if null[i] and 0 in layers:
                # Interchangeable means: with the same input variance, up to rounding.
                known = [k for k in groups if k[:3] == key]
                close = [k for k in known if abs(k[3] - chains.variance[i]) <= spread]
                key = close[0] if close else (*key, float(chains.variance[i]))
            groups.setdefault(key, []).append(i)
        for key, members in groups.items():
            yield Kind(key[0], key[1], key[2], np.asarray(members))

    # Pairs of different kinds, of one kind, and of a chain with itself.

    def _across(self, first: Kind, second: Kind) -> Subspaces | None:
        a = first.members[: first.labels]
        b = second.members[: second.labels]
        i, j = np.repeat(a, len(b)), np.tile(b, len(a))
        copies = (len(first.members) // first.labels) * (len(second.members) // second.labels)
        both = first.null and second.null
        return self._family(i, j, first, second, copies, both)

    def _within(self, kind: Kind) -> Subspaces | None:
        count = len(kind.members)
        if count < 2:
            return None
        if kind.null:
            i, j = kind.members[:1], kind.members[1:2]
            return self._family(i, j, kind, kind, count * (count - 1) // 2, True)
        a, b = np.triu_indices(count, k=1)
        return self._family(kind.members[a], kind.members[b], kind, kind, 1, False)

    def _diagonal(self, kind: Kind) -> Subspaces | None:
        own = kind.members[: kind.labels]
        copies = len(kind.members) // kind.labels
        return self._family(own, own, kind, kind, copies, kind.null, same=True)

    def _family(
        self,
        i: Numbers,
        j: Numbers,
        first: Kind,
        second: Kind,
        copies: int,
        flat: bool,
        same: bool = False,
    ) -> Subspaces | None:
        forward = _crossings(first.layers, second.layers)
        backward = () if same else _crossings(second.layers, first.layers)
        size = len(forward) + len(backward)
        if size == 0 or len(i) == 0:
            return None
        values = self._entries.eigenvalues(i, j, forward, backward)
        outputs = self._outputs(first, second) + (0 if same else self._outputs(second, first))
        heads = {2: "dominant", 1: "mixed", 0: "bulk"}
        head = heads[first.whole + second.whole] if self._variance.any() else "bulk"
        labels = (head,) * outputs + ("bulk",) * (size - outputs)
        if flat or not values.any():
            labels = ("flat",) * size
        members = self._members(i, j, first, second, copies, same)

        def isometry(sibling: int) -> Isometry:
            return self._isometry(members(sibling), forward, backward)

        reference = self._hessian.gradient
        return Subspaces(
            labels,
            isometry,
            copies,
            PairNames(i, j),
            matrix=PairMatrices(self._entries, i, j, forward, backward, reference),
            values=like(values, reference),
        )

    def _outputs(self, first: Kind, second: Kind) -> int:
        """Return 1 if the Gauss–Newton part has a direction for output i and input j, else 0."""
        return int(self._depth in first.layers and 0 in second.layers)

    def _members(
        self, i: Numbers, j: Numbers, first: Kind, second: Kind, copies: int, same: bool
    ) -> Callable[[int], tuple[Numbers, Numbers]]:
        """Return the pairs of chains that a sibling's copies stand for."""

        def of(sibling: int) -> tuple[Numbers, Numbers]:
            if copies == 1:
                return i[sibling : sibling + 1], j[sibling : sibling + 1]
            if same:
                return first.members, first.members
            if first is second:
                a, b = np.triu_indices(len(first.members), k=1)
                return first.members[a], first.members[b]
            left = first.members if first.null else i[sibling : sibling + 1]
            right = second.members if second.null else j[sibling : sibling + 1]
            return np.repeat(left, len(right)), np.tile(right, len(left))

        return of

    def _isometry(
        self,
        pairs: tuple[Numbers, Numbers],
        forward: tuple[int, ...],
        backward: tuple[int, ...],
    ) -> Isometry:
        i, j = pairs
        bases, place = self._chains.bases, self._chains.place

        def carry(coordinates: Array, copies: Array) -> Array:
            reference = coordinates
            c, z = to_numpy(coordinates), to_numpy(copies)
            pieces = []
            for ell in range(1, self._depth + 1):
                n = z.shape[1]
                total = np.zeros((n, bases[ell].shape[0], bases[ell - 1].shape[0]))
                for layers, at, out, inn in (
                    (forward, 0, i, j),
                    (backward, len(forward), j, i),
                ):
                    if ell not in layers:
                        continue
                    weight = c[at + layers.index(ell)]
                    left = bases[ell][:, place[ell, out]]
                    right = bases[ell - 1][:, place[ell - 1, inn]]
                    total += weight * np.einsum("aq,qn,bq->nab", left, z, right, optimize=True)
                pieces.append(like(total, reference))
            return self._hessian.join(pieces)

        return carry


def _crossings(out: tuple[int, ...], inn: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers ℓ for which D_ℓ[out, in] exists."""
    return tuple(ell for ell in out if ell - 1 in inn)
