r"""Cells: hidden units that see the samples alike, and all that their number matters for.

A piecewise-linear activation without intercept (ReLU, leaky ReLU, absolute value) at fixed slopes
is linear. Units of a hidden layer with the same slopes on all samples, their *pattern*, form a
*cell* c with incoming weights :math:`B_c` (m_c × D, a bias being a column more) and outgoing ones
:math:`A_c` (K × m_c). The loss sees them only through :math:`M_c = A_c B_c`, which multiplies the
pattern times the layer's input. So every cell has a narrow twin (:mod:`hessence.networks.twin`),
whatever else the loss depends on: the Hessian is

- that of the network in which cell c has :math:`r_c` units :math:`(A_c Q_c, Q_c^\top B_c)` of the
  same pattern, :math:`Q_c` a basis of :math:`\mathrm{row}(A_c) + \mathrm{col}(B_c)`;
- a bulk :math:`\pm\sigma_i(\partial\ell/\partial M_c)`, each :math:`m_c - r_c` times, and zeros;
- zeros, :math:`K + D` for every unit of a dead cell, whose slopes are all zero.

The narrow network has fixed slopes again. So the next layer is reduced in it, and one layer after
the other while anything shrinks, for K and D are by then reduced widths. With one input this is
Singh & Hofmann's Theorem 4, and with one cell the narrow twin. Layers without an activation between
them have one cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, constant, identity, numerical_rank, transpose
from hessence.networks.hidden_layers import (
    HiddenLayer,
    Layout,
    Step,
    Weights,
    scatter,
    split,
    take,
    take_rows,
)
from hessence.networks.twin import TwinSubspaces, narrow_twin
from hessence.spectra.frames import DROPPED
from hessence.spectra.subspaces import LARGEST_BLOCK, Columns, Subspaces

MOST = 2**25
"""How many numbers the bases of all cells, and the search for flat directions in one, may hold."""


class CellReduction:
    """A network at fixed slopes with as few units as it needs, and the families that it leaves out.

    `weights` are all parameters in the order of the parameter vector, and `layers` the hidden
    layers to reduce, first to act first. `gradient` returns the gradient of the loss for other
    weights and other cells: that of a network with the same patterns and any number of hidden
    units. The attributes `weights` and `layers` are those of the narrow network, and `size` is the
    dimension of the block that is left.
    """

    def __init__(
        self,
        weights: Weights,
        layers: Sequence[HiddenLayer],
        gradient: Callable[[Weights, list[Numbers]], Weights],
    ) -> None:
        self._wide, self._gradient = Layout(weights), gradient
        self.weights, self.layers = dict(weights), list(layers)
        self._steps: list[Step] = []
        self._room = MOST
        # The inputs and outputs of a layer when its cells were last looked at.
        self._sides: dict[int, tuple[int, int]] = {}
        self._outside: list[Subspaces] = []
        # For a layer whose cells have coordinates of their own: how many units have none, and they.
        self._parts: dict[int, tuple[int, list[TwinSubspaces]]] = {}
        each = range(len(self.layers))
        while any(self._drop(i) for i in each):
            pass
        while any(self._shrink(i) for i in each):
            pass
        self._find_flat()
        self._rest = Layout(self._without_parts(self.weights))
        self.size = self._rest.size + sum(twin.size for twin in self._twins)
        del self._gradient  # which may hold on to a model

    @property
    def cells(self) -> list[Numbers]:
        """Which cell each unit of the narrow network is in, by layer."""
        return [layer.cells for layer in self.layers]

    def families(self, products: Callable[[Weights], Weights] | None = None) -> list[Subspaces]:
        """Return the invariant subspaces: the narrow network's, one dense block, and all others.

        The block comes from products of the operator, or from `products` of changes (n, …) of the
        narrow network's weights.
        """

        def multiply(columns: Array) -> Array:
            assert products is not None
            return self.project(products(self.embed(columns)))

        inside = Subspaces(
            ("twin",) * self.size,
            lambda _: Columns(self.widen, self.narrow),
            products=None if products is None else multiply,
        )
        return [inside, *self._outside]

    def widen(self, columns: Array) -> Array:
        """Embed coordinates (size, n) of the block as parameter vectors (p, n)."""
        return self._place(self.embed(columns), len(self._steps))

    def narrow(self, columns: Array) -> Array:
        """Return the coordinates (size, n) of parameter vectors (p, n): the transpose."""
        changes = self._wide.split(columns)
        for step in self._steps:
            changes = step.narrow(changes)
        return self.project(changes)

    def embed(self, columns: Array) -> dict[str, Array]:
        """Return coordinates (size, n) as changes (n, …) of the narrow network's weights."""
        xp = api.array_namespace(columns)
        *parts, rest = split(transpose(columns), [*(t.size for t in self._twins), self._rest.size])
        changes, waiting = self._rest.split(transpose(rest)), iter(parts)
        for i, (_, twins) in self._parts.items():
            B, A = self.layers[i].factors(changes)
            factors = [twin.embed(transpose(next(waiting))) for twin in twins]
            B = xp.concat([B, *(dB for dB, _ in factors)], axis=-2)
            A = xp.concat([A, *(dA for _, dA in factors)], axis=-1)
            changes |= self.layers[i].weights(B, A)
        return changes

    def project(self, changes: Weights) -> Array:
        """Return the coordinates (size, n) of changes (n, …) of the narrow network's weights."""
        xp = api.array_namespace(*changes.values())
        pieces = []
        for i, (start, twins) in self._parts.items():
            B, A = self.layers[i].factors(changes)
            for twin in twins:
                own = slice(start, start + twin.twin.width)
                pieces.append(twin.project(B[..., own, :], A[..., own]))
                start = own.stop
        return xp.concat([*pieces, self._rest.join(self._without_parts(changes))], axis=0)

    def owners(self) -> Numbers:
        """Return the cell that each coordinate belongs to, where there is one hidden layer.

        It is −1 for what belongs to none, such as biases of the outputs.
        """
        (layer,) = self.layers
        owners = {name: np.full((1, *w.shape), -1) for name, w in self.weights.items()}
        B, A = layer.factors(owners)
        own = layer.weights(
            np.broadcast_to(layer.cells[:, None], B.shape), np.broadcast_to(layer.cells, A.shape)
        )
        kept = self._rest.join(self._without_parts(owners | own))[:, 0]
        parts, (start, twins) = [], self._parts.get(0, (0, []))
        for twin in twins:
            parts.append(np.full(twin.size, layer.cells[start]))
            start += twin.twin.width
        return np.concatenate([*parts, kept])

    # One layer after the other.

    def _drop(self, i: int) -> bool:
        """Leave out the units of a layer that no loss depends on."""
        layer = self.layers[i]
        (B, A), dead = layer.factors(self.weights), np.zeros(len(layer.cells), dtype=bool)
        inputs, outputs = int(B.shape[1]), int(A.shape[0])
        if not inputs or not outputs:
            dead[:] = True
        elif layer.dead is not None:
            dead = layer.dead[layer.cells]
        units, at = np.flatnonzero(dead), len(self._steps)
        if not len(units):
            return False
        xp = api.array_namespace(B)

        def embed(copies: Array) -> Array:
            dB, dA = split(transpose(copies), [inputs * len(units), outputs * len(units)])
            n = int(copies.shape[1])
            dB = xp.reshape(dB, (n, len(units), inputs))
            return self._placed(at, layer, units, dB, xp.reshape(dA, (n, outputs, len(units))))

        zero = xp.zeros((1,), dtype=B.dtype, device=api.device(B))
        count = len(units) * (inputs + outputs)
        self._outside.append(
            Subspaces(("flat/dead",), lambda _: Columns(embed), count, values=zero)
        )
        self._take(i, Step(layer, np.flatnonzero(~dead)))
        return True

    def _shrink(self, i: int) -> bool:
        """Give the cells of a layer as many units as they need."""
        B, A = self.layers[i].factors(self.weights)
        sides = int(B.shape[1]), int(A.shape[0])
        if self._sides.get(i) == sides:
            return False  # the cells have as many units as they need
        self._sides[i] = sides
        groups, bases = [], sides[0] ** 2 + sides[1] ** 2
        for units in self.layers[i].together():
            if bases > self._room:
                break  # a cell that is left as it is makes the block larger, and nothing else
            if narrow_twin(take_rows(B, units), take(A, units)).width < len(units):
                groups.append(units)
                self._room -= bases
        if groups:
            for units, twin in zip(groups, self._turn(i, groups), strict=True):
                self._outside += twin.beyond(self._steps[-1].layer.label(units))
        return bool(groups)

    def _find_flat(self) -> None:
        """Tell apart, in cells of layers that share no weight, the directions that are flat."""
        whole = sum(math.prod(weight.shape) for weight in self.weights.values())
        self.bound = whole
        if whole - sum(map(self._movable, self.layers)) > LARGEST_BLOCK:
            return
        found = {i: self._savings(i) for i in range(len(self.layers))}
        chosen: list[int] = []
        for i in sorted(found, key=lambda i: sum(found[i].values()), reverse=True):
            taken = set().union(*(self.layers[j].names for j in chosen))
            if found[i] and not taken & self.layers[i].names:
                chosen.append(i)
        self.bound = whole - sum(saving for i in chosen for saving in found[i].values())
        if self.bound > LARGEST_BLOCK:
            return
        for i in chosen:
            layer = self.layers[i]
            groups = [units for units in layer.together() if int(units[0]) in found[i]]
            twins = self._turn(i, groups)
            self._outside += [
                twin.flat(layer.label(units)) for units, twin in zip(groups, twins, strict=True)
            ]
            self._parts[i] = len(self._steps[-1].kept), twins

    def _movable(self, layer: HiddenLayer) -> int:
        """Return how many parameters the cells of a layer with several units have."""
        B, A = layer.factors(self.weights)
        return sum(map(len, layer.together())) * int(B.shape[1] + A.shape[0])

    def _savings(self, i: int) -> dict[int, int]:
        """Return how many directions are flat in a cell at least, by the first of its units."""
        groups, found = self.layers[i].together(), {}
        B, A = self.layers[i].factors(self.weights)
        outputs, inputs = int(A.shape[0]), int(B.shape[1])
        for units, gradient in zip(groups, self._gradients(i, groups), strict=True):
            xp, r = api.array_namespace(gradient), len(units)
            rank = numerical_rank(xp.linalg.svdvals(constant(gradient)), (DROPPED,))
            beyond = r * (outputs + inputs - 2 * rank)
            # What of it matters: inside col(B) and row(A), and as far as M has entries.
            rows, columns = (outputs - rank) * min(inputs, r), (inputs - rank) * min(outputs, r)
            saving = beyond - min(outputs * inputs, rows + columns)
            if saving > 0 and (rows + columns) * r * (outputs + inputs) <= MOST:
                found[int(units[0])] = saving
        return found

    def _turn(self, i: int, groups: list[Numbers]) -> list[TwinSubspaces]:
        """Take the twins of some cells of a layer."""
        layer, at = self.layers[i], len(self._steps)
        B, A = layer.factors(self.weights)
        twins = [
            TwinSubspaces(
                take_rows(B, units),
                take(A, units),
                gradient,
                partial(self._placed, at, layer, units),
            )
            for units, gradient in zip(groups, self._gradients(i, groups), strict=True)
        ]
        turned = [(units, twin.twin.basis) for units, twin in zip(groups, twins, strict=True)]
        self._take(i, Step(layer, _others(layer, groups), turned))
        return twins

    def _gradients(self, i: int, groups: list[Numbers]) -> list[Array]:
        """Return the gradient of the loss in M_c = A_c B_c of some cells of a layer.

        It is the gradient in B where M_c and the identity stand for B_c and A_c.
        """
        if not groups:
            return []
        layer = self.layers[i]
        B, A = layer.factors(self.weights)
        xp, outputs, kept = api.array_namespace(B), int(A.shape[0]), _others(layer, groups)
        eye = identity(outputs, B)
        products = [xp.matmul(take(A, units), take_rows(B, units)) for units in groups]
        B = xp.concat([take_rows(B, kept), *products], axis=0)
        A = xp.concat([take(A, kept), *(eye for _ in groups)], axis=1)
        cells, own = self.cells, layer.cells
        cells[i] = np.concatenate([own[kept], *(np.repeat(own[u[:1]], outputs) for u in groups)])
        found, _ = layer.factors(self._gradient({**self.weights, **layer.weights(B, A)}, cells))
        starts = (len(kept) + outputs * j for j in range(len(groups)))
        return [found[start : start + outputs, :] for start in starts]

    def _take(self, i: int, step: Step) -> None:
        self._steps.append(step)
        self.weights, self.layers[i] = step.narrow(self.weights), step.narrowed

    # From a network's weights to parameter vectors.

    def _place(self, changes: Weights, steps: int) -> Array:
        """Return changes (n, …) of the weights after so many steps as vectors (p, n)."""
        for step in reversed(self._steps[:steps]):
            changes = step.widen(changes)
        return self._wide.join(changes)

    def _placed(
        self, steps: int, layer: HiddenLayer, units: Numbers, dB: Array, dA: Array
    ) -> Array:
        """Return changes of the factors of some units of a layer as vectors (p, n)."""
        m = len(layer.cells)
        B = transpose(scatter(transpose(dB), units, m))
        return self._place(layer.weights(B, scatter(dA, units, m)), steps)

    @property
    def _twins(self) -> list[TwinSubspaces]:
        return [twin for _, twins in self._parts.values() for twin in twins]

    def _without_parts(self, changes: Weights) -> dict[str, Array]:
        """Return changes (n, …) without the units of cells that have coordinates of their own."""
        found = dict(changes)
        for i, (kept, _) in self._parts.items():
            B, A = self.layers[i].factors(found)
            found |= self.layers[i].weights(B[..., :kept, :], A[..., :kept])
        return found


def _others(layer: HiddenLayer, groups: list[Numbers]) -> Numbers:
    """Return the units of a layer that are in none of some groups."""
    return np.setdiff1d(np.arange(len(layer.cells)), np.concatenate(groups))
