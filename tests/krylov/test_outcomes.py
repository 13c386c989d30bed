"""How iterations end: an outcome with its sentence and its remedy, never a bare text."""

import warnings

import numpy as np
import pytest

import hessence as hs
from hessence import Outcome
from tests.krylov.market import Counting

VALUES = np.concatenate([[9.0, 9.0, 5.0], np.linspace(-1.0, 2.0, 400)])


class Skewed(Counting):
    """An operator that is not symmetric."""

    def __matmul__(self, other):
        return super().__matmul__(other) + 0.3 * np.roll(other, 1, axis=0)


def found(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hs.ConvergenceWarning)
        return function(*arguments, **options)


CASES = {
    Outcome.CONVERGED: lambda: hs.eigenpairs(Counting(VALUES), k=3),
    Outcome.AT_ROUNDING: lambda: hs.eigenpairs(Counting(VALUES), k=3, tol=0.0),
    Outcome.OUT_OF_PRODUCTS: lambda: found(
        hs.eigenpairs, Counting(VALUES), k=3, max_products=6, confidence=0
    ),
    Outcome.COPIES_UNCERTAIN: lambda: hs.eigenpairs(
        Counting(VALUES), k=2, v0=np.eye(403)[:, [0]] + 1e-3, tol=1e-3, max_products=9,
        confidence=0.999,
    ),
    Outcome.NOISY: lambda: found(hs.eigenpairs, Skewed(VALUES), k=3, max_products=100),
    Outcome.RESOLVED: lambda: hs.density(Counting(VALUES), probes=2, steps=40),
    Outcome.TOO_FINE: lambda: hs.density(Counting(VALUES), probes=2, steps=9, width=1e-4),
    Outcome.NOT_SYMMETRIC: lambda: hs.density(Skewed(VALUES), probes=2, steps=30),
    Outcome.ALL_KNOWN: lambda: hs.ScalarLinear([1.0], [0.5]).hessian([1.0], [2.0]).spectrum(),
}  # fmt: skip


@pytest.mark.parametrize("outcome", Outcome, ids=lambda outcome: outcome.name)
def test_every_outcome_is_reached_and_said(outcome):
    result = CASES[outcome]()
    assert result.outcome is outcome
    assert result.message.endswith(f": {outcome.remedy}." if outcome.remedy else ".")
    assert "{" not in result.message
    if hasattr(result, "converged"):
        assert result.converged == outcome.converged
    shown = outcome.remedy and outcome is not Outcome.COPIES_UNCERTAIN
    assert (f"! {result.message}" in repr(result)) == bool(shown)


def test_what_has_not_converged_warns_with_the_same_sentence():
    with pytest.warns(hs.ConvergenceWarning) as caught:
        pairs = hs.eigenpairs(Counting(VALUES), k=3, max_products=6, confidence=0)
    assert [str(warning.message) for warning in caught] == [pairs.message]
