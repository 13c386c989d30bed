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
        if isinstance(net, hs.ResidualLinear):
            M = M + eye(len(M))
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


def assert_exact(net, x, y, loss="mse", parts=("hessian", "ggn", "functional"), tolerance=1e-13):
    """Compare all eigenvalues with 50 digits: within the tolerance, and within their errors."""
    H = net.hessian(x, y, loss)
    names = ("hessian", "ggn", "functional")
    for part, matrix in zip(names, exact_parts(net, x, y, loss), strict=True):
        operator = H if part == "hessian" else getattr(H, part)
        found, values = operator.spectrum(), np.linalg.eigvalsh(matrix)[::-1]
        norm = np.abs(values).max()
        gaps = np.abs(found.eigenvalues - values)
        if part in parts:
            assert gaps.max() <= tolerance * norm, (part, found.method, gaps.max() / norm)
