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
        assert_same(hs.hessian(model, (x, t), closure).dense(), expected)
        H = hs.hessian(model, batches(x, t), closure)
        assert_same(H.dense(), expected)
        assert H.loss() == pytest.approx(closure(model, (x, t)).item(), rel=1e-13)
    expected = dense_hessian(lambda: F.cross_entropy(model(x), y), model.parameters())
    assert torch.isnan(weighted(model, batches(x, y)[1])[0])
    H = hs.hessian(model, batches(x, y), weighted)
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
    assert hs.hessian(model, parts, closure).loss() == pytest.approx(closure(model, (x, y)).item())


def test_closures_that_are_sums_at_zero_loss():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    x, y = numbers(12, 3), torch.zeros(12, 2).double()

    def closure(model, batch):
        return (model(batch[0]) - batch[1]).pow(2).sum()

    parts = list(zip(x.split(5), y.split(5), strict=True))
    expected = dense_hessian(lambda: closure(model, (x, y)), model.parameters())
    assert_same(hs.hessian(model, parts, closure).dense(), expected)


def test_closures_that_know_the_number_of_samples():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = numbers(12, 3), numbers(12, 2)

    def closure(model, batch):
        return (model(batch["x"]) - batch["y"]).pow(2).sum() / batch["samples"]

    rows = [slice(5), slice(5, 9), slice(9, 12)]
    parts = [{"x": x[i], "y": y[i], "samples": len(x[i])} for i in rows]
    whole = {"x": x, "y": y, "samples": 12}
    expected = dense_hessian(lambda: closure(model, whole), model.parameters())
    with pytest.warns(UserWarning, match="cannot be found out on these batches, .* for a mean"):
        H = hs.hessian(model, parts, closure)
    assert_same(H.dense(), expected)


def test_means_over_words_of_batches_of_other_lengths_are_warned_of():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3)).double()
    data = [(torch.randint(10, (4, length)), torch.randint(3, (4, length))) for length in (2, 5)]

    def function(prediction, target):
        return F.cross_entropy(prediction.flatten(0, 1), target.flatten())

    def closure(model, batch):
        return function(model(batch[0]), batch[1])

    for loss in (function, closure):
        with pytest.warns(UserWarning, match="cannot be found out on these batches"):
            hs.hessian(model, data, loss)
    hs.hessian(model, data, lambda model, batch: (closure(model, batch), batch[1].numel()))


@pytest.mark.parametrize("late", [False, True], ids=["a head of zeros", "a late batch"])
@pytest.mark.parametrize("kind", ["function", "closure"])
def test_weighted_means_are_refused_wherever_they_show(kind, late):
    """Also where all samples have the same loss, and far behind."""
    model, x, y = nn.Linear(3, 4).double(), numbers(80, 3), torch.randint(4, (80,))
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    if late:
        y[75], weight = -100, None
    else:
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)

    def function(prediction, target):
        return F.cross_entropy(prediction, target, weight=weight)

    def closure(model, batch):
        return function(model(batch[0]), batch[1])

    data = list(zip(x.split(2), y.split(2), strict=True))
    with pytest.raises(ValueError, match="loss must be a mean or a sum over samples"):
        hs.hessian(model, data, function if kind == "function" else closure)


def test_sums_in_any_shape():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)

    def total(prediction, target):
        return (prediction - target).square().sum()

    expected = dense_hessian(lambda: total(model(x), y), model.parameters())
    named = [{"x": a, "y": b, "name": ["q"] * len(a)} for a, b in batches(x, y)]
    for data, loss in (
        (batches(x, y), lambda prediction, target: total(prediction, target).reshape(1)),
        (batches(x, y), lambda model, batch: total(model(batch[0]), batch[1]).reshape(1)),
        (named, lambda model, batch: total(model(batch["x"]), batch["y"])),
    ):
        assert_same(hs.hessian(model, data, loss).dense(), expected)


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
        assert_same(hs.hessian(model, data, function).dense(), expected)
        hs.spectrum(model, data, function, k=2)
        assert torch.equal(y, kept)

    def single(prediction, target):
        assert prediction.dtype == torch.float32
        return function(prediction, target)

    hs.hessian(model.float(), batches(x.float(), y), single)
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

    assert hs.hessian(nn.Sequential(model, Unit()), batches(x, y), unit).check().passed


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_sums_in_half_precision(kind):
    model, x, y = mlp().float(), torch.randn(SAMPLES, 2), torch.randn(SAMPLES, 3)

    def loss(model, batch):
        return F.mse_loss(model(batch[0]), batch[1], reduction="sum").to(kind)

    whole = hs.hessian(model, [(x, y)], loss).dense()
    cut = hs.hessian(model, batches(x, y), loss).dense()
    assert float((cut - whole).norm()) <= 0.05 * float(whole.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_that_are_sums_at_a_perfect_fit(dtype):
    """Predictions are the targets, so that a sum and a mean are both zero."""
    model, x = mlp().to(dtype), numbers(SAMPLES, 2).to(dtype)
    y = model(x).detach()

    def squares(prediction, target):
        return ((prediction - target) ** 2).sum()

    whole, cut = (hs.hessian(model, d, squares).dense() for d in ((x, y), batches(x, y)))
    assert float((cut - whole).norm()) <= 1e-5 * float(whole.norm())

    def masked(prediction, target):
        mask = target > target.median()
        return ((prediction - target) ** 2 * mask).sum() / mask.sum()

    with pytest.raises(ValueError, match="neither the mean nor the sum"):
        hs.hessian(model, batches(x, y), masked)


def test_losses_that_are_zero_everywhere_are_warned_of():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    with pytest.warns(UserWarning, match="cannot be found out"):
        hs.hessian(model, batches(x, y), lambda f, _: 0 * f.sum())


def test_a_loss_in_double_precision_of_a_model_in_single():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(300, 256), nn.Tanh(), nn.Linear(256, 5))
        x, y = torch.randn(90, 300), torch.randint(5, (90,))
    data = [(x[:31], y[:31]), (x[31:], y[31:])]

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]).double(), batch[1])

    assert hs.hessian(model, data, loss).loss() == pytest.approx(loss(model, (x, y)).item())


