r"""One batch's share of a Hessian or Gauss–Newton matrix, as a graph to multiply with.

Both are differentiated by backward passes only. The gradient is recorded as it is computed, and a
backward pass through that record multiplies it by a vector:

.. math:: H v = \nabla_\theta \langle \nabla_\theta \ell, v \rangle .

While the record is kept, a product costs that one backward pass. Forward mode over reverse mode
would need no record, but PyTorch's forward derivative of an affine layer norm's backward pass is
off by some 1e-3.

Graphs are kept while they fit into memory, else they are built again for every product.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hessence.models._model_copy import REMEDY, ModelCopy
from hessence.models._parameters import Parameters
from hessence.models.batch_parts import CHUNK_BYTES, PROBES, byte_count, chunk_size
from hessence.models.criterion import Criterion, PairCriterion, predict
from hessence.models.data import Batches, is_sample_pair, merged


class Graph(ABC):
    """A batch's share of an operator, before it is divided by the count of all batches.

    For automatic differentiation it is a graph that PyTorch has recorded.
    """

    count: float

    takes_columns = True
    """Whether several vectors can be multiplied at once, rather than one by one."""

    @property
    def plain(self) -> Graph:
        """The same graph, without compilation."""
        return self

    @abstractmethod
    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Multiply by a vector.

        Parameters
        ----------
        directions : sequence of Tensor
            The vector, cut into tensors shaped like the chosen parameters; with `batched`, several
            vectors along a dimension in front.
        chosen : sequence of int
            Which parameters the vector and its image are restricted to.
        batched : bool
            Whether there are several vectors.
        """


class HessianGraph(Graph):
    """The Hessian of the total over a batch."""

    def __init__(self, copy: ModelCopy, criterion: Criterion, batch: Any) -> None:
        total, self.count = copy.run(criterion.total, batch)
        self._leaves = copy.parameters.leaves
        if total.requires_grad:
            self._gradients = gradients(
                total, self._leaves, create_graph=True, materialize_grads=True
            )
            copy.require_second(self._gradients)
        else:
            _require_constant(copy, criterion, batch, total)
            self._gradients = tuple(torch.zeros_like(leaf) for leaf in self._leaves)

    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Differentiate the product of the gradient with the vector."""
        leaves = [self._leaves[i] for i in chosen]
        outputs = [self._gradients[i] for i in chosen]
        return pull_back(outputs, leaves, directions, batched=batched)


def _require_constant(copy: ModelCopy, criterion: Criterion, batch: Any, total: Tensor) -> None:
    """Refuse a loss that depends on the parameters without PyTorch knowing."""
    if not copy.owned:
        return
    there, _ = copy.elsewhere().run(criterion.total, batch)
    if not torch.equal(there.detach(), total.detach()):
        raise ValueError(
            "loss has no derivative, but changes with the parameters: it was detached, or computed "
            "under torch.no_grad()."
        )


class GgnGraph(Graph):
    r"""The Gauss–Newton matrix :math:`J^\top \nabla^2\ell(f) J` of the total over a batch.

    With a dummy u the backward pass :math:`J^\top u` is recorded; it is linear in u, and a backward
    pass through the record gives :math:`J v`.
    """

    def __init__(self, copy: ModelCopy, criterion: PairCriterion, batch: Any) -> None:
        inputs, target = batch
        prediction = copy.run(predict, inputs)
        if not isinstance(prediction, Tensor):
            raise TypeError(
                "model must return a tensor for the Gauss–Newton matrix, got "
                f"{type(prediction).__name__}."
            )
        self.count = criterion.count(prediction, target)
        self._loss_hessian = criterion.hessian(prediction, target)
        self._leaves = copy.parameters.leaves
        self._prediction = prediction
        if not prediction.requires_grad:
            self._dummy = torch.zeros_like(prediction)
            self._pulled: tuple[Tensor, ...] = tuple(map(torch.zeros_like, self._leaves))
            return
        self._dummy = torch.zeros_like(prediction, requires_grad=True)
        self._pulled = gradients(
            prediction, self._leaves, self._dummy, create_graph=True, materialize_grads=True
        )
        copy.require_second(self._pulled)

    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Push forward, multiply by the Hessian of the loss, pull back."""
        leaves = [self._leaves[i] for i in chosen]
        pulled = [self._pulled[i] for i in chosen]
        (pushed,) = pull_back(pulled, [self._dummy], directions, batched=batched)
        return pull_back([self._prediction], leaves, [self._loss_hessian(pushed)], batched=batched)


