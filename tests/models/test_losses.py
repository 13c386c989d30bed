"""Losses as users give them: every one means on batches what it means on all data at once."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessence as hs
from tests.models.market import numbers
from tests.models.oracle import assert_same, dense_ggn, dense_hessian
from tests.models.ragged import OUTPUTS, SAMPLES, batches, classes, mlp, partly_ignored, real

pytestmark = pytest.mark.usefixtures("seeded")


def sigmoid():
    return mlp(OUTPUTS, nn.Sigmoid())


def log_probabilities():
    return mlp(OUTPUTS, nn.LogSoftmax(-1))


def positions():
    """Predictions (N, C, T): a class for each of four positions."""
    return mlp(OUTPUTS * 4, nn.Unflatten(1, (OUTPUTS, 4)))


def log_positions():
    return mlp(OUTPUTS * 4, nn.Unflatten(1, (OUTPUTS, 4)), nn.LogSoftmax(1))


def one_number():
    return mlp(1, nn.Flatten(0))


def sequences():
    y = torch.randint(OUTPUTS, (SAMPLES, 4))
    y[torch.rand(SAMPLES, 4) < 0.3] = -100
    y[5] = -100
    return y


def probabilities(*shape):
    return torch.rand(*shape, dtype=torch.float64)


def simplex():
    return torch.softmax(numbers(SAMPLES, OUTPUTS), -1)


def zeros_and_ones():
    return torch.randint(2, (SAMPLES, OUTPUTS)).double()


def signs():
    return 2 * torch.randint(2, (SAMPLES, OUTPUTS)).double() - 1


WEIGHTS = torch.tensor([0.3, 2.0, 1.1], dtype=torch.float64)


MIXED = torch.tensor([0.5, 1.5, 1.0, 0.1], dtype=torch.float64)


TORCH_LOSSES = {
    "mse": (nn.MSELoss, {}, mlp, real),
    "l1": (nn.L1Loss, {}, mlp, real),
    "smooth l1": (nn.SmoothL1Loss, {"beta": 0.4}, mlp, real),
    "huber": (nn.HuberLoss, {"delta": 0.7}, mlp, real),
    "cross-entropy": (nn.CrossEntropyLoss, {}, mlp, classes),
    "weights": (nn.CrossEntropyLoss, {"weight": WEIGHTS}, mlp, classes),
    "ignored": (nn.CrossEntropyLoss, {}, mlp, partly_ignored),
    "ignored class": (nn.CrossEntropyLoss, {"ignore_index": 1}, mlp, classes),
    "ignored, weights": (nn.CrossEntropyLoss, {"weight": WEIGHTS}, mlp, partly_ignored),
    "smoothing": (nn.CrossEntropyLoss, {"label_smoothing": 0.1}, mlp, classes),
    "smoothing, weights, ignored": (
        nn.CrossEntropyLoss, {"label_smoothing": 0.2, "weight": WEIGHTS}, mlp, partly_ignored,
    ),
    "probabilities": (nn.CrossEntropyLoss, {}, mlp, simplex),
    "unnormalised probabilities": (
        nn.CrossEntropyLoss, {"label_smoothing": 0.2, "weight": WEIGHTS}, mlp,
        lambda: probabilities(SAMPLES, OUTPUTS),
    ),
    "sequence": (nn.CrossEntropyLoss, {"weight": WEIGHTS}, positions, sequences),
    "sequence of probabilities": (
        nn.CrossEntropyLoss, {"label_smoothing": 0.2}, positions,
        lambda: probabilities(SAMPLES, OUTPUTS, 4),
    ),
    "nll": (nn.NLLLoss, {"weight": WEIGHTS}, log_probabilities, partly_ignored),
    "nll of a sequence": (nn.NLLLoss, {}, log_positions, sequences),
    "nll of anything": (nn.NLLLoss, {}, mlp, classes),
    "bce with logits": (nn.BCEWithLogitsLoss, {}, mlp, zeros_and_ones),
    "bce with logits, weights": (
        nn.BCEWithLogitsLoss, {"weight": WEIGHTS, "pos_weight": WEIGHTS.flip(0)}, mlp,
        lambda: probabilities(SAMPLES, OUTPUTS),
    ),
    "one logit": (
        nn.BCEWithLogitsLoss, {"pos_weight": torch.tensor(3.0).double()}, one_number,
        lambda: torch.randint(2, (SAMPLES,)).double(),
    ),
    "poisson": (nn.PoissonNLLLoss, {}, mlp, lambda: torch.randint(4, (SAMPLES, 3)).double()),
    "soft margin": (nn.SoftMarginLoss, {}, mlp, signs),
    "hinge embedding": (nn.HingeEmbeddingLoss, {}, mlp, signs),
    "kl": (nn.KLDivLoss, {}, log_probabilities, simplex),
    "kl, log target": (
        nn.KLDivLoss, {"log_target": True}, log_probabilities, lambda: simplex().log(),
    ),
    "multi-label soft margin": (nn.MultiLabelSoftMarginLoss, {}, mlp, zeros_and_ones),
}  # fmt: skip


# KLDivLoss says of its own mean over elements that it should be "batchmean".
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", TORCH_LOSSES)
def test_losses_of_pytorch(name, reduction):
    kind, options, make, target = TORCH_LOSSES[name]
    loss = kind(**options, reduction=reduction)
    assert_right(make(), target(), loss)


@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("target", [zeros_and_ones, lambda: probabilities(SAMPLES, OUTPUTS)])
def test_binary_cross_entropy_of_probabilities(target, weight):
    """PyTorch adds 1e-12 to a denominator of its gradient, which makes up the tolerance."""

    def formula(q, y):
        each = -(y * q.log() + (1 - y) * (1 - q).log())
        return (each if weight is None else weight * each).mean()

    assert_right(sigmoid(), target(), nn.BCELoss(weight=weight), formula, 1e-10)


def test_the_mean_over_samples_of_the_relative_entropy():
    assert_right(log_probabilities(), simplex(), nn.KLDivLoss(reduction="batchmean"))


@pytest.mark.parametrize("loss", [
    nn.MSELoss(reduction="none"), nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none"),
], ids=str)  # fmt: skip
def test_values_that_are_not_reduced_are_averaged(loss):
    y = real() if isinstance(loss, nn.MSELoss) else classes()
    assert_right(mlp(), y, loss, lambda f, t: loss(f, t).mean())


class Focal(nn.CrossEntropyLoss):
    """As users write it: a subclass with another formula and its own mean."""

    def forward(self, prediction, target):
        surprise = F.cross_entropy(prediction, target, reduction="none")
        return ((1 - torch.exp(-surprise)) ** 2 * surprise).mean()


class Cubic(nn.modules.loss._Loss):
    def forward(self, prediction, target):
        return (prediction - target).abs().pow(3).sum()


@pytest.mark.parametrize("loss", [Focal(), Cubic()], ids=["focal", "cubic"])
def test_a_subclass_is_what_it_computes(loss):
    focal = isinstance(loss, Focal)
    assert_right(mlp(), classes() if focal else real(), loss, reduction="mean" if focal else "sum")


NAMED = {
    "mse": (real, lambda f, y: ((f - y) ** 2).sum(-1).mean() / 2),
    "logistic": (signs, lambda f, y: torch.log1p(torch.exp(-y * f)).sum(-1).mean()),
    "huber": (real, lambda f, y: F.huber_loss(f, y, reduction="none").sum(-1).mean()),
    "cross-entropy": (classes, F.cross_entropy),
}


@pytest.mark.parametrize("name", NAMED)
def test_names(name):
    target, formula = NAMED[name]
    assert_right(mlp(), target(), name, formula)


def test_the_default_is_half_the_squared_distance():
    assert_right(mlp(), real(), None, NAMED["mse"][1])


def test_losses_of_this_library():
    formula = NAMED["cross-entropy"][1]
    assert_right(mlp(), simplex(), hs.losses.CrossEntropy(), formula)
    huber = hs.losses.Huber(0.3)
    assert_right(mlp(), real(), huber,
                 lambda f, y: F.huber_loss(f, y, delta=0.3, reduction="sum") / len(y))  # fmt: skip


FUNCTIONS = {
    "F.cross_entropy": (F.cross_entropy, partly_ignored),
    "partial": (functools.partial(F.cross_entropy, label_smoothing=0.1), partly_ignored),
    "partial sum": (functools.partial(F.mse_loss, reduction="sum"), real),
    "F.mse_loss": (F.mse_loss, real),
    "F.huber_loss": (F.huber_loss, real),
    "F.soft_margin_loss": (F.soft_margin_loss, signs, "mean"),
    "mean": (lambda f, y: ((f - y) ** 4).mean(), real, "mean"),
    "sum": (lambda f, y: ((f - y) ** 4).sum(), real, "sum"),
    "own cross-entropy": (lambda f, y: F.cross_entropy(f, y, weight=None), classes, "mean"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    function, target, *reduction = FUNCTIONS[name]
    assert_right(mlp(), target(), function, reduction=reduction[0] if reduction else None)


def test_a_function_of_each_sample():
    assert_right(mlp(), real(), lambda f, y: torch.cosh(f - y).sum(-1),
                 lambda f, y: torch.cosh(f - y).sum(-1).mean())  # fmt: skip


class Named(nn.Module):
    """Returns a dictionary, as do many models of others."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return {"logits": self.inner(x), "name": "own", "hidden": None}


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_functions_of_predictions_in_a_dictionary(reduce):
    model, x, y = Named(), numbers(SAMPLES, 2), real()

    def loss(prediction, target):
        return getattr((prediction["logits"] - target).pow(4), reduce)()

    expected = dense_hessian(lambda: loss(model(x), y), model.parameters())
    for data in ((x, y), batches(x, y)):
        assert_same(hs.hessian(model, data, loss, reduction=reduce).dense(), expected)


