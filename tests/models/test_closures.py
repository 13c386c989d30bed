"""Closures loss(model, batch) on batches of any kind: the same on batches as on all data."""

from functools import partial

import numpy as np
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


@pytest.mark.parametrize("sizes", [[1] * 12, [1, 11], [11, 1], [5, 7]], ids=str)
@pytest.mark.parametrize("reduce", [torch.mean, torch.sum])
def test_closures_on_batches_of_one_sample(sizes, reduce):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x, y = numbers(12, 3), numbers(12, 1)

    def closure(model, batch):
        return reduce((model(batch[0]) - batch[1]) ** 2)

    parts = list(zip(x.split(sizes), y.split(sizes), strict=True))
    H = hs.hessian(model, parts, closure, reduction=reduce.__name__, closure=True)
    assert H.loss() == pytest.approx(closure(model, (x, y)).item())
    assert H.check().passed


def test_closures_that_are_sums_at_zero_loss():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    x, y = numbers(12, 3), torch.zeros(12, 2).double()

    def closure(model, batch):
        return (model(batch[0]) - batch[1]).pow(2).sum()

    parts = list(zip(x.split(5), y.split(5), strict=True))
    expected = dense_hessian(lambda: closure(model, (x, y)), model.parameters())
    assert_same(hs.hessian(model, parts, closure, reduction="sum", closure=True).dense(), expected)


def test_closures_that_know_the_number_of_samples():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = numbers(12, 3), numbers(12, 2)

    def closure(model, batch):
        return (model(batch["x"]) - batch["y"]).pow(2).sum() / batch["samples"]

    rows = [slice(5), slice(5, 9), slice(9, 12)]
    parts = [{"x": x[i], "y": y[i], "samples": len(x[i])} for i in rows]
    whole = {"x": x, "y": y, "samples": 12}
    expected = dense_hessian(lambda: closure(model, whole), model.parameters())
    H = hs.hessian(model, parts, closure, reduction="mean")
    assert_same(H.dense(), expected)
    assert H.check().passed


def test_means_over_words_of_batches_of_other_lengths():
    """Batches that cannot be joined are cut, which tells if words are ignored."""
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3)).double()
    data = [(torch.randint(10, (4, length)), torch.randint(3, (4, length))) for length in (2, 5)]

    def function(prediction, target):
        return F.cross_entropy(prediction.flatten(0, 1), target.flatten())

    with pytest.raises(ValueError, match="such as words or targets that are not ignored"):
        hs.hessian(model, data, function)
    assert hs.hessian(model, data, function, reduction="mean").check().passed
    data[0][1][0] = -100
    assert "over words" in hs.hessian(model, data, function, reduction="mean").check().message

    def weighted(prediction, target):
        return function(prediction, target), (target != -100).sum()

    words = sum((y != -100).sum() for _, y in data)
    expected = sum(function(model(x), y) * (y != -100).sum() for x, y in data) / words
    H = hs.hessian(model, data, weighted)
    assert H.check().passed
    assert H.loss() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("kind", ["function", "closure"])
def test_weighted_means_are_told_of(kind):
    model, x, y = nn.Linear(3, 4).double(), numbers(80, 3), torch.randint(4, (80,))
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()

    def function(prediction, target):
        return F.cross_entropy(prediction, target, weight=weight)

    def closure(model, batch):
        return function(model(batch[0]), batch[1])

    data = list(zip(x.split(2), y.split(2), strict=True))
    given = {"loss": function if kind == "function" else closure, "closure": kind == "closure"}
    with pytest.warns(hs.CheckWarning, match="of two batches together is not the combination"):
        hs.spectrum(model, data, k=1, reduction="mean", **given)
    with pytest.warns(hs.CheckWarning, match="of two batches together is not the combination"):
        hs.Monitor(model, data, reduction="mean", **given).measure(0)


def test_sums_in_any_shape():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)

    def total(prediction, target):
        return (prediction - target).square().sum()

    expected = dense_hessian(lambda: total(model(x), y), model.parameters())
    named = [{"x": a, "y": b, "name": ["q"] * len(a)} for a, b in batches(x, y)]
    for data, loss in (
        (batches(x, y), lambda prediction, target: total(prediction, target).reshape(1)),
        (batches(x, y), lambda prediction, target: total(prediction, target)),
        (named, lambda model, batch: total(model(batch["x"]), batch["y"]).reshape(1)),
    ):
        with pytest.raises(ValueError, match='say reduction="mean" if'):
            hs.hessian(model, data, loss)
        assert_same(hs.hessian(model, data, loss, reduction="sum").dense(), expected)


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


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_sums_in_half_precision(kind):
    model, x, y = mlp().float(), torch.randn(SAMPLES, 2), torch.randn(SAMPLES, 3)

    def loss(model, batch):
        return F.mse_loss(model(batch[0]), batch[1], reduction="sum").to(kind)

    whole = hs.hessian(model, [(x, y)], loss, closure=True).dense()
    cut = hs.hessian(model, batches(x, y), loss, reduction="sum", closure=True).dense()
    assert float((cut - whole).norm()) <= 0.05 * float(whole.norm())


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


@pytest.mark.parametrize(("weight", "said"), [
    (-1, "a weight that is not negative, got -1"), (float("nan"), "not negative, got nan"),
    ("three", "a pair .mean, weight. .* got a tuple of Tensor, str"),
])  # fmt: skip
def test_weights_that_are_none(weight, said):
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    with pytest.raises((TypeError, ValueError), match=said):
        hs.hessian(model, (x, y), lambda m, b: (F.mse_loss(m(b[0]), b[1]), weight), closure=True)


