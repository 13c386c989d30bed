"""``hs.spectrum`` on PyTorch models: exact where recognised, a careful estimate elsewhere."""

import copy
import itertools
import pickle
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import hessence as hs
from hessence.curvature import estimated_spectrum, exact_spectrum, model_spectrum
from hessence.curvature.layers import LayerSpectra
from tests.curvature.oracle import dense_hessian


def dense(model, loss):
    return dense_hessian(loss, model.parameters())


def mlp(*sizes, activation=nn.Tanh):
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1]).double()


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.randn(60, 4, dtype=torch.float64), torch.randn(60, 2, dtype=torch.float64)


@pytest.fixture(scope="module")
def large():
    """A model beyond the dense limit, with its eigenvalues."""
    torch.manual_seed(1)
    model = mlp(4, 40, 25, 2)
    x, y = torch.randn(60, 4, dtype=torch.float64), torch.randn(60, 2, dtype=torch.float64)
    values = torch.linalg.eigvalsh(dense(model, lambda: nn.MSELoss()(model(x), y))).flip(0)
    return model, (x, y), values


def linear(*sizes):
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*(nn.Linear(i, o, bias=False) for i, o in pairs)).double()


EXACT = {
    "scalar": (lambda: linear(1, 12, 1), "closed form"),
    "two layers": (lambda: linear(4, 40, 2), "narrow twin"),
    "deep": (lambda: linear(4, 6, 5, 2), None),
    "relu": (
        lambda: nn.Sequential(
            nn.Linear(1, 9, bias=False), nn.ReLU(), nn.Linear(9, 1, bias=False)
        ).double(),
        "closed form",
    ),
    "affine": (
        lambda: nn.Sequential(nn.Linear(1, 9), nn.Linear(9, 1, bias=False)).double(),
        None,
    ),
    "twin inside": (
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 30), nn.Linear(30, 2)
        ).double(),
        "narrow twin",
    ),
}


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.MSELoss(reduction="sum")])
@pytest.mark.parametrize("name", EXACT)
def test_recognised_models_are_exact(name, loss):
    torch.manual_seed(2)
    make, method = EXACT[name]
    model = make()
    inputs, outputs = model[0].in_features, model[-1].out_features
    x = torch.randn(50, inputs, dtype=torch.float64)
    y = torch.randn(50, outputs, dtype=torch.float64)
    s = hs.spectrum(model, (x, y), loss)
    H = dense(model, lambda: loss(model(x), y))
    truth = torch.linalg.eigvalsh(H).flip(0)
    assert s.exact
    assert s.reason
    assert method in (None, s.method)
    assert float((s.eigenvalues - truth).abs().max()) <= 1e-10 * float(truth.abs().max())
    assert s.verify(H).worst < 1e-10


def test_batches_are_joined_for_the_theorem(data):
    x, y = data
    torch.manual_seed(2)
    model = linear(4, 40, 2)
    whole = hs.spectrum(model, (x, y), nn.MSELoss())
    cut = hs.spectrum(model, [(x[:50], y[:50]), (x[50:], y[50:])], nn.MSELoss())
    assert cut.exact
    assert float((cut.eigenvalues - whole.eigenvalues).abs().max()) < 1e-12


def test_an_estimate_has_proved_errors(large):
    model, data, truth = large
    s = hs.spectrum(model, data, nn.MSELoss(), k=6)
    assert not s.exact
    assert s.converged
    assert s.method == "Lanczos"
    assert len(s) == 6
    assert len(truth) > estimated_spectrum.SMALL
    assert bool(((s.eigenvalues - truth[:6]).abs() <= s.errors).all())
    assert float(s.errors.max()) <= 2e-6 * float(truth[0])
    assert float(s.sharpness) == float(s.eigenvalues[0])
    assert abs(float(s.trace) - float(truth.sum())) <= 5 * float(s.trace_error)
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
    assert np.isclose(float(s.trace), truth.sum(), rtol=0, atol=float(s.trace_error))


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
            {"loss": lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1])},
            "closure",
        ),
    ],
)
def test_the_reason_for_an_estimate_is_told(options, words, data):
    assert words in hs.spectrum(linear(4, 40, 2), data, **options).reason


class Inside(nn.Sequential):
    """A model that looks like a two-layer network and is not."""

    def forward(self, x):
        return self[1](torch.tanh(self[0](x)))


