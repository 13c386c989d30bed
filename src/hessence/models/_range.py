r"""The range of the Hessian of a model of linear, convolutional and embedding layers.

A sample's second variation sees a change dW of a layer z = W h only through dW h, and through
:math:`\delta^\top dW` with δ the gradient of the loss in z; the latter only if h can move, and so
not in a first layer. So the Hessian vanishes on all dW outside

.. math:: \mathbb{R}^{\rm out} \otimes \operatorname{span}_i h_i
          + \operatorname{span}_i \delta_i \otimes \mathbb{R}^{\rm in},

which has the dimension :math:`d_{\rm out} r_h + r_\delta (d_{\rm in} - r_h)`. A bias is the weight
of a constant input 1. For a convolution h are the patches and δ the gradients at all positions, in
each group on its own; of an embedding, the rows of words that do not occur are flat. What happens
between layers, and which loss there is, does not matter. All other parameters stay as they are. The
spectrum on the range is exact where that is small, and else estimated inside.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessence._common.device import budget
from hessence.models._layer_calls import Call, used_otherwise, watched
from hessence.models._layer_factors import made, taken
from hessence.models._parameters import length
from hessence.models.data import parallel
from hessence.models.rounding import DRAWS, FACTOR
from hessence.spectra.frames import GrowingSpan, TwoSided
from hessence.spectra.reduced import Reduced
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Columns, Range, Subspaces

COLUMNS = 4096
"""The fewest columns that are added to a span at once."""

WHOLE = ("normalisation", "transposed convolution")
"""The kinds of layers all of whose weights are taken to matter."""

LARGEST = 4096
"""The most dimensions of a range on which the whole spectrum is computed."""

MATRICES = 6
"""How many matrices of that size a dense solver needs."""

AGREEMENT = {torch.float64: 1e-8, torch.float32: 2e-4}
"""How far products may leave the range, relative."""

THEOREM = (
    "range: the Hessian sees a change of a layer only through what the layer takes and through the "
    "gradients at what it makes, and all other directions are flat."
)


class NoRange(Exception):  # noqa: N818 - an ordinary answer, not a mistake of the user's
    """There is no range, or it is not worth using; the message says why."""


@dataclass(eq=False)
class Matrix:
    """A weight, with its bias as a last column, as matrices (out, in), one for each group.

    Attributes
    ----------
    weight, bias : int
        Their indices among the leaves; the bias may be None.
    shape : tuple of int
        (groups, out, in), the bias included.
    inputs, deltas : list of GrowingSpan
        The spans of each group's inputs, and of the gradients at its outputs.
    words : set of int
        The rows that embeddings look up.
    """

    weight: int
    bias: int | None
    shape: tuple[int, int, int]
    inputs: list[GrowingSpan] = field(init=False)
    deltas: list[GrowingSpan] = field(init=False)
    words: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.inputs = [GrowingSpan() for _ in range(self.shape[0])]
        self.deltas = [GrowingSpan() for _ in range(self.shape[0])]

    def add(self, call: Call, gradient: Tensor) -> None:
        """Add the inputs of a call, and the gradient of the loss at its outputs."""
        h = taken(call, 1)
        if h.ndim == 2:
            self.words |= set(h.unique().tolist()) - {-1}
            return
        if self.bias is not None:
            h = torch.cat([h, h.new_ones(*h.shape[:-1], 1)], -1)
        both = [(self.inputs, h), (self.deltas, made(call, 1, gradient))]
        for spans, columns in both if call.moves else both[:1]:
            for span, own in zip(spans, columns.flatten(1, 2).mT, strict=True):
                for part in own.split(max(COLUMNS, 2 * len(own)), dim=1):
                    span.add(part)

    @property
    def rows(self) -> list[int]:
        """The rows that matter, if only embeddings use the matrix."""
        return [] if self.inputs[0].rank else sorted(self.words)

    def settle(self, reference: Tensor) -> None:
        """If other layers use an embedding's matrix too, add its rows to the gradients' span."""
        if self.words and not self.rows:
            units = reference.new_zeros(self.shape[1], len(self.words))
            units[sorted(self.words), range(len(self.words))] = 1
            self.deltas[0].add(units)

    @property
    def ranks(self) -> list[tuple[int, int]]:
        """The ranks r_h of the inputs and r_δ of the gradients, of each group."""
        if self.rows:
            return [(0, len(self.rows))]
        return [(h.rank, d.rank) for h, d in zip(self.inputs, self.deltas, strict=True)]

    @property
    def flat(self) -> int:
        """How many directions the Hessian does not see."""
        _, out, width = self.shape
        return sum((width - a) * (out - b) for a, b in self.ranks)


class HessianRange:
    """The directions of each parameter that the Hessian of a model sees.

    Parameters
    ----------
    H : ModelHessian
        The Hessian.
    most : int, optional
        Give up as soon as the range has more dimensions than this.
    """

    def __init__(self, H: Any, most: int | None = None) -> None:
        if parallel():
            raise NoRange("the data are shared among processes, and the range needs all of them.")
        H.problem.require_steady()
        self._H, self._copy = H, H.problem.copy
        self.leaves = self._copy.parameters.leaves
        self.chosen = tuple(H._chosen)
        self.matrices: dict[int, Matrix] = {}
        self._uses: dict[int, set[int | None]] = defaultdict(set)
        self._other: set[int] = set()
        self._used: set[int] = set()
        for chunk in H._graphs.chunks():
            self._read(chunk)
            if most is not None and self.size > most:
                raise NoRange(
                    f"the range of the Hessian has more than {most} dimensions, of {H.shape[0]}."
                )
        for matrix in self.matrices.values():
            matrix.settle(self.leaves[0].detach())

    @property
    def size(self) -> int:
        """The dimension R of the range."""
        numbers = sum(self.leaves[i].numel() for i in self.chosen if i in self._used)
        return int(numbers - sum(matrix.flat for matrix in self.valid))

    @property
    def valid(self) -> list[Matrix]:
        """The matrices whose parameters are used in no other way, in the order of the weights."""
        # A bias may be that of several weights, or a weight of several biases.
        owners = Counter(b for uses in self._uses.values() for b in uses if b is not None)
        return [
            self.matrices[leaf]
            for leaf, uses in sorted(self._uses.items())
            if len(uses) == 1
            and not {leaf, *uses} & self._other
            and all(owners[b] == 1 for b in uses if b is not None)
            and {leaf, *uses} - {None} <= set(self.chosen)
        ]

    @property
    def unused(self) -> list[int]:
        """The chosen parameters that the loss does not depend on."""
        return [i for i in self.chosen if i not in self._used]

    def coordinates(self) -> Range:
        """Return coordinates of what the Hessian sees, and of what is flat.

        In bases that begin with the spans of inputs and gradients, only the first r_h columns and
        the first r_δ rows of every matrix are seen.
        """
        parameters = self._copy.parameters.restricted(self.chosen)
        reference = parameters.leaves[0].detach()
        each = [_Turned(m, self.chosen, reference) for m in self.valid if m.flat]
        mask = [
            torch.full(shape, leaf not in self.unused)
            for leaf, shape in zip(self.chosen, parameters.shapes, strict=True)
        ]
        for turned in each:
            turned.put(mask, turned.seen()[None])

        def turn(vectors: Tensor) -> Tensor:
            if not each:
                return vectors
            parts = list(parameters.split(vectors.mT))
            for turned in each:
                turned.put(parts, turned(turned.get(parts)))
            return parameters.join(parts).mT

        return Range(turn, parameters.join(mask).numpy(), reference)

    def _read(self, chunk: Any) -> None:
        """Differentiate the loss of a chunk once, and add its layers' inputs and gradients."""
        with torch.inference_mode(mode=False), torch.enable_grad():
            (total, _), calls = watched(self._copy, self._H.problem.criterion.total, chunk)
            if not torch.isfinite(total):
                raise NoRange("the loss is not finite.")
            if not total.requires_grad:
                return
            otherwise = used_otherwise(total, self.leaves, calls)
            shifts = [call.shift for call in calls]
            gradients = torch.autograd.grad(total, shifts, allow_unused=True) if shifts else ()
        self._other |= set(otherwise)
        self._used |= set(otherwise)
        for call, gradient in zip(calls, gradients, strict=True):
            if gradient is None:
                continue
            own = {i for i in (call.weight, call.bias) if i is not None}
            self._used |= own
            if call.kind in WHOLE or call.weight is None:
                self._other |= own
                continue
            self._uses[call.weight].add(call.bias)
            weight, groups = call.options["weight"], call.options.get("groups", 1)
            shape = groups, len(weight) // groups, weight[0].numel() + (call.bias is not None)
            new = Matrix(call.weight, call.bias, shape)
            matrix = self.matrices.setdefault(call.weight, new)
            # Layers of several kinds use the same weight as matrices of different shapes.
            if (matrix.shape, matrix.bias) == (shape, call.bias):
                matrix.add(call, gradient)
            else:
                self._other |= own


