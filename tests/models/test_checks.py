"""``H.check()`` finds products that are wrong, and passes those that are right."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessence as hs
from hessence.models import _exact_kernels
from tests.models.market import MODELS, numbers, problem


@pytest.mark.parametrize("name", MODELS)
def test_right_products_pass(name):
    case = problem(name)
    for operator in (hs.hessian, hs.ggn):
        check = operator(case.model, case.data, case.loss).check()
        assert check.passed, check.message
        assert check.deterministic
        assert check.symmetry < 1e-12
        assert check.difference < 1e-6


def test_a_relu_net_passes_though_kinks_are_near():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                              nn.Linear(64, 1))  # fmt: skip
        data = torch.randn(300, 2), torch.randn(300, 1)
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        batch = tuple(part.to(dtype) for part in data)
        for rng in range(3):
            check = hs.hessian(model, batch, nn.MSELoss()).check(rng=rng)
            assert check.passed, check.message


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_scales(scale):
    """Of the loss, and of the parameters."""
    case = problem("tanh_mlp")
    assert hs.hessian(case.model, case.data, lambda f, y: scale * F.mse_loss(f, y)).check().passed
    model = nn.Linear(4, 3).double()
    with torch.no_grad():
        model.weight *= scale
    assert hs.hessian(model, (numbers(5, 4), numbers(5, 3)), nn.MSELoss()).check().passed


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(3, 4), nn.Linear(4, 2), function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


def check(function, operator=hs.hessian):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = Model(function).double()
        data = numbers(6, 3), numbers(6, 2)
        return operator(model, data, nn.MSELoss()).check()


class WrongSecond(torch.autograd.Function):
    """tanh with a right gradient, whose own derivative takes the output for a constant."""

    @staticmethod
    def forward(context, x):
        y = torch.tanh(x)
        context.save_for_backward(y.detach().clone())
        return y

    @staticmethod
    def backward(context, slope):
        (y,) = context.saved_tensors
        return slope * (1 - y.detach() ** 2)


class NotSymmetric(torch.autograd.Function):
    """x³ with a second derivative that is off by a factor."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context, slope):
        (x,) = context.saved_tensors
        return slope * (1.5 * x**2 + 1.5 * x.detach() ** 2)


class WrongFirst(torch.autograd.Function):
    """tanh whose gradient is half of what it should be."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(context, slope):
        (x,) = context.saved_tensors
        return slope * (1 - torch.tanh(x) ** 2) / 2


@pytest.mark.parametrize("function", [
    WrongSecond.apply, NotSymmetric.apply, WrongFirst.apply,
    lambda x: torch.tanh(x) * x.detach(), lambda x: torch.tanh(x) + torch.sin(x.detach()),
], ids=["second", "not symmetric", "first", "detached factor", "detached term"])  # fmt: skip
def test_wrong_derivatives_are_found(function):
    found = check(function)
    assert not found.passed
    assert found.deterministic
    assert any(word in found.message for word in ("finite differences", "differ by"))


def test_a_wrong_first_derivative_is_found_in_the_gauss_newton_matrix():
    assert not check(WrongFirst.apply, hs.ggn).passed
    # The second derivative does not enter there.
    assert check(WrongSecond.apply, hs.ggn).passed


@pytest.mark.parametrize("function", [F.dropout, lambda x: x + torch.randn_like(x)])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_randomness_in_a_forward_is_found(function, operator):
    found = check(function, operator)
    assert not found.passed
    assert not found.deterministic
    assert "random" in found.message


def test_the_check_leaves_graphs_and_answers_as_they_were():
    case = problem("tanh_mlp")
    H = hs.hessian(case.model, case.data, case.loss)
    before = H.dense()
    kept = H.kept_graphs
    assert H.check() == H.check()
    assert H.kept_graphs == kept
    assert torch.equal(H.dense(), before)


def test_padding_of_an_embedding_counts_as_constant():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 3, padding_idx=0), nn.Tanh(), nn.Linear(3, 6)).double()
    with torch.no_grad():
        model[0].weight[0] = 0.5
    words = torch.tensor([0, 1, 0, 2, 5, 3])
    assert hs.hessian(model, (words, words.flip(0)), nn.CrossEntropyLoss()).check().passed


def test_padding_of_an_embedding_that_is_the_last_layer_too():
    words = torch.arange(24).reshape(6, 4) % 9
    embedding = nn.Embedding(9, 3, padding_idx=0).double()
    last = nn.Linear(3, 9, bias=False).double()
    last.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Tanh(), last)

    def loss(prediction, target):
        return nn.functional.cross_entropy(prediction.flatten(0, 1), target.flatten())

    assert hs.hessian(model, (words, words.flip(0)), loss).check().passed


class Rounding(nn.Module):
    """Computes in single precision, whatever the model is in."""

    def forward(self, x):
        return torch.tanh(x.float()).to(x.dtype)


def test_single_precision_within_double_is_named():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 30), Rounding(), nn.Linear(30, 2)).double()
        data = torch.randn(20, 3).double(), torch.randn(20, 2).double()
    check = hs.hessian(model, data, lambda f, y: (f - y).pow(4).mean()).check()
    assert not check.passed
    assert "part of the model computes in single precision" in check.message


def test_a_loss_that_is_not_a_number():
    case = problem("linear")
    check = hs.hessian(case.model, case.data, lambda f, y: float("nan") * (f - y).mean()).check()
    assert not check.passed
    assert check.message == "the loss or the parameters are NaN or infinite."


class Counted(nn.Module):
    """Counts how often it is used, in a whole number."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("uses", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.uses += 1
        return self.layer(x).tanh() / self.uses


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_buffers_of_whole_numbers_are_put_back(kind):
    model = Counted().to(kind)
    data = torch.randn(5, 3, dtype=kind), torch.randn(5, 2, dtype=kind)
    H = hs.hessian(model, data)
    assert H.check().passed
    assert H.loss() == H.loss()
    assert model.uses == 0


