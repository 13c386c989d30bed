r"""The Gram matrix of a model's Jacobian, :math:`J J^\top`: the neural tangent kernel on the data.

Its rows and columns are the outputs of the first sample, of the second, and so on. It is assembled
parameter by parameter. Linear layers, convolutions and embeddings give products of small Gram
matrices of what they take and of gradients at what they make
(:mod:`hessence.models._layer_factors`); so J is never stored. Rows come in blocks whose factors fit
into memory, and every two blocks meet once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hessence.models._layer_calls import watched
from hessence.models._layer_factors import MisfitError, taken
from hessence.models._problem import Problem
from hessence.models._row_factors import Block, Reader
from hessence.models.criterion import predict

BLOCK_BYTES = 2.0**26
"""How many bytes a block of rows may take; two of them are there at a time."""


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


class Rows:
    """The rows of the Jacobian of a model on its data.

    Where samples are not on their own, each batch counts as one sample with many outputs.

    Parameters
    ----------
    problem : Problem
        The model and the data, all of which are in memory.
    chosen : sequence of int
        Which parameters the Jacobian is in.

    Attributes
    ----------
    predictions : list of Tensor
        The predictions of every batch.
    samples : list of int
        How many samples each batch counts for.
    count : int
        The number N of all rows.
    """

    def __init__(self, problem: Problem, chosen: Sequence[int]) -> None:
        self._copy, self._reader = problem.copy, Reader(problem.copy, chosen)
        kept = problem.batches.kept
        assert kept is not None
        self._batches = [inputs for inputs, _ in kept]
        self._apart = problem.apart
        self._alone = self._apart and not self._is_sample_first(self._batches[0])
        self.samples = [len(inputs) if self._apart else 1 for inputs in self._batches]
        self.predictions = [self._predicted(inputs) for inputs in self._batches]
        self.count = sum(prediction.numel() for prediction in self.predictions)

    def gram(self) -> Tensor:
        """Return the Gram matrix (N, N)."""
        leaves = self._copy.parameters.leaves
        lengths = [leaf.shape[0] if leaf.ndim else 1 for leaf in leaves]
        found = leaves[0].new_zeros(self.count, self.count).detach()
        pieces = list(self._pieces())
        for i, piece in enumerate(pieces):
            block = self._block(piece)
            block.gram(block, found[piece.rows, piece.rows], lengths)
            for other in pieces[i + 1 :]:
                part = found[piece.rows, other.rows]
                block.gram(self._block(other), part, lengths)
                found[other.rows, piece.rows] = part.mT
        return found

    def _block(self, piece: Piece) -> Block:
        read, outputs = self._reader.block, (piece.low, piece.high)
        if not self._alone:
            return read(piece.inputs, piece.samples, *outputs)
        return Block.stacked([read(x, 1, *outputs) for x in piece.inputs.split(1)])

    def _predicted(self, inputs: Any) -> Tensor:
        """Return the predictions of a batch, some samples at a time."""
        parts = inputs.split(self._step(inputs)) if self._apart else [inputs]
        found = [self._copy.run(predict, part) for part in parts]
        for part in found:
            if not isinstance(part, Tensor):
                raise TypeError(
                    "model must return a tensor for the Gauss–Newton matrix, got "
                    f"{type(part).__name__}."
                )
        return torch.cat([part.detach() for part in found]) if self._apart else found[0].detach()

    def _step(self, inputs: Tensor) -> int:
        """Return how many samples are run at a time without their rows."""
        run, _ = self._reader.bytes(inputs[:1])
        return max(1, int(BLOCK_BYTES / max(run, 1.0)))

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

    def _pieces(self) -> Iterator[Piece]:
        """Cut the data into pieces whose rows fit into memory."""
        start = 0
        for inputs, prediction, n in zip(
            self._batches, self.predictions, self.samples, strict=True
        ):
            outputs = prediction.numel() // n
            run, each = self._reader.bytes(inputs[:1] if self._apart else inputs)
            width = max(1, min(outputs, int((BLOCK_BYTES - run) / max(each, 1.0))))
            parts = [(inputs, 1)]
            if self._apart:
                fit = int(BLOCK_BYTES / max(run + each * outputs, 1.0))
                step = max(1, fit) if width == outputs else 1
                parts = [(x, len(x)) for x in inputs.split(step)]
            for part, samples in parts:
                for low in range(0, outputs, width):
                    high = min(low + width, outputs)
                    yield Piece(part, samples, start, low, high)
                    start += samples * (high - low)


def _begins_with(both: Tensor, alone: Tensor) -> bool:
    """Whether the first of two samples has what it has alone."""
    first = both.narrow(0 if both.ndim == 2 else 1, 0, 1)
    if first.shape != alone.shape:
        return False
    if not first.is_floating_point():
        return bool(torch.equal(first, alone))
    tolerance = 1e3 * torch.finfo(first.dtype).eps * alone.abs().max()
    return bool((first - alone).abs().max() <= tolerance)
