"""Hessians of linear networks in 50 digits, from their definition, and networks to try them on."""

from __future__ import annotations

from itertools import pairwise

import mpmath
import numpy as np

import hessence as hs

DIGITS = 50


def eye(size):
    return np.asarray(mpmath.eye(size).tolist(), dtype=object)


def exact(array):
    if getattr(array, "dtype", None) == np.dtype(object):
        return array
    return np.vectorize(mpmath.mpf, otypes=[object])(np.asarray(array, dtype=float))


def of_sample(f, y, loss):
    """First (K,) and second (K, K) derivatives of the loss of one sample, no digit lost."""
    K = len(f)
    if loss == "mse":
        return f - y, eye(K)
    if loss == "huber":
        inside = [int(abs(r) <= 1) for r in f - y]
        return np.asarray([max(-1, min(1, r)) for r in f - y], dtype=object), eye(K) * inside
    if loss == "logistic":
        grow = np.asarray([mpmath.exp(v) for v in y * f], dtype=object)
        return -y / (1 + grow), eye(K) / ((1 + grow) * (1 + 1 / grow))
    e = np.asarray([mpmath.exp(v - max(f)) for v in f], dtype=object)
    p = e / sum(e)
    others = np.asarray([sum(p[:k]) + sum(p[k + 1 :]) for k in range(K)], dtype=object)
    return np.where(y == 1, -others, p), np.where(eye(K) == 1, p * others, -np.outer(p, p))


def exact_parts(net, x, y, loss="mse"):
    """The Hessian, its Gauss–Newton and its functional part, computed in 50 digits and rounded."""
    with mpmath.workdps(DIGITS):
        factors, x, y = [exact(w) for w in net.weights], exact(x), exact(y)
        if getattr(net, "residual", False):
            factors = [w + eye(len(w)) for w in factors]
        before, after = [eye(net.dims[0])], [eye(net.dims[-1])]
        for w in factors[:-1]:
            before.append(w @ before[-1])
        for w in factors[:0:-1]:
            after.insert(0, after[0] @ w)
        M = factors[-1] @ before[-1]
        if net.constant is not None and not getattr(net, "residual", False):
            M = M + exact(net.constant)
        samples = [of_sample(f, t, loss) for f, t in zip(x @ M.T, y, strict=True)]
        first, second = (np.asarray(part) for part in zip(*samples, strict=True))
        G = first.T @ x / len(x)
        S = sum(np.multiply.outer(s, np.outer(v, v)) for s, v in zip(second, x, strict=True))
        S = (S / len(x)).transpose(0, 2, 1, 3).reshape(G.size, G.size)
        J = [
            np.multiply.outer(s, p).transpose(0, 3, 1, 2).reshape(G.size, -1)
            for s, p in zip(after, before, strict=True)
        ]
        J = np.concatenate(J, axis=1)
        ggn, functional = J.T @ S @ J, np.zeros((J.shape[1],) * 2, dtype=object)
        ends = np.cumsum([0, *(w.size for w in factors)])
        places = [slice(a, b) for a, b in pairwise(ends)]
        for k, high in enumerate(factors):
            middle = eye(high.shape[1])
            for l in reversed(range(k)):  # noqa: E741
                # ⟨G, S_k dW_k (middle) dW_l P_l⟩
                outer = after[k].T @ G @ before[l].T
                block = np.multiply.outer(outer, middle).transpose(0, 2, 3, 1)
                block = block.reshape(high.size, factors[l].size)
                functional[places[k], places[l]] += block
                functional[places[l], places[k]] += block.T
                middle = middle @ factors[l]
        return tuple(part.astype(float) for part in (ggn + functional, ggn, functional))


