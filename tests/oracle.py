"""What the tests compare with, written without a look at the library's formulas.

Two independent sources of truth:

- autodiff: each network's forward pass and each loss spelled out in torch, differentiated twice;
- arithmetic: the same forward pass on hyper-dual numbers over the rationals, which gives the exact
  Hessian of the mean-squared error, and `mpmath` at 60 digits for its eigenvalues.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import array_api_compat as api
import mpmath
import numpy as np
import torch

import hessence as hs

mpmath.mp.dps = 60


# The forward passes. `p` maps names to weights with any arithmetic that has + − * and [i]; `relu`
# is that arithmetic's own. The result is a list of outputs for one sample.


def _sum(terms):
    total, *rest = terms
    for term in rest:
        total = total + term
    return total


def linear(p, x, relu):
    return [_sum(w * (v * x) for w, v in zip(p["w"], p["v"], strict=True))]


def rectified(p, x, relu):
    return [_sum(w * relu(v * x) for w, v in zip(p["w"], p["v"], strict=True))]


def affine(p, x, relu):
    return [_sum(w * (v * x + b) for w, v, b in zip(p["w"], p["v"], p["b"], strict=True))]


def inputs(p, x, relu):
    rows = zip(p["W"], p["V"], x, strict=True)
    return [_sum(_sum(a * b * t for a, b in zip(w, v, strict=True)) for w, v, t in rows)]


def outputs(p, x, relu):
    rows = zip(p["W"], p["V"], strict=True)
    return [_sum(a * b * x for a, b in zip(w, v, strict=True)) for w, v in rows]


@dataclass(frozen=True)
class Kind:
    """A kind of network: the library's class, the forward pass, and PyTorch's parameter order."""

    make: type
    forward: object
    order: tuple[str, ...]


KINDS = {
    "ScalarLinear": Kind(hs.ScalarLinear, linear, ("v", "w")),
    "ScalarReLU": Kind(hs.ScalarReLU, rectified, ("v", "w")),
    "ScalarAffine": Kind(hs.ScalarAffine, affine, ("v", "b", "w")),
    "DecoupledInputs": Kind(hs.DecoupledInputs, inputs, ("V", "W")),
    "DecoupledOutputs": Kind(hs.DecoupledOutputs, outputs, ("V", "W")),
}


# The losses, in torch.


class Cauchy:
    """A user's own loss, log(1 + r²): not convex, so curvatures of both signs occur."""

    def value(self, prediction, target):
        return api.array_namespace(prediction).log1p((prediction - target) ** 2)

    def first(self, prediction, target):
        r = prediction - target
        return 2 * r / (1 + r * r)

    def second(self, prediction, target):
        r = prediction - target
        return 2 * (1 - r) * (1 + r) / (1 + r * r) ** 2  # accurate also where |r| is nearly 1


def log_one_plus_exp(z):
    """Spell log(1 + eᶻ) with accurate derivatives, which torch's softplus beyond 20 has not."""
    # Not torch.clamp, whose derivative at its ends depends on PyTorch's version.
    above, below = torch.where(z >= 0, z, 0), torch.where(z >= 0, 0, z)
    large, small = above + torch.log1p(torch.exp(-above)), torch.log1p(torch.exp(below))
    return torch.where(z >= 0, large, small)


LOSSES = {
    "mse": lambda f, y: (f - y) ** 2 / 2,
    "logistic": lambda f, y: log_one_plus_exp(-y * f),
    "huber": lambda f, y: torch.nn.functional.huber_loss(f, y, reduction="none"),
    "own": lambda f, y: torch.log1p((f - y) ** 2),
}

OWN = {"own": Cauchy()}
"""What to hand the library for a loss that has no name."""


@dataclass(frozen=True)
class Case:
    """A network with data, and everything about its loss that autodiff can say."""

    kind: str
    weights: dict
    x: np.ndarray
    y: np.ndarray
    loss: str = "mse"

    @property
    def net(self):
        return KINDS[self.kind].make(**self.weights)

    @property
    def data(self):
        return self.x, self.y, OWN.get(self.loss, self.loss)

    @cached_property
    def hessian_operator(self):
        return self.net.hessian(*self.data)

    @cached_property
    def theta(self):
        flat = [np.ravel(self.weights[name]) for name in KINDS[self.kind].order]
        return torch.tensor(np.concatenate(flat), dtype=torch.float64)

    def outputs(self, theta):
        """Return the predictions (n, K)."""
        forward, order = KINDS[self.kind].forward, KINDS[self.kind].order
        shape = np.shape(next(iter(self.weights.values())))
        pieces = dict(zip(order, torch.reshape(theta, (len(order), *shape)), strict=True))
        rows = [forward(pieces, x, torch.relu) for x in torch.tensor(self.x, dtype=torch.float64)]
        return torch.stack([torch.stack(row) for row in rows])

    def cost(self, predictions):
        """Return the loss: mean over samples, sum over outputs."""
        targets = torch.tensor(self.y, dtype=torch.float64).reshape(predictions.shape)
        return LOSSES[self.loss](predictions, targets).sum() / len(self.x)

    @cached_property
    def predictions(self):
        return self.outputs(self.theta).numpy()

    @cached_property
    def value(self):
        return float(self.cost(self.outputs(self.theta)))

    @cached_property
    def gradient(self):
        theta = self.theta.clone().requires_grad_()
        return torch.autograd.grad(self.cost(self.outputs(theta)), theta)[0].numpy()

    @cached_property
    def hessian(self):
        def loss(theta):
            return self.cost(self.outputs(theta))

        return torch.autograd.functional.hessian(loss, self.theta).numpy()

    @cached_property
    def ggn(self):
        jacobian = torch.autograd.functional.jacobian(self.outputs, self.theta)
        f = self.outputs(self.theta)
        curvature = torch.autograd.functional.hessian(self.cost, f).reshape(f.numel(), f.numel())
        jacobian = jacobian.reshape(f.numel(), -1)
        return (jacobian.T @ curvature @ jacobian).numpy()

    @cached_property
    def norm(self):
        return np.linalg.norm(self.hessian, 2)

    @cached_property
    def floor(self):
        """Return what autodiff cannot resolve: some ε of the samples' Hessians, which cancel."""
        singles = [
            Case(self.kind, self.weights, self.x[i : i + 1], self.y[i : i + 1], self.loss)
            for i in range(len(self.x))
        ]
        return 1e-15 * np.mean([np.linalg.norm(single.hessian, 2) for single in singles])

    @cached_property
    def tolerance(self):
        """Return 1e-12 ‖H‖, the library's promise, and autodiff's own rounding on top."""
        return 1e-12 * self.norm + self.floor

    @cached_property
    def exact_hessian(self):
        """Return the Hessian of the mean-squared error in rational arithmetic, as mpmath's
        matrix."""
        return exact_hessian(self.kind, self.weights, self.x, self.y)


