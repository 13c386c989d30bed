"""No spectrum by the dual is shown that automatic differentiation disagrees with."""

import pytest

import hessence as hs
from hessence.models import _dual, _gram
from hessence.models._outer_products import mirror
from tests.models.market import problem


def test_a_gram_matrix_that_is_wrong_is_not_shown(monkeypatch):
    made = problem("tanh_mlp")
    monkeypatch.setattr(_gram, "mirror", lambda total: mirror(total.mul_(1.000001)))
    G = hs.ggn(made.model, made.data, made.loss)
    with pytest.raises(ValueError, match="differs from automatic differentiation by"):
        G.kernel()
    estimate = G.spectrum()
    assert not estimate.exact
    assert "differs from automatic differentiation" in estimate.reason


@pytest.mark.parametrize("name", ["tanh_mlp", "conv_net"])
def test_loss_factors_that_are_wrong_are_not_used(name, monkeypatch):
    right = _dual._loss_factors

    def wrong(*arguments):
        return _dual.LossFactors([1.000001 * block for block in right(*arguments).blocks])

    made = problem(name)
    monkeypatch.setattr(_dual, "_loss_factors", wrong)
    estimate = hs.ggn(made.model, made.data, made.loss).spectrum()
    assert not estimate.exact
    assert "differs from products with the matrix by 2.0e-06" in estimate.reason


@pytest.mark.parametrize(
    ("part", "said"),
    [("_root", "the loss Hessian differs from its parts"), ("between", "three factors")],
)
def test_a_wrong_step_of_the_dual_is_told_of(part, said, monkeypatch):
    home = _dual if part == "_root" else _dual.LossFactors
    right = getattr(home, part)
    monkeypatch.setattr(home, part, lambda *arguments: 1.000001 * right(*arguments))
    made = problem("tanh_mlp")
    estimate = hs.ggn(made.model, made.data, made.loss).spectrum()
    assert not estimate.exact
    assert said in estimate.reason
