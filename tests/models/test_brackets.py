"""Brackets and exact counts of two-layer models, against dense Hessians by autodiff."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hessence as hs
from hessence.networks.two_layer import slicing


class Modulus(nn.Module):
    def forward(self, z):
        return z.abs()


ACTIVATIONS = {
    "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU, "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid, "relu": nn.ReLU, "leaky": lambda: nn.LeakyReLU(0.1), "elu": nn.ELU,
    "in place": lambda: nn.ReLU(inplace=True), "identity": nn.Identity, "abs": Modulus,
}  # fmt: skip


class Sine(nn.Module):
    """Two layers in a module of a user's own, with a function that has no module."""

    def __init__(self, inputs, width, outputs, bias):
        super().__init__()
        self.a = nn.Linear(inputs, width, bias=bias)
        self.b = nn.Linear(width, outputs, bias=bias)

    def forward(self, x):
        z = self.a(x)
        return self.b(torch.sin(2 * z) + 0.1 * z**2)


def target_and_loss(kind, samples, outputs):
    real = torch.randn(samples, outputs).double()
    if kind == "cross-entropy":
        return torch.randint(outputs, (samples,)), nn.CrossEntropyLoss(label_smoothing=0.1)
    if kind == "bce":
        return (real > 0).double(), nn.BCEWithLogitsLoss(reduction="sum")
    return real, {"mse": nn.MSELoss(), "huber": nn.HuberLoss(delta=0.5), "own": None}[kind]


def build(activation, inputs, width, outputs, bias):
    if activation == "own":
        return Sine(inputs, width, outputs, bias).double()
    layers = nn.Linear(inputs, width, bias=bias), nn.Linear(width, outputs, bias=bias)
    return nn.Sequential(layers[0], ACTIVATIONS[activation](), layers[1]).double()


def dense(model, data, loss, names=None):
    """The Hessian by two passes of automatic differentiation, and how much rounding is in it.

    Of confident predictions it knows the loss' second derivative to rounding only.
    """
    x, y = data
    chosen = [p for name, p in model.named_parameters() if names is None or name in names]
    value = loss(model(x), y) if loss is not None else ((model(x) - y) ** 2).sum() / (2 * len(x))
    slopes = torch.autograd.grad(value, chosen, create_graph=True, materialize_grads=True)
    flat = torch.cat([g.flatten() for g in slopes])
    rows = torch.autograd.grad(
        flat, chosen, torch.eye(len(flat)).double(), is_grads_batched=True, materialize_grads=True
    )
    matrix = torch.cat([row.reshape(len(flat), -1) for row in rows], dim=1).detach().numpy()
    if loss is None or isinstance(loss, (nn.MSELoss, nn.HuberLoss)):
        return matrix, 0.0
    outputs = model(x).flatten()
    jacobian = torch.autograd.grad(
        outputs, chosen, torch.eye(len(outputs)).double(), is_grads_batched=True
    )
    return matrix, 1e-15 * sum(float(part.square().sum()) for part in jacobian)


def eigenvalues_and_noise(found):
    """Eigenvalues, descending, and what the oracle itself may round off."""
    matrix, noise = found
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1]
    return values, noise + 1e-14 * len(values) * max(np.abs(values).max(), 1e-300)


def require_contained(found, values, noise):
    assert (found.lower <= values + noise).all()
    assert (found.upper >= values - noise).all()
    assert found.zeros <= (np.abs(values) <= noise).sum()


