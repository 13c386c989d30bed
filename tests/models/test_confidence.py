"""Predictions that are as good as decided, against 50 digits, in both precisions."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import hessence as hs
from hessence.models._exact_kernels import with_exact_kernels

DIGITS = 50


def exact_loss(z, y, kind):
    """Gradient (K,) and Hessian (K, K) of one sample's loss in its logits."""
    if kind == "binary":
        # log(1 + e^{−z}) of a label 1, log(1 + e^z) of a label 0.
        first = [
            -t / (1 + mpmath.exp(v)) + (1 - t) / (1 + mpmath.exp(-v))
            for v, t in zip(z, y, strict=True)
        ]
        second = [1 / ((1 + mpmath.exp(v)) * (1 + mpmath.exp(-v))) for v in z]
        return np.asarray(first), np.diag(np.asarray(second, dtype=object))
    e = [mpmath.exp(v - max(z)) for v in z]
    p = [v / mpmath.fsum(e) for v in e]
    others = [mpmath.fsum(p[:k] + p[k + 1 :]) for k in range(len(p))]
    first = [-o if k == y else v for k, (v, o) in enumerate(zip(p, others, strict=True))]
    second = -np.outer(p, p)
    for k, o in enumerate(others):
        second[k, k] = p[k] * o
    return np.asarray(first), second


def exact_parts(weight, x, y, kind):
    """Hessian and gradient of the loss of one linear layer, the mean over samples, in 50 digits."""
    with mpmath.workdps(DIGITS):
        lift = np.vectorize(lambda v: mpmath.mpf(float(v)), otypes=[object])
        W, X = lift(weight), lift(x)
        H, g = 0, 0
        for v, t in zip(X, y.tolist(), strict=True):
            first, second = exact_loss(list(W @ v), t, kind)
            H = H + np.multiply.outer(second, np.outer(v, v)).transpose(0, 2, 1, 3)
            g = g + np.outer(first, v)
        count = len(x) * (len(weight) if kind == "binary" else 1)
        H = (H / count).reshape(weight.size, weight.size).astype(float)
        return H, (g / count).astype(float).ravel()


LOSSES = {
    "classes": nn.CrossEntropyLoss(),
    "function": F.cross_entropy,
    "own": lambda f, y: F.nll_loss(F.log_softmax(f, dim=1), y),
    "by name": "cross-entropy",
    "binary": nn.BCEWithLogitsLoss(),
    "soft margin": lambda f, y: F.soft_margin_loss(f, 2 * y - 1),
}


class Wrapped(nn.Module):
    """A model that is no plain chain of layers."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return 1 * self.layer(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(
    st.sampled_from(list(LOSSES)),
    st.booleans(),
    st.floats(0.0, 80.0),
    st.integers(0, 99),
    st.booleans(),
)
def test_relative_accuracy_at_any_margin(dtype, name, wrapped, margin, seed, right):
    torch.manual_seed(seed)
    kind = "binary" if name in ("binary", "soft margin") else "classes"
    x = torch.cat([torch.ones(4, 1), torch.randn(4, 2)], dim=1).to(dtype)
    model = nn.Linear(3, 3, bias=False).to(dtype)
    with torch.no_grad():
        # Small enough that rounding of the logits themselves does not show.
        model.weight.mul_(0.1)
        model.weight[0, 0] += margin
    y = torch.full((4,), 0 if right else 1)
    if kind == "binary":
        y = F.one_hot(y, 3).to(dtype)
    hessian, gradient = exact_parts(model.weight.detach().numpy(), x.numpy(), y, kind)
    scale, model = np.linalg.norm(hessian, 2), Wrapped(model) if wrapped else model
    # The logits are rounded, and by so much are their exponentials off.
    allowed = 40 * torch.finfo(dtype).eps * (1 + margin)
    for operator in (hs.hessian, hs.ggn):
        H = operator(model, (x, y), LOSSES[name])
        assert np.linalg.norm(H.dense().numpy() - hessian, 2) <= allowed * scale
    found = hs.hessian(model, (x, y), LOSSES[name]).gradient().numpy()
    np.testing.assert_allclose(found, gradient, rtol=0, atol=allowed * np.abs(gradient).max())


CASES = [
    (nn.CrossEntropyLoss(weight=torch.rand(5, dtype=torch.float64)), "classes"),
    (nn.CrossEntropyLoss(ignore_index=2, label_smoothing=0.2), "classes"),
    (nn.CrossEntropyLoss(torch.rand(5, dtype=torch.float64), label_smoothing=0.1), "classes"),
    (nn.CrossEntropyLoss(torch.rand(5, dtype=torch.float64), label_smoothing=0.1), "shares"),
    (nn.CrossEntropyLoss(reduction="sum"), "shares"),
    (nn.BCEWithLogitsLoss(torch.rand(5, dtype=torch.float64)), "labels"),
    (nn.BCEWithLogitsLoss(pos_weight=torch.rand(5, dtype=torch.float64) + 1), "labels"),
    (nn.SoftMarginLoss(), "signs"),
]


@pytest.mark.parametrize(("loss", "kind"), CASES, ids=lambda value: str(value).split("(")[0])
@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 5)])
def test_same_values_and_derivatives_as_pytorch(loss, kind, shape):
    z = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    target = {
        "classes": lambda: torch.randint(5, (shape[0], *shape[2:])),
        "shares": lambda: torch.randn(shape, dtype=torch.float64).softmax(1),
        "labels": lambda: torch.rand(shape, dtype=torch.float64),
        "signs": lambda: torch.randn(shape, dtype=torch.float64).sign(),
    }[kind]()

    def all_of(loss):
        value = loss(z, target)
        (first,) = torch.autograd.grad(value, z, create_graph=True)
        (second,) = torch.autograd.grad(
            (first * torch.linspace(-1, 1, z.numel()).reshape(shape)).sum(), z
        )
        return value.detach(), first.detach(), second

    plain = all_of(loss)
    ours = with_exact_kernels(all_of, loss)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_single_class_and_no_samples():
    with torch.no_grad():
        one = hs.hessian(
            nn.Linear(2, 1), (torch.randn(3, 2), torch.zeros(3).long()), F.cross_entropy
        )
    assert not one.dense().any()


def test_the_logistic_loss_has_a_derivative_at_zero():
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    x = torch.eye(2, dtype=torch.float64)
    H = hs.hessian(model, (x, torch.tensor([[1.0], [-1.0]], dtype=torch.float64)), "logistic")
    # −y x / 2 and x xᵀ / 4, averaged over the two samples.
    torch.testing.assert_close(H.gradient(), torch.tensor([-0.25, 0.25], dtype=torch.float64))
    torch.testing.assert_close(H.dense(), torch.eye(2, dtype=torch.float64) / 8)
