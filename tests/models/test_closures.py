"""Closures loss(model, batch) on batches of any kind: the same on batches as on all data."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessence as hs
from tests.models.market import numbers
from tests.models.oracle import assert_same, dense_hessian
from tests.models.ragged import SAMPLES, batches, mlp, partly_ignored

pytestmark = pytest.mark.usefixtures("seeded")


def test_closures():
    model, x, y = mlp(), numbers(SAMPLES, 2), partly_ignored()

    def loss(model, batch):
        inputs, target = batch
        return F.mse_loss(model(inputs), target)

    def own_name(anything, batch):
        return F.mse_loss(anything(batch[0]), batch[1])

    class Penalised:
        def __call__(self, model, batch):
            return loss(model, batch) + 0.1 * model[0].weight.pow(4).sum()

    def weighted(model, batch):
        """The mean over targets that count, and how many do: not a number where none does."""
        inputs, target = batch
        return F.cross_entropy(model(inputs), target), (target != -100).sum()

    t = numbers(SAMPLES, 3)
    for closure in (loss, own_name, Penalised()):
        expected = dense_hessian(partial(closure, model, (x, t)), model.parameters())
        assert_same(hs.hessian(model, (x, t), closure, closure=True).dense(), expected)
        H = hs.hessian(model, batches(x, t), closure, reduction="mean", closure=True)
        assert_same(H.dense(), expected)
        assert H.loss() == pytest.approx(closure(model, (x, t)).item(), rel=1e-13)
    expected = dense_hessian(lambda: F.cross_entropy(model(x), y), model.parameters())
    assert torch.isnan(weighted(model, batches(x, y)[1])[0])
    H = hs.hessian(model, batches(x, y), weighted, closure=True)
    assert_same(H.dense(), expected)
    assert H.loss() == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-13)


def test_losses_that_write_to_their_target():
    model, x = mlp(), numbers(SAMPLES, 2)
    y = torch.randint(3, (SAMPLES,))
    y[::4] = 255
    kept, cleaned = y.clone(), torch.where(y == 255, 0, y)

    def function(prediction, target):
        target[target == 255] = 0
        return F.cross_entropy(prediction, target)

    expected = hs.hessian(model, (x, cleaned), nn.CrossEntropyLoss()).dense()
    for data in ((x, y), batches(x, y)):
        assert_same(hs.hessian(model, data, function, reduction="mean").dense(), expected)
        hs.spectrum(model, data, function, k=2, reduction="mean")
        assert torch.equal(y, kept)

    def single(prediction, target):
        assert prediction.dtype == torch.float32
        return function(prediction, target)

    hs.hessian(model.float(), batches(x.float(), y), single, reduction="mean")
    assert torch.equal(y, kept)


def test_losses_of_a_small_domain():
    """What the loss cannot be called on is not asked of it."""
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)

    def unit(prediction, target):
        assert ((prediction.norm(dim=1) - 1).abs() < 1e-9).all()
        return -(prediction * target).sum(dim=1).mean()

    class Unit(nn.Module):
        def forward(self, z):
            return F.normalize(z)

    assert (
        hs.hessian(nn.Sequential(model, Unit()), batches(x, y), unit, reduction="mean")
        .check()
        .passed
    )


def test_a_loss_in_double_precision_of_a_model_in_single():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(300, 256), nn.Tanh(), nn.Linear(256, 5))
        x, y = torch.randn(90, 300), torch.randint(5, (90,))
    data = [(x[:31], y[:31]), (x[31:], y[31:])]

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]).double(), batch[1])

    H = hs.hessian(model, data, loss, reduction="mean", closure=True)
    assert H.loss() == pytest.approx(loss(model, (x, y)).item())


def test_closures_on_pairs_are_said_to_be_such():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)

    def loss(model, batch):
        return F.mse_loss(model(batch[0]), batch[1])

    with pytest.raises(TypeError, match="not callable") as caught:
        hs.hessian(model, (x, y), loss)
    assert "pass closure=True" in str(caught.value)
    with pytest.raises(ValueError, match="closure=True is for functions"):
        hs.hessian(model, (x, y), nn.MSELoss(), closure=True)


def test_a_list_of_two_tensors():
    model, x, y = nn.Linear(3, 3).double(), numbers(4, 3), numbers(4, 3)

    def loss(model, batch):
        return model(batch).pow(2).mean()

    with pytest.raises(ValueError, match=r"a list of two tensors may be a pair .* or two batches"):
        hs.hessian(model, [x, y], loss)
    both = torch.cat([x, y])
    expected = dense_hessian(lambda: loss(model, both), model.parameters())
    assert_same(hs.hessian(model, [x, y], loss, reduction="mean", closure=True).dense(), expected)


def test_a_loss_with_a_tensor_of_its_own():
    """It may be chosen; a loss that is a module is copied, but not what is chosen."""
    model, x, y = mlp(), numbers(SAMPLES, 2), torch.randint(3, (SAMPLES,))
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def loss(prediction, target):
        return F.cross_entropy(scale * prediction, target)

    both = [*model.parameters(), scale]
    expected = dense_hessian(lambda: loss(model(x), y), both)
    assert_same(hs.hessian(model, (x, y), loss, both).dense(), expected)


def test_closures_where_the_model_takes_something_else():
    """The model cannot be called on what the batch has."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()
    x, y = numbers(6, 2, 2), numbers(6, 3)

    def loss(m, b):
        return (m(b[0].flatten(1)) - b[1]).pow(2).mean()

    with pytest.raises(ValueError, match=r"cannot be run on inputs .*pass closure=True"):
        hs.hessian(model, (x, y), loss)
    assert hs.hessian(model, (x, y), loss, closure=True).check().passed


@pytest.mark.filterwarnings("ignore:.torch.jit")  # within PyTorch itself
def test_forward_derivatives_in_a_closure():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = numbers(6, 3)

    def closure(model, batch):
        return torch.func.jvp(model, (batch[0],), (torch.ones_like(x),))[1].pow(2).mean()

    def by_hand():
        at = x.clone().requires_grad_()
        slope = torch.autograd.grad(model(at).sum(), at, create_graph=True)[0]
        return slope.sum(dim=1).pow(2).mean()

    expected = dense_hessian(by_hand, model.parameters())
    assert_same(hs.hessian(model, (x, x), closure, closure=True).dense(), expected)


def test_a_closure_that_returns_an_array_is_told_so():
    data = numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    with pytest.raises(TypeError, match=r"loss must return one number, or one for .*\(13, 3\)"):
        hs.hessian(mlp(), data, lambda model, batch: model(batch[0]), closure=True).dense()

    def each(model, batch):
        return (model(batch[0]) - batch[1]).square().sum(dim=1)

    model = mlp()
    expected = hs.hessian(model, data, lambda m, b: each(m, b).mean(), closure=True).dense()
    assert_same(hs.hessian(model, data, each, closure=True).dense(), expected)
    cut = hs.hessian(model, batches(*data), each, closure=True)
    assert_same(cut.dense(), expected)


def test_a_closure_that_returns_more_than_the_loss_is_told_so():
    def loss(model, batch):
        prediction = model(batch[0])
        return F.mse_loss(prediction, batch[1]), prediction

    with pytest.raises(TypeError, match=r"loss .*\(mean, weight\)"):
        hs.hessian(mlp(), (numbers(SAMPLES, 2), numbers(SAMPLES, 3)), loss, closure=True).dense()
