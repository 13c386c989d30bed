"""Weight decay, mini-batches and sharpness-aware minimisation against PyTorch on the weights."""

import numpy as np
import pytest
import torch

import hessence as hs
from tests import attention_oracle
from tests.linear_oracle import cross_entropy, squared

RULES = [
    {"weight_decay": 0.1},
    {"batches": [[0, 3], [1, 2, 4], [5]]},
    {"sam": 0.1},
    {"weight_decay": 0.05, "batches": [[5, 0], [1, 1, 2], [4, 3]], "sam": 0.05, "momentum": 0.6},
]


def trained(theta, cost, steps, *, lr, momentum=0.0, weight_decay=0.0, sam=0.0, batches=None):
    """Return the weights at every point; `cost` is a function of weights and indices or None."""
    theta = torch.tensor(np.asarray(theta), requires_grad=True)
    optimiser = torch.optim.SGD([theta], lr=lr, momentum=momentum, weight_decay=weight_decay)
    points = []
    for step in range(steps + 1):
        points.append(theta.detach().numpy().copy())
        chosen = None if batches is None else batches[step % len(batches)]
        (slope,) = torch.autograd.grad(cost(theta, chosen), theta)
        if sam and slope.norm() > 0:
            ahead = (theta + sam * slope / slope.norm()).detach().requires_grad_()
            (slope,) = torch.autograd.grad(cost(ahead, chosen), ahead)
        theta.grad = slope
        optimiser.step()
    return points


def assert_same(net, x, y, cost, rule, lr=0.1, steps=40, **options):
    t = hs.gradient_descent(net, x, y, lr=lr, steps=steps, **rule, **options)
    points = trained(net.parameters(), cost, steps, lr=lr, **rule)
    for step, theta in enumerate(points):
        np.testing.assert_allclose(t[step].parameters(), theta, rtol=0, atol=1e-11)
        expected = cost(torch.tensor(theta), None).item()
        assert float(t.loss[step]) == pytest.approx(expected, rel=1e-10)
    return t


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("masked", [False, True])
def test_attention(rule, masked):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 6, 4))
    mask = rng.random((6, 4)) < 0.7 if masked else None
    if masked:
        mask[:, 0] = True
    net = hs.SelfAttention(0.5, *rng.normal(size=(2, 5)))

    def cost(theta, chosen):
        own = slice(None) if chosen is None else chosen
        some = None if mask is None else mask[own]
        return attention_oracle.cost(
            attention_oracle.outputs(theta, x[own], some), y[own], some, "mse"
        )

    options = {"mask": mask} if masked else {}
    assert assert_same(net, x, y, cost, rule, **options).method == "lines"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [hs.ScalarLinear, hs.ScalarReLU])
def test_scalar_networks(kind, rule):
    rng = np.random.default_rng(2)
    x = rng.normal(size=6)
    y = np.abs(x)
    net = kind(*(0.5 * rng.normal(size=(2, 7))))

    def cost(theta, chosen):
        own = slice(None) if chosen is None else chosen
        hidden = torch.tensor(x[own])[:, None] * theta[:7]
        hidden = torch.relu(hidden) if kind is hs.ScalarReLU else hidden
        return ((hidden @ theta[7:] - torch.tensor(y[own])) ** 2).mean() / 2

    t = assert_same(net, x, y, cost, rule, lr=0.2)
    assert t.method == "lines"
    values = np.linalg.eigvalsh(t[40].hessian(x, y).dense())
    assert float(t.sharpness[40]) == pytest.approx(values[-1], rel=1e-10)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
def test_deep_linear_networks(rule, aligned, loss):
    rng = np.random.default_rng(3)
    x = hs.whiten(rng.normal(size=(6, 3)))
    if aligned:
        net = hs.DeepLinear.balanced((3, 4, 2), (1.1, 0.6), rng=3)
        left, _, right = np.linalg.svd(net.product)
        y = x @ (left * [1.5, 0.3] @ right[:2]).T
    else:
        net, y = hs.init.standard((3, 4, 2), rng), rng.normal(size=(6, 2))
    y = rng.integers(2, size=6) if loss == "cross-entropy" else y

    def cost(theta, chosen):
        own = slice(None) if chosen is None else chosen
        product = theta[12:].reshape(2, 4) @ theta[:12].reshape(4, 3)
        measure = cross_entropy if loss == "cross-entropy" else squared
        return measure(torch.tensor(x[own]) @ product.T, torch.tensor(y[own]))

    t = assert_same(net, x, y, cost, rule, loss=loss)
    modes = aligned and loss == "mse" and "batches" not in rule and "sam" not in rule
    assert t.method == ("modes" if modes else "moments")


