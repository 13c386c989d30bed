"""The Jacobian of a model's predictions on all data, by vectors on either side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from hessence.models._problem import Problem
from hessence.models._products import gradients, pull_back
from hessence.models.criterion import predict


class Jacobian:
    """The derivative J (N, p) of all predictions, in the order of the data, in the parameters.

    Parameters
    ----------
    problem : Problem
        The model and the data, all of which are in memory.
    samples : int
        How many samples the model runs on at once, if it may be given any number of them.
    chosen : sequence of int
        Which parameters.
    """

    def __init__(self, problem: Problem, samples: int, chosen: Sequence[int]) -> None:
        self._problem, self._samples, self._tested = problem, samples, False
        self._parameters = problem.copy.parameters.restricted(chosen)

    @property
    def size(self) -> int:
        """The number p of parameters."""
        return self._parameters.size

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
                self._parameters.add(image, parts)
                del parts  # before the next ones are made: each may be as long as the image
            del prediction  # with its graph
        return found.mT

    def push(self, columns: Tensor) -> Tensor:
        """Return J (N, m) times columns (p, m), by differentiating Jᵀu, which is linear in u."""
        found = []
        for prediction in self._predictions():
            image = columns.new_zeros(prediction.numel(), columns.shape[1])
            found.append(image)
            if not prediction.requires_grad:
                continue
            dummy = torch.zeros_like(prediction, requires_grad=True)
            pulled = gradients(
                prediction, self._leaves, dummy, create_graph=True, materialize_grads=True
            )
            if not self._tested:
                self._problem.copy.require_second(pulled, whole=False)
                self._tested = True
            # The graph is needed, and not Jᵀ0, which is as long as a column.
            edges = {i: get_gradient_edge(p) for i, p in enumerate(pulled) if p.requires_grad}
            del pulled, prediction
            for j, column in enumerate(columns.mT if edges else ()):
                parts = self._parameters.split(column)
                own = [parts[i] for i in edges]
                image[:, j] = gradients(list(edges.values()), dummy, own, retain_graph=True)[
                    0
                ].flatten()
            del edges, dummy  # before the next graph is recorded
        return torch.cat(found)

    @property
    def _leaves(self) -> tuple[Tensor, ...]:
        return self._parameters.leaves

    def _predictions(self) -> Iterator[Any]:
        problem = self._problem
        batches = problem.batches.regrouped(self._samples) if problem.separable else problem.batches
        for inputs, _ in batches:
            yield problem.copy.run(predict, inputs)
