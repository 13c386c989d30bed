"""``hs.spectrum`` on PyTorch models: exact where recognised, a careful estimate elsewhere."""

import copy
import pickle
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import hessence as hs
from hessence.models import model_spectrum
from hessence.spectra import estimating
from tests.models.stacks import dense, linear, mlp


@pytest.fixture(scope="module")
def large():
    """A model beyond the dense limit, with its eigenvalues."""
    torch.manual_seed(1)
    model = mlp(4, 40, 25, 2)
    x, y = torch.randn(60, 4, dtype=torch.float64), torch.randn(60, 2, dtype=torch.float64)
    values = torch.linalg.eigvalsh(dense(model, lambda: nn.MSELoss()(model(x), y))).flip(0)
    return model, (x, y), values


def test_an_estimate_has_proved_errors(large):
    model, data, truth = large
    s = hs.spectrum(model, data, nn.MSELoss(), k=6)
    assert not s.exact
    assert s.converged
    assert s.method == "Lanczos"
    assert len(s) == 6
    assert len(truth) > estimating.SMALL
    assert bool(((s.eigenvalues - truth[:6]).abs() <= s.errors).all())
    assert float(s.errors.max()) <= 2e-6 * float(truth[0])
    assert float(s.sharpness) == float(s.eigenvalues[0])
    assert abs(float(s.trace) - float(truth.sum())) <= 5 * float(s.trace_stderr)
    assert s.verify(hs.hessian(model, data, nn.MSELoss())).residual < 2e-6
    low = hs.spectrum(model, data, nn.MSELoss(), k=2, which="SA")
    with pytest.raises(ValueError, match='not among those found with which="SA": ask for "LA"'):
        _ = low.sharpness
    certificate = low.verify(hs.hessian(model, data, nn.MSELoss()))
    assert certificate.residual <= 1.1 * float(low.errors.max() / truth[0])
    assert float(s.norm) == pytest.approx(float(truth.abs().max()), rel=1e-6)
    before = s.products
    assert s.density.size == len(truth)
    assert s.products == before


@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
def test_ends_of_a_small_model(which, data):
    torch.manual_seed(3)
    model = mlp(4, 6, 2)
    truth = np.linalg.eigvalsh(dense(model, lambda: nn.MSELoss()(model(data[0]), data[1])))
    s = hs.spectrum(model, data, nn.MSELoss(), k=5, which=which)
    wanted = {
        "LA": truth[-5:],
        "SA": truth[:5],
        "LM": truth[np.argsort(-np.abs(truth))[:5]],
        "BE": np.concatenate([truth[:2], truth[-3:]]),
    }[which]
    assert s.method == "dense"
    assert s.products == len(truth)
    assert np.allclose(np.asarray(s.eigenvalues), np.sort(wanted)[::-1], atol=1e-12)
    assert np.isclose(float(s.trace), truth.sum(), rtol=0, atol=float(s.trace_stderr))


def test_all_eigenvalues(data):
    model = mlp(4, 6, 2)
    s = hs.spectrum(model, data, k=None)
    assert len(s) == s.size == s.eigenvectors.shape[1]
    assert s.density.products == 0


def test_a_method_can_be_insisted_on(data):
    torch.manual_seed(4)
    assert not hs.spectrum(linear(4, 40, 2), data, method="estimate").exact
    with pytest.raises(ValueError, match="model has no exact spectrum here"):
        hs.spectrum(mlp(4, 6, 2), data, method="exact")
    with pytest.raises(ValueError, match="method must be"):
        hs.spectrum(mlp(4, 6, 2), data, method="magic")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"params": "0"}, "only some of the parameters"),
        (
            {"loss": lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), "closure": True},
            "closure",
        ),
    ],
)
def test_the_reason_for_an_estimate_is_told(options, words, data):
    assert words in hs.spectrum(linear(4, 40, 2), data, **options).reason


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2).double()

    def forward(self, x):
        return self.layer(x) + 0.1 * torch.randn(len(x), 2, dtype=x.dtype)


def test_randomness_is_refused(data):
    with pytest.raises(ValueError, match="changes from one evaluation to the next"):
        hs.spectrum(Noisy(), data)


class _WrongCube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x.detach() ** 2


def test_a_suspect_derivative_is_told(data):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2).double()

        def forward(self, x):
            return _WrongCube.apply(self.layer(x))

    torch.manual_seed(7)
    with pytest.warns(hs.CheckWarning, match="finite differences"):
        hs.spectrum(Model(), data, k=2)


