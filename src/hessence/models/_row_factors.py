"""Rows of a model's Jacobian, parameter by parameter, as far as possible by their factors.

One run of the model and a backward pass for each output give the factors of all samples at once.
What they do not give is differentiated by row by row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hessence.models._layer_calls import Call, used_otherwise, watched
from hessence.models._layer_factors import Outer, made, scale_rows, shift_rows, sliced_gram, taken
from hessence.models._model_copy import ModelCopy
from hessence.models.criterion import predict


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of the Jacobian, N of them, by the number of the parameter.

    Attributes
    ----------
    outer : dict of list of Outer
        Weights whose rows are factored, one for each kind of layer that uses them.
    explicit : dict of Tensor (N, q)
        Parameters whose rows are written out.
    """

    outer: dict[int, list[Outer]] = field(default_factory=dict)
    explicit: dict[int, Tensor] = field(default_factory=dict)

    def gram(self, other: Block, total: Tensor, lengths: Sequence[int]) -> None:
        """Add the inner products of all rows with those of another block to a total (N, N′).

        `lengths` tells of every parameter how long its first dimension is.
        """
        for leaf, mine in self.outer.items():
            theirs = mine if other is self else other.outer[leaf]
            if len(mine) > 1:
                part = sliced_gram(mine, theirs, lengths[leaf])
            else:
                part = mine[0].gram(theirs[0])
            total += part.reshape(total.shape)
        for leaf, own in self.explicit.items():
            total.addmm_(own, other.explicit[leaf].mT)

    @classmethod
    def stacked(cls, blocks: Sequence[Block]) -> Block:
        """Return the block of all rows of several with one sample each."""
        first, whole = blocks[0], cls()
        for leaf, uses in first.outer.items():
            whole.outer[leaf] = [
                Outer(
                    torch.cat([b.outer[leaf][i].inputs for b in blocks], 0 if use.indexed else 1),
                    torch.cat([b.outer[leaf][i].deltas for b in blocks], 1),
                )
                for i, use in enumerate(uses)
            ]
        for leaf in first.explicit:
            whole.explicit[leaf] = torch.cat([block.explicit[leaf] for block in blocks])
        return whole