def test_infinite_parameters_that_the_loss_does_not_show():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    nn.init.constant_(model[0].bias, float("inf"))
    data = torch.randn(10, 3), torch.randn(10, 2)
    with pytest.raises(ValueError, match=r"model: parameter .0\.bias. holds NaN or infinity"):
        hs.spectrum(model, data)


class Detached(nn.Module):
    """Half of its output passes no derivative on."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        z = self.layers(x)
        return z + z.detach()


@pytest.mark.parametrize("seed", range(4))
def test_single_precision_and_kinks_do_not_hide_a_mistake(seed):
    """Finite differences in single precision could not tell."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
        x, y = torch.randn(500, 20), torch.randint(10, (500,))
    right, wrong = nn.Sequential(*layers), Detached(nn.Sequential(*layers))
    weighted = nn.CrossEntropyLoss(weight=torch.linspace(1, 2, 10))
    for operator in (hs.hessian, hs.ggn):
        found = operator(right, (x, y), weighted).check()
        assert found.passed
        assert found.difference < 1e-4
    assert not hs.hessian(wrong, (x, y), nn.CrossEntropyLoss()).check().passed


def test_what_cannot_be_told_is_said():
    """A model that insists on single precision, and bends everywhere."""

    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(0)
                self.layers = nn.Sequential(
                    nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
                )

        def forward(self, x):
            return self.layers(x.float()).float()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        data = torch.randn(500, 20), torch.randint(10, (500,))
    found = hs.hessian(Single(), data, nn.CrossEntropyLoss()).check()
    assert found.passed
    assert "too rough" in found.message


def test_kinks_are_stepped_around():
    """Large steps of finite differences cross the kinks of many ReLUs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, y = torch.randn(64, 3, 8, 8), torch.randint(10, (64,))
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        )  # fmt: skip
        model(x)
    check = hs.hessian(model.eval(), (x, y), nn.CrossEntropyLoss()).check()
    assert check.passed
    assert check.difference < 1e-4
    assert check.uncertainty < 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1e2, 1e5, 1e8])
def test_steep_losses_of_few_parameters(dtype, size):
    """Slopes of which little but rounding is left may be alike by chance."""
    with torch.random.fork_rng():
        torch.manual_seed(21)
        for _ in range(30):
            layer = nn.Linear(1, 1, bias=False).to(dtype)
            x, y = torch.randn(32, 1).to(dtype), (size * (1 + torch.rand(32, 1))).to(dtype)
            check = hs.hessian(layer, (x, y)).check()
            assert check.passed, check.message


class Logarithm(nn.Module):
    """Has values for positive parameters alone, and these are small."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((2,), 1e-6, dtype=torch.float64))

    def forward(self, x):
        return x * self.w.log()


def test_steps_out_of_the_domain_of_a_model_tell_nothing():
    check = hs.hessian(Logarithm(), (numbers(5, 2), numbers(5, 2)), nn.MSELoss()).check()
    assert check.passed, check.message


class Restless(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, x):
        return F.dropout(self.inner(x), 0.5)


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
@pytest.mark.parametrize("memory", [None, 0])
def test_a_loss_that_is_random_has_no_products(operator, memory):
    H = operator(Restless(), (numbers(20, 4), numbers(20, 3)), nn.MSELoss(), memory=memory)
    v = torch.ones(H.shape[0], dtype=torch.float64)
    for use in (lambda: H @ v, lambda: hs.trace(H), lambda: hs.eigenpairs(H, 1), H.dense):
        with pytest.raises(ValueError, match="model: the loss changes from one evaluation"):
            use()
    assert not H.check().deterministic


def test_a_wrong_stand_in_for_a_kernel_is_noticed(monkeypatch):
    """Products and finite differences both use it, and agree."""
    monkeypatch.setitem(_exact_kernels.REPLACEMENTS, F.layer_norm, lambda x, *_, **__: 2 * x)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)).double()
    data = torch.randn(8, 3).double(), torch.randn(8, 1).double()
    checked = hs.hessian(model, data, nn.MSELoss()).check()
    assert not checked.passed
    assert "not the loss that PyTorch computes" in checked.message
