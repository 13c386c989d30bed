"""A model, data and a loss, checked: what operators are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch

from hessence.curvature import ranks
from hessence.curvature.batches import Batches
from hessence.curvature.criteria import (
    Criterion,
    FunctionCriterion,
    PairCriterion,
    as_criterion,
    is_pair,
    predict,
)
from hessence.curvature.memory import budget
from hessence.curvature.snapshots import Snapshot
from hessence.curvature.term_store import TermStore
from hessence.curvature.terms import Term

Mode = Literal["auto", "vectors", "blocks"]


class Setting:
    """A snapshot of a model, its data in batches, its loss, and how to multiply."""

    def __init__(
        self,
        model: Any,
        data: Any,
        loss: Any,
        params: Any,
        *,
        eval_mode: bool,
        memory: float | None,
        mode: Mode,
        compile: bool,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f'mode must be "auto", "vectors" or "blocks", got {mode!r}.')
        self.snapshot = Snapshot(model, params, eval_mode=eval_mode)
        self.memory = budget(memory, self.snapshot.device)
        self.batches = Batches(data, self.snapshot.device, self.memory)
        self.criterion = self._settle(as_criterion(loss, self.batches.first))
        self.mode: Mode = mode
        self.compile = compile
        self.count: float | None = None

    def _settle(self, criterion: Criterion) -> Criterion:
        if isinstance(criterion, PairCriterion) and not is_pair(self.batches.first):
            raise ValueError(
                "data must have batches that are pairs (input, target) for this loss; for others "
                "give a closure loss(model, batch)."
            )
        several = self.batches.kept is None or len(self.batches.kept) > 1 or ranks.parallel()
        if isinstance(criterion, FunctionCriterion) and several:
            inputs, target = self.batches.first
            with torch.no_grad():
                prediction = self.snapshot.run(predict, inputs)
            return criterion.settled(prediction, target)
        return criterion

    def terms(self, build: Callable[[Any], Term]) -> TermStore:
        """Return a store of terms for all batches."""
        if self.compile:
            from hessence.curvature.compiled import compiled

            make = compiled(build)
        else:
            make = build
        return TermStore(
            make,
            self.batches,
            separable=isinstance(self.criterion, PairCriterion) and self.criterion.separable,
            memory=self.memory,
        )
