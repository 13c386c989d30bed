"""Models that a theorem covers, and those that only look like it."""

import pytest
import torch
from torch import nn

import hessence as hs
from hessence.models.recognition import recognise
from tests.models.stacks import dense, linear

EXACT = {
    "scalar": (lambda: linear(1, 12, 1), "closed form"),
    "two layers": (lambda: linear(4, 40, 2), "narrow twin"),
    "deep": (lambda: linear(4, 6, 5, 2), None),
    "relu": (
        lambda: nn.Sequential(
            nn.Linear(1, 9, bias=False), nn.ReLU(), nn.Linear(9, 1, bias=False)
        ).double(),
        "closed form",
    ),
    "affine": (
        lambda: nn.Sequential(nn.Linear(1, 9), nn.Linear(9, 1, bias=False)).double(),
        None,
    ),
    "twin inside": (
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 30), nn.Linear(30, 2)
        ).double(),
        "narrow twin",
    ),
}


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.MSELoss(reduction="sum")])
@pytest.mark.parametrize("name", EXACT)
def test_recognised_models_are_exact(name, loss):
    torch.manual_seed(2)
    make, method = EXACT[name]
    model = make()
    inputs, outputs = model[0].in_features, model[-1].out_features
    x = torch.randn(50, inputs, dtype=torch.float64)
    y = torch.randn(50, outputs, dtype=torch.float64)
    s = hs.spectrum(model, (x, y), loss)
    H = dense(model, lambda: loss(model(x), y))
    truth = torch.linalg.eigvalsh(H).flip(0)
    assert s.exact
    assert s.reason
    assert method in (None, s.method)
    assert float((s.eigenvalues - truth).abs().max()) <= 1e-10 * float(truth.abs().max())
    assert s.verify(H).worst < 1e-10


def test_batches_are_joined_for_the_theorem(data):
    x, y = data
    torch.manual_seed(2)
    model = linear(4, 40, 2)
    whole = hs.spectrum(model, (x, y), nn.MSELoss())
    cut = hs.spectrum(model, [(x[:50], y[:50]), (x[50:], y[50:])], nn.MSELoss())
    assert cut.exact
    assert float((cut.eigenvalues - whole.eigenvalues).abs().max()) < 1e-12


class Inside(nn.Sequential):
    """A model that looks like a two-layer network and is not."""

    def forward(self, x):
        return self[1](torch.tanh(self[0](x)))


class After(nn.Sequential):
    """Another one, but it has a pair of linear layers in it."""

    def forward(self, x):
        return torch.tanh(super().forward(x))


@pytest.mark.parametrize(("kind", "exact"), [(Inside, False), (After, True)])
def test_lookalikes_are_what_they_compute(data, kind, exact):
    torch.manual_seed(5)
    model = kind(nn.Linear(4, 40, bias=False), nn.Linear(40, 2, bias=False)).double()
    x, y = data
    s = hs.spectrum(model, data, nn.MSELoss(), k=3)
    truth = torch.linalg.eigvalsh(dense(model, lambda: nn.MSELoss()(model(x), y))).flip(0)
    assert s.exact == exact
    worst = (s.eigenvalues - truth[: len(s.eigenvalues)]).abs().max()
    assert float(worst) < (1e-12 if exact else 1e-6) * float(truth[0])


def test_a_wrong_theorem_is_caught(data, monkeypatch):
    """If recognition were wrong by one in a million, the products would tell."""
    torch.manual_seed(6)
    model = linear(4, 40, 2)
    real, (x, y) = recognise.recognise, data
    off = hs.hessian(model, (x, y * (1 + 1e-6)), nn.MSELoss())
    monkeypatch.setattr(recognise, "recognise", lambda H: real(off))
    s = hs.spectrum(model, data, nn.MSELoss(), k=2)
    assert not s.exact
    assert "its products differ" in s.reason


@pytest.mark.parametrize("middle", [nn.Dropout(0.5), nn.BatchNorm1d(2)])
def test_theorems_see_the_evaluation_mode(middle, data):
    torch.manual_seed(3)
    layers = [nn.Linear(4, 40), nn.Linear(40, 2)]
    layers.insert(1 if isinstance(middle, nn.Dropout) else 2, middle)
    model = nn.Sequential(*layers).double()
    found = hs.spectrum(model, data, nn.MSELoss(), eval_mode=True)
    assert all(module.training for module in model.modules())
    assert found.exact
    model.eval()
    truth = torch.linalg.eigvalsh(dense(model, lambda: nn.MSELoss()(model(data[0]), data[1])))
    assert torch.allclose(found.eigenvalues, truth.flip(0), rtol=0, atol=1e-12 * float(truth[-1]))


class Nearly(nn.Module):
    """A wide pair of linear layers, but for one weight that also scales the output a little."""

    def __init__(self):
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(4, 400), nn.Linear(400, 2))

    def forward(self, x):
        return self.pair(x) * (1 + 0.01 * self.pair[0].weight[0, 0] ** 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_lookalikes_do_not_pass_either(dtype, data):
    torch.manual_seed(9)
    model = Nearly().to(dtype)
    assert not hs.spectrum(model, tuple(part.to(dtype) for part in data), k=1).exact