def moved_parts(net, x, y, loss, rng):
    """The same where weights and data are moved by one rounding each, up or down at random."""

    def moved(array):
        return array * (1 + np.finfo(float).eps * rng.choice([-1.0, 1.0], size=array.shape))

    weights = {name: moved(w) for name, w in net._weights.items()}
    near, targets = moved(x), y if loss == "cross-entropy" else moved(y)
    if net.constant is not None:
        # The connection takes the inputs off the targets, and what is left is moved.
        with mpmath.workdps(DIGITS):
            targets = exact(near) + exact(moved(y - x))
    return exact_parts(net._rebuild(weights), near, targets, loss)


def conditioned(net, x, y, loss, part, matrix):
    """What float arithmetic can give: some roundings of weights and data, in norm."""
    rng = np.random.default_rng(0)
    gaps = [np.linalg.norm(moved_parts(net, x, y, loss, rng)[part] - matrix, 2) for _ in range(4)]
    return 8 * (len(net.weights) + 1) * max(gaps)


def assert_exact(net, x, y, loss="mse", within=("hessian", "ggn", "functional")):
    """Compare all eigenvalues with 50 digits: those of some parts to 1e-13, all to their errors.

    Where terms cancel, 1e-13 is more than arithmetic can give; there eigenvalues may move as those
    of weights and data that are moved by a few roundings do.
    """
    H = net.hessian(x, y, loss)
    names = ("hessian", "ggn", "functional")
    for i, (part, matrix) in enumerate(zip(names, exact_parts(net, x, y, loss), strict=True)):
        operator = H if part == "hessian" else getattr(H, part)
        found, values = operator.spectrum(), np.linalg.eigvalsh(matrix)[::-1]
        norm = np.abs(values).max()
        gaps = np.abs(found.eigenvalues - values)
        if 0 < norm < 1e-250:
            continue  # Where numbers vanish on the way there are no digits to keep.
        if part in within and gaps.max() > 1e-13 * norm:
            limit = conditioned(net, x, y, loss, i, matrix)
            assert gaps.max() <= limit, (part, found.method, gaps.max() / norm, limit / norm)
        # The oracle's eigenvalues are rounded, too.
        beyond = gaps - len(values) * 2.3e-16 * norm
        assert (beyond <= found.errors).all(), (part, found.method, gaps, found.errors)
        assert norm or not found.rank()


def stretched(out, inn, singular):
    """A matrix with given singular values and bases."""
    core = np.zeros((len(out), len(inn)))
    np.fill_diagonal(core[: len(singular), : len(singular)], singular)
    return out @ core @ inn.T