class Reader:
    """Reads the rows of the Jacobian off runs of a model.

    Parameters
    ----------
    copy : ModelCopy
        The model.
    chosen : sequence of int
        Which parameters the Jacobian is in.
    """

    def __init__(self, copy: ModelCopy, chosen: Sequence[int]) -> None:
        self._copy, self._chosen = copy, frozenset(chosen)
        self._leaves = copy.parameters.leaves

    def bytes(self, inputs: Any) -> tuple[float, float]:
        """Return how many bytes the run of a sample takes, and the rows of each output."""
        prediction, calls = watched(self._copy, predict, inputs)
        written, others = self._plan(prediction, calls, 1)
        run = sum(taken(c, 1).nbytes + 4 * c.shift.nbytes for c in calls)
        factored = [c for c in calls if c.weight in self._chosen - written - others]
        rows = sum(c.shift.nbytes for c in factored if c.kind != "normalisation")
        explicit = written | others | {c.bias for c in calls if c.bias is not None}
        return float(run), float(rows + sum(self._leaves[i].nbytes for i in explicit))

    def block(self, inputs: Any, samples: int, low: int, high: int) -> Block:
        """Return the rows of outputs `low` to `high` of each of the samples in some inputs."""
        with torch.enable_grad():
            return self._block(inputs, samples, low, high)

    def _block(self, inputs: Any, samples: int, low: int, high: int) -> Block:
        prediction, calls = watched(self._copy, predict, inputs)
        block = Block()
        if not prediction.requires_grad:
            return block
        written, others = self._plan(prediction, calls, samples)
        wanted = self._chosen - others
        calls = [call for call in calls if {call.weight, call.bias} & wanted]
        uses = [_Use(call, samples, high - low, block, wanted, written) for call in calls]
        outputs = prediction.reshape(samples, -1)[:, low:high]
        shifts = [call.shift for call in calls]
        for k in range(high - low) if shifts else ():
            parts = torch.autograd.grad(
                outputs[:, k].sum(), shifts, retain_graph=True, allow_unused=True
            )
            for use, part in zip(uses, parts, strict=True):
                if part is not None:
                    use.add(k, part)
        for use in uses:
            use.keep(block)
        if others:
            block.explicit.update(self._one_by_one(inputs, samples, low, high, sorted(others)))
        return block

    def _plan(
        self, prediction: Tensor, calls: Sequence[Call], samples: int
    ) -> tuple[set[int], set[int]]:
        """Return the weights whose rows are written out, and those without factors.

        Rows are written out where they are smaller than their factors, as in convolutions.
        """
        others = set(used_otherwise(prediction, self._leaves, calls)) | _mixed(calls)
        numbers: Counter[int] = Counter()
        for call in calls:
            if call.weight is not None and call.kind != "normalisation":
                numbers[call.weight] += call.shift.numel() // samples
        matrices = {leaf for leaf, n in numbers.items() if self._leaves[leaf].numel() <= n}
        vectors = {c.weight for c in calls if c.kind == "normalisation" and c.weight is not None}
        return (matrices | vectors) - others, others & self._chosen

    def _one_by_one(
        self, inputs: Any, samples: int, low: int, high: int, others: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return the rows in some parameters, each by a backward pass."""
        leaves = [self._leaves[i] for i in others]
        count = high - low
        found = [leaf.new_empty(samples * count, leaf.numel()).detach() for leaf in leaves]
        for i, alone in enumerate(inputs.split(1) if samples > 1 else [inputs]):
            outputs = self._copy.run(predict, alone).reshape(-1)[low:high]
            for k, output in enumerate(outputs):
                parts = torch.autograd.grad(
                    output, leaves, retain_graph=True, materialize_grads=True
                )
                for rows, part in zip(found, parts, strict=True):
                    rows[i * count + k] = part.reshape(-1)
        return dict(zip(others, found, strict=True))


def _mixed(calls: Sequence[Call]) -> set[int]:
    """Return the weights that layers of kinds use whose rows are not alike."""
    kinds: dict[int, set[str]] = defaultdict(set)
    for call in calls:
        if call.weight is not None:
            # Words and linear layers have the same matrix.
            kinds[call.weight].add("matrix" if call.kind in ("linear", "embedding") else call.kind)
        if call.bias is not None:
            kinds[call.bias].add("vector")
    vectors = {"vector", "normalisation"}
    return {leaf for leaf, found in kinds.items() if len(found) > 1 and not found <= vectors}


class _Use:
    """Collects the rows that one call adds to, an output at a time."""

    def __init__(
        self, call: Call, samples: int, count: int, block: Block,
        wanted: frozenset[int], written: set[int],
    ) -> None:  # fmt: skip
        self._call, self._samples = call, samples
        self._weight = call.weight if call.weight in wanted else None
        self._bias = call.bias if call.bias in wanted else None
        self._inputs = self._deltas = None
        self._rows: dict[int, Tensor] = {}
        if self._weight is not None and call.kind != "normalisation":
            self._inputs = taken(call, samples)
            if self._weight not in written:
                shape = made(call, samples, call.shift.detach()).shape
                self._deltas = call.shift.new_zeros(*shape[:2], count, *shape[2:]).detach()
        explicit = [self._bias] if self._deltas is not None else [self._bias, self._weight]
        for leaf in explicit:
            if leaf is not None:
                whole = call.options["bias" if leaf == self._bias else "weight"]
                empty = whole.new_zeros(samples, count, whole.numel()).detach()
                # Several uses of a parameter add up.
                rows = block.explicit.setdefault(leaf, empty.flatten(0, 1))
                self._rows[leaf] = rows.view(samples, count, -1)

    def add(self, k: int, gradient: Tensor) -> None:
        """Take the gradient of output k, summed over the samples, at what the layer made."""
        call, samples = self._call, self._samples
        if self._bias is not None:
            self._rows[self._bias][:, k] += shift_rows(call, samples, gradient)
        if self._deltas is not None:
            self._deltas[:, :, k] = made(call, samples, gradient)
        elif self._inputs is not None and self._weight is not None:
            own = Outer(self._inputs, made(call, samples, gradient)[:, :, None])
            self._rows[self._weight][:, k] += own.rows(0, len(call.options["weight"]))
        elif self._weight is not None:
            self._rows[self._weight][:, k] += scale_rows(call, samples, gradient)

    def keep(self, block: Block) -> None:
        """Put the factors into a block, together with those of calls of the same kind."""
        if self._deltas is None or self._inputs is None or self._weight is None:
            return
        own, alike = Outer(self._inputs, self._deltas), block.outer.setdefault(self._weight, [])
        for i, other in enumerate(alike):
            if other.indexed == own.indexed:
                alike[i] = other.joined(own)
                return
        alike.append(own)
