"""The monitor: right values, few products, overtaking, and what it refuses."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import hessence as hs
from hessence.models._tracking import Tracker
from hessence.models.history import History
from hessence.models.monitor import Monitor
from tests.models.monitored import assert_equal, descend, small
from tests.models.oracle import dense_ggn, dense_hessian


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_are_those_of_dense_matrices_within_their_errors(dtype):
    model, (x, y), loss = small(dtype)
    monitor = Monitor(model, (x, y), loss, k=3, trace=30)
    assert monitor.eigenvectors is None
    rounding = 1e-4 if dtype == torch.float32 else 1e-12
    for step in range(25):
        record = monitor.measure(step)
        assert record.converged
        if step % 6 == 0:
            twin = copy.deepcopy(model).double()
            parameters = list(twin.parameters())
            H = dense_hessian(lambda m=twin: loss(m(x.double()), y), parameters)
            G = dense_ggn(lambda m=twin: m(x.double()), lambda f: loss(f, y), parameters)
            for matrix, values, errors in (
                (H, record.eigenvalues, record.errors),
                (G, record.ggn_eigenvalues, record.ggn_errors),
            ):
                truth = np.linalg.eigvalsh(matrix.numpy())[::-1][:3]
                assert (np.abs(values - truth) <= errors + rounding).all()
                assert (errors <= 1.01e-4 * truth[0] + rounding).all()
            assert abs(record.trace - float(H.trace())) <= 5 * record.trace_stderr
            assert record.loss == pytest.approx(loss(model(x), y).item())
            gap = abs(record.eigenvalues[0] - record.ggn_eigenvalues[0]) / record.eigenvalues[0]
            assert record.ggn_gap == pytest.approx(gap)
            vectors = monitor.eigenvectors.double()
            assert vectors.shape == (len(H), 3)
            residuals = (H @ vectors - vectors * torch.tensor(record.eigenvalues)).norm(dim=0)
            assert float(residuals.max()) <= 2e-4 * float(truth[0]) + rounding
        descend(model, (x, y), loss, 0.3)
    assert monitor.history.eigenvalues.shape == (25, 3)
    np.testing.assert_array_equal(monitor.history.steps, np.arange(25))
    assert monitor.history.products[1:].mean() < 0.5 * monitor.history.products[0]


@pytest.fixture(scope="module")
def digits():
    found = pytest.importorskip("sklearn.datasets").load_digits()
    return torch.tensor(found.data / 16), torch.tensor(found.target)


# Measured: 2.7 and 1.5 products, 5.5 and 2.0; from nothing 13 and 9, 19 and 13; Lanczos from the
# last eigenvector, without any checks, 6.8 and 2.0, 8.4 and 1.9.
@pytest.mark.parametrize(
    ("lr", "batch", "most"),
    [
        (0.1, None, {1e-4: 4.0, 1e-2: 2.0}),
        pytest.param(0.02, 64, {1e-4: 7.0, 1e-2: 2.2}, marks=pytest.mark.slow),
    ],
)
def test_few_products_at_each_step_of_training(digits, lr, batch, most):
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)]
    model, loss = nn.Sequential(*layers).double(), nn.CrossEntropyLoss()
    assert sum(p.numel() for p in model.parameters()) == 8970
    generator = torch.Generator().manual_seed(0)
    monitors = {tol: Monitor(model, digits, loss, tol=tol, ggn=False) for tol in most}
    for step in range(100):
        records = {tol: monitor.measure(step) for tol, monitor in monitors.items()}
        if step % 33 == 0:
            truth = hs.eigenpairs(hs.hessian(model, digits, loss), k=1, tol=1e-8)
            for tol, record in records.items():
                assert abs(record.sharpness - float(truth.eigenvalues)) < tol * record.sharpness
        descend(model, digits, loss, lr, batch, generator)
    for tol, monitor in monitors.items():
        assert monitor.history.converged.all()
        assert monitor.history.products.mean() <= most[tol]


class Springs(nn.Module):
    """Uncoupled parameters: the Hessian is diagonal, and its eigenvalues are set from outside."""

    def __init__(self, values):
        super().__init__()
        self.w = nn.Parameter(torch.ones(len(values), dtype=torch.float64))
        self.register_buffer("stiffness", torch.as_tensor(values))

    def forward(self, x):
        return (self.stiffness.sqrt() * self.w)[None, :] * x


def overtaking(seed, steps=40, refresh=10, **options):
    """Let an eigenvalue cross the largest one at step 15; it has no part in any other vector."""
    values = np.random.default_rng(0).uniform(0, 1, size=400)
    values[0] = 3.0
    model = Springs(values)
    x = torch.ones(1, 400, dtype=torch.float64)

    def energy(prediction, target):
        return 0.5 * (prediction - target).square().sum()

    monitor = Monitor(model, (x, torch.zeros_like(x)), energy, rng=seed, refresh=refresh, **options)
    rising = 1.5 + 0.1 * np.arange(steps)
    for step in range(steps):
        model.stiffness[1] = rising[step]
        monitor.measure(step)
    return monitor.history, np.maximum(3.0, rising)


def test_an_eigenvalue_that_overtakes_is_noticed_at_the_next_refreshing():
    blind, truth = overtaking(0, refresh=0)
    late = truth > 3.05
    np.testing.assert_allclose(blind.sharpness[~late], truth[~late], rtol=1e-4)
    # Without checks the old eigenvector is followed, with a vanishing residual, until rounding and
    # what the tolerance lets pass have grown into the other one.
    np.testing.assert_allclose(blind.sharpness[late][:12], 3.0, rtol=1e-4)
    missed = 0
    for seed in range(5):
        history, truth = overtaking(seed)
        right = np.isclose(history.sharpness, truth, rtol=1e-3)
        np.testing.assert_array_equal(right, np.isclose(history.ggn_eigenvalues[:, 0], truth, 1e-3))
        assert right[~late].all()
        assert right[30:].all()
        missed += (~right[20:]).sum()
    assert missed <= 10


def test_the_second_of_two_followed_is_free_to_overtake():
    history, truth = overtaking(0, k=2, refresh=10, steps=30)
    np.testing.assert_allclose(history.sharpness, truth[:30], rtol=1e-4)


def test_a_closure_has_no_gauss_newton_matrix():
    model, data, loss = small()
    monitor = Monitor(model, data, lambda m, b: loss(m(b[0]), b[1]), k=2, closure=True)
    record = monitor.measure(0)
    assert record.converged
    assert np.isfinite(record.eigenvalues).all()
    assert np.isnan(record.ggn_eigenvalues).all()
    assert np.isnan(record.ggn_gap)
    assert np.isnan(monitor.history.trace).all()
    assert record.ggn_products == record.trace_products == 0


def test_a_diverged_run_is_recorded_as_such(tmp_path):
    model, data, loss = small()
    monitor = Monitor(model, data, loss, path=tmp_path / "run.json", trace=10)
    before = monitor.measure(0)
    kept = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[0].weight.fill_(np.nan)
    record = monitor.measure(1)
    assert np.isnan([record.loss, record.sharpness, record.ggn_gap, record.trace]).all()
    assert not record.converged
    assert_equal(History.load(tmp_path / "run.json"), monitor.history)
    model.load_state_dict(kept)
    after = monitor.measure(2)
    assert abs(after.sharpness - before.sharpness) <= after.errors[0] + before.errors[0]


def test_the_model_is_not_touched():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.5), nn.Linear(12, 3)
    ).double()
    _, data, loss = small()
    loss(model(data[0]), data[1]).backward()
    state = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters()]
    monitor = Monitor(model, data, loss, eval_mode=True, memory=1e8, trace=10)
    random = torch.random.get_rng_state()
    with torch.no_grad():
        monitor.measure(0)
    with torch.inference_mode():
        monitor.measure(1)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    assert all(
        torch.equal(a, b) for a, b in zip(state.values(), model.state_dict().values(), strict=True)
    )
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    with pytest.raises(ValueError, match="training mode"):
        Monitor(model, data, loss)


def test_model_and_data_are_copied_once(monkeypatch):
    """A measurement loads parameters and buffers into the copy, and reads nothing else."""
    model, data, loss = small()
    passes = []

    class Batches:
        def __iter__(self):
            passes.append(1)
            return iter([data])

    monitor = Monitor(model, Batches(), loss)
    made = len(passes)
    before = monitor.measure(0)  # which also checks products, by copies of its own
    monkeypatch.setattr(copy, "deepcopy", lambda *_: pytest.fail("the model was copied again"))
    descend(model, data, loss, 0.3)
    after = monitor.measure(1)
    assert len(passes) == made
    assert after.loss == pytest.approx(loss(model(data[0]), data[1]).item())
    assert after.loss < before.loss


def test_some_parameters_only():
    model, data, loss = small()
    record = Monitor(model, data, loss, params="2", k=2).measure(0)
    H = hs.hessian(model, data, loss, params="2").dense()
    truth = torch.linalg.eigvalsh(H).flip(0)[:2].numpy()
    np.testing.assert_allclose(record.eigenvalues, truth, rtol=1e-10)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"k": 0}, "k must be an integer between 1 and 123, got 0."),
        ({"k": 124}, "k must be an integer between 1 and 123, got 124."),
        ({"k": 1.0}, "k must be an integer between 1 and 123, got 1.0."),
        ({"k": True}, "k must be an integer between 1 and 123, got True."),
        ({"tol": -1e-3}, "tol must be a number that is not negative, got -0.001."),
        ({"tol": "1e-3"}, "tol must be a number that is not negative, got str."),
        ({"tol": True}, "tol must be a number that is not negative, got bool."),
        ({"tol": float("nan")}, "tol must be a number that is not negative, got nan."),
        ({"trace": -1}, "trace must be an integer of at least 0, got -1."),
        ({"trace": 2}, "trace must be 0 or at least 4 products, got 2."),
        ({"refresh": -1}, "refresh must be an integer of at least 0, got -1."),
        ({"remember": 0.5}, "remember must be an integer of at least 0, got 0.5."),
        ({"rng": -1}, "rng must be an integer of at least 0, got -1."),
        ({"lr": 0}, "lr must be a positive number, got 0."),
        ({"lr": "0.1"}, "lr must be a positive number, got str."),
        ({"path": "run.npz"}, "path must name a JSON file, got 'run.npz'."),
        ({"path": "no/such/folder/run.json"}, "path must name a file in a folder that exists, "
         "got 'no/such/folder/run.json'."),
        ({"path": 3}, "path must be a str or a path, got int."),
        ({"every": 5}, "hessian() got an unexpected keyword argument 'every'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(wrong, said):
    with pytest.raises((ValueError, TypeError)) as caught:
        Monitor(*small(), **wrong)
    assert str(caught.value) == said


@pytest.mark.parametrize("step", [1.0, "1", None, True])
def test_bad_steps_are_named(step):
    monitor = Monitor(*small())
    with pytest.raises(ValueError, match=r"^step must be an integer, got "):
        monitor.measure(step)
    with pytest.raises(ValueError, match=r"^lr must be a positive number, got -1"):
        monitor.measure(0, lr=-1)
    assert len(monitor.history) == 0


def test_steps_must_increase_and_the_model_keep_its_size():
    model, data, loss = small()
    monitor = Monitor(model, data, loss)
    monitor.measure(np.int64(3))
    for step in (3, 2):
        with pytest.raises(ValueError, match="greater than the last one, 3"):
            monitor.measure(step)
    model[2].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"^model must have 123 parameters as before, got 87"):
        monitor.measure(4)
    assert list(monitor.history.steps) == [3]


def test_records_cannot_be_changed():
    record = Monitor(*small()).measure(0)
    with pytest.raises(AttributeError):
        record.step = 1
    with pytest.raises(ValueError, match="read-only"):
        record.eigenvalues[0] = 1


def test_a_tiny_model_is_solved_densely():
    model = nn.Linear(2, 1).double()
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).double()
    monitor = Monitor(model, (x, x[:, :1]), nn.MSELoss(), k=3, trace=5)
    for step in range(3):
        record = monitor.measure(step)
        H = hs.hessian(model, (x, x[:, :1]), nn.MSELoss()).dense()
        np.testing.assert_allclose(record.eigenvalues, torch.linalg.eigvalsh(H).flip(0))
        np.testing.assert_allclose(record.ggn_gap, 0, atol=1e-12)
        np.testing.assert_allclose(record.trace, float(H.trace()))


@pytest.mark.parametrize("tol", [1e-4, 1e-2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_training_that_blows_up(seed, tol):
    """What was followed may end up in the kernel of the Hessian, with a residual to match."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 60), nn.Tanh(), nn.Linear(60, 1)).double()
    data, loss = (torch.randn(60, 4).double(), torch.randn(60, 1).double()), nn.MSELoss()
    monitor = Monitor(model, data, loss, lr=0.5, tol=tol, ggn=False)
    for step in range(14):
        found = monitor.measure(step)
        H = hs.hessian(model, data, loss).dense()
        values = torch.linalg.eigvalsh(H)
        top, norm = float(values[-1]), float(values.abs().max())
        assert abs(found.sharpness - top) <= max(float(found.errors[0]), tol * norm)
        # A largest eigenvalue that is nothing beside the smallest one cannot be told better.
        assert found.sharpness >= 0.5 * top or top < 10 * tol * norm
        descend(model, data, loss, 0.5)


