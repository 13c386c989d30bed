"""In which parts the rows of a Jacobian are multiplied, so that each fits into memory.

All rows are needed at once, in some of the parameters. The model runs anew for each lot of parts,
so a row is kept as whatever is smaller: its factors, or its numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from hessence.models._layer_calls import Call, used_otherwise
from hessence.models._layer_factors import extent
from hessence.models._outer_products import Extent
from hessence.models._row_factors import Part


@dataclass(frozen=True)
class Whole:
    """A parameter that is cut into parts.

    Attributes
    ----------
    leaf : int
        Which one.
    length : int
        How many units it has; a part has some of them.
    unit : int
        How many numbers of a row are kept for a unit.
    fixed : float
        How many numbers are kept beside them, whatever the number of units and rows.
    factored : bool
        Whether rows are kept by their factors.
    by_factors : bool
        Whether they are multiplied by them, too.
    """

    leaf: int
    length: int
    unit: int
    fixed: float = 0.0
    factored: bool = False
    by_factors: bool = False

    def numbers(self, rows: int) -> float:
        """Return how many numbers are kept of so many rows."""
        return self.fixed + float(rows) * self.unit * self.length

    def part(self, low: int, high: int) -> Part:
        """Return some units."""
        return Part(self.leaf, low, high, 0 if self.factored else (high - low) * self.unit)


class Survey:
    """How a model uses its parameters, from runs on all data.

    Parameters
    ----------
    leaves : sequence of Tensor
        The parameters.
    chosen : sequence of int
        Which of them matter.
    """

    def __init__(self, leaves: Sequence[Tensor], chosen: Sequence[int]) -> None:
        self._leaves, self._chosen = leaves, frozenset(chosen)
        self._used_otherwise: set[int] = set()
        self._kinds: dict[int, set[str]] = defaultdict(set)
        self._extents: dict[int, set[tuple[int, int, int]]] = defaultdict(set)
        self._positions: dict[int, int] = defaultdict(int)
        self._taken: dict[int, float] = defaultdict(float)

    def note(self, prediction: Tensor, calls: Sequence[Call], samples: int) -> None:
        """Take a run on so many samples into account."""
        self._used_otherwise.update(used_otherwise(prediction, self._leaves, calls))
        positions: Counter[int] = Counter()
        for call in calls:
            if call.bias is not None:
                self._kinds[call.bias].add("vector")
            if call.weight is None:
                continue
            self._kinds[call.weight].add(call.kind)
            if call.kind != "normalisation":
                self._extents[call.weight].add(extent(call))
                positions[call.weight] += positions_of(call, samples)
                self._taken[call.weight] += call.taken.numel()
        for leaf, count in positions.items():
            self._positions[leaf] = max(self._positions[leaf], count)

    @property
    def others(self) -> frozenset[int]:
        """Parameters that are used outside of layers, or by layers whose rows are not alike."""
        return self._chosen & (
            self._used_otherwise | {i for i in self._kinds if not self._is_alike(i)}
        )

    def wholes(self, samples: int, rows: int) -> list[Whole]:
        """Return all parameters that layers use, the last first.

        A backward pass goes no further than it must.
        """
        used = sorted(self._kinds.keys() & self._chosen - self.others, reverse=True)
        return [self._whole(leaf, samples, rows) for leaf in used]

    def _is_alike(self, leaf: int) -> bool:
        """Whether the rows of all layers that use a parameter are of the same form."""
        forms = {"linear": "matrix", "embedding": "matrix", "normalisation": "vector"}
        groups = {count for count, *_ in self._extents.get(leaf, ())}
        return len({forms.get(kind, kind) for kind in self._kinds[leaf]}) == 1 >= len(groups)

    def _whole(self, leaf: int, samples: int, rows: int) -> Whole:
        weight, kinds = self._leaves[leaf], self._kinds[leaf]
        if leaf not in self._extents:
            return Whole(leaf, weight.numel(), 1)
        if kinds == {"linear", "embedding"}:
            return Whole(leaf, len(weight), weight[0].numel())
        ((groups, made, taken),), S = self._extents[leaf], self._positions[leaf]
        if kinds == {"embedding"}:
            taken = min(taken, samples * S)
        size = Extent(samples, rows, S, groups, made, taken)
        by_factors = size.factored <= size.written
        if by_factors or taken >= S or kinds == {"embedding"}:
            return Whole(leaf, made, groups * S, self._taken[leaf], True, by_factors)
        return Whole(leaf, made, groups * taken)


def positions_of(call: Call, samples: int) -> int:
    """Return how many positions of a sample a layer is used at."""
    groups, made, taken = extent(call)
    if call.kind == "transposed convolution":
        return int(call.taken.numel()) // (samples * groups * taken)
    return int(call.shift.numel()) // (samples * groups * made)


def lots(wholes: Sequence[Whole], rows: int, room: float) -> Iterator[list[Part]]:
    """Cut parameters into lots of parts, each of which takes no more than so many numbers."""
    lot: list[Part] = []
    left = room
    for whole in wholes:
        low = 0
        while low < whole.length:
            fit = int((left - whole.fixed) // (rows * whole.unit))
            if fit < 1 and lot:
                yield lot
                lot, left = [], room
                continue
            high = min(whole.length, low + max(1, fit))
            lot.append(whole.part(low, high))
            left -= whole.fixed + rows * whole.unit * (high - low)
            low = high
    if lot:
        yield lot