def test_float32_and_seeds(large):
    model, (x, y), truth = large
    model = copy.deepcopy(model).float()
    data = x.float(), y.float()
    first, second = (hs.spectrum(model, data, nn.MSELoss(), k=3) for _ in range(2))
    assert first.eigenvalues.dtype == torch.float32
    assert torch.equal(first.eigenvalues, second.eigenvalues)
    assert float(first.trace) == float(second.trace)
    # Rounding of the products themselves is not part of the bound.
    gap = (first.eigenvalues.double() - truth[:3]).abs()
    assert bool((gap <= first.errors + 1e-5 * truth[0]).all())


def test_not_converged_is_said_and_partial(large):
    model, data, _ = large
    H = hs.hessian(model, data, nn.MSELoss())
    with pytest.warns(hs.ConvergenceWarning, match="raise max_products"):
        pairs = hs.eigenpairs(H, k=3, max_products=4)
    assert not pairs.converged
    assert pairs.eigenvalues.shape == (3,)


def test_saved_and_loaded(large, tmp_path):
    model, data, _ = large
    s = hs.spectrum(model, data, nn.MSELoss(), k=3, probes=2, steps=8)
    for _ in range(2):
        s.save(tmp_path / "estimate.json")
        loaded = hs.load(tmp_path / "estimate.json")
        assert loaded.to_dict() == s.to_dict()
        assert np.array_equal(loaded.eigenvalues, np.asarray(s.eigenvalues))
        _ = s.density
    assert np.array_equal(loaded.density.values, s.density.values)
    with pytest.raises(ValueError, match="eigenvectors are gone"):
        loaded.verify(np.eye(s.size))


def test_progress(large, capsys):
    model, data, _ = large
    seen = []
    s = hs.spectrum(model, data, nn.MSELoss(), k=1, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == s.products
    assert capsys.readouterr().err == ""
    hs.spectrum(model, data, nn.MSELoss(), k=1, progress=True)
    shown = capsys.readouterr().err
    assert " products" in shown
    assert shown.endswith("\r\x1b[K")
    with pytest.raises(TypeError, match="progress must be"):
        hs.spectrum(model, data, nn.MSELoss(), progress="bar")


def test_the_products_of_the_trace(large):
    model, data, _ = large
    few, many = (hs.spectrum(model, data, nn.MSELoss(), k=1, trace_products=n) for n in (20, 200))
    assert many.products - few.products == 180
    assert many.trace_stderr < few.trace_stderr
    H = hs.hessian(model, data, nn.MSELoss())
    assert H.spectrum(k=1, trace_products=20).trace == few.trace
    with pytest.raises(ValueError, match="trace_products must be an integer of at least 4"):
        hs.spectrum(model, data, nn.MSELoss(), trace_products=3)


@pytest.mark.parametrize("size", [8, 200])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be an integer of at least 1, got 0"),
        ({"k": -1}, "k must be an integer of at least 1, got -1"),
        ({"k": 2.5}, "k must be an integer"),
        ({"k": "ten"}, "k must be an integer"),
        ({"which": "XX"}, "which must be"),
        ({"tol": -1}, "tol must be a number that is not negative"),
        ({"rng": "seed"}, "rng must be an integer"),
        ({"probes": 0}, "probes must be an integer of at least 1"),
        ({"steps": 0.5}, "steps must be an integer of at least 1"),
    ],
)
def test_bad_arguments_of_small_and_large_models(options, message, size, data):
    with pytest.raises((TypeError, ValueError), match=message):
        hs.spectrum(mlp(4, size, 2), data, **options)


def test_bad_numbers_are_told_apart_from_bad_products(data):
    x, y = data
    model = mlp(4, 8, 2)
    with pytest.raises(ValueError, match="data holds NaN"):
        hs.spectrum(model, (x * float("nan"), y))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"parameter '0\.weight' holds NaN"):
        hs.spectrum(model, data)


def test_no_memory_at_all_is_enough(large):
    model, data, truth = large
    s = hs.spectrum(model, data, nn.MSELoss(), k=1, probes=2, steps=4, memory=0)
    assert float(s.sharpness) == pytest.approx(float(truth[0]))
    assert s.density.nodes.shape == (2, 4)


def test_an_estimate_holds_no_graphs_and_can_be_pickled(large):
    model, data, _ = large
    operators = []
    make = model_spectrum.hessian
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            model_spectrum,
            "hessian",
            lambda *a, **b: operators.append(make(*a, **b)) or operators[0],
        )
        s = hs.spectrum(model, data, nn.MSELoss(), k=2, probes=2, steps=4)
    assert operators[0].kept_graphs == 0
    copied = pickle.loads(pickle.dumps(s))
    assert torch.equal(copied.eigenvectors, s.eigenvectors)
    with pytest.raises(ValueError, match="look at density once, then save"):
        _ = copied.density
    _ = s.density
    assert np.array_equal(pickle.loads(pickle.dumps(s)).density.values, s.density.values)


