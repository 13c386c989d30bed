"""What has no brackets of its own, and what brackets refuse or warn of."""

import pytest
import torch
from torch import nn

import hessence as hs
from tests.models.test_brackets import dense, eigenvalues_and_noise, network, require_contained


class Softened(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()

    def forward(self, x):
        return self.b(torch.softmax(self.a(x), dim=-1))


class Norm(nn.Module):
    """Divides by a number that depends on all hidden units, behind PyTorch's back."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()

    def forward(self, x):
        z = self.a(x)
        return self.b(torch.tanh(z) / z.square().sum())


def between(mixing, width=4):
    """Two layers with a mixture of hidden units between them that needs their shape."""
    return nn.Sequential(nn.Linear(3, 4), mixing, nn.Linear(width, 2)).double()


@pytest.mark.parametrize(
    "model",
    [
        Softened(),
        Norm(),
        between(nn.LayerNorm(4, elementwise_affine=False)),
        between(nn.Softmax(dim=1)),
        between(nn.GLU(), 2),
    ],
)
def test_what_mixes_hidden_units_is_no_activation(model):
    data = torch.randn(6, 3).double(), torch.randn(6, 2).double()
    found = hs.brackets(model, data, nn.MSELoss())
    assert found.method == "dual"
    require_contained(found, *eigenvalues_and_noise(dense(model, data, nn.MSELoss())))


def test_bad_input_gets_a_sentence():
    model, data = network()
    with pytest.raises(ValueError, match="loss must be convex in the predictions"):
        hs.brackets(model, data, lambda f, y: torch.cos(f - y).mean())
    found = hs.brackets(model, data)
    with pytest.raises(ValueError, match=r"a must not be above b, got a = 2.0 and b = 1.0"):
        found.count(2.0, 1.0)
    with pytest.raises(TypeError, match="a must be a number, got str"):
        found.count("low", 1.0)
    with pytest.raises(ValueError, match="edges must be two or more numbers in ascending order"):
        found.histogram([1.0, 0.0])
    with pytest.raises(ValueError, match="index must be an integer between"):
        found.eigenvalue(len(found))
    with pytest.raises(ValueError, match="k must be an integer"):
        found.refine(0)
    with pytest.raises(ValueError, match=r"which must be .* got 'LM'"):
        found.refine(1, "LM")


def test_a_loss_that_is_convex_but_for_little_is_refused():
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(5, 3).double()
    data = x, model(x).detach()

    def bent(f, y, share=-1e-13):
        return ((f - y).square() * torch.tensor([1.0, share])).sum(1).mean()

    with pytest.raises(ValueError, match=r"convex in the predictions .* eigenvalue -4e-14"):
        hs.brackets(model, data, bent)


def test_a_share_of_the_data_has_no_brackets(monkeypatch):
    model, data = network()
    monkeypatch.setattr("hessence.models.data.parallel", lambda: True)
    with pytest.raises(ValueError, match="brackets need all of them in one"):
        hs.brackets(model, data)


def test_a_kink_is_warned_of():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    with torch.no_grad():
        model[0].weight[1] = model[0].bias[1] = 0
    data = torch.randn(4, 2).double(), torch.randn(4, 1).double()
    with pytest.warns(hs.KinkWarning, match="4 pre-activation"):
        hs.brackets(model, data)