class _Turned:
    """A matrix in bases that begin with the spans of its gradients and of its inputs."""

    def __init__(self, matrix: Matrix, chosen: Sequence[int], reference: Tensor) -> None:
        self._matrix = matrix
        self._weight = chosen.index(matrix.weight)
        self._bias = None if matrix.bias is None else chosen.index(matrix.bias)
        _, out, width = matrix.shape

        def basis(span: GrowingSpan, size: int) -> Tensor:
            return span.basis() if span.rank else reference.new_zeros(size, 0)

        # The rows of words need no other basis.
        self._turns = [] if matrix.rows else [
            TwoSided(basis(deltas, out), basis(inputs, width))
            for deltas, inputs in zip(matrix.deltas, matrix.inputs, strict=True)
        ]  # fmt: skip

    def seen(self) -> Tensor:
        """Return which entries (g, out, in) of the turned matrix the Hessian sees."""
        if self._turns:
            return torch.stack([torch.as_tensor(turn.seen) for turn in self._turns])
        mask = torch.zeros(self._matrix.shape, dtype=torch.bool)
        mask[0, self._matrix.rows] = True
        return mask

    def get(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the matrices (n, g, out, in) from tensors (n, …), one for each parameter."""
        groups, out, _ = self._matrix.shape
        weight = parts[self._weight]
        whole = weight.reshape(len(weight), groups, out, -1)
        if self._bias is None:
            return whole
        bias = parts[self._bias].reshape(len(weight), groups, out, 1)
        return torch.cat([whole, bias], -1)

    def put(self, parts: list[Tensor], matrices: Tensor) -> None:
        """Write matrices (n, g, out, in) back to these tensors."""
        if self._bias is not None:
            parts[self._bias] = matrices[..., -1].reshape(parts[self._bias].shape)
            matrices = matrices[..., :-1]
        parts[self._weight] = matrices.reshape(parts[self._weight].shape)

    def __call__(self, matrices: Tensor) -> Tensor:
        """Turn matrices (n, g, out, in)."""
        if not self._turns:
            return matrices
        each = zip(matrices.unbind(1), self._turns, strict=True)
        return torch.stack([turn(own) for own, turn in each], 1)


def on_range(H: Any, most: int) -> Reduced:
    """Return a model's Hessian on its range, after products have confirmed it.

    Raises
    ------
    NoRange
        If the range has more than `most` dimensions.
    """
    own = HessianRange(H, most).coordinates()
    _, flat = own.families()
    found = Reduced(H, own.size, own.embed, own.project, (flat,), "range")
    return replace(found, known=(flat.of(H, _neglected(found)),))


def range_spectrum(rest: Reduced) -> Spectrum:
    """Return the whole spectrum: one dense block on the range, and zeros."""
    order = rest.order
    if order > LARGEST:
        raise NoRange(f"the range has {order} dimensions, more than the {LARGEST} of a dense one.")
    if MATRICES * 8.0 * order**2 > budget(None, rest.reference):
        raise NoRange(f"a dense matrix of order {order} does not fit into memory.")
    isometry, defect = Columns(rest.embed, rest.project), rest.known[0].defect
    block = Subspaces(("range",) * order, lambda _: isometry, defect=defect)
    found = Spectrum([block, *rest.known], "range", operator=rest.whole)
    found.reason = THEOREM
    _ = rest.whole.rounded  # measured now, since the model may change later
    rest.release()
    return found


def _neglected(found: Reduced) -> float:
    """Confirm by products that flat vectors map to zero, and that the range maps to itself.

    Returns a bound for the norm of what the range neglects where it took columns for rounding. The
    bound is measured, as in :mod:`hessence.models.rounding`.
    """
    (flat,), rng = found.known, np.random.default_rng(0)
    counts = np.asarray([found.order, int(flat.multiplicity)])
    seen, unseen = (
        torch.as_tensor(rng.normal(size=(count, DRAWS))).to(found.reference) for count in counts
    )
    vectors = [found.embed(seen), flat.isometry(0)(unseen.new_ones(1), unseen)]
    inside, outside = (found.whole @ torch.cat(vectors, 1)).split(DRAWS, dim=1)
    leaving = inside - found.embed(found.project(inside))
    *gaps, scale = (float(length(part, 0).max()) for part in (leaving, outside, inside))
    # A random vector of n entries has a length of about √n.
    lengths = np.sqrt(np.maximum(counts, 1))
    worst = (gaps / lengths).max() * lengths[0] / (scale or 1.0)
    if not worst <= AGREEMENT[found.reference.dtype]:
        raise NoRange(f"products leave the range of the Hessian by {worst:.1e}, relative.")
    return FACTOR * sum(gaps)
