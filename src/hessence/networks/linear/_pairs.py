"""The invariant subspaces of an aligned linear network: pairs of modes, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, like, to_numpy
from hessence.networks.linear._balanced import BalancedBlocks, balanced
from hessence.networks.linear._modes import Modes
from hessence.networks.linear._pair_blocks import PairBlocks, neglected
from hessence.networks.linear._products import LinearProducts
from hessence.spectra.subspaces import Isometry, Subspaces


@dataclass(frozen=True)
class Kind:
    """Modes that are alike.

    They exist in the same layers; `whole` ones lead from the input to the output, `null` ones have
    no singular value and no gradient, and are interchangeable.
    """

    layers: tuple[int, ...]
    whole: bool
    null: bool
    members: Numbers

    @property
    def labels(self) -> int:
        """How many of these enter a pair on their own: each one, or one for all null ones."""
        return 1 if self.null else len(self.members)


class Pairs:
    """The invariant subspaces of an aligned network, solved a stretch of pairs at a time.

    ``defect`` bounds the norm of what they neglect.
    """

    def __init__(self, H: LinearProducts, modes: Modes) -> None:
        self._chain, self._reference, self._depth = H.chain, H.gradient, len(H.weights)
        precision = epsilon(H.gradient)
        nearby = balanced(modes, precision)
        self._split, modes = nearby is not None, nearby or modes
        self.defect = neglected(modes, precision)
        variance = modes.variance if H.part != "functional" else 0 * modes.variance
        gradient = modes.gradient if H.part != "ggn" else 0 * modes.gradient
        self._modes = replace(modes, variance=variance, gradient=gradient)
        self._blocks = PairBlocks(self._modes)

    def families(self) -> list[Subspaces]:
        """Return all subspaces, many pairs to a family."""
        kinds = list(self._kinds())
        families: list[Subspaces | None] = []
        for a, first in enumerate(kinds):
            families.append(self._within(first))
            families.append(self._diagonal(first))
            families += [self._across(first, second) for second in kinds[a + 1 :]]
        return [family for family in families if family is not None]

    def _kinds(self) -> Iterator[Kind]:
        """Group modes by the layers they exist in; those without any size are interchangeable."""
        modes = self._modes
        exists = modes.place >= 0
        sizes = np.abs(modes.singular).max(axis=0, initial=0.0)
        null = (sizes == 0) & (modes.gradient == 0)
        whole = np.asarray((np.abs(modes.singular) > 0).all(axis=0))
        groups: dict[tuple[Any, ...], list[int]] = {}
        spread = 1e-13 * float(np.abs(modes.variance).max(initial=0.0))
        patterns, which = np.unique(exists, axis=1, return_inverse=True)
        present = [tuple(map(int, np.flatnonzero(pattern))) for pattern in patterns.T]
        for i, layers in enumerate(present[k] for k in np.ravel(which)):
            key: tuple[Any, ...] = (layers, bool(whole[i]), bool(null[i]))
            if null[i] and 0 in layers:
                # Interchangeable means: with the same input variance, up to rounding.
                known = [k for k in groups if k[:3] == key]
                close = [k for k in known if abs(k[3] - modes.variance[i]) <= spread]
                key = close[0] if close else (*key, float(modes.variance[i]))
            groups.setdefault(key, []).append(i)
        for key, members in groups.items():
            yield Kind(key[0], key[1], key[2], np.asarray(members))

    # Pairs of different kinds, of one kind, and of a mode with itself.

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
        everywhere = tuple(range(1, self._depth + 1))
        if self._split and forward == backward == everywhere:
            values = BalancedBlocks(self._modes).eigenvalues(i, j)
        else:
            values = self._blocks.eigenvalues(i, j, forward, backward)
        outputs = self._outputs(first, second) + (0 if same else self._outputs(second, first))
        heads = {2: "dominant", 1: "mixed", 0: "bulk"}
        head = heads[first.whole + second.whole] if self._modes.variance.any() else "bulk"
        labels = (head,) * outputs + ("bulk",) * (size - outputs)
        if flat or not values.any():
            labels = ("flat",) * size
        pairs = self._pairs(i, j, first, second, copies, same)

        def matrix(member: int) -> Array:
            own = slice(member, member + 1)
            return like(self._blocks.matrices(i[own], j[own], forward, backward)[0], reference)

        def name(member: int) -> str:
            return f"/{int(i[member])},{int(j[member])}"

        reference = self._reference
        return Subspaces(
            labels,
            lambda member: self._isometry(pairs(member), forward, backward),
            copies,
            name,
            matrix=matrix,
            values=like(values, reference),
        )

    def _outputs(self, first: Kind, second: Kind) -> int:
        """Return 1 if the Gauss–Newton part has a direction for output i and input j, else 0."""
        return int(self._depth in first.layers and 0 in second.layers)

    def _pairs(
        self, i: Numbers, j: Numbers, first: Kind, second: Kind, copies: int, same: bool
    ) -> Callable[[int], tuple[Numbers, Numbers]]:
        """Return the pairs of modes that a member's copies stand for."""

        def of(member: int) -> tuple[Numbers, Numbers]:
            if copies == 1:
                return i[member : member + 1], j[member : member + 1]
            if same:
                return first.members, first.members
            if first is second:
                a, b = np.triu_indices(len(first.members), k=1)
                return first.members[a], first.members[b]
            left = first.members if first.null else i[member : member + 1]
            right = second.members if second.null else j[member : member + 1]
            return np.repeat(left, len(right)), np.tile(right, len(left))

        return of

    def _isometry(
        self, pairs: tuple[Numbers, Numbers], forward: tuple[int, ...], backward: tuple[int, ...]
    ) -> Isometry:
        i, j = pairs
        bases, place = self._modes.bases, self._modes.place

        def embed(coordinates: Array, copies: Array) -> Array:
            reference = coordinates
            c, z = to_numpy(coordinates), to_numpy(copies)
            pieces = []
            for ell in range(1, self._depth + 1):
                n = z.shape[1]
                total = np.zeros((n, bases[ell].shape[0], bases[ell - 1].shape[0]))
                for layers, at, out, inn in ((forward, 0, i, j), (backward, len(forward), j, i)):
                    if ell not in layers:
                        continue
                    weight = c[at + layers.index(ell)]
                    left = bases[ell][:, place[ell, out]]
                    right = bases[ell - 1][:, place[ell - 1, inn]]
                    total += weight * np.einsum("aq,qn,bq->nab", left, z, right, optimize=True)
                pieces.append(like(total, reference))
            return self._chain.join(pieces)

        return embed


def _crossings(out: tuple[int, ...], inn: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers ℓ for which D_ℓ[out, in] exists."""
    return tuple(ell for ell in out if ell - 1 in inn)