def gradients(*arguments: Any, **options: Any) -> tuple[Any, ...]:
    """Return ``torch.autograd.grad``; what that cannot do is refused in a sentence."""
    try:
        found: tuple[Any, ...] = torch.autograd.grad(*arguments, **options)
        return found
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise NotImplementedError(
            "model or loss has an operation that PyTorch cannot differentiate twice: "
            f"{str(error).rstrip('.')}. {REMEDY}"
        ) from error


def pull_back(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    directions: Sequence[Tensor],
    *,
    batched: bool,
) -> list[Tensor]:
    """Return Σ (∂output/∂input)ᵀ direction for each input; the graph stays."""
    live = [(o, d) for o, d in zip(outputs, directions, strict=True) if o.requires_grad]
    images: Sequence[Tensor | None] = [None] * len(inputs)
    if live:
        images = gradients(
            [output for output, _ in live],
            inputs,
            [direction for _, direction in live],
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=batched,
        )
    lead = directions[0].shape[:1] if batched else ()
    return [
        i.new_zeros((*lead, *i.shape)) if image is None else image
        for i, image in zip(inputs, images, strict=True)
    ]


AT_ONCE_BYTES = 2.0**21
"""Several vectors go through a graph at once if it holds at most this. On a CPU, eight of them were
1.1 to 4.5 times as fast for graphs below 1 MB, 0.8 to 3.2 between 1 and 3 MB, 0.6 to 1.5 up to 15
MB, and slower above: convolutions gain least, transformers and recurrent layers most."""

ACCELERATED_BYTES = 2.0**26
"""The same on an accelerator, where starting an operation takes as long as reading megabytes."""

WIDEST = 16
"""How many vectors go through a graph at once at most."""