@pytest.mark.parametrize(("weight", "said"), [
    (-1, "a weight that is not negative, got -1"), (float("nan"), "not negative, got nan"),
    ("three", "a pair .mean, weight. .* got a tuple of Tensor, str"),
])  # fmt: skip
def test_weights_that_are_none(weight, said):
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    H = hs.hessian(model, (x, y), lambda model, b: (F.mse_loss(model(b[0]), b[1]), weight))
    with pytest.raises((TypeError, ValueError), match=said):
        H.dense()


@pytest.mark.parametrize("kind", [np.int64, np.float32, int, float, torch.tensor])
def test_weights_of_any_kind(kind):
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    data = batches(x, y)
    H = hs.hessian(model, data, lambda model, b: (F.mse_loss(model(b[0]), b[1]), kind(len(b[0]))))
    assert_same(H.dense(), dense_hessian(lambda: F.mse_loss(model(x), y), model.parameters()))


def test_closures_by_the_type_of_their_first_argument():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)

    def loss(one: "nn.Module", two):
        seen.add(isinstance(one, nn.Module))
        return F.mse_loss(one(two[0]), two[1])

    expected = dense_hessian(lambda: F.mse_loss(model(x), y), model.parameters())
    seen = set()
    assert_same(hs.hessian(model, (x, y), loss).dense(), expected)
    assert seen == {True}


def test_closures_by_any_name_of_their_arguments():
    """Also where the model cannot be called on what the batch has."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()
    x, y = numbers(6, 2, 2), numbers(6, 3)
    H = hs.hessian(model, (x, y), lambda m, b: (m(b[0].flatten(1)) - b[1]).pow(2).mean())
    assert H.check().passed


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
    with pytest.raises(ValueError, match="loss must be a mean or a sum over samples"):
        hs.hessian(model, halves, closure)

    def weighted(model, batch):
        return closure(model, batch), (batch["target"] != -100).sum()

    expected = hs.hessian(model, whole, closure).dense()
    assert_same(hs.hessian(model, halves, weighted).dense(), expected)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # within PyTorch itself
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
    assert_same(hs.hessian(model, (x, x), closure).dense(), expected)


def test_a_closure_that_returns_an_array_is_told_so():
    data = numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    with pytest.raises(TypeError, match=r"loss must return one number, or one for .*\(13, 3\)"):
        hs.hessian(mlp(), data, lambda model, batch: model(batch[0])).dense()

    def each(model, batch):
        return (model(batch[0]) - batch[1]).square().sum(dim=1)

    model = mlp()
    expected = hs.hessian(model, data, lambda model, batch: each(model, batch).mean()).dense()
    assert_same(hs.hessian(model, data, each).dense(), expected)


def test_a_closure_that_returns_more_than_the_loss_is_told_so():
    def loss(model, batch):
        prediction = model(batch[0])
        return F.mse_loss(prediction, batch[1]), prediction

    with pytest.raises(TypeError, match=r"loss .*\(mean, weight\)"):
        hs.hessian(mlp(), (numbers(SAMPLES, 2), numbers(SAMPLES, 3)), loss).dense()


class TestClosuresOverSeveralBatches:
    """What a closure returns is found out from parts of a batch."""

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
        assert_same(hs.hessian(model, batches, closure).dense(), expected)

    def test_a_mean_with_a_penalty_is_a_mean(self):
        model, x, y, batches = self.problem()

        def closure(model, batch):
            penalty = sum((p**2).sum() for p in model.parameters())
            return nn.functional.cross_entropy(model(batch[0]), batch[1]) + 0.1 * penalty

        expected = dense_hessian(lambda: closure(model, (x, y)), model.parameters())
        assert_same(hs.hessian(model, batches, closure).dense(), expected)

    def test_neither_is_refused(self):
        model, _, y, batches = self.problem()
        y[::3] = -100

        def closure(model, batch):
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        with pytest.raises(ValueError, match="pair \\(mean, weight\\)"):
            hs.hessian(model, batches, closure)
        hs.hessian(model, batches[0], closure)

    def test_one_without_a_derivative_is_refused(self):
        model, x, y, _ = self.problem()

        def closure(model, batch):
            return nn.functional.cross_entropy(model(batch[0]), batch[1]).detach()

        with pytest.raises(ValueError, match="loss has no derivative"):
            hs.hessian(model, (x, y), closure) @ torch.ones(31, dtype=torch.float64)
        flat = hs.hessian(model, (x, y), lambda model, batch: batch[0].sum()).dense()
        assert not flat.any()