@pytest.mark.parametrize("rule", RULES[:3])
def test_a_batch_of_networks_trains_like_its_members(rule):
    rng = np.random.default_rng(4)
    w, v = rng.normal(size=(2, 3, 4))
    x, y = rng.normal(size=(2, 6))
    rule = rule | {"lr": 0.05, "steps": 9}
    t = hs.gradient_descent(hs.ScalarLinear(w, v), x, y, **rule)
    weights = hs.gradient_descent(hs.DecoupledInputs(w[:, None], v[:, None]), x[:, None], y, **rule)
    attention = hs.gradient_descent(hs.SelfAttention(w[:, 0], w, v), x[:, None], y[:, None], **rule)
    for i in range(3):
        one = hs.gradient_descent(hs.ScalarLinear(w[i], v[i]), x, y, **rule)
        np.testing.assert_allclose(t.loss[:, i], one.loss, rtol=1e-12)
        np.testing.assert_allclose(weights.loss[:, i], one.loss, rtol=1e-11)
        net = hs.SelfAttention(w[i, 0], w[i], v[i])
        one = hs.gradient_descent(net, x[:, None], y[:, None], **rule)
        np.testing.assert_allclose(attention.loss[:, i], one.loss, rtol=1e-12)


def test_batches_of_a_size_go_through_all_samples_in_every_epoch():
    """One unit, targets zero and inputs powers of two: a step tells which samples it has seen."""
    x = 2.0 ** np.arange(7)
    net, lr = hs.ScalarLinear([1.0], [1.0]), 1e-9
    t = hs.gradient_descent(net, x, 0 * x, lr=lr, steps=9, batches=3, rng=5)
    losses = np.asarray([float(t[i].w[0] - t[i + 1].w[0]) / lr for i in range(9)])
    sizes = np.tile([3, 3, 1], 3)
    seen = np.rint(losses * sizes).astype(int)
    for epoch in range(3):
        assert sum(seen[3 * epoch : 3 * epoch + 3]) == sum(4**i for i in range(7))
    assert len({tuple(seen[i : i + 3]) for i in (0, 3, 6)}) == 3
    again = hs.gradient_descent(net, x, 0 * x, lr=lr, steps=9, batches=3, rng=5)
    np.testing.assert_array_equal(t.loss, again.loss)
    other = hs.gradient_descent(net, x, 0 * x, lr=lr, steps=9, batches=3, rng=6)
    assert (t.loss != other.loss).any()


def test_weight_decay_balances_a_dead_unit_too():
    net = hs.ScalarReLU(w=[1.0, 2.0], v=[1.0, 0.0])
    t = hs.gradient_descent(net, [1.0, 2.0], [1.0, 2.0], lr=0.1, steps=10, weight_decay=0.5)
    assert float(t[10].w[1]) == pytest.approx(2 * 0.95**10, rel=1e-14)
    assert float(t[10].v[1]) == 0.0


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"weight_decay": -1.0}, ValueError, "weight_decay must be a number that is not negative"),
        ({"sam": float("nan")}, ValueError, "sam must be"),
        ({"sam": "far"}, TypeError, "sam must be"),
        ({"batches": 0}, ValueError, "batches must be an integer between 1 and 6, got 0"),
        ({"batches": 7}, ValueError, "batches must be an integer between 1 and 6, got 7"),
        ({"batches": []}, ValueError, "batches must not be empty"),
        ({"batches": [[0, 6]]}, ValueError, "batches must hold indices from 0 to 5"),
        ({"batches": [[0.5]]}, ValueError, "batches must hold indices"),
        ({"batches": 2.5}, ValueError, "batches must be an integer"),
        ({"batches": 2, "rng": "seed"}, TypeError, "rng must be"),
        (
            {"batches": 2, "x": hs.Moments(np.ones((6, 1)), np.ones((6, 1))), "y": None},
            ValueError,
            "need samples",
        ),
    ],
)
def test_bad_input(changes, error, words):
    arguments = {"x": np.ones(6), "y": np.ones(6), "steps": 2} | changes
    with pytest.raises(error, match=words):
        hs.gradient_descent(hs.ScalarLinear([1.0], [0.5]), **arguments)


def test_batches_of_one_sequence_are_refused():
    with pytest.raises(ValueError, match="batches are of sequences"):
        hs.gradient_descent(hs.SelfAttention(1.0, [1.0], [1.0]), [1.0, 2.0], [1.0, 2.0], batches=1)


def test_a_saddle_that_the_weights_leave():
    """Balanced modes with a target of the other sign run into a saddle; a tiny tilt leads out."""
    rng = np.random.default_rng(0)
    net = hs.DeepLinear.balanced((3, 4, 2), (0.7, 0.5), rng=1)
    left, _, right = np.linalg.svd(net.product)
    x = hs.whiten(rng.normal(size=(12, 3)))
    y = x @ (left * [1.0, -1.0] @ right[:2]).T
    net = hs.DeepLinear([w + 1e-14 * rng.normal(size=w.shape) for w in net.weights])
    short = hs.gradient_descent(net, x, y, lr=0.1, steps=20)
    t = hs.gradient_descent(net, x, y, lr=0.1, steps=1000)
    assert (short.method, t.method) == ("modes", "moments")
    np.testing.assert_allclose(short.loss, t.loss[:21], rtol=1e-9)
    assert t.loss[-1] < 1e-25