def test_weights_that_are_changed_later():
    model, x, y = mlp().double(), numbers(8, 2), torch.arange(8) % 3
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    H = hs.hessian(model, (x, y), loss, memory=0)
    before = H.loss(), H.dense()
    loss.weight.mul_(torch.tensor([1.0, 5.0, 1.0]))
    assert H.loss() == before[0]
    assert_same(H.dense(), before[1])


def test_class_numbers_in_bytes():
    x, y = numbers(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    model, loss = nn.Linear(3, 3).double(), nn.CrossEntropyLoss(weight=torch.rand(3).double())
    for operator in (hs.hessian, hs.ggn):
        expected = operator(model, (x, y), loss).dense()
        assert_same(operator(model, (x, y.to(torch.uint8)), loss).dense(), expected)


def test_nothing_counts():
    y = torch.full((SAMPLES,), -100)
    H = hs.hessian(mlp(), (numbers(SAMPLES, 2), y), nn.CrossEntropyLoss())
    for ask in (H.dense, H.loss, H.gradient):
        with pytest.raises(ValueError, match="data has no targets that count"):
            ask()


def test_weights_of_single_samples():
    """BCELoss takes a weight for each sample of the batch: such batches cannot be merged."""
    weight = probabilities(SAMPLES, 1)
    loss = nn.BCEWithLogitsLoss(weight=weight)
    model, x, y = mlp(), numbers(2 * SAMPLES, 2), zeros_and_ones().repeat(2, 1)
    halves = [(x[:SAMPLES], y[:SAMPLES]), (x[SAMPLES:], y[SAMPLES:])]
    both = nn.BCEWithLogitsLoss(weight=weight.repeat(2, 1))
    expected = dense_hessian(lambda: both(model(x), y), model.parameters())
    assert_same(hs.hessian(model, halves, loss).dense(), expected)
    expected = dense_ggn(lambda: model(x), lambda f: both(f, y), model.parameters())
    assert_same(hs.ggn(model, halves, loss).dense(), expected)


def test_certain_probabilities():
    """A sigmoid that has reached 1 has a flat, finite loss if the target is 1 too."""
    model, x, y = sigmoid(), numbers(SAMPLES, 2), zeros_and_ones()
    with torch.no_grad():
        model[2].bias[0] = 60.0
    y[:, 0] = 1
    assert (model(x)[:, 0] == 1).all()
    found = hs.ggn(model, (x, y), nn.BCELoss())
    rest = nn.Sequential(*model, Columns(1))
    expected = hs.ggn(rest, (x, y[:, 1:]), nn.BCELoss(reduction="sum"))
    assert_same(found.dense() * SAMPLES * OUTPUTS, expected.dense())


class Columns(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first = first

    def forward(self, x):
        return x[:, self.first :]


def test_a_keyword_that_only_the_function_has():
    weight = probabilities(SAMPLES, OUTPUTS)
    model, x, y = mlp(), numbers(SAMPLES, 2), real()
    loss = functools.partial(F.mse_loss, weight=weight)
    expected = dense_hessian(lambda: loss(model(x), y), model.parameters())
    assert_same(hs.hessian(model, (x, y), loss).dense(), expected)


def assert_right(model, y, loss, formula=None, tolerance=1e-12, reduction=None):
    """Compare H, G, loss and gradient, on all data and on batches, with the loss written out."""
    formula = loss if formula is None else formula
    x = numbers(SAMPLES, 2)
    parameters = list(model.parameters())
    expected = dense_hessian(lambda: formula(model(x), y), parameters)
    expected_ggn = dense_ggn(lambda: model(x), lambda f: formula(f, y), parameters)
    value = formula(model(x), y)
    for data in ((x, y), batches(x, y)):
        H = hs.hessian(model, data, loss, reduction=reduction)
        assert_same(H.dense(), expected, tolerance)
        assert_same(H.ggn.dense(), expected_ggn)
        assert_same(hs.ggn(model, data, loss, reduction=reduction).dense(), expected_ggn)
        assert H.loss() == pytest.approx(value.item(), rel=1e-12)
        gradient = torch.autograd.grad(formula(model(x), y), parameters)
        assert_same(H.gradient(), torch.cat([g.reshape(-1) for g in gradient]), tolerance)


@pytest.mark.parametrize(("loss", "target"), [
    (nn.MultiLabelSoftMarginLoss(), torch.tensor([1.0, 0.0, 1.0])),
    (nn.MultiMarginLoss(p=2), torch.tensor(1)),
    (nn.CrossEntropyLoss(), torch.tensor(1)),
])  # fmt: skip
def test_a_single_sample_without_a_batch(loss, target):
    model, x = mlp().double(), numbers(2)
    target = target.double() if target.is_floating_point() else target
    H = hs.hessian(model, (x, target), loss)
    assert H.loss() == pytest.approx(float(loss(model(x), target).detach()))
