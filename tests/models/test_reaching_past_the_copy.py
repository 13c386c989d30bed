"""A loss or model that reaches past the copy, to the model of the user, is refused by name."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessence as hs
from tests.models.oracle import assert_same, dense_hessian

ASKED = {
    "hessian": lambda *case: hs.hessian(*case),
    "ggn": lambda *case: hs.ggn(*case),
    "gradient": lambda *case: hs.hessian(*case).gradient(),
    "spectrum": lambda *case: hs.spectrum(*case),
    "layers": lambda *case: hs.layer_spectra(*case),
    "monitor": lambda *case: hs.Monitor(*case),
}


def penalised(model):
    """A loss of (prediction, target) that reaches for a model's parameters."""

    def loss(f, y):
        return F.mse_loss(f, y) + 10 * sum((p**2).sum() for p in model.parameters())

    return loss


class Penalised(nn.Module):
    """The same as a module, which may hold the model in a list or as a part."""

    def __init__(self, model, *, hidden):
        super().__init__()
        self.model = [model] if hidden else model

    def forward(self, f, y):
        model = self.model[0] if isinstance(self.model, list) else self.model
        return penalised(model)(f, y)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("form", ["function", "hidden", "part"])
def test_a_loss_that_reaches_for_the_parameters_is_refused(mlp, pair, asked, form):
    loss = penalised(mlp) if form == "function" else Penalised(mlp, hidden=form == "hidden")
    with pytest.raises(ValueError, match=r"loss depends on '0\.weight'.*closure loss\(model"):
        ASKED[asked](mlp, pair, loss)


@pytest.mark.parametrize("asked", sorted(ASKED.keys() - {"ggn"}))
@pytest.mark.parametrize("part", ["all of it", "the penalty"])
def test_a_closure_that_reaches_past_its_model_is_refused(mlp, pair, asked, part):
    def loss(model, batch):
        used = mlp if part == "all of it" else model
        return penalised(mlp)(used(batch[0]), batch[1])

    with pytest.raises(ValueError, match=r"loss reaches past the model.*'0\.weight'"):
        ASKED[asked](mlp, {0: pair[0], 1: pair[1]}, loss)


@pytest.mark.parametrize("asked", ASKED)
def test_a_patched_model_that_reaches_past_its_copy_is_refused(mlp, pair, asked):
    own = mlp[0].forward
    mlp[0].forward = lambda x: own(x)
    with pytest.raises(ValueError, match=r"still uses '0\.weight'.*copy=False"):
        ASKED[asked](mlp, pair, nn.MSELoss())


def test_the_closure_that_it_asks_for_is_right_everywhere(mlp, pair):
    x, y = pair

    def closure(model, batch):
        return penalised(model)(model(batch[0]), batch[1])

    def value():
        return penalised(mlp)(mlp(x), y)

    expected = dense_hessian(value, mlp.parameters())
    top = torch.linalg.eigvalsh(expected)[-1]
    given = {"closure": True}
    H = hs.hessian(mlp, pair, closure, **given)
    assert_same(H.dense(), expected)
    slopes = torch.autograd.grad(value(), list(mlp.parameters()))
    assert_same(H.gradient(), torch.cat([s.reshape(-1) for s in slopes]))
    assert float(hs.spectrum(mlp, pair, closure, **given).sharpness) == pytest.approx(float(top))
    assert hs.Monitor(mlp, pair, closure, **given).measure(0).sharpness == pytest.approx(float(top))
    first = hs.layer_spectra(mlp, pair, closure, **given)["0"].eigenvalues[0]
    assert float(first) == pytest.approx(float(torch.linalg.eigvalsh(expected[:16, :16])[-1]))


def test_a_closure_of_another_model_is_refused(mlp, pair):
    other = copy.deepcopy(mlp)
    with pytest.raises(ValueError, match="loss does not depend on the model that it is given"):
        hs.hessian(mlp, pair, lambda _, batch: other(batch[0]).pow(2).mean(), closure=True)
