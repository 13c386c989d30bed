"""The derivatives of a loss in the few coefficients of a network, with bounds on their rounding.

They come from a small model in place of a large one. PyTorch differentiates the loss, and nobody
knows what cancels inside, so the errors are measured: see :mod:`hessence.models.rounding`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hessence._common.arrays import Numbers, epsilon, to_double, to_numpy
from hessence.data.rounding import DerivativeErrors
from hessence.models.recognition._candidate import Candidate
from hessence.models.rounding import DRAWS, FACTOR, RandomRounding

FEW = 16
"""With at most so many coefficients a single difference may be zero by chance; take several."""

SHARES = (1.0, 0.25, 1 / 16, 1 / 64)
"""The coefficients are moved by these shares of their errors. A loss that saturates at both ends of
what they may be need not do so in between."""

Pair = tuple[Tensor, Tensor]
"""A gradient (q,) and a Hessian (q, q)."""


@dataclass(frozen=True, eq=False)
class LossDerivatives:
    """The first two derivatives of a loss in q coefficients, and bounds for the errors of each.

    Attributes
    ----------
    gradient, hessian : Tensor (q,), (q, q)
        The derivatives.
    off_gradient, off_hessian : array
        Bounds on the rounding of each entry, at exact coefficients.
    moved : callable
        Returns the derivatives at coefficients moved by a vector (q,).
    """

    gradient: Tensor
    hessian: Tensor
    off_gradient: Numbers
    off_hessian: Numbers
    moved: Callable[[Numbers], Pair]

    @classmethod
    def of(cls, candidate: Candidate, model: nn.Module) -> LossDerivatives:
        """Differentiate the loss of a small model by its parameters."""
        operator = candidate.hessian(model, candidate.features)
        parameters = list(model.parameters())
        here = parameters_to_vector(parameters).detach().clone()

        def derivatives() -> Pair:
            hessian = operator.dense()
            operator.release()  # a kept graph would repeat the same rounding
            return operator.gradient(), (hessian + hessian.T) / 2

        def moved(step: Numbers) -> Pair:
            vector_to_parameters(here + torch.as_tensor(step).to(here), parameters)
            operator.load(model)
            found = derivatives()
            vector_to_parameters(here, parameters)
            operator.load(model)
            return found

        exact = derivatives()
        rounded = []
        for seed in range(DRAWS if len(here) <= FEW else 1):
            with RandomRounding(seed):
                rounded.append(derivatives())
        off_gradient, off_hessian = (FACTOR * off for off in _differences(exact, rounded))
        return cls(*exact, off_gradient, off_hessian, moved)

    def errors(self, slack: Numbers) -> DerivativeErrors:
        """Return bounds (q,) for the derivatives at coefficients with errors `slack` (q,)."""
        rng, few = np.random.default_rng(0), len(slack) <= FEW
        draws, shares = (DRAWS, SHARES) if few else (1, SHARES[::2])
        moved = [
            self.moved(share * slack * rng.choice([-1.0, 1.0], size=len(slack)))
            for _ in range(draws if slack.any() else 0)
            for share in shares
        ]
        changed, bent = _differences((self.gradient, self.hessian), moved)
        # No entry of a symmetric matrix exceeds √(r_i r_j), with r the largest of each row.
        second = np.abs(to_double(self.hessian))
        rounding = 8 * epsilon(self.gradient)
        off = self.off_hessian + FACTOR * bent + rounding * second
        size, spread = (np.sqrt(part.max(axis=1)) for part in (second, off))
        gradient = self.off_gradient + np.maximum(second @ slack, FACTOR * changed)
        gradient += rounding * np.abs(to_double(self.gradient))
        return DerivativeErrors(gradient, size, spread)


def _differences(here: Pair, others: list[Pair]) -> tuple[Numbers, Numbers]:
    """Return, for each entry, the largest difference between `here` and the others."""
    off = [np.zeros(tuple(part.shape)) for part in here]
    for there in others:
        for own, a, b in zip(off, here, there, strict=True):
            np.maximum(own, to_numpy((b - a).abs().double()), out=own)
    return off[0], off[1]
