"""On several batches a loss is a mean, a sum, or a mean with its weight, and says which."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessence as hs
from tests.models.market import numbers
from tests.models.oracle import assert_same, dense_hessian
from tests.models.ragged import OUTPUTS, SAMPLES, batches, classes, mlp, real

pytestmark = pytest.mark.usefixtures("seeded")


def own_cross_entropy(prediction, target):
    return F.cross_entropy(prediction, target)


IGNORED = {
    "a whole part": slice(64, 95),
    "half of the second batch": slice(48, 64),
    "evenly, in one batch": slice(32, 64, 2),
    "two of four parts": [*range(32, 40), *range(48, 56)],
    "one": [0],
    "a whole batch": slice(32, 64),
}


def test_a_function_on_several_batches_says_what_it_returns():
    model, x, y = mlp(), numbers(SAMPLES, 2), real()
    with pytest.raises(ValueError, match='say reduction="mean" if it returns a mean'):
        hs.hessian(model, batches(x, y), lambda f, t: ((f - t) ** 2).sum())
    with pytest.raises(ValueError, match='reduction must be "mean", "sum" or None, got \'all\''):
        hs.hessian(model, (x, y), F.mse_loss, reduction="all")
    with pytest.raises(ValueError, match="reduction='sum' is not that of the loss"):
        hs.hessian(model, (x, y), nn.MSELoss(), reduction="sum")


def test_batches_without_samples():
    """The mean over nothing is not a number; there is no such batch."""
    model, x, y = mlp(), numbers(SAMPLES, 2), real()
    data = [(x[:0], y[:0]), (x[:5], y[:5]), (x[:0], y[:0]), (x[5:], y[5:])]
    expected = dense_hessian(lambda: F.mse_loss(model(x), y), model.parameters())

    def own(prediction, target):
        return (prediction - target).pow(2).mean()

    def closure(model, batch):
        return own(model(batch[0]), batch[1])

    for loss in (nn.MSELoss(), own, closure):
        H = hs.hessian(model, data, loss, reduction="mean", closure=loss is closure)
        assert_same(H.dense(), expected)


@pytest.mark.parametrize("name", IGNORED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_over_what_is_not_ignored_are_told_of_on_batches(name, dtype):
    """Wherever the ignored ones are; in a single batch there is no harm."""
    model, x, y = mlp().to(dtype), numbers(100, 2).to(dtype), torch.randint(OUTPUTS, (100,))
    parts = list(zip(x.split(32), y.split(32), strict=True))
    whole = {"x": x, "y": y}
    dictionaries = [{"x": a, "y": b} for a, b in parts]

    def closure(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"])

    for data, loss in ((parts, own_cross_entropy), (dictionaries, closure)):
        assert hs.hessian(model, data, loss, reduction="mean").check().passed
    y[IGNORED[name]] = -100
    for data, loss in ((parts, own_cross_entropy), (dictionaries, closure)):
        check = hs.hessian(model, data, loss, reduction="mean").check()
        assert not check.passed
        assert "a mean over targets that are not ignored" in check.message
    expected = hs.hessian(model, (x, y), nn.CrossEntropyLoss()).dense()
    for data, loss in (((x, y), own_cross_entropy), (whole, closure), (parts, F.cross_entropy)):
        torch.testing.assert_close(hs.hessian(model, data, loss).dense(), expected)


def test_counts_that_differ_only_between_batches_are_told_of():
    """As many in both halves of each batch, but not in both batches."""
    model, x, y = mlp().double(), numbers(128, 2), torch.randint(OUTPUTS, (128,))
    y[84:96] = -100
    y[104:116] = -100
    data = list(zip(x.split(64), y.split(64), strict=True))
    assert not hs.hessian(model, data, own_cross_entropy, reduction="mean").check().passed


def test_a_function_that_does_not_average_samples_is_told_of_on_batches():
    """Ignored targets make it an average over other things, and in the second batch only."""
    model, x, y = mlp(), numbers(SAMPLES, 2), classes()
    y[8:11] = -100
    assert_same(
        hs.hessian(model, (x, y), own_cross_entropy).dense(),
        dense_hessian(lambda: F.cross_entropy(model(x), y), model.parameters()),
    )
    assert not hs.hessian(model, batches(x, y), own_cross_entropy, reduction="mean").check().passed

    def correlations(prediction, _):
        return torch.corrcoef(prediction.T).sum()

    data = [(x[:6], real()[:6]), (x[6:], real()[6:])]
    assert not hs.hessian(model, data, correlations, reduction="mean").check().passed


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


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_sums_in_half_precision(kind):
    model, x, y = mlp().float(), torch.randn(SAMPLES, 2), torch.randn(SAMPLES, 3)

    def loss(model, batch):
        return F.mse_loss(model(batch[0]), batch[1], reduction="sum").to(kind)

    whole = hs.hessian(model, [(x, y)], loss, closure=True).dense()
    cut = hs.hessian(model, batches(x, y), loss, reduction="sum", closure=True).dense()
    assert float((cut - whole).norm()) <= 0.05 * float(whole.norm())


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
