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
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hessence.models._loss_hessian import require_constant
from hessence.models._model_copy import REMEDY, ModelCopy
from hessence.models._parameters import Parameters
from hessence.models.batch_parts import CHUNK_BYTES, PROBES, byte_count, chunk_size
from hessence.models.criterion import Criterion, PairCriterion, predict
from hessence.models.data import Batches, is_sample_pair, merged


class Graph(ABC):
    """A batch's share of an operator, before it is divided by the count of all batches."""

    count: float

    @abstractmethod
    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Multiply by a vector, restricted to the chosen parameters, as is its image.

        The vector is cut into tensors shaped like these parameters. If `batched`, there are several
        vectors, along a dimension in front.
        """


class HessianGraph(Graph):
    """The Hessian of the total over a batch."""

    def __init__(self, copy: ModelCopy, criterion: Criterion, batch: Any) -> None:
        total, self.count = copy.run(criterion.total, batch)
        self._leaves = copy.parameters.leaves
        if copy.owned and not total.requires_grad:
            there, _ = copy.elsewhere().run(criterion.total, batch)
            require_constant(there, total, "parameters")
        self._gradients = derivatives(total, self._leaves, create_graph=True)
        if total.requires_grad:
            copy.require_second(self._gradients)

    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Differentiate the product of the gradient with the vector."""
        leaves = [self._leaves[i] for i in chosen]
        outputs = [self._gradients[i] for i in chosen]
        return pull_back(outputs, leaves, directions, batched=batched)