class After(nn.Sequential):
    """Another one, but it has a pair of linear layers in it."""

    def forward(self, x):
        return torch.tanh(super().forward(x))


@pytest.mark.parametrize(("kind", "exact"), [(Inside, False), (After, True)])
def test_lookalikes_are_what_they_compute(data, kind, exact):
    torch.manual_seed(5)
    model = kind(nn.Linear(4, 40, bias=False), nn.Linear(40, 2, bias=False)).double()
    x, y = data
    s = hs.spectrum(model, data, nn.MSELoss(), k=3)
    truth = torch.linalg.eigvalsh(dense(model, lambda: nn.MSELoss()(model(x), y))).flip(0)
    assert s.exact == exact
    worst = (s.eigenvalues - truth[: len(s.eigenvalues)]).abs().max()
    assert float(worst) < (1e-12 if exact else 1e-6) * float(truth[0])


def test_a_wrong_theorem_is_caught(data, monkeypatch):
    """If recognition were wrong by one in a million, the products would tell."""
    torch.manual_seed(6)
    model = linear(4, 40, 2)
    real = exact_spectrum.recognise

    def off(model, x, y, criterion):
        return real(model, x, y * (1 + 1e-6), criterion)

    monkeypatch.setattr(exact_spectrum, "recognise", off)
    s = hs.spectrum(model, data, nn.MSELoss(), k=2)
    assert not s.exact
    assert "its products differ" in s.reason


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


def test_watching(large):
    model, data, _ = large
    seen = []
    s = hs.spectrum(model, data, nn.MSELoss(), k=1, watch=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == s.products


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
    assert chosen["ends"].vectors.shape[0] == 30 + 12
    with pytest.warns(hs.ConvergenceWarning):
        pairs = hs.eigenpairs(torch.diag(torch.arange(999.0)), max_products=20)
    unresolved = LayerSpectra(a=pairs)
    assert not unresolved.converged
    assert str(unresolved).endswith(f"!\n  ! a: {unresolved['a'].message}")
    with pytest.raises(ValueError, match="groups must be"):
        hs.layer_spectra(model, data, groups="all")
    with pytest.raises(ValueError, match="of must be"):
        hs.layer_spectra(model, data, of="fisher")
    with pytest.raises(ValueError, match="no parameter matches 'zero'"):
        hs.layer_spectra(model, data, groups={"a": "zero"})


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
    with pytest.raises(ValueError, match="the loss or the parameters are NaN"):
        hs.spectrum(model, data)


@pytest.mark.parametrize("middle", [nn.Dropout(0.5), nn.BatchNorm1d(2)])
def test_theorems_see_the_evaluation_mode(middle, data):
    torch.manual_seed(3)
    layers = [nn.Linear(4, 40), nn.Linear(40, 2)]
    layers.insert(1 if isinstance(middle, nn.Dropout) else 2, middle)
    model = nn.Sequential(*layers).double()
    found = hs.spectrum(model, data, nn.MSELoss(), eval_mode=True)
    assert all(module.training for module in model.modules())
    assert found.exact
    model.eval()
    truth = torch.linalg.eigvalsh(dense(model, lambda: nn.MSELoss()(model(data[0]), data[1])))
    assert torch.allclose(found.eigenvalues, truth.flip(0), rtol=0, atol=1e-12 * float(truth[-1]))


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
    with pytest.raises(ValueError, match="density was not computed"):
        _ = copied.density
    _ = s.density
    assert np.array_equal(pickle.loads(pickle.dumps(s)).density.values, s.density.values)


def test_bad_k_for_layers(data):
    for k in (0, "all"):
        with pytest.raises(ValueError, match="k must be an integer of at least 1"):
            hs.layer_spectra(mlp(4, 3, 2), data, k=k)


class Nearly(nn.Module):
    """A wide pair of linear layers, but for one weight that also scales the output a little."""

    def __init__(self):
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(4, 400), nn.Linear(400, 2))

    def forward(self, x):
        return self.pair(x) * (1 + 0.01 * self.pair[0].weight[0, 0] ** 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_lookalikes_do_not_pass_either(dtype, data):
    torch.manual_seed(9)
    model = Nearly().to(dtype)
    assert not hs.spectrum(model, tuple(part.to(dtype) for part in data), k=1).exact


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
        assert not torch.equal(model(data[0]), H.setting.snapshot.run(lambda m, x: m(x), data[0]))
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
    assert float(s.trace_error) < 1e-9
