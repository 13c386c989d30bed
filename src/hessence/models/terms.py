r"""One batch's share of a Hessian or Gauss–Newton matrix, as a graph to multiply with.

Both are differentiated by backward passes only. The gradient is recorded as it is computed, and a
backward pass through that record multiplies it by a vector:

.. math:: H v = \nabla_\theta \langle \nabla_\theta \ell, v \rangle .

While the record is kept, a product costs that one backward pass. Forward mode over reverse mode
would need no record, but PyTorch's forward derivative of an affine layer norm's backward pass is
off by some 1e-3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hessence.models.criterion import Criterion, PairCriterion, predict
from hessence.models.model_copy import ModelCopy


class Term(ABC):
    """What a batch adds to an operator, before it is divided by the count of all batches."""

    count: float

    takes_columns = True
    """Whether several vectors can be multiplied at once, rather than one by one."""

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


class HessianTerm(Term):
    """The Hessian of the total over a batch."""

    def __init__(self, copy: ModelCopy, criterion: Criterion, batch: Any) -> None:
        total, self.count = copy.run(criterion.total, batch)
        self._leaves = copy.parameters.leaves
        if total.requires_grad:
            self._slopes = torch.autograd.grad(
                total, self._leaves, create_graph=True, materialize_grads=True
            )
        else:
            _require_constant(copy, criterion, batch, total)
            self._slopes = tuple(torch.zeros_like(leaf) for leaf in self._leaves)

    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Differentiate the product of the gradient with the vector."""
        leaves = [self._leaves[i] for i in chosen]
        slopes = [self._slopes[i] for i in chosen]
        return pull_back(slopes, leaves, directions, batched=batched)


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


class GgnTerm(Term):
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
        self._curvature = criterion.hessian(prediction, target)
        self._leaves = copy.parameters.leaves
        self._prediction = prediction
        if not prediction.requires_grad:
            self._dummy = torch.zeros_like(prediction)
            self._pulled: tuple[Tensor, ...] = tuple(map(torch.zeros_like, self._leaves))
            return
        self._dummy = torch.zeros_like(prediction, requires_grad=True)
        self._pulled = torch.autograd.grad(
            prediction, self._leaves, self._dummy, create_graph=True, materialize_grads=True
        )

    def multiply(
        self, directions: Sequence[Tensor], chosen: Sequence[int], *, batched: bool = False
    ) -> list[Tensor]:
        """Push forward, bend by the loss, pull back."""
        leaves = [self._leaves[i] for i in chosen]
        pulled = [self._pulled[i] for i in chosen]
        (pushed,) = pull_back(pulled, [self._dummy], directions, batched=batched)
        return pull_back([self._prediction], leaves, [self._curvature(pushed)], batched=batched)


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
        images = torch.autograd.grad(
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