class Graphs:
    """The graphs of all batches, in order.

    Parameters
    ----------
    build : callable
        Makes the graph of a batch.
    batches : Batches
        The data.
    copy : ModelCopy
        The model. When it has loaded another state, graphs that were kept are let go.
    separable : bool
        Whether batches may be merged and cut.
    memory : float
        How many bytes all kept graphs may hold together.
    size : callable
        Tells how many bytes the graph of a batch holds.
    best : float
        How many bytes a graph of merged batches should hold at most.
    """

    def __init__(
        self,
        build: Callable[[Any], Graph],
        batches: Batches,
        copy: ModelCopy,
        *,
        separable: bool,
        memory: float,
        size: Callable[[Any], float],
        best: float = CHUNK_BYTES,
    ) -> None:
        self.build, self._batches, self._memory, self._size = build, batches, memory, size
        self._best = best
        self._separable, self._copy, self._version = separable, copy, copy.version
        self._one_by_one = False
        self._kept: dict[int, Graph] = {}
        self._held = 0.0
        self._chunks: list[Any] | None = None
        self._largest: float | None = None
        self._measured: tuple[int, float] | None = None
        self.count: float | None = None

    def __iter__(self) -> Iterator[Graph]:
        self._let_go_of_stale()
        count = 0.0
        for index, chunk in enumerate(self.chunks()):
            graph = self._kept.get(index)
            if graph is None:
                graph = self.build(chunk)
                self._keep(index, graph)
            count += graph.count
            yield graph
            del graph  # before the next one is built
        self.count = count

    def multiply(self, rows: Tensor, parameters: Parameters, chosen: Sequence[int]) -> Tensor:
        """Return the products of the sum over all batches with vectors, which are rows here.

        Parameters
        ----------
        rows : Tensor (k, p)
            The vectors.
        parameters : Parameters
            The parameters that a row is cut into.
        chosen : sequence of int
            Which of the operator's parameters they are.
        """
        result: Tensor | None = None
        for graph in self:
            width = self._width(graph, rows)
            result = torch.zeros_like(rows) if result is None else result
            for some, image in zip(rows.split(width), result.split(width), strict=True):
                self._add_products(image, graph, some, parameters, chosen)
            del graph  # before the next one is built
        assert result is not None
        return result

    def multiply_anew(
        self, row: Tensor, parameters: Parameters, chosen: Sequence[int], within: Any
    ) -> Tensor:
        """Return the product with one vector (p,), all of it computed within a context."""
        result = torch.zeros_like(row)
        for chunk in self.chunks():
            with within:
                parts = self.build(chunk).plain.multiply(parameters.split(row), chosen)
            for own, part in zip(parameters.split(result), parts, strict=True):
                own += part
        return result

    def within(self, memory: float) -> Graphs:
        """Return the same graphs in chunks that take no more than so many bytes."""
        return Graphs(
            self.build, self._batches, self._copy, separable=self._separable,
            memory=min(memory, self._memory), size=self._size, best=self._best,
        )  # fmt: skip

    def _width(self, graph: Graph, rows: Tensor) -> int:
        """Return how many vectors go through a graph at once.

        Several do where a graph is so small that most of the time goes into starting operations.
        """
        if len(rows) == 1 or self._one_by_one or not graph.takes_columns:
            return 1
        limit = ACCELERATED_BYTES if rows.device.type != "cpu" else AT_ONCE_BYTES
        if self.chunk_bytes > limit:
            return 1
        return int(max(2, min(WIDEST, self._memory / 4 / max(self.chunk_bytes, 1.0))))

    def _add_products(
        self,
        images: Tensor,
        graph: Graph,
        rows: Tensor,
        parameters: Parameters,
        chosen: Sequence[int],
    ) -> None:
        """Add the products of one graph with vectors, which are rows here, to others."""
        if len(rows) == 1:
            parts = graph.multiply(parameters.split(rows[0]), chosen)
            images = images[0]
        else:
            try:
                with warnings.catch_warnings():
                    # PyTorch says so where it loops over an operation that it cannot batch.
                    warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
                    parts = graph.multiply(parameters.split(rows), chosen, batched=True)
            except RuntimeError:
                # Some operations cannot be batched. Any other error comes again.
                self._one_by_one = True
                for image, row in zip(images.split(1), rows.split(1), strict=True):
                    self._add_products(image, graph, row, parameters, chosen)
                return
        for own, part in zip(parameters.split(images), parts, strict=True):
            own += part.reshape(own.shape)

    def first(self) -> tuple[Graph, Any]:
        """Return the graph of the first chunk, and its data."""
        self._let_go_of_stale()
        chunk = next(iter(self.chunks()))
        return (self._kept[0] if 0 in self._kept else self.build(chunk)), chunk

    def chunks(self) -> Iterable[Any]:
        """Go through the data of all graphs."""
        if self._chunks is not None:
            return self._chunks
        samples, _ = self._measure()
        kept = self._batches.kept
        if kept is None:
            return self._batches.regrouped(samples) if self._separable else self._batches
        if self._separable:
            total = sum(len(batch[0]) for batch in kept if is_sample_pair(batch))
            even = math.ceil(total / max(1, math.ceil(total / samples)))
            kept = list(self._batches.regrouped(max(even, 1)))
        self._chunks, self._largest = kept, max(map(self._bytes, kept))
        return kept

    @property
    def kept(self) -> int:
        """How many graphs are kept."""
        return len(self._kept)

    @property
    def chunk_bytes(self) -> float:
        """How much memory the graph of the largest chunk takes, as far as chunks are known."""
        if self._largest is not None:
            return self._largest
        samples, per_sample = self._measure()
        return samples * per_sample

    def release(self) -> None:
        """Let go of all graphs; they are built again when needed."""
        self._kept.clear()
        self._held = 0.0

    def _let_go_of_stale(self) -> None:
        if self._version != self._copy.version:
            self.release()
            self._version = self._copy.version

    def _measure(self) -> tuple[int, float]:
        """Return the number of samples in a chunk, and how many bytes each takes in a graph."""
        if self._measured is None:
            batch = self._batches.first
            if self._separable and is_sample_pair(batch):
                if len(batch[0]) < max(PROBES):
                    batch = next(iter(merged(self._batches, max(PROBES))))
                self._measured = chunk_size(self._size, batch, self._memory, self._best)
            else:
                self._measured = 1, self._size(batch)
        return self._measured

    def _keep(self, index: int, graph: Graph) -> None:
        # Without the data there is no telling which chunk of the next pass this is.
        if self._chunks is None:
            return
        size = self._bytes(self._chunks[index])
        if self._held + size <= self._memory:
            self._kept[index] = graph
            self._held += size

    def _bytes(self, chunk: Any) -> float:
        """Return how much memory the graph of a chunk takes, by the size of its data."""
        _, each = self._measure()
        if self._separable and is_sample_pair(chunk):
            return each * len(chunk[0])
        return each * byte_count(chunk) / max(byte_count(self._batches.first), 1)
