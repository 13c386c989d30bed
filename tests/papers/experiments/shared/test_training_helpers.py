"""Reductions that experiments use, against the whole problem."""

from itertools import pairwise

import numpy as np
import pytest

import hessence as hs
from hessence.papers.experiments.figures.shallow_eigenvalues import top_eigenvalues
from hessence.papers.experiments.shared.edge_of_stability import (
    endings,
    late_over_early,
    swing_and_residual,
)
from hessence.papers.experiments.shared.gradient_descent import seen_inputs
from hessence.papers.experiments.shared.image_training import class_subset
from hessence.papers.experiments.shared.one_output import eigenvalues
from hessence.papers.experiments.shared.scalar_by_definition import CHUNK, summed_hessian
from hessence.plotting.axes import signed_scale


@pytest.mark.parametrize("inputs", [3, 12])
def test_inputs_that_are_not_seen_hold_no_top_eigenvalue(inputs):
    rng = np.random.default_rng(0)
    x = hs.whiten(rng.normal(size=(60, inputs)))
    y = rng.normal(size=(60, 2))
    first, second = rng.normal(size=(4, inputs)), 0.5 * rng.normal(size=(2, 4))
    whole = np.linalg.eigvalsh(hs.TwoLayerLinear(first, second).hessian(x, y).dense())[::-1]
    assert (seen_inputs(first, y.T @ x / len(x)) is None) == (inputs == 3)
    found = top_eigenvalues(first, second, x, y, 4, rng)
    np.testing.assert_allclose(found, whole[:4], rtol=1e-6)


def test_unseen_inputs_that_would_be_among_the_largest_are_told():
    rng = np.random.default_rng(1)
    x, y = hs.whiten(rng.normal(size=(60, 12))), rng.normal(size=(60, 2))
    first, second = 1e-6 * rng.normal(size=(4, 12)), rng.normal(size=(2, 4))
    with pytest.raises(ArithmeticError, match="unseen inputs"):
        top_eigenvalues(first, second, x, y, 30, rng)


@pytest.mark.parametrize(
    ("activation", "depth", "inputs"),
    [("linear", 2, 5), ("linear", 4, 5), ("relu", 2, 5), ("relu", 4, 2), ("relu", 4, 1)],
)
def test_eigenvalues_on_the_range_and_zeros_are_all(activation, depth, inputs):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    dims = (inputs, *[7] * (depth - 1), 1)
    weights = [rng.normal(size=(b, a)) for a, b in pairwise(dims)]
    x, y = rng.normal(size=(9, inputs)), rng.normal(size=(9, 1))
    shapes, sizes = [w.shape for w in weights], [w.size for w in weights]

    def loss(theta):
        hidden = torch.tensor(x).T
        parts = zip(torch.split(theta, sizes), shapes, strict=True)
        for i, (part, shape) in enumerate(parts):
            hidden = part.reshape(shape) @ hidden
            if activation == "relu" and i < depth - 1:
                hidden = torch.relu(hidden)
        return ((hidden - torch.tensor(y).T) ** 2).sum() / (2 * len(x))

    theta = torch.tensor(np.concatenate([w.ravel() for w in weights]))
    dense = torch.autograd.functional.hessian(loss, theta).numpy()
    found, flat = eigenvalues(weights, x, y, activation)
    every = np.sort(np.concatenate([found, np.zeros(flat)]))
    whole = np.linalg.eigvalsh(dense)
    np.testing.assert_allclose(every, whole, rtol=0, atol=1e-11 * np.abs(whole).max())


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("samples", [9, CHUNK + 7])
def test_a_summed_hessian_is_that_of_autodiff(relu, samples):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    w, v = rng.normal(size=(2, 4))
    x, y = rng.normal(size=(2, samples))

    def loss(theta):
        hidden = torch.outer(theta[:4], torch.tensor(x))
        outputs = theta[4:] @ (torch.relu(hidden) if relu else hidden)
        return ((outputs - torch.tensor(y)) ** 2).mean() / 2

    theta = torch.tensor(np.concatenate([v, w]))
    expected = torch.autograd.functional.hessian(loss, theta).numpy()
    np.testing.assert_allclose(summed_hessian(w, v, x, y, relu=relu), expected, atol=1e-13)


def test_every_ending_of_a_run_has_its_name():
    steps = np.arange(40)
    curves = {
        "below": np.full(40, 0.5),
        "edge": 1 + 0.2 * (-1.0) ** steps,
        "above": np.full(40, 1.5),
        "returns": np.where(steps < 20, 1.2, 0.8),
    }
    relative = np.stack([*curves.values(), curves["edge"]], axis=1)
    loss = np.ones((40, 5))
    loss[-1, 4] = np.inf
    assert endings(relative, loss) == [*curves, "diverges"]
    assert late_over_early(np.where(steps < 20, 4.0, 1.0)) == 0.25
    assert np.isnan(late_over_early(np.asarray([1.0, np.nan] * 20)))


def test_what_is_left_of_swings_and_residuals_is_told_apart():
    steps = np.arange(600)
    swings, residuals = np.exp(-steps / 200), np.exp(-steps / 400)
    left = swing_and_residual(1 + swings * (-1.0) ** steps, residuals)
    np.testing.assert_allclose(left, np.exp([-400 / 200, -400 / 400]), rtol=1e-9)
    assert np.isnan(swing_and_residual(swings[:100], residuals[:100])).all()


def test_ticks_of_both_signs_have_room():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    ax.plot([0, 1], [-3.0, 200.0])
    signed_scale(ax, 0.02)
    ticks = [tick for tick in ax.get_yticks() if ax.get_ylim()[0] <= tick <= ax.get_ylim()[1]]
    assert ticks == [-1.0, -0.1, 0.0, 0.1, 1.0, 10.0, 100.0]


def test_subsets_have_one_size_and_the_shares_asked_for():
    shares = [i / 10 for i in range(1, 10)]
    for share in shares:
        images = class_subset("digits", 5000, share, shares, np.random.default_rng(0))
        counts = np.bincount(images.labels)
        assert counts.sum() == 196  # 178 zeros are there, and nine tenths are to be zeros
        assert len(set(counts[1:])) == 1
        assert abs(counts[0] / counts.sum() - share) < 0.03
