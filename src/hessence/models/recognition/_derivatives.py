"""The derivatives of a loss in the few coefficients of a network, with what rounding did to them.

A small model that stands for a large one tells them. PyTorch differentiates the loss, and what
cancels inside is not known, so their errors are measured: see :mod:`hessence.models.rounding`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hessence._common.arrays import Numbers, epsilon, to_double, to_numpy
from hessence.data.rounding import DerivativeErrors
from hessence.models.recognition._candidate import Candidate
from hessence.models.rounding import DRAWS, FACTOR, RandomRounding

FEW = 16
"""Up to so many coefficients a single difference may be zero by chance, and several are taken."""


@dataclass(frozen=True, eq=False)
class LossDerivatives:
    """The first two derivatives of a loss in q coefficients, and bounds for the errors of each.

    Attributes
    ----------
    gradient, hessian : Tensor (q,), (q, q)
        The derivatives.
    off_gradient, off_hessian : array
        What rounding may have done to each entry, at coefficients that are exact.
    """

    gradient: Tensor
    hessian: Tensor
    off_gradient: Numbers
    off_hessian: Numbers

    @classmethod
    def of(cls, candidate: Candidate, model: nn.Module) -> LossDerivatives:
        """Differentiate the loss of a small model by its parameters."""
        operator = candidate.hessian(model, candidate.features)

        def derivatives() -> tuple[Tensor, Tensor]:
            hessian = operator.dense()
            operator.release()  # a graph is of one rounding
            return operator.gradient(), (hessian + hessian.T) / 2

        gradient, hessian = derivatives()
        off = [np.zeros(tuple(part.shape)) for part in (gradient, hessian)]
        for seed in range(DRAWS if len(gradient) <= FEW else 1):
            with RandomRounding(seed):
                moved = derivatives()
            for own, here, there in zip(off, (gradient, hessian), moved, strict=True):
                np.maximum(own, to_numpy((there - here).abs().double()), out=own)
        return cls(gradient, hessian, FACTOR * off[0], FACTOR * off[1])

    def errors(self, slack: Numbers) -> DerivativeErrors:
        """Return bounds (q,) for the derivatives at coefficients with errors `slack` (q,)."""
        # No entry of a symmetric matrix exceeds √(r_i r_j), with r the largest of each row.
        second = np.abs(to_double(self.hessian))
        rounding = 8 * epsilon(self.gradient)
        size, spread = (
            np.sqrt(part.max(axis=1)) for part in (second, self.off_hessian + rounding * second)
        )
        gradient = self.off_gradient + second @ slack
        gradient += rounding * np.abs(to_double(self.gradient))
        return DerivativeErrors(gradient, size, spread)


def as_matrix(errors: DerivativeErrors, shape: tuple[int, int]) -> DerivativeErrors:
    """Return the bounds for coefficients that are a matrix, row by row."""
    return DerivativeErrors(*(error.reshape(shape) for error in errors))


def steps(weights: list[Tensor], share: float) -> Numbers:
    """Return what a share of each step on the way to W_L ⋯ W_1 does to its entries, (q,)."""
    product = weights[0].abs()
    for weight in weights[1:]:
        product = weight.abs() @ product
    found: Numbers = share * to_numpy(torch.flatten(product).double())
    return found
