"""Is a product right? Tests that need no trust in automatic differentiation of second order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hessence._common.arguments import Seed, generator
from hessence._common.files import Saved

SYMMETRY = {torch.float64: 2e-10, torch.float32: 1e-3}
"""How much ⟨u, Hv⟩ and ⟨v, Hu⟩ may differ, relative to ‖Hu‖ + ‖Hv‖ for unit vectors."""

SINGLE = 1e-6
"""A difference that rounding to single precision may explain, in a model of double precision."""

AGREEMENT = {torch.float64: 1e-5, torch.float32: 1e-2}
"""How much a product may differ from finite differences, relative, beside their own error."""

ROUGH = 0.03
"""Finite differences with a larger error of their own, relative, tell nothing."""

RANDOM = (
    "the loss changes from one evaluation to the next, so something random is in the model or the "
    "loss: call model.eval() or pass eval_mode=True; if that does not help, something does not "
    "look at the mode, such as F.dropout without training=self.training."
)


class CheckWarning(UserWarning):
    """A product failed a test; the spectrum made of such products may be wrong."""


@dataclass(frozen=True, eq=False)
class Check(Saved, kind="check"):
    """What the tests found.

    Attributes
    ----------
    passed : bool
        Whether nothing was found wrong; finite differences may have been too rough to tell.
    deterministic : bool
        Whether the loss was the same whenever it was evaluated.
    finite : bool
        Whether the loss and the parameters are finite.
    symmetry : float
        The gap between ⟨u, Hv⟩ and ⟨v, Hu⟩, relative to ‖Hu‖ + ‖Hv‖, for random unit vectors.
    difference : float or None
        The distance of a product from finite differences of the gradient, relative; None if the
        parameters are not the model's, so that they cannot be moved.
    uncertainty : float or None
        The error of the finite differences themselves, relative, from two step sizes. Where they
        disagree with products beyond it, smaller steps are taken, and the rounding of both counts.
    message : str
        The outcome in a sentence.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    >>> data = torch.randn(20, 3), torch.randn(20, 1)
    >>> check = hs.hessian(model, data).check()
    >>> check.passed, check.message
    (True, 'The products are symmetric and agree with finite differences.')
    """

    passed: bool
    deterministic: bool
    finite: bool
    symmetry: float
    difference: float | None
    uncertainty: float | None
    message: str


def outcome(
    steady: bool,
    finite: bool,
    symmetry: float,
    difference: float | None,
    uncertainty: float | None,
    dtype: torch.dtype,
    rounding: float,
) -> Check:
    """Judge what was found for an operator of some type; see ``Check``.

    `rounding` is that of products, relative to ‖Hu‖ + ‖Hv‖; it matters only where `is_symmetric`
    says no without it.
    """
    passed, message = False, ""
    symmetric = "The products are symmetric"
    if not is_symmetric(symmetry, dtype):
        symmetric += f" up to their rounding, {rounding:.1e}, relative"
    if not finite:
        message = "the loss or the parameters are NaN or infinite."
    elif not steady:
        message = RANDOM
    elif not is_symmetric(symmetry, dtype, rounding):
        why = "a layer's second derivative is wrong, or detached somewhere"
        if symmetry <= SINGLE:
            why = "part of the model computes in single precision, or is not quite right"
        message = f"⟨u, Hv⟩ and ⟨v, Hu⟩ differ by {symmetry:.1e}, relative: {why}."
    elif difference is None or uncertainty is None:
        passed, message = True, f"{symmetric}; tensors that are not the model's cannot be moved."
    elif uncertainty > ROUGH:
        passed, message = True, f"{symmetric}; finite differences are too rough here to tell more."
    elif not agree(difference, uncertainty, dtype):
        message = (
            f"products differ from finite differences by {difference:.1e}, relative (which have an "
            f"error of {uncertainty:.1e}): part of the loss does not pass its derivative on, such "
            "as a detached tensor or a custom backward."
        )
    else:
        passed, message = True, f"{symmetric} and agree with finite differences."
    return Check(passed, steady, finite, symmetry, difference, uncertainty, message)


def is_symmetric(symmetry: float, dtype: torch.dtype, rounding: float = 0.0) -> bool:
    """Whether ⟨u, Hv⟩ and ⟨v, Hu⟩ differ by no more than they may."""
    return symmetry <= SYMMETRY[dtype] + rounding


def agree(difference: float, uncertainty: float, dtype: torch.dtype) -> bool:
    """Whether a product and finite differences differ by no more than they may."""
    return difference <= AGREEMENT[dtype] + 10 * uncertainty


def same(first: float, second: float, dtype: torch.dtype) -> bool:
    """Whether two evaluations gave the same, up to sums in another order, as on a GPU."""
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    slack = 100 * torch.finfo(dtype).eps * max(abs(first), abs(second))
    return first == second or abs(first - second) <= slack


def unit_vectors(reference: Tensor, rng: Seed) -> tuple[Tensor, Tensor]:
    """Return two random vectors of an operator's kind."""
    drawn = generator(rng).normal(size=(2, reference.numel()))
    drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
    u, v = torch.asarray(drawn, dtype=reference.dtype, device=reference.device)
    return u, v
