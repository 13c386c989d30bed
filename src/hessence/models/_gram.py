r"""The Gram matrix of a model's Jacobian, :math:`J J^\top`: the neural tangent kernel on the data.

Its rows and columns are the outputs of the first sample, of the second, and so on. It is assembled
parameter by parameter. Linear layers, convolutions and embeddings give products of small Gram
matrices of what they take and of gradients at what they make
(:mod:`hessence.models._layer_factors`); so J is stored for no weight of theirs. Biases and
normalisations have few numbers for each row. All other parameters are differentiated by row by row.

Rows come in blocks whose factors fit into memory, and every two blocks meet once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hessence.models._layer_calls import Call, used_otherwise, watched
from hessence.models._layer_factors import (
    MisfitError,
    Outer,
    made,
    scale_rows,
    shift_rows,
    sliced_gram,
    taken,
)
from hessence.models._problem import Problem
from hessence.models.criterion import predict

BLOCK_BYTES = 2.0**27
"""How many bytes the factors of a block of rows may take; two of them are there at a time."""


@dataclass(frozen=True)
class Piece:
    """Some rows of the Jacobian: outputs `low` to `high` of each of the samples in some inputs."""

    inputs: Any
    samples: int
    start: int
    low: int
    high: int

    @property
    def rows(self) -> slice:
        """Where they are."""
        return slice(self.start, self.start + self.samples * (self.high - self.low))


@dataclass(frozen=True, eq=False)
class Block:
    """The factors of some rows of the Jacobian, by the number of the parameter."""

    outer: dict[int, list[Outer]] = field(default_factory=lambda: defaultdict(list))
    explicit: dict[int, Tensor] = field(default_factory=dict)

    def gram(self, other: Block, rows: Sequence[int]) -> Tensor:
        """Return the inner products of all rows with those of another block, (N, N′).

        `rows` tells for every parameter how long its first dimension is.
        """
        total: Tensor | None = None
        for leaf, mine in self.outer.items():
            theirs = mine if other is self else other.outer[leaf]
            several = len(mine) > 1
            part = (
                sliced_gram(mine, theirs, rows[leaf]) if several else mine[0].gram(theirs[0])
            ).flatten(0, 1)
            total = _plus(total, part.flatten(1))
        for leaf, own in self.explicit.items():
            total = _plus(total, own @ other.explicit[leaf].mT)
        assert total is not None
        return total


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total.add_(part)


class Rows:
    """The rows of the Jacobian of a model on its data, a block at a time.

    Parameters
    ----------
    problem : Problem
        The model and the data, all of which are in memory.
    chosen : sequence of int
        Which parameters the Jacobian is in.
    """

    def __init__(self, problem: Problem, chosen: Sequence[int]) -> None:
        self._copy, self._chosen = problem.copy, frozenset(chosen)
        kept = problem.batches.kept
        assert kept is not None
        self._apart = problem.apart
        self._single = False
        self.predictions = [self._copy.run(predict, inputs).detach() for inputs, _ in kept]
        self.count = sum(prediction.numel() for prediction in self.predictions)
        self.samples = [len(inputs) if self._apart else 1 for inputs, _ in kept]
        self._single = self._apart and not self._is_sample_first(kept[0][0])
        self.pieces = list(self._cut([inputs for inputs, _ in kept]))

    def gram(self) -> Tensor:
        """Return the Gram matrix (N, N)."""
        leaves = self._copy.parameters.leaves
        rows = [leaf.shape[0] if leaf.ndim else 1 for leaf in leaves]
        found = leaves[0].new_zeros(self.count, self.count).detach()
        for i, piece in enumerate(self.pieces):
            block = self.block(piece)
            found[piece.rows, piece.rows] = block.gram(block, rows)
            for other in self.pieces[i + 1 :]:
                met = block.gram(self.block(other), rows)
                found[piece.rows, other.rows] = met
                found[other.rows, piece.rows] = met.mT
        return found

    def block(self, piece: Piece) -> Block:
        """Return the factors of a piece."""
        with torch.enable_grad():
            if not self._single:
                return self._read(piece.inputs, piece.samples, piece.low, piece.high)
            alone = [self._read(x, 1, piece.low, piece.high) for x in piece.inputs.split(1)]
        return _stacked(alone)

    def _read(self, inputs: Any, samples: int, low: int, high: int) -> Block:
        """Run the model once, and a backward pass for every output."""
        copy, chosen = self._copy, self._chosen
        leaves = copy.parameters.leaves
        prediction, calls = watched(copy, predict, inputs)
        block = Block()
        if not prediction.requires_grad:
            block.explicit[0] = leaves[0].new_zeros(samples * (high - low), 1).detach()
            return block
        others = chosen & set(used_otherwise(prediction, leaves, calls)) | _mixed(calls)
        calls = [c for c in calls if {c.weight, c.bias} & (chosen - others)]
        outputs = prediction.reshape(samples, -1)[:, low:high]
        gradients = self._gradients(outputs, [call.shift for call in calls])
        for call, gradient in zip(calls, gradients, strict=True):
            _add(block, call, samples, gradient, chosen - others)
        if others:
            self._add_others(block, inputs, samples, low, high, sorted(others & chosen))
        if not block.outer and not block.explicit:
            block.explicit[0] = leaves[0].new_zeros(samples * (high - low), 1).detach()
        return block

    @staticmethod
    def _gradients(outputs: Tensor, shifts: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of every output, summed over samples, (K, *shape) for each shift."""
        count = outputs.shape[1]
        found = [shift.new_zeros(count, *shift.shape) for shift in shifts]
        for k in range(count) if shifts else ():
            parts = torch.autograd.grad(
                outputs[:, k].sum(), shifts, retain_graph=True, allow_unused=True
            )
            for own, part in zip(found, parts, strict=True):
                if part is not None:
                    own[k] = part
        return found

    def _add_others(
        self, block: Block, inputs: Any, samples: int, low: int, high: int, others: Sequence[int]
    ) -> None:
        """Differentiate by parameters that no formula is known for, row by row."""
        leaves = [self._copy.parameters.leaves[i] for i in others]
        rows: list[list[Tensor]] = [[] for _ in others]
        for alone in inputs.split(1) if samples > 1 else [inputs]:
            prediction = self._copy.run(predict, alone).reshape(-1)[low:high]
            for output in prediction:
                parts = torch.autograd.grad(
                    output, leaves, retain_graph=True, materialize_grads=True
                )
                for own, part in zip(rows, parts, strict=True):
                    own.append(part.reshape(-1))
        for leaf, own in zip(others, rows, strict=True):
            block.explicit[leaf] = torch.stack(own)

    def _is_sample_first(self, inputs: Tensor) -> bool:
        """Whether the first dimension of all that layers take counts samples.

        What they take of a sample on its own must be what they take of it among others.
        """
        if len(inputs) < 2:
            return True
        try:
            both, alone = (
                [taken(call, len(x)) for call in watched(self._copy, predict, x)[1]]
                for x in (inputs[:2], inputs[:1])
            )
        except MisfitError:
            return False
        return len(both) == len(alone) and all(map(_begins_with, both, alone))

    def _cut(self, batches: Sequence[Any]) -> Iterator[Piece]:
        """Cut the data into pieces whose factors fit into memory."""
        start = 0
        for inputs, prediction, n in zip(batches, self.predictions, self.samples, strict=True):
            outputs = prediction.numel() // n
            fixed, each = self._bytes(inputs[:1] if self._apart else inputs)
            width = max(1, min(outputs, int((BLOCK_BYTES - fixed) / max(each, 1.0))))
            if width < outputs or not self._apart:
                parts = [(x, 1) for x in (inputs.split(1) if self._apart else [inputs])]
            else:
                step = max(1, int(BLOCK_BYTES / max(fixed + each * outputs, 1.0)))
                parts = [(x, len(x)) for x in inputs.split(step)]
            for part, samples in parts:
                for low in range(0, outputs, width):
                    high = min(low + width, outputs)
                    yield Piece(part, samples, start, low, high)
                    start += samples * (high - low)

    def _bytes(self, inputs: Any) -> tuple[float, float]:
        """Return how many bytes a sample's factors take, for all outputs and for each."""
        prediction, calls = watched(self._copy, predict, inputs)
        leaves = self._copy.parameters.leaves
        others = self._chosen & set(used_otherwise(prediction, leaves, calls)) | _mixed(calls)
        fixed = sum(taken(c, 1).nbytes for c in calls if c.kind != "normalisation")
        each = sum(c.shift.nbytes for c in calls) + sum(leaves[i].nbytes for i in others)
        return float(fixed), float(each)