@dataclass(frozen=True)
class HyperDual:
    """a + b ε₁ + c ε₂ + d ε₁ε₂ over the rationals: d carries the exact second derivative."""

    a: Fraction
    b: Fraction = Fraction(0)
    c: Fraction = Fraction(0)
    d: Fraction = Fraction(0)

    def __add__(self, o):
        o = o if isinstance(o, HyperDual) else HyperDual(o)
        return HyperDual(self.a + o.a, self.b + o.b, self.c + o.c, self.d + o.d)

    def __mul__(self, o):
        o = o if isinstance(o, HyperDual) else HyperDual(o)
        cross = self.a * o.d + self.b * o.c + self.c * o.b + self.d * o.a
        return HyperDual(
            self.a * o.a, self.a * o.b + self.b * o.a, self.a * o.c + self.c * o.a, cross
        )

    __radd__, __rmul__ = __add__, __mul__


def _relu(z):
    return z if z.a > 0 else HyperDual(Fraction(0))


def _rational(array):
    if np.ndim(array) == 0:
        return Fraction(float(array))
    return [_rational(a) for a in array]


def exact_hessian(kind, weights, x, y):
    """Return the exact Hessian of ½ E‖f(x) − y‖², rounded to 60 digits."""
    order = KINDS[kind].order
    shape = np.shape(next(iter(weights.values())))
    theta = [Fraction(float(t)) for name in order for t in np.ravel(weights[name])]
    size, p = int(np.prod(shape)), len(theta)
    samples = list(zip(_rational(x), _rational(np.reshape(y, (len(x), -1))), strict=True))

    def nested(flat):
        if len(shape) == 1:
            return flat
        return [flat[r * shape[1] : (r + 1) * shape[1]] for r in range(shape[0])]

    def second_derivative(i, j):
        moved = [HyperDual(t, Fraction(k == i), Fraction(k == j)) for k, t in enumerate(theta)]
        pieces = {name: nested(moved[k * size : (k + 1) * size]) for k, name in enumerate(order)}
        total = HyperDual(Fraction(0))
        for inputs_, targets in samples:
            for f, t in zip(KINDS[kind].forward(pieces, inputs_, _relu), targets, strict=True):
                total = total + (f + -t) * (f + -t)
        return total.d / (2 * len(samples))

    matrix = mpmath.matrix(p, p)
    for i in range(p):
        for j in range(i + 1):
            entry = second_derivative(i, j)
            matrix[i, j] = matrix[j, i] = mpmath.mpf(entry.numerator) / entry.denominator
    return matrix


def exact_eigenvalues(matrix):
    """Return the eigenvalues of an mpmath matrix, largest first, as mpmath numbers."""
    return sorted(mpmath.eigsy(matrix, eigvals_only=True), reverse=True)


# What a right answer is.


def worst_relative_error(values, truth):
    """Return the largest relative error; a true zero (to 40 digits of the largest) must be one."""
    size = max(abs(t) for t in truth)
    errors = [
        abs(mpmath.mpf(float(v)) - t)
        / (abs(t) if abs(t) > size * mpmath.mpf("1e-45") else size * mpmath.mpf("1e-40") or 1)
        for v, t in zip(values, truth, strict=True)
    ]
    return float(max(errors))


def all_vectors(spectrum):
    """Return every eigenvector as columns, and the eigenvalue of each."""
    pairs = [(space.vectors(), space.value) for space in spectrum.spaces]
    values = np.concatenate([np.full(z.shape[-1], float(value)) for z, value in pairs])
    return np.concatenate([np.asarray(z) for z, _ in pairs], axis=-1), values


def assert_spectrum(spectrum, dense, tolerance):
    """Every eigenvalue and eigenvector against a dense matrix, orthonormality, completeness."""
    truth = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(spectrum.eigenvalues, truth, rtol=0, atol=tolerance)
    vectors, values = all_vectors(spectrum)
    assert vectors.shape == dense.shape
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(dense)), rtol=0, atol=1e-13)
    residuals = np.linalg.norm(dense @ vectors - vectors * values, axis=0)
    np.testing.assert_array_less(residuals, tolerance + np.finfo(float).tiny)
