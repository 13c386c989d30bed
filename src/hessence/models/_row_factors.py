"""Rows of a model's Jacobian, in some of its parameters at a time.

One run of the model and a backward pass for each output give the factors of all samples at once.
Derivatives in parameters that no layer has are taken row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hessence.models._layer_calls import Call, watched
from hessence.models._layer_factors import Use, made, scale_rows, shift_rows
from hessence.models._model_copy import ModelCopy
from hessence.models._outer_products import Outer, written
from hessence.models.criterion import predict


@dataclass(frozen=True)
class Part:
    """Some of a parameter, and how the rows of the Jacobian in it are kept.

    Attributes
    ----------
    leaf : int
        Which parameter.
    low, high : int
        Which of the numbers that its layer makes, of each group, if factored; else which rows of
        its weight, of each group; which entries of a vector, or of a parameter that no layer has.
    numbers : int
        How many numbers a row of the Jacobian has there; none if it is kept by its factors.
    """

    leaf: int
    low: int
    high: int
    numbers: int

    @property
    def factored(self) -> bool:
        """Whether rows are kept by their factors."""
        return self.numbers == 0


@dataclass(frozen=True, eq=False)
class Piece:
    """Some of the data.

    Attributes
    ----------
    inputs : Any
        What the model takes.
    samples, outputs : int
        The number of samples, and of outputs of each.
    start : int
        Which row of the Jacobian is the first of theirs.
    room : int
        How many samples like these there are from here on.
    """

    inputs: Any
    samples: int
    outputs: int
    start: int
    room: int


class Store:
    """Rows of the Jacobian, N of them, in some parts of the parameters.

    Parameters
    ----------
    parts : sequence of Part
        The parts, at most one of each parameter.
    rows : int
        N.
    leaves : sequence of Tensor
        The parameters.

    Attributes
    ----------
    written : dict of Tensor (N, q)
        Rows that are written out, by the number of the parameter.
    factors : dict of list
        Where other rows begin, and what they are made of.
    """

    def __init__(self, parts: Sequence[Part], rows: int, leaves: Sequence[Tensor]) -> None:
        self.parts = {part.leaf: part for part in parts}
        self.written = {
            part.leaf: leaves[part.leaf].new_zeros(rows, part.numbers).detach()
            for part in parts
            if not part.factored
        }
        self.factors: dict[int, list[Factors]] = {p.leaf: [] for p in parts if p.factored}

    def rows(self, leaf: int, piece: Piece) -> Tensor:
        """Return where rows of a piece are written out, (n, K, q)."""
        stop = piece.start + piece.samples * piece.outputs
        found = self.written[leaf][piece.start : stop]
        return found.view(piece.samples, piece.outputs, -1)

    def deltas(self, leaf: int, piece: Piece, calls: Sequence[Call]) -> list[Tensor]:
        """Return where the gradients at what some calls made belong, (g, n, K, S, out) each."""
        uses = [Use.of(call, piece.samples) for call in calls]
        shapes = [made(call, piece.samples, call.shift.detach()).shape for call in calls]
        part, positions = self.parts[leaf], [shape[2] for shape in shapes]
        shape = (shapes[0][0], piece.room, piece.outputs, sum(positions), part.high - part.low)
        known = self.factors[leaf]
        if not (known and known[-1].go_on_with(piece, uses, shape)):
            known.append(Factors(piece, uses, calls[0].shift.new_zeros(shape).detach()))
        return list(known[-1].add(uses).split(positions, 3))


class Factors:
    """The factors of rows in one weight, in memory that is taken once for all samples alike."""

    def __init__(self, piece: Piece, uses: Sequence[Use], deltas: Tensor) -> None:
        self.start, self._count, self._deltas = piece.start, 0, deltas
        self._uses = [
            replace(use, taken=use.taken.new_empty(piece.room, *use.taken.shape[1:]))
            for use in uses
        ]

    @property
    def outer(self) -> Outer:
        """The rows."""
        n = self._count
        uses = [replace(use, taken=use.taken[:n]) for use in self._uses]
        return Outer(uses, self._deltas[:, :n])

    def go_on_with(self, piece: Piece, uses: Sequence[Use], shape: tuple[int, ...]) -> bool:
        """Whether a piece comes next and is like those before it."""
        _, room, outputs, *_ = own = self._deltas.shape
        return (
            self.start + self._count * outputs == piece.start
            and self._count + piece.samples <= room
            and (own[0], *own[2:]) == (shape[0], *shape[2:])
            and [(use.kind, use.taken.shape[1:]) for use in self._uses]
            == [(use.kind, use.taken.shape[1:]) for use in uses]
        )

    def add(self, uses: Sequence[Use]) -> Tensor:
        """Take what layers took of the next samples; return where the gradients belong."""
        low = self._count
        self._count += len(uses[0].taken)
        for own, use in zip(self._uses, uses, strict=True):
            own.taken[low : self._count] = use.taken
        return self._deltas[:, low : self._count]


class Reader:
    """Reads the rows of the Jacobian off runs of a model.

    Parameters
    ----------
    copy : ModelCopy
        The model.
    """

    def __init__(self, copy: ModelCopy) -> None:
        self._copy, self._leaves = copy, copy.parameters.leaves

    def read(self, piece: Piece, store: Store) -> None:
        """Put the rows of a piece of the data into a store, by watching layers."""
        with torch.enable_grad():
            prediction, calls = watched(self._copy, predict, piece.inputs)
            calls = [call for call in calls if {call.weight, call.bias} & store.parts.keys()]
            if not (prediction.requires_grad and calls):
                return
            sinks = _sinks(piece, calls, store)
            outputs = prediction.reshape(piece.samples, -1)
            shifts = [call.shift for call in calls]
            for k in range(piece.outputs):
                parts = torch.autograd.grad(
                    outputs[:, k].sum(), shifts, retain_graph=True, allow_unused=True
                )
                for own, part in zip(sinks, parts, strict=True):
                    for sink in own if part is not None else ():
                        sink(k, part)

    def read_one_by_one(self, piece: Piece, store: Store) -> None:
        """Put the rows of a piece of the data into a store, each by a backward pass."""
        leaves = [self._leaves[leaf] for leaf in store.parts]
        with torch.enable_grad():
            for i, alone in enumerate(
                piece.inputs.split(1) if piece.samples > 1 else [piece.inputs]
            ):
                prediction = self._copy.run(predict, alone)
                if not prediction.requires_grad:
                    continue
                for k, output in enumerate(prediction.reshape(-1)):
                    gradients = torch.autograd.grad(
                        output, leaves, retain_graph=True, materialize_grads=True
                    )
                    for part, found in zip(store.parts.values(), gradients, strict=True):
                        rows = store.rows(part.leaf, piece)
                        rows[i, k] = found.reshape(-1)[part.low : part.high]


def _sinks(piece: Piece, calls: Sequence[Call], store: Store) -> list[list[Sink]]:
    """Return for each call what takes the gradients at what it made."""
    sinks: list[list[Sink]] = [[] for _ in calls]
    for leaf, part in store.parts.items():
        weights = [i for i, call in enumerate(calls) if call.weight == leaf]
        if part.factored:
            spaces = store.deltas(leaf, piece, [calls[i] for i in weights]) if weights else ()
            for i, space in zip(weights, spaces, strict=True):
                sinks[i].append(_factors_to(space, calls[i], part, piece.samples))
            continue
        rows = store.rows(leaf, piece)
        for i in weights:
            to = _scales_to if calls[i].kind == "normalisation" else _written_to
            sinks[i].append(to(rows, calls[i], part, piece.samples))
        for i, call in enumerate(calls):
            if call.bias == leaf:
                sinks[i].append(_shifts_to(rows, call, part, piece.samples))
    return sinks


Sink = Callable[[int, Tensor], None]
"""Takes the gradient of an output, by its number, at what a call made.

Several uses of a parameter add up.
"""


def _factors_to(space: Tensor, call: Call, part: Part, samples: int) -> Sink:
    def take(k: int, gradient: Tensor) -> None:
        space[:, :, k] = made(call, samples, gradient)[..., part.low : part.high]

    return take


def _written_to(rows: Tensor, call: Call, part: Part, samples: int) -> Sink:
    taken = Use.of(call, samples).positions()

    def take(k: int, gradient: Tensor) -> None:
        rows[:, k] += written(taken, made(call, samples, gradient)[:, :, None], part.low, part.high)

    return take


def _scales_to(rows: Tensor, call: Call, part: Part, samples: int) -> Sink:
    def take(k: int, gradient: Tensor) -> None:
        rows[:, k] += scale_rows(call, samples, gradient)[:, part.low : part.high]

    return take


def _shifts_to(rows: Tensor, call: Call, part: Part, samples: int) -> Sink:
    def take(k: int, gradient: Tensor) -> None:
        rows[:, k] += shift_rows(call, samples, gradient)[:, part.low : part.high]

    return take
