"""Spectra layer by layer."""

import pytest
import torch
from torch import nn

import hessence as hs
from hessence.models._model_operator import ModelOperator
from hessence.models.layers import LayerSpectra
from tests.models.oracle import dense_hessian
from tests.models.stacks import dense, mlp


def test_layers(data):
    x, y = data
    torch.manual_seed(8)
    model = mlp(4, 6, 5, 2)
    H = dense(model, lambda: nn.MSELoss()(model(x), y))
    found = hs.layer_spectra(model, data, nn.MSELoss(), k=3)
    assert list(found) == ["0", "2", "4"]
    start = 0
    for name, pairs in found.items():
        size = sum(p.numel() for p in model[int(name)].parameters())
        block = H[start : start + size, start : start + size]
        truth = torch.linalg.eigvalsh(block).flip(0)[:3]
        assert float((pairs.eigenvalues - truth).abs().max()) <= 1e-6 * float(truth[0])
        assert float(pairs.sharpness) == float(pairs.eigenvalues.max())
        start += size
    assert found.converged
    assert found.products == sum(pairs.products for pairs in found.values())
    rows = str(found).splitlines()[2:]
    for row, (name, pairs) in zip(rows, found.items(), strict=True):
        size, *values, _ = row.split()[1:]
        assert row.split()[0] == name
        assert int(size) == sum(p.numel() for p in model[int(name)].parameters())
        assert [float(v) for v in values] == pytest.approx(pairs.eigenvalues.tolist(), rel=1e-3)
    each = hs.layer_spectra(model, data, nn.MSELoss(), groups="parameter", of="ggn")
    assert list(each) == [name for name, _ in model.named_parameters()]
    chosen = hs.layer_spectra(model, data, nn.MSELoss(), groups={"ends": ["0", "4"]})
    assert chosen["ends"].eigenvectors.shape[0] == 30 + 12
    with pytest.warns(hs.ConvergenceWarning):
        pairs = hs.eigenpairs(torch.diag(torch.arange(999.0)), max_products=20)
    unresolved = LayerSpectra(a=pairs)
    assert not unresolved.converged
    assert str(unresolved).endswith(f"!\n  ! a: {unresolved['a'].message}")
    with pytest.raises(ValueError, match="groups must be"):
        hs.layer_spectra(model, data, groups="all")
    with pytest.raises(ValueError, match="of must be"):
        hs.layer_spectra(model, data, of="fisher")
    with pytest.raises(ValueError, match="groups: no parameter matches 'zero'"):
        hs.layer_spectra(model, data, groups={"a": "zero"})


def test_bad_k_for_layers(data):
    for k in (0, "all"):
        with pytest.raises(ValueError, match="k must be an integer of at least 1"):
            hs.layer_spectra(mlp(4, 3, 2), data, k=k)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(2))
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.scale * self.inner(x).tanh() + self.shift


def test_parameters_of_the_model_itself_are_one_block(data):
    x, y = data
    model = Scaled().double()
    found = hs.layer_spectra(model, data, nn.MSELoss(), k=4)
    assert list(found) == ["(model)", "inner"]
    own = dense_hessian(lambda: nn.MSELoss()(model(x), y), [model.scale, model.shift])
    truth = torch.linalg.eigvalsh(own).flip(0)
    torch.testing.assert_close(found["(model)"].eigenvalues, truth)


def test_mistakes_are_told_before_anything_is_computed(data, monkeypatch):
    monkeypatch.setattr(ModelOperator, "times", lambda *_: pytest.fail("a product was made"))
    for wrong in ({"groups": {"a": "0", "b": "zero"}}, {"which": "XX"}, {"tol": -1}):
        with pytest.raises(ValueError, match=rf"{min(wrong)}.*(zero|XX|-1)"):
            hs.layer_spectra(mlp(4, 3, 2), data, **wrong)
