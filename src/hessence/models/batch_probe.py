"""What a check of an operator's products needs: products and gradients on one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hessence.models.batch_parts import rebuilt
from hessence.models.checks import Check, check_products
from hessence.models.parameters import Parameters
from hessence.models.setting import Setting
from hessence.models.terms import Term

Moved = Callable[[Setting, Any, tuple[Tensor, ...]], Sequence[Tensor]]
"""What changes by a product, to first order, when the parameters of a setting move, on a batch."""


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
        self._parameters: Parameters = setting.snapshot.parameters.block(chosen)
        self._padding = setting.snapshot.padding_rows
        self._mover, self._moved_batch = self._widened()

    def check(self, rng: int) -> Check:
        """Compare products with finite differences, and look for parameters held elsewhere."""
        leaves = self._parameters.leaves
        size = float(torch.stack([leaf.detach().norm() for leaf in leaves]).norm())
        reference = leaves[0].new_zeros(self._parameters.size).detach()
        precision = self._mover.snapshot.parameters.leaves[0].dtype
        move = self._move if self._is_the_models else None
        steady = self._setting.is_steady(self._batch)
        total, _ = self._setting.snapshot.run(self._setting.criterion.total, self._batch)
        elsewhere = self._setting.held_elsewhere(total)
        loss = float(total.detach())
        checked = check_products(
            self._multiply, move, loss, steady, reference, size, rng, precision
        )
        if elsewhere is not None and checked.passed:
            return replace(checked, passed=False, message=elsewhere)
        return checked

    @property
    def _is_the_models(self) -> bool:
        return set(self._parameters.names) <= set(self._setting.snapshot.own_names)

    def _multiply(self, v: Tensor) -> Tensor:
        parts = self._term.multiply(self._without_padding(v), self._chosen)
        return self._parameters.join(self._without_padding(self._parameters.join(parts)))

    def _move(self, step: Tensor) -> Tensor:
        leaves = list(self._mover.snapshot.parameters.leaves)
        for i, part in zip(self._chosen, self._without_padding(step), strict=True):
            leaves[i] = (leaves[i].detach() + part).requires_grad_()
        slopes = self._moved(self._mover, self._moved_batch, tuple(leaves))
        image = self._parameters.join([slopes[i] for i in self._chosen])
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
            slopes = self._moved(setting, batch, setting.snapshot.parameters.leaves)
            if all(slope.dtype == torch.float64 for slope in slopes):
                return setting, batch
        except Exception:  # from a model or a loss that is made for single precision
            pass
        return self._setting, self._batch


def _wide(part: Any) -> Any:
    return part.double() if isinstance(part, Tensor) and part.is_floating_point() else part