def test_a_concave_loss_is_no_collapse(monkeypatch):
    """Its largest eigenvalue is the one nearest to zero, and stays where it is."""

    class Concave(nn.Module):
        def __init__(self):
            super().__init__()
            self.point = nn.Parameter(torch.ones(600).double())

        def forward(self, x):
            return -(torch.linspace(1, 2, 600).double() * self.point**2).sum() * x

    data = torch.ones(3, 1).double(), torch.zeros(3, 1).double()

    def products():
        monitor = Monitor(Concave(), data, lambda f, y: f.mean(), ggn=False, refresh=0)
        return [monitor.measure(step).products for step in range(6)]

    found = products()
    monkeypatch.setattr(Tracker, "_is_lost", lambda *_: False)
    assert found == products()


class Dropping(nn.Module):
    """Drops values at random by a function, which has no layer to be named."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 40), nn.Linear(40, 1)

    def forward(self, x):
        return self.last(nn.functional.dropout(self.first(x), 0.5, self.training))


def test_a_random_model_is_refused():
    data = torch.randn(20, 4), torch.randn(20, 1)
    monitor = Monitor(Dropping(), data, nn.MSELoss())
    with pytest.raises(ValueError, match="something random is in the model"):
        monitor.measure(0)
    with pytest.raises(ValueError, match="something random is in the model"):
        hs.layer_spectra(Dropping(), data, nn.MSELoss())
