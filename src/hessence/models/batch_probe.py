"""What a check of an operator's products needs: products and gradients on one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hessence._common.arguments import Seed
from hessence.models.batch_parts import rebuilt
from hessence.models.checks import Check, check_products
from hessence.models.model_copy import ModelCopy
from hessence.models.parameters import Parameters
from hessence.models.setting import Setting
from hessence.models.terms import Term

Moved = Callable[[Setting, Any, ModelCopy], Sequence[Tensor]]
"""What changes by a product, to first order, when a copy's parameters have moved, on a batch."""


class BatchProbe:
    """Products of an operator on one batch, and what finite differences take instead.

    PyTorch takes the padding of embeddings for constant, so it has no part in either.

    Parameters
    ----------
    setting : Setting
        Model and loss.
    chosen : sequence of int
        Which of the parameters the operator is for.
    term : Term
        The batch's share of the operator.
    batch : object
        The batch.
    moved : callable
        See ``Moved``.
    """

    def __init__(
        self, setting: Setting, chosen: Sequence[int], term: Term, batch: Any, moved: Moved
    ) -> None:
        self._setting, self._chosen, self._term, self._batch = setting, chosen, term, batch
        self._moved = moved
        self._parameters: Parameters = setting.copy.parameters.restricted(chosen)
        self._padding = setting.copy.padding_rows
        self._mover, self._moved_batch = self._widened()
        self._there = self._mover.copy.clone() if self._is_the_models else self._mover.copy

    def check(self, rng: Seed) -> Check:
        """Compare products with finite differences, up to their own error."""
        leaves = self._parameters.leaves
        size = float(torch.stack([leaf.detach().norm() for leaf in leaves]).norm())
        reference = leaves[0].new_zeros(self._parameters.size).detach()
        precision = self._mover.copy.parameters.leaves[0].dtype
        move = self._move if self._is_the_models else None
        steady = self._setting.is_steady(self._batch)
        total, _ = self._setting.copy.run(self._setting.criterion.total, self._batch)
        loss = float(total.detach())
        return check_products(self._multiply, move, loss, steady, reference, size, rng, precision)

    @property
    def _is_the_models(self) -> bool:
        return self._setting.copy.owned and not self._parameters.foreign

    def _multiply(self, v: Tensor) -> Tensor:
        parts = self._term.multiply(self._without_padding(v), self._chosen)
        return self._parameters.join(self._without_padding(self._parameters.join(parts)))

    def _move(self, step: Tensor) -> Tensor:
        values = [leaf.detach() for leaf in self._mover.copy.parameters.leaves]
        for i, part in zip(self._chosen, self._without_padding(step), strict=True):
            values[i] = values[i] + part
        self._there.move(values)
        gradients = self._moved(self._mover, self._moved_batch, self._there)
        image = self._parameters.join([gradients[i] for i in self._chosen])
        return self._parameters.join(self._without_padding(image))

    def _without_padding(self, vector: Tensor) -> list[Tensor]:
        """Cut a vector into parts, with zeros for padding."""
        cut = self._parameters.split(vector.clone())
        parts = dict(zip(self._parameters.names, cut, strict=True))
        for name in parts.keys() & self._padding.keys():
            parts[name][self._padding[name]] = 0
        return list(parts.values())

    def _widened(self) -> tuple[Setting, Any]:
        """Return setting and batch in double precision, or as they are if that fails."""
        double = self._parameters.leaves[0].dtype == torch.float64
        if double or not self._is_the_models:
            return self._setting, self._batch
        try:
            setting, batch = self._setting.doubled(), rebuilt(_wide, self._batch)
            gradients = self._moved(setting, batch, setting.copy)
            if all(gradient.dtype == torch.float64 for gradient in gradients):
                return setting, batch
        except Exception:  # from a model or a loss that is made for single precision
            pass
        return self._setting, self._batch


def _wide(part: Any) -> Any:
    return part.double() if isinstance(part, Tensor) and part.is_floating_point() else part