@given(
    activation=st.sampled_from([*ACTIVATIONS, "own"]),
    kind=st.sampled_from(["mse", "cross-entropy", "bce", "huber"]),
    sizes=st.tuples(*(st.integers(1, top) for top in (5, 6, 4, 7))),
    bias=st.booleans(),
    scales=st.tuples(*(st.sampled_from([1e-9, 1e-3, 1.0, 1e3, 1e9]) for _ in range(2))),
    corner=st.sampled_from(["none"] * 4 + ["zero residual", "dead", "twins", "zero weights"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_eigenvalues_are_in_their_brackets_and_counts_are_right(
    activation, kind, sizes, bias, scales, corner, seed
):
    torch.manual_seed(seed)
    inputs, width, outputs, samples = sizes
    model = build(activation, inputs, width, outputs, bias)
    first, second = [m for m in model.modules() if isinstance(m, nn.Linear)]
    x = torch.randn(samples, inputs).double() * scales[0]
    y, loss = target_and_loss(kind, samples, outputs)
    with torch.no_grad():
        # Pre-activations of order one in any unit of the inputs; outputs in any unit.
        first.weight *= 3 / scales[0]
        second.weight *= 3 * (scales[1] if kind in ("mse", "huber") else 1.0)
        if kind == "mse":
            y = y * scales[1]
        if corner == "dead":
            first.weight[0] = 0
        elif corner == "twins" and width > 1:
            first.weight[1], second.weight[:, 1] = first.weight[0], second.weight[:, 0]
        elif corner == "zero weights":
            second.weight.zero_()
        elif corner == "zero residual" and kind in ("mse", "huber"):
            y = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hs.KinkWarning)
        found = hs.brackets(model, (x, y), loss)
    values, noise = eigenvalues_and_noise(dense(model, (x, y), loss))
    require_contained(found, values, noise)
    require_counts(found, values, 10 * noise, np.random.default_rng(seed))


def require_counts(found, values, noise, rng):
    """Compare counts between numbers that no eigenvalue is close to, and one eigenvalue."""
    ends = np.sort(rng.choice(values, 2)) + rng.normal(size=2) * 0.1 * np.abs(values).max()
    low, high = min(ends), max(ends)
    if np.abs(values[:, None] - ends).min() > noise:
        count = found.count(low, high)
        assert count == ((values > low) & (values <= high)).sum()
        assert count.intervals[0][0] <= low <= count.intervals[0][1]
    index = int(rng.integers(len(values)))
    bottom, top = found.eigenvalue(index)
    assert bottom <= values[index] + noise
    assert top >= values[index] - noise
    inertia = found.inertia()
    assert sum(inertia) == len(values)
    assert inertia.negative <= (values < noise).sum()
    assert inertia.negative >= (values < -noise).sum() - inertia.flat
    assert inertia.positive >= (values > noise).sum() - inertia.flat


def test_biases_are_counted_in_the_units_of_large_inputs():
    torch.manual_seed(0)
    model = build("tanh", 4, 5, 1, True)
    x, y = 1e9 * torch.randn(6, 4).double(), torch.randn(6, 1).double()
    with torch.no_grad():
        model[0].weight *= 3e-9
    values, _ = eigenvalues_and_noise(dense(model, (x, y), nn.MSELoss()))
    found = hs.brackets(model, (x, y), nn.MSELoss())
    for index in (0, 1, -1):
        low, high = found.eigenvalue(index)
        assert low - 1e-12 * values[0] <= values[index] <= high + 1e-12 * values[0]
        assert high - low < 1e-10 * values[0]


@given(seed=st.integers(0, 2**32 - 1))
def test_brackets_hold_in_many_small_cases(seed):
    # Ten cases an example, of the counts' cost none: ten thousand in a hunt.
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    for _ in range(10):
        inputs, width, outputs, samples = (int(rng.integers(1, top)) for top in (5, 6, 4, 6))
        activation = str(rng.choice([*ACTIVATIONS, "own"]))
        kind = str(rng.choice(["mse", "cross-entropy", "bce", "huber"]))
        model = build(activation, inputs, width, outputs, bool(rng.integers(2)))
        x = torch.randn(samples, inputs).double() * 10 ** rng.uniform(-2, 2)
        y, loss = target_and_loss(kind, samples, outputs)
        found = hs.brackets(model, (x, y), loss)
        require_contained(found, *eigenvalues_and_noise(dense(model, (x, y), loss)))


def network(samples=9, outputs=2):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs)).double()
    return model, (torch.randn(samples, 3).double(), torch.randn(samples, outputs).double())


@pytest.mark.parametrize("outputs", [1, 2])
def test_biases_of_the_outputs_do_not_hide_what_is_near_zero(outputs, monkeypatch):
    counts, cut = [], slicing.Slicer.cut
    monkeypatch.setattr(slicing.Slicer, "cut", lambda *given: counts.append(1) or cut(*given))
    model, data = network(outputs=outputs)
    values = np.linalg.eigvalsh(dense(model, data, nn.MSELoss())[0])
    found = hs.brackets(model, data, nn.MSELoss())
    inertia = found.inertia()
    assert len(counts) == 1
    assert tuple(inertia) == ((values > 0).sum(), (values < 0).sum(), 0)
    for at in 1e-12 * np.asarray([-1.0, 1.0]):
        assert found.count(-np.inf, at) == (values <= at).sum()


@pytest.mark.parametrize("kind", ["mse", "cross-entropy", "bce"])
def test_any_eigenvalue_is_found_with_biases_of_the_outputs(kind):
    model, (x, _) = network(outputs=3)
    y, loss = target_and_loss(kind, len(x), 3)
    values, noise = eigenvalues_and_noise(dense(model, (x, y), loss))
    found = hs.brackets(model, (x, y), loss)
    for index, value in enumerate(values):
        low, high = found.eigenvalue(index)
        assert low - noise <= value <= high + noise
        assert high - low < 1e-11 * values[0]


def test_samples_on_which_the_loss_is_straight_hide_no_eigenvalue():
    # All units are off for the first sample, and the other is far from its target.
    model = build("relu", 4, 3, 1, bias=False)
    with torch.no_grad():
        model[0].weight.abs_()
        model[2].weight *= 1e9
    x, y = 1e3 * torch.tensor([[-1.0], [1.0]]).double().expand(2, 4), torch.zeros(2, 1).double()
    values = np.linalg.eigvalsh(dense(model, (x, y), nn.HuberLoss())[0])
    found = hs.brackets(model, (x, y), nn.HuberLoss())
    clear = np.abs(values) > 1e-9 * values[-1]
    assert found.inertia() == ((values[clear] > 0).sum(), (values[clear] < 0).sum(), (~clear).sum())