class Watchful(nn.Tanh):
    """Notes whether it runs in half precision."""

    seen: ClassVar = []

    def forward(self, x):
        self.seen.append(torch.is_autocast_enabled("cpu"))
        return super().forward(x)


@pytest.mark.parametrize("kind", [nn.Tanh, Watchful])
def test_autocast_is_left_out(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), kind(), nn.Linear(5, 2))
    data, ones = (torch.randn(9, 4), torch.randn(9, 2)), torch.ones(37)
    expected = hs.hessian(model, data, nn.MSELoss()) @ ones
    with torch.autocast("cpu", dtype=torch.bfloat16):
        H = hs.hessian(model, data, nn.MSELoss())
        assert torch.equal(H @ ones, expected)
        assert not torch.equal(model(data[0]), H.problem.copy.run(lambda m, x: m(x), data[0]))
    if kind is Watchful:
        assert len(Watchful.seen) > 2
        assert sum(Watchful.seen) == 1  # where the model was called here


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_solvers_leave_half_precision(dtype):
    """A training loop may measure inside of its own autocast."""
    torch.manual_seed(0)
    model, loss = mlp(12, 20, 4).float(), nn.MSELoss()
    given = torch.randn(50, 12), torch.randn(50, 4)
    H = hs.hessian(model, given, loss)

    def results():
        monitor = hs.Monitor(model, given, loss)
        return [
            hs.eigenpairs(H, k=2).eigenvalues,
            hs.trace(H, 30).value,
            hs.density(H, 2, 20).nodes,
            monitor.measure(0).eigenvalues,
            monitor.measure(1).eigenvalues,
            hs.spectrum(model, given, loss, k=2).eigenvalues,
            hs.layer_spectra(model, given, loss, k=2)["0"].eigenvalues,
        ]

    expected = results()
    with torch.autocast("cpu", dtype=dtype):
        found = results()
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_all_eigenvalues_give_the_trace(data):
    model = mlp(4, 100, 2)
    size = sum(p.numel() for p in model.parameters())
    s = hs.spectrum(model, data, nn.MSELoss(), k=10**6)
    assert len(s.eigenvalues) == size
    assert float(s.trace) == pytest.approx(float(s.eigenvalues.sum()), rel=1e-12)
    assert float(s.trace_stderr) < 1e-9


def test_the_spectrum_of_an_operator_is_that_of_its_model():
    torch.manual_seed(0)
    x, y = torch.randn(40, 3).double(), torch.randn(40, 2).double()
    wide = nn.Sequential(nn.Linear(3, 50), nn.Linear(50, 2)).double()
    H = hs.hessian(wide, (x, y), nn.MSELoss())
    exact = hs.spectrum(wide, (x, y), nn.MSELoss())
    assert exact.exact
    assert H.spectrum().method == exact.method
    torch.testing.assert_close(H.spectrum().eigenvalues, exact.eigenvalues)
    assert not H.restrict("0").spectrum(2).exact
    assert not H.ggn.spectrum(2).exact
    estimated = H.spectrum(3, method="estimate")
    torch.testing.assert_close(estimated.eigenvalues, exact.eigenvalues[:3])
    torch.testing.assert_close(H.top(3).eigenvalues, exact.eigenvalues[:3])


def test_an_operator_takes_over_the_state_of_its_model():
    torch.manual_seed(0)
    x, y = torch.randn(40, 3).double(), torch.randn(40, 2).double()
    layers = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 2)
    model = nn.Sequential(*layers).double().eval()
    H = hs.hessian(model, (x, y), nn.MSELoss())
    H.dense(), H.ggn.dense()
    model.train()
    for parameter in model.parameters():
        parameter.data.add_(0.1)
    model(x)
    with pytest.raises(ValueError, match="model is in training mode"):
        H.load(model)
    H.load(model.eval())
    fresh = hs.hessian(model, (x, y), nn.MSELoss())
    assert H.loss() == fresh.loss()
    torch.testing.assert_close(H.dense(), fresh.dense(), rtol=0, atol=0)
    torch.testing.assert_close(H.ggn.dense(), fresh.ggn.dense(), rtol=0, atol=0)
    model[0] = nn.Linear(3, 6).double()
    with pytest.raises(ValueError, match="other layers or parameters than when this was made"):
        H.load(model)


ALONE = """
import torch, hessence as hs
model = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.Linear(20, 1)).double()
data = torch.randn(9, 2).double(), torch.randn(9, 1).double()
print(hs.hessian(model, data).spectrum().method)
"""


def test_an_operator_knows_the_theorems_where_nothing_else_was_used_before():
    run = [sys.executable, "-c", ALONE]
    found = subprocess.run(run, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "narrow twin"
