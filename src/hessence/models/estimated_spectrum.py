"""The estimated spectrum of a PyTorch model, after a check of its products."""

from __future__ import annotations

from typing import Any

from hessence.models.model_matrices import ModelHessian
from hessence.spectra import estimating
from hessence.spectra.estimate import Estimate


def estimate(H: ModelHessian, k: int | None, **options: Any) -> Estimate:
    """Estimate the spectrum of an operator, after a check of its products."""
    H.require_sound()
    return estimating.estimate(H, k, **options)
