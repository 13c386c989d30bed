"""The Jacobian of a model's predictions on all data, by vectors on either side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hessence.models._problem import Problem
from hessence.models._products import Graphs, pull_back
from hessence.models.criterion import predict


class Jacobian:
    """The derivative J (N, p) of all predictions, in the order of the data, in the parameters.

    Parameters
    ----------
    problem : Problem
        The model.
    graphs : Graphs
        What cuts the data into chunks.
    chosen : sequence of int
        Which parameters.
    """

    def __init__(self, problem: Problem, graphs: Graphs, chosen: Sequence[int]) -> None:
        self._copy, self._graphs, self._chosen = problem.copy, graphs, tuple(chosen)
        self._parameters = problem.copy.parameters.restricted(self._chosen)

    def pull(self, rows: Tensor) -> Tensor:
        """Return Jᵀ (p, m) times columns (N, m)."""
        found = rows.new_zeros(rows.shape[1], self._parameters.size)
        start = 0
        for prediction in self._predictions():
            mine = rows[start : start + prediction.numel()].mT
            start += prediction.numel()
            for image, row in zip(found, mine, strict=True):
                direction = [row.reshape(prediction.shape)]
                parts = pull_back([prediction], self._leaves, direction, batched=False)
                for own, part in zip(self._parameters.split(image), parts, strict=True):
                    own += part
                del parts, part  # before the next ones are made: each may be as long as the image
            del prediction  # with its graph
        return found.mT

    def push(self, columns: Tensor) -> Tensor:
        """Return J (N, m) times columns (p, m), by differentiating Jᵀu, which is linear in u."""
        found = []
        for prediction in self._predictions():
            dummy = torch.zeros_like(prediction, requires_grad=True)
            if not prediction.requires_grad:
                found.append(columns.new_zeros(prediction.numel(), columns.shape[1]))
                continue
            pulled = torch.autograd.grad(
                prediction, self._leaves, dummy, create_graph=True, materialize_grads=True
            )
            images = [
                pull_back(pulled, [dummy], self._parameters.split(row), batched=False)[0]
                for row in columns.mT
            ]
            found.append(torch.stack(images, -1).flatten(0, -2))
            del prediction, dummy, pulled  # before the next graph is recorded
        return torch.cat(found)

    @property
    def _leaves(self) -> tuple[Tensor, ...]:
        return self._parameters.leaves

    def _predictions(self) -> Iterator[Any]:
        for inputs, _ in self._graphs.chunks():
            yield self._copy.run(predict, inputs)