class Families:
    """Random networks with data, one method for each way in which digits have been lost."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.dims = [int(d) for d in rng.integers(1, 5, size=rng.integers(2, 6))]
        while sum(a * b for a, b in pairwise(self.dims)) > 30:
            self.dims = [max(1, d - 1) for d in self.dims]
        self.loss = str(rng.choice(["mse", "mse", "huber", "logistic", "cross-entropy"]))
        self.x = rng.normal(size=(rng.integers(1, 8), self.dims[0]))
        self.y = rng.normal(size=(len(self.x), self.dims[-1]))
        self.weights = [rng.normal(size=(b, a)) for a, b in pairwise(self.dims)]
        self.within = ("hessian", "ggn", "functional")

    def powers(self, count, low, high):
        return 10.0 ** self.rng.integers(low, high + 1, size=count)

    def units(self):
        """Features and outputs of sizes from 1e-9 to 1, with weights that may make up for them."""
        inputs, outputs = self.powers(self.dims[0], -9, 0), self.powers(self.dims[-1], -9, 0)
        self.x, self.y = self.x * inputs, self.y * outputs
        if self.rng.integers(2):
            self.weights[0] = self.weights[0] / inputs
        # Outputs of 1e9 would saturate a loss, and the rounding of their exponents would show.
        least = -1 if self.loss in ("mse", "huber") else 0
        self.weights[-1] = self.weights[-1] * outputs[:, None] ** self.rng.integers(least, 2)

    def saturated(self):
        """Some outputs far beyond the others."""
        self.weights[-1] *= self.powers(self.dims[-1], 0, 9)[:, None]
        self.loss = str(self.rng.choice(["huber", "logistic"]))
        if self.loss == "logistic":
            self.within = ("functional",)  # The rounding of large exponents shows in the others.

    def layers(self):
        """Layers of any size."""
        self.weights = [w * self.powers(1, -8, 8) for w in self.weights]
        self.within = ("hessian",) if self.loss in ("mse", "huber") else ()

    def degenerate(self):
        """Layers, features or targets that vanish, and layers of rank one."""
        for w in self.weights:
            w *= self.rng.integers(4) > 0
            if not self.rng.integers(3):
                w[:] = np.outer(w[:, 0], w[0])
        self.x[:, 0] *= self.rng.integers(2)
        self.y *= self.rng.integers(2)

    def perfect(self):
        """Targets that the network fits to the last digit: the gradient is rounding."""
        self.loss = str(self.rng.choice(["mse", "huber"]))
        self.weights = [w * self.powers(1, -3, 3) for w in self.weights]
        self.y = hs.DeepLinear(self.weights)(self.x)
        self.within = ("hessian", "ggn")

    def cancelling(self):
        """Large layers whose product is small, before others that magnify it."""
        for low, high in pairwise(self.weights):
            basis = np.linalg.qr(low)[0]
            high -= (1 - self.powers(1, -17, 0)) * high @ basis @ basis.T
            high *= self.powers(1, 0, 6)
        self.within = ()

    def aligned(self):
        """Shared singular vectors, white data, weights and data that are off by up to 1e-9."""
        rng, dims = self.rng, self.dims
        bases = [np.linalg.qr(rng.normal(size=(d, d)))[0] for d in dims]
        values = rng.choice([1.0, 1.0, 2.0, 0.5, 1e-4, 1e-12], size=min(dims))
        balanced = rng.integers(2)
        self.weights = [
            stretched(out, inn, values * (1 if balanced else rng.choice([1.0, 1e-3, 2.0])))
            for inn, out in pairwise(bases)
        ]
        if rng.integers(2):
            off = self.powers(len(self.weights), -16, -9)
            self.weights = [
                w + a * rng.normal(size=w.shape) for a, w in zip(off, self.weights, strict=True)
            ]
        n = dims[0] + 2
        self.x = np.linalg.qr(rng.normal(size=(n, dims[0])))[0] * n**0.5
        self.x = self.x + rng.choice([0, 1e-16, 1e-14, 1e-13]) * rng.normal(size=self.x.shape)
        target = stretched(bases[-1], bases[0], rng.normal(size=min(dims[0], dims[-1])))
        self.y, self.loss = self.x @ target.T, "mse"
        self.within = ("hessian", "ggn")

    def residual(self):
        """Small weights beside a connection that fits the targets nearly."""
        d = min(self.dims)
        self.weights = [self.rng.normal(size=(d, d)) for _ in self.weights[:3]]
        self.weights = [w * self.powers(1, -9, 0) for w in self.weights]
        self.x = self.x[:, :1] * self.rng.normal(size=d)
        self.y = self.x + self.powers(1, -12, 0) * self.rng.normal(size=self.x.shape)
        self.loss = str(self.rng.choice(["mse", "huber"]))

    def case(self, family):
        """Return a network of a family, its data and loss, and which parts are within 1e-13."""
        getattr(self, family)()
        K = len(self.weights[-1])
        if self.loss == "logistic":
            self.y = np.where(self.y < 0, -1.0, 1.0)
        if self.loss == "cross-entropy":
            self.y = np.eye(K)[self.rng.integers(K, size=len(self.x))]
        if family == "residual" and len(self.weights) == 2:
            return hs.ResidualLinear(*self.weights), self.x, self.y, self.loss, self.within
        net = hs.DeepLinear(self.weights, residual=family == "residual")
        return net, self.x, self.y, self.loss, self.within


FAMILIES = (
    "units",
    "saturated",
    "layers",
    "degenerate",
    "perfect",
    "cancelling",
    "aligned",
    "residual",
)