def test_the_last_two_layers_of_any_model_have_brackets():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(1, 2, 3), nn.GELU(), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 5), nn.SiLU(),
        nn.Linear(5, 3),
    ).double()  # fmt: skip
    data = torch.randn(7, 1, 6).double(), torch.randint(3, (7,))
    for params in (["4", "6"], ["4.weight", "6"], ["4", "6.weight"]):
        found = hs.brackets(model, data, nn.CrossEntropyLoss(), params=params)
        names = [n for n, _ in model.named_parameters() if any(n.startswith(p) for p in params)]
        values, noise = eigenvalues_and_noise(dense(model, data, nn.CrossEntropyLoss(), names))
        assert found.method == "two layers"
        require_contained(found, values, noise)
        assert found.count(-1.0, 1e-3) == ((values > -1.0) & (values <= 1e-3)).sum()


def test_batches_of_any_size_and_single_precision_give_the_brackets_of_the_whole():
    model, (x, y) = network()
    whole = hs.brackets(model, (x, y), nn.MSELoss())
    parts = hs.brackets(model, [(x[:4], y[:4]), (x[4:], y[4:])], nn.MSELoss())
    assert np.allclose(whole.lower, parts.lower, rtol=0, atol=1e-12)
    single = hs.brackets(model.float(), (x.float(), y.float()), nn.MSELoss())
    assert np.allclose(whole.upper, single.upper, rtol=0, atol=1e-5)
    assert single.width.max() < whole.width.max() * 1.001


def test_a_batch_whose_targets_are_all_ignored_adds_nothing():
    torch.manual_seed(0)
    model = build("tanh", 3, 5, 3, bias=True)
    x, y = torch.randn(7, 3).double(), torch.tensor([-100, -100, 0, 2, -100, 1, 1])
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0]).double())
    for batches in ([2, 5], [2, 2, 3], [5, 2]):
        parts = list(zip(x.split(batches), y.split(batches), strict=True))
        found = hs.brackets(model, parts, loss)
        assert found.method == "two layers"
        require_contained(found, *eigenvalues_and_noise(dense(model, (x, y), loss)))


def test_a_deep_model_has_brackets_by_the_dual():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    ).double()  # fmt: skip
    data = torch.randn(10, 3).double(), torch.randn(10, 2).double()
    values, noise = eigenvalues_and_noise(dense(model, data, nn.MSELoss()))
    for seed in range(6):
        found = hs.brackets(model, data, nn.MSELoss(), rng=seed)
        require_contained(found, values, noise)
    assert (found.method, found.level) == ("dual", 0.99)
    assert found.width.max() < 1.5 * (np.ptp(values) + 2 * np.abs(values[-1]))
    with pytest.raises(ValueError, match="exact counts need the network"):
        found.count(0.0, 1.0)
    with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
        hs.brackets(model, data, nn.MSELoss(), level=1.0)
    with pytest.raises(ValueError, match="steps must be more"):
        hs.brackets(model, data, nn.MSELoss(), steps=2)


@pytest.mark.parametrize(("which", "top", "bottom"), [("LA", 5, 0), ("SA", 0, 5), ("BE", 3, 2)])
def test_refining_finds_eigenvalues_at_either_end_to_rounding(which, top, bottom):
    model, data = network()
    values, noise = eigenvalues_and_noise(dense(model, data, nn.MSELoss()))
    before = hs.brackets(model, data, nn.MSELoss())
    found = before.refine(5, which)
    require_contained(found, values, noise)
    narrow = found.width < 1e-11 * values[0]
    assert narrow[:top].all()
    assert narrow[len(found) - bottom :].all()
    assert found.width[top : len(found) - bottom].max() > 1e-12
    assert (found.width <= before.width).all()


def test_brackets_are_saved_compared_pickled_and_drawn(tmp_path):
    model, data = network()
    found = hs.brackets(model, data, nn.MSELoss())
    found.save(tmp_path / "brackets.json")
    again = hs.load(tmp_path / "brackets.json")
    assert again == found == pickle.loads(pickle.dumps(found))
    assert again != found.refine(1)
    with pytest.raises(ValueError, match="exact counts need the network"):
        again.inertia()
    count = found.count(-1.0, 1.0)
    copied = pickle.loads(pickle.dumps(count))
    assert (copied, copied.intervals) == (count, count.intervals)
    assert f"brackets of {len(found)} eigenvalues, two layers" in repr(found)
    low, high = found.share(np.asarray([-1e9, 0.0, 1e9]))
    assert (low <= high).all()
    assert [low[0], high[-1]] == [0, 1]
    axes = found.plot(label="mine")
    (band,), (line,) = axes.collections, axes.lines
    assert band.get_paths()[0].get_extents().ymax == pytest.approx(found.upper[0])
    assert line.get_label() == "mine"
