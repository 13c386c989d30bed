"""Layers that do in training mode what has no Hessian."""

import pytest
import torch
from torch import nn

import hessence as hs
from tests.models.market import Recurrent, numbers
from tests.models.oracle import assert_same, dense_hessian


class Attending(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0].mean(1)


class Nested(nn.Module):
    """Has a layer where its full name must be told."""

    def __init__(self, layer):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.Tanh(), nn.Sequential(layer))

    def forward(self, x):
        return self.body(self.first(x))


RANDOM = {
    "dropout": (lambda: Nested(nn.Dropout(0.1)), "'body.1.0' (Dropout) drops"),
    "dropout 1d": (lambda: Nested(nn.Dropout1d(0.1)), "'body.1.0' (Dropout1d) drops"),
    "alpha dropout": (lambda: Nested(nn.AlphaDropout(0.1)), "'body.1.0' (AlphaDropout) drops"),
    "rrelu": (lambda: Nested(nn.RReLU()), "'body.1.0' (RReLU) draws"),
    "attention": (lambda: Attending(0.2), "'attention' (MultiheadAttention) drops"),
    "lstm": (
        lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.3), "'recurrent' (LSTM) drops",
    ),
    "encoder": (
        lambda: Nested(nn.TransformerEncoderLayer(4, 2, 8)), "(MultiheadAttention) drops",
    ),
    "dropout alone": (lambda: nn.Dropout(0.1), "and Dropout drops"),
}  # fmt: skip


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
@pytest.mark.parametrize("name", RANDOM)
def test_random_layers_while_training(name, operator):
    make, message = RANDOM[name]
    with pytest.raises(ValueError, match=r"model is in training mode and .*eval_mode=True") as told:
        operator(make(), (numbers(3, 4), numbers(3, 4)), nn.MSELoss())
    assert message in str(told.value)


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.RReLU(0.2, 0.2)])
def test_layers_that_are_random_in_name_only(layer):
    model = Nested(layer).double()
    H = hs.hessian(model, (numbers(3, 4), numbers(3, 4)), nn.MSELoss())
    assert H.check().passed


@pytest.mark.parametrize("make", [
    lambda: Nested(nn.Dropout(0.5)), lambda: Nested(nn.BatchNorm1d(4)), lambda: Nested(nn.RReLU()),
])  # fmt: skip
def test_evaluation_mode_for_the_time_being(make):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = make().double()
        x, y, loss = numbers(5, 4), numbers(5, 4), nn.MSELoss()
        model(x)
    model.body[0].eval()
    modes = [m.training for m in model.modules()]
    for operator in (hs.hessian, hs.ggn):
        H = operator(model, (x, y), loss, eval_mode=True)
        assert [m.training for m in model.modules()] == modes
        found = H.dense()
        assert [m.training for m in model.modules()] == modes
        model.eval()
        assert_same(found, operator(model, (x, y), loss).dense())
        for module, training in zip(model.modules(), modes, strict=True):
            module.training = training
    model.eval()
    expected = dense_hessian(lambda: loss(model(x), y), model.parameters())
    assert_same(hs.hessian(model.train(), (x, y), loss, eval_mode=True).dense(), expected)


BATCHES = [(numbers(3, 4), numbers(3, 4))] * 2


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_batch_norms_on_several_batches(kind, operator):
    said = rf"training mode and layer 'body.1.0' \({kind.__name__}\) normalises .*eval_mode=True"
    with pytest.raises(ValueError, match=said):
        operator(Nested(kind(4)).double(), BATCHES, nn.MSELoss())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("eval_mode", [True, False])
def test_batch_norms_without_running_statistics(training, eval_mode):
    model = Nested(nn.BatchNorm1d(4, track_running_stats=False)).train(training).double()
    with pytest.raises(ValueError, match=r"'body.1.0' \(BatchNorm1d\).* no running statistics"):
        hs.hessian(model, BATCHES, eval_mode=eval_mode)