class GgnGraph(Graph):
    r"""The Gauss–Newton matrix :math:`J^\top \nabla^2\ell(f) J` of the total over a batch.

    With a dummy u the backward pass :math:`J^\top u` is recorded; it is linear in u, and a backward
    pass through the record gives :math:`J v`. It holds a gradient of all parameters, or of those
    in `only`; then products are with vectors restricted to these.
    """

    def __init__(
        self,
        copy: ModelCopy,
        criterion: PairCriterion,
        batch: Any,
        only: Sequence[int] | None = None,
    ) -> None:
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
        self._dummy = torch.zeros_like(prediction, requires_grad=True)
        held = range(len(self._leaves)) if only is None else only
        leaves = [self._leaves[i] for i in held]
        pulled = derivatives(prediction, leaves, self._dummy, create_graph=True)
        if prediction.requires_grad:
            copy.require_second(pulled, whole=only is None)
        self._pulled = dict(zip(held, pulled, strict=True))

    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Push forward, multiply by the Hessian of the loss, pull back."""
        leaves = [self._leaves[i] for i in chosen]
        pulled = [self._pulled[i] for i in chosen]
        (pushed,) = pull_back(pulled, [self._dummy], directions, batched=batched)
        return pull_back([self._prediction], leaves, [self._loss_hessian(pushed)], batched=batched)


def derivatives(
    output: Tensor,
    leaves: Sequence[Tensor],
    direction: Tensor | None = None,
    *,
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Return the derivatives of an output in leaves: zero in those that it does not depend on."""
    if not output.requires_grad:
        return tuple(map(torch.zeros_like, leaves))
    return gradients(output, leaves, direction, create_graph=create_graph, materialize_grads=True)


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
        The model. When it loads another state, kept graphs are dropped.
    separable : bool
        Whether batches may be merged and cut.
    memory : float
        How many bytes all kept graphs may hold together.
    size : callable
        Returns how many bytes the graph of a batch holds.
    best : float
        How many bytes a graph of merged batches should hold at most.
    compiled : callable, optional
        Returns a graph like another whose products are compiled, one vector at a time.
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
        compiled: Callable[[Graph], Graph] | None = None,
    ) -> None:
        self.build, self._batches, self._memory, self._size = build, batches, memory, size
        self._best, self._compiled = best, compiled
        self._separable, self._copy, self._version = separable, copy, copy.version
        self._one_by_one = compiled is not None
        self._kept: dict[int, Graph] = {}
        self._held = 0.0
        self._chunks: list[Any] | None = None
        self._largest: float | None = None
        self.count: float | None = None

    def __iter__(self) -> Iterator[Graph]:
        count = 0.0
        for index, chunk in enumerate(self.chunks()):
            graph = self._graph(index, chunk)
            self._keep(index, graph)
            count += graph.count
            yield graph
            del graph  # before the next one is built
        self.count = count

    def first(self) -> tuple[Graph, Any]:
        """Return the graph of the first chunk, and its data."""
        chunk = next(iter(self.chunks()))
        return self._graph(0, chunk), chunk

    def _graph(self, index: int, chunk: Any) -> Graph:
        """Return the graph of a chunk, which is built if it is not kept."""
        if self._version != self._copy.version:
            self.release()
            self._version = self._copy.version
        # Another thread may drop it meanwhile.
        kept = self._kept.get(index)
        if kept is not None:
            return kept
        graph = self.build(chunk)
        return graph if self._compiled is None else self._compiled(graph)

    def multiply(self, rows: Tensor, parameters: Parameters, chosen: Sequence[int]) -> Tensor:
        """Return the products of the sum over all batches with vectors, which are rows (k, p) here.

        Rows are cut into `parameters`, which are the `chosen` ones of the operator.
        """
        result: Tensor | None = None
        for graph in self:
            width = self._width(rows)
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
                parts = self.build(chunk).multiply(parameters.split(row), chosen)
            parameters.add(result, parts)
        return result

    def within(self, memory: float) -> Graphs:
        """Return the same graphs in chunks that take no more than so many bytes.

        With none, no graph is kept, and compiling its products is not worth the time.
        """
        return Graphs(
            self.build,
            self._batches,
            self._copy,
            separable=self._separable,
            memory=min(memory, self._memory),
            size=self._size,
            best=self._best,
            compiled=self._compiled if memory else None,
        )

    def _width(self, rows: Tensor) -> int:
        """Return how many vectors go through a graph at once.

        Several do where a graph is so small that most of the time goes into starting operations.
        """
        limit = AT_ONCE_BYTES if rows.device.type == "cpu" else ACCELERATED_BYTES
        if self._one_by_one or self.chunk_bytes > limit:
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
        if len(rows) > 1:
            try:
                with warnings.catch_warnings():
                    # PyTorch says so where it loops over an operation that it cannot batch.
                    warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
                    parts = graph.multiply(parameters.split(rows), chosen, batched=True)
            except RuntimeError:
                # Some operations cannot be batched. Any other error comes again.
                self._one_by_one = True
            else:
                return parameters.add(images, parts)
        for image, row in zip(images, rows, strict=True):
            parameters.add(image, graph.multiply(parameters.split(row), chosen))

    def chunks(self) -> Iterable[Any]:
        """Return the data of all graphs."""
        if self._chunks is not None:
            return self._chunks
        samples, _ = self._measured
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
        return math.prod(self._measured)

    def release(self) -> None:
        """Drop all graphs; they are built again when needed."""
        self._kept.clear()
        self._held = 0.0

    @cached_property
    def _measured(self) -> tuple[int, float]:
        """The number of samples in a chunk, and how many bytes each takes in a graph."""
        batch = self._batches.first
        if not self._separable or not is_sample_pair(batch):
            return 1, self._size(batch)
        if len(batch[0]) < max(PROBES):
            batch = next(iter(merged(self._batches, max(PROBES))))
        return chunk_size(self._size, batch, self._memory, self._best)

    def _keep(self, index: int, graph: Graph) -> None:
        # Where the data do not fit into memory, neither do the graphs.
        if self._chunks is None or index in self._kept:
            return
        size = self._bytes(self._chunks[index])
        if self._held + size <= self._memory:
            self._kept[index] = graph
            self._held += size

    def _bytes(self, chunk: Any) -> float:
        """Return how much memory the graph of a chunk takes, by the size of its data."""
        _, each = self._measured
        if self._separable and is_sample_pair(chunk):
            return each * len(chunk[0])
        return each * byte_count(chunk) / max(byte_count(self._batches.first), 1)
