r"""The Gram matrix of a model's Jacobian, :math:`J J^\top`: the neural tangent kernel on the data.

Its rows and columns are the outputs of the first sample, of the second, and so on. It is the sum of
what each parameter, or a part of one, adds. For a linear layer, a convolution or an embedding that
comes from small Gram matrices (:mod:`hessence.models._outer_products`), or from some columns of J
at a time; so J is never stored. The model runs anew for each lot of parts that fits into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hessence._common.device import return_freed_memory
from hessence.models._gram_plan import Survey, Whole, lots, positions_of
from hessence.models._layer_calls import Call, watched
from hessence.models._layer_factors import IMAGES, MisfitError, extent, taken
from hessence.models._outer_products import add_factored, add_symmetric, add_written, mirror
from hessence.models._problem import Problem
from hessence.models._row_factors import Piece, Reader, Store
from hessence.models.batch_parts import graph_bytes
from hessence.models.criterion import predict

CHUNK_BYTES = 2.0**27
"""How many bytes are taken beside the Gram matrix, about."""

ROWS = 3 / 8
"""The share of them that rows may take; the rest is for what makes and multiplies them."""


class Rows:
    """The rows of the Jacobian of a model on its data.

    Where samples are not on their own, each batch counts as one sample with many outputs.

    Parameters
    ----------
    problem : Problem
        The model and the data, all of which are in memory.
    chosen : sequence of int
        Which parameters the Jacobian is in.
    alone : bool
        Whether the model must run on one sample at a time.

    Attributes
    ----------
    predictions, targets : list
        The predictions and targets of every batch.
    samples : list of int
        How many samples each batch counts for.
    count : int
        The number N of all rows.
    step : int
        How many samples a run of the model may take at once, to fit into memory.
    """

    def __init__(self, problem: Problem, chosen: Sequence[int], *, alone: bool = False) -> None:
        self._copy, self._apart = problem.copy, problem.apart
        self._leaves = problem.copy.parameters.leaves
        kept = problem.batches.kept
        assert kept is not None
        batches = [inputs for inputs, _ in kept]
        self.targets = [target for _, target in kept]
        self._alone = self._apart and (alone or not self._are_samples_first(batches))
        self._survey = Survey(self._leaves, chosen)
        self.samples = [len(inputs) if self._apart else 1 for inputs in batches]
        self.predictions: list[Tensor] = []
        self._pieces: list[Piece] = []
        self.count = 0
        self.step = max(map(len, batches)) if self._apart else 1
        for inputs in batches:
            self._look(inputs)
        self._tell_room()
        return_freed_memory()

    def gram(self) -> Tensor:
        """Return the Gram matrix (N, N)."""
        total = self._leaves[0].new_zeros(self.count, self.count).detach()
        reader = Reader(self._copy)
        wholes = self._survey.wholes(sum(self.samples), self.count)
        by_factors = {whole.leaf for whole in wholes if whole.by_factors}
        others = [
            Whole(leaf, self._leaves[leaf].numel(), 1) for leaf in sorted(self._survey.others)
        ]
        for some, read in ((wholes, reader.read), (others, reader.read_one_by_one)):
            for lot in lots(some, self.count, ROWS * CHUNK_BYTES / total.itemsize):
                store = Store(lot, self.count, self._leaves)
                for piece in self._pieces:
                    read(piece, store)
                return_freed_memory()
                self._add(total, store, by_factors)
                del store  # before the next one is made
                return_freed_memory()
        mirror(total)
        return total

    def _add(self, total: Tensor, store: Store, by_factors: set[int]) -> None:
        """Add the inner products of all rows in a store."""
        for rows in store.written.values():
            add_symmetric(total, rows)
        for leaf, factors in store.factors.items():
            placed = [(some.start, some.outer) for some in factors]
            add = add_factored if leaf in by_factors else add_written
            add(total, placed, CHUNK_BYTES / 8)

    def _look(self, inputs: Any) -> None:
        """Run the model on a batch, some samples at a time, and see how it uses its parameters."""
        found = []
        parts = [inputs]
        if self._apart:
            step = self._step(inputs)
            self.step = min(self.step, step)
            parts = inputs.split(1 if self._alone else step)
        for part in parts:
            with torch.enable_grad():
                prediction, calls = watched(self._copy, predict, part)
            if not isinstance(prediction, Tensor):
                raise TypeError(
                    "model must return a tensor for the Gauss–Newton matrix, got "
                    f"{type(prediction).__name__}."
                )
            samples = len(part) if self._apart else 1
            self._survey.note(prediction, calls, samples)
            piece = Piece(part, samples, prediction.numel() // samples, self.count, samples)
            self._pieces.append(piece)
            self.count += prediction.numel()
            found.append(prediction.detach())
        self.predictions.append(torch.cat(found) if self._apart else found[0])

    def _tell_room(self) -> None:
        """Tell pieces how many samples like theirs follow."""
        pieces = self._pieces
        for i in range(len(pieces) - 2, -1, -1) if self._apart else ():
            own, after = pieces[i : i + 2]
            if (own.inputs.shape[1:], own.outputs) == (after.inputs.shape[1:], after.outputs):
                pieces[i] = replace(own, room=own.samples + after.room)

    def _step(self, inputs: Tensor) -> int:
        """Return how many samples are run at a time."""
        calls: list[Call] = []

        def run(some: Tensor) -> Any:
            found, calls[:] = watched(self._copy, predict, some)
            return found

        with torch.enable_grad():
            two = graph_bytes(run, inputs[:2])
            one = graph_bytes(run, inputs[:1])
        each = max(two - one, 1.0) + sum(map(_backward_bytes, calls))
        return max(1, int(CHUNK_BYTES / 8 / each))

    def _are_samples_first(self, batches: Sequence[Tensor]) -> bool:
        """Whether the first dimension of all that layers take counts samples.

        One batch of every shape is asked; a sample alone tells nothing.
        """
        several = {inputs.shape[1:]: inputs for inputs in batches if len(inputs) > 1}
        return all(map(self._is_sample_first, several.values()))

    def _is_sample_first(self, inputs: Tensor) -> bool:
        """Whether layers take of a sample on its own what they take of it among others."""
        try:
            both, alone = (
                [taken(call, len(x)) for call in watched(self._copy, predict, x)[1]]
                for x in (inputs[:2], inputs[:1])
            )
        except MisfitError:
            return False
        return len(both) == len(alone) and all(map(_begins_with, both, alone))


def _backward_bytes(call: Call) -> float:
    """Return how many bytes the gradient at what a layer made takes, and what it meets there."""
    if call.kind not in IMAGES:
        return 2.0 * int(call.shift.nbytes)
    groups, made, width = extent(call)
    positions = positions_of(call, 1)
    return float(groups * positions * (2 * made + width) * call.shift.itemsize)


def _begins_with(both: Tensor, alone: Tensor) -> bool:
    """Whether the first of two samples has what it has alone."""
    first = both.narrow(0 if both.ndim == 2 else 1, 0, 1)
    if first.shape != alone.shape:
        return False
    if not first.is_floating_point():
        return bool(torch.equal(first, alone))
    tolerance = 1e3 * torch.finfo(first.dtype).eps * alone.abs().max()
    return bool((first - alone).abs().max() <= tolerance)