@pytest.mark.parametrize("kind", [np.int64, np.float32, int, float, torch.tensor])
def test_weights_of_any_kind(kind):
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    data = batches(x, y)
    expected = dense_hessian(lambda: F.mse_loss(model(x), y), model.parameters())

    def closure(model, batch):
        return F.mse_loss(model(batch[0]), batch[1]), kind(len(batch[0]))

    def function(prediction, target):
        return F.mse_loss(prediction, target), kind(len(target))

    for loss in (closure, function):
        H = hs.hessian(model, data, loss, closure=loss is closure)
        assert_same(H.dense(), expected)
        assert H.check().passed
    G = hs.ggn(model, data, nn.MSELoss()).dense()
    assert_same(hs.ggn(model, data, function).dense(), G)


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


def test_losses_that_reach_past_the_copy():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)

    def past(_, batch):
        return F.mse_loss(model(batch[0]), batch[1])

    def partly(copy, batch):
        return past(copy, batch) + copy[0].weight.pow(2).sum()

    def penalised(prediction, target):
        return F.mse_loss(prediction, target) + 0.1 * model[0].weight.pow(4).sum()

    for loss in (past, partly):
        with pytest.raises(ValueError, match=r"reaches past the model .* '0\.weight', '0\.bias'"):
            hs.hessian(model, (x, y), loss, closure=True).dense()
    with pytest.raises(ValueError, match=r"loss depends on '0\.weight' of .*loss\(model, batch\)"):
        hs.hessian(model, (x, y), penalised).dense()
    other = mlp()
    with pytest.raises(ValueError, match="loss does not depend on the model that it is given"):
        hs.hessian(other, (x, y), past, closure=True).dense()


class Penalised(nn.Module):
    """A loss that holds the model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, prediction, target):
        return F.mse_loss(prediction, target) + 0.1 * self.model[0].weight.pow(4).sum()


def test_a_loss_that_holds_the_model():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    with pytest.raises(ValueError, match=r"loss depends on '0\.weight' .*loss\(model, batch\)"):
        hs.hessian(model, (x, y), Penalised(model))


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


def test_closures_that_are_means_over_words():
    """Batches with as many words per sample each, but not as many as one another."""
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10)).double()
    words, target = torch.arange(48).reshape(8, 6) % 10, torch.arange(48).reshape(8, 6) % 7
    target[4:, 1:] = -100

    def closure(model, batch):
        found = model(batch["words"]).flatten(0, 1)
        return nn.functional.cross_entropy(found, batch["target"].flatten())

    whole = {"words": words, "target": target}
    halves = [{name: part[rows] for name, part in whole.items()}
              for rows in (slice(4), slice(4, None))]  # fmt: skip
    assert hs.hessian(model, whole, closure).loss() > 0
    with pytest.warns(hs.CheckWarning, match=r"over words: return a pair \(mean, weight\)"):
        hs.spectrum(model, halves, closure, k=1, reduction="mean")

    def weighted(model, batch):
        return closure(model, batch), (batch["target"] != -100).sum()

    expected = hs.hessian(model, whole, closure).dense()
    H = hs.hessian(model, halves, weighted)
    assert_same(H.dense(), expected)
    assert H.check().passed


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


class TestClosuresOverSeveralBatches:
    """What a closure returns is said by the caller."""

    @staticmethod
    def problem():
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
            x, y = torch.randn(11, 3).double(), torch.randint(3, (11,))
        return model, x, y, [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:], y[8:])]

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_means_and_sums(self, reduction):
        model, x, y, batches = self.problem()

        def closure(model, batch):
            return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction=reduction)

        expected = dense_hessian(lambda: closure(model, (x, y)), model.parameters())
        H = hs.hessian(model, batches, closure, reduction=reduction, closure=True)
        assert_same(H.dense(), expected)
        assert H.check().passed
        other = {"mean": "sum", "sum": "mean"}[reduction]
        check = hs.hessian(model, batches, closure, reduction=other, closure=True).check()
        assert not check.passed
        assert "of two batches together is not the combination" in check.message

    def test_a_mean_with_a_penalty_is_a_mean(self):
        model, x, y, batches = self.problem()

        def closure(model, batch):
            penalty = sum((p**2).sum() for p in model.parameters())
            return nn.functional.cross_entropy(model(batch[0]), batch[1]) + 0.1 * penalty

        expected = dense_hessian(lambda: closure(model, (x, y)), model.parameters())
        assert_same(
            hs.hessian(model, batches, closure, reduction="mean", closure=True).dense(), expected
        )

    def test_neither_is_told_of(self):
        model, _, y, batches = self.problem()
        y[::3] = -100

        def closure(model, batch):
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        with pytest.raises(ValueError, match=r"pair \(mean, weight\)"):
            hs.hessian(model, batches, closure, closure=True)
        H = hs.hessian(model, batches, closure, reduction="mean", closure=True)
        assert "pair (mean, weight)" in H.check().message
        assert hs.hessian(model, batches[0], closure, closure=True).check().passed

    def test_one_without_a_derivative_is_refused(self):
        model, x, y, _ = self.problem()

        def closure(model, batch):
            return nn.functional.cross_entropy(model(batch[0]), batch[1]).detach()

        with pytest.raises(ValueError, match="loss has no derivative"):
            hs.hessian(model, (x, y), closure, closure=True) @ torch.ones(31).double()
        flat = hs.hessian(model, (x, y), lambda _, batch: batch[0].sum(), closure=True).dense()
        assert not flat.any()
