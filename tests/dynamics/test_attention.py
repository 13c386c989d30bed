"""Self-attention through training against PyTorch's own SGD, and at the edge of stability."""

import numpy as np
import pytest
import torch

import hessence as hs
from tests import attention_oracle as oracle


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("loss", ["mse", "logistic"])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_sgd_on_the_weights(momentum, masked, loss):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 3, 4))
    y = np.sign(y) if loss == "logistic" else y
    mask = np.asarray([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]], bool) if masked else None
    net = hs.SelfAttention(0.5, *rng.normal(size=(2, 5)))
    t = hs.gradient_descent(net, x, y, lr=0.1, steps=30, momentum=momentum, mask=mask, loss=loss)
    theta = torch.tensor(np.asarray(net.parameters()), requires_grad=True)
    optimiser = torch.optim.SGD([theta], lr=0.1, momentum=momentum)
    for step in range(31):
        cost = oracle.cost(oracle.outputs(theta, x, mask), y, mask, loss)
        weights = theta.detach().numpy()
        assert float(t.loss[step]) == pytest.approx(cost.item(), rel=1e-11)
        np.testing.assert_allclose(t[step].parameters(), weights, rtol=0, atol=1e-12)
        assert float(t.query_norm[step]) == pytest.approx(np.linalg.norm(weights[1:6]), rel=1e-12)
        assert float(t.key_norm[step]) == pytest.approx(np.linalg.norm(weights[6:]), rel=1e-12)
        if step % 10 == 0:
            dense = oracle.hessian(weights, x, y, mask, loss)
            values = np.linalg.eigvalsh(dense)
            assert float(t.sharpness[step]) == pytest.approx(values[-1], rel=1e-10)
            assert float(t.trace[step]) == pytest.approx(np.trace(dense), rel=1e-10)
            np.testing.assert_allclose(t.spectrum(step).eigenvalues, values[::-1], atol=1e-11)
        optimiser.zero_grad()
        cost.backward()
        optimiser.step()


@pytest.mark.parametrize("seed", range(3))
def test_progressive_sharpening_and_the_edge_of_stability(seed):
    rng = np.random.default_rng(seed)
    x = np.asarray([1.5, -0.5])
    net = hs.SelfAttention(0.1 * rng.normal(), *(0.1 * rng.normal(size=(2, 2))))
    t = hs.gradient_descent(net, x, x[::-1], lr=2.3, steps=1500)
    relative = np.asarray(t.sharpness) * 2.3 / 2
    assert relative[0] < 0.5
    late = relative[200:]
    assert 0.9 < late.mean() < 1.1
    assert late.max() > 1.05
    assert late.min() < 0.95
    assert t.loss[200:].max() < 0.1 * t.loss[0]
    assert t.diverged is None


def test_the_loss_goes_on_falling_at_the_edge():
    rng = np.random.default_rng(0)
    x = np.asarray([1.1, -1.0, 0.6])
    net = hs.SelfAttention(0.1 * rng.normal(), *(0.1 * rng.normal(size=(2, 2))))
    t = hs.gradient_descent(net, x, x[::-1], lr=2.3, steps=600)
    windows = [slice(60, 150), slice(150, 300), slice(300, 600)]
    relative = [float(np.mean(t.sharpness[w])) * 2.3 / 2 for w in windows]
    loss = [float(np.mean(t.loss[w])) for w in windows]
    assert float(t.sharpness[0]) * 2.3 / 2 < 0.1
    assert all(1.0 < r < 1.05 for r in relative)
    assert t.loss[0] > 2 * loss[0] > 2 * loss[1] > 2 * loss[2]


def test_a_batch_trains_like_its_members():
    rng = np.random.default_rng(4)
    w_v, (w_q, w_k) = rng.normal(size=3), rng.normal(size=(2, 3, 4))
    x, y = rng.normal(size=(2, 2, 5))
    t = hs.gradient_descent(hs.SelfAttention(w_v, w_q, w_k), x, y, lr=0.05, steps=12)
    for i in range(3):
        one = hs.gradient_descent(hs.SelfAttention(w_v[i], w_q[i], w_k[i]), x, y, lr=0.05, steps=12)
        np.testing.assert_allclose(t.loss[:, i], one.loss, rtol=1e-12)
        np.testing.assert_allclose(t.outliers[:, i], one.outliers, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(t[12].w_q[i], one[12].w_q, rtol=1e-12)


def test_divergence_is_told():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2, 6))
    net = hs.SelfAttention(3.0, *rng.normal(size=(2, 4)), activation="identity")
    t = hs.gradient_descent(net, x, y, lr=50.0, steps=60)
    assert t.diverged is not None
    with pytest.raises(ValueError, match="diverged"):
        t[60]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "cross-entropy"}, "loss must treat each output on its own"),
        ({"y": None}, "y is missing"),
    ],
)
def test_bad_input(changes, words):
    arguments = {"x": np.ones(3), "y": np.ones(3), "lr": 0.1, "steps": 2} | changes
    with pytest.raises(ValueError, match=words):
        hs.gradient_descent(hs.SelfAttention(1.0, [1.0], [1.0]), **arguments)
    with pytest.raises(ValueError, match="mask is for SelfAttention"):
        hs.gradient_descent(
            hs.ScalarLinear([1.0], [1.0]), [1.0], [1.0], lr=0.1, steps=1, mask=np.ones(1, bool)
        )


@pytest.mark.parametrize("masked", [False, True])
def test_any_embedding_dimension_trains_on_its_weights(masked):
    rng = np.random.default_rng(6)
    net = hs.MatrixAttention(rng.normal(size=(2, 1)), *rng.normal(size=(2, 2, 3)))
    x, y = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4, 1))
    data = {"mask": np.arange(4) < np.asarray([[4], [2], [3]])} if masked else {}
    t = hs.gradient_descent(net, x, y, lr=0.1, steps=8, **data)
    theta = np.asarray(net.parameters())
    for step in range(9):
        here = net.with_parameters(theta)
        np.testing.assert_allclose(t[step].parameters(), theta, rtol=1e-12)
        top = np.linalg.eigvalsh(here.hessian(x, y, **data).dense())[-1]
        assert float(t.sharpness[step]) == pytest.approx(top, rel=1e-11)
        theta = theta - 0.1 * here.gradient(x, y, **data)