def _mixed(calls: Sequence[Call]) -> set[int]:
    """Return the leaves that are a weight in one call and a bias or a scale in another."""
    matrices = {c.weight for c in calls if c.kind != "normalisation"}
    vectors = {c.bias for c in calls} | {c.weight for c in calls if c.kind == "normalisation"}
    shapes: dict[int, set[bool]] = defaultdict(set)
    for call in calls:
        if call.kind in ("linear", "embedding", "convolution") and call.weight is not None:
            shapes[call.weight].add(call.kind == "convolution")
    several = {leaf for leaf, kinds in shapes.items() if len(kinds) > 1}
    return {leaf for leaf in matrices & vectors if leaf is not None} | several


def _add(
    block: Block, call: Call, samples: int, gradients: Tensor, chosen: frozenset[int] | set[int]
) -> None:
    """Add a call's factors, from the gradients (K, *shape) of every output at what it made."""
    if call.weight in chosen:
        assert call.weight is not None
        if call.kind == "normalisation":
            rows = torch.stack([scale_rows(call, samples, g) for g in gradients], 1)
            _add_rows(block, call.weight, rows)
        else:
            deltas = torch.stack([made(call, samples, g) for g in gradients], 2)
            own = Outer(taken(call, samples), deltas)
            alike = block.outer[call.weight]
            for i, other in enumerate(alike):
                if other.indexed == own.indexed:
                    alike[i] = other.joined(own)
                    break
            else:
                alike.append(own)
    if call.bias in chosen:
        assert call.bias is not None
        _add_rows(
            block, call.bias, torch.stack([shift_rows(call, samples, g) for g in gradients], 1)
        )


def _add_rows(block: Block, leaf: int, rows: Tensor) -> None:
    flat = rows.flatten(0, 1)
    block.explicit[leaf] = block.explicit[leaf] + flat if leaf in block.explicit else flat


def _stacked(blocks: Sequence[Block]) -> Block:
    """Return the block of all rows of several, one sample each."""
    first, whole = blocks[0], Block()
    for leaf, uses in first.outer.items():
        for i, use in enumerate(uses):
            inputs = [block.outer[leaf][i].inputs for block in blocks]
            deltas = [block.outer[leaf][i].deltas for block in blocks]
            axis = 0 if use.indexed else 1
            whole.outer[leaf].append(Outer(torch.cat(inputs, axis), torch.cat(deltas, 1)))
    for leaf in first.explicit:
        whole.explicit[leaf] = torch.cat([block.explicit[leaf] for block in blocks])
    return whole


def _begins_with(both: Tensor, alone: Tensor) -> bool:
    """Whether the first of two samples has what it has alone."""
    axis = 0 if both.ndim == 2 else 1
    first = both.narrow(axis, 0, 1)
    if first.shape != alone.shape:
        return False
    if not first.is_floating_point():
        return bool(torch.equal(first, alone))
    tolerance = 1e3 * torch.finfo(first.dtype).eps * alone.abs().max()
    return bool((first - alone).abs().max() <= tolerance)
