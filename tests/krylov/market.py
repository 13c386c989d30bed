"""Matrices with prescribed eigenvalues, each of which breaks some solver of this field."""

from __future__ import annotations

import numpy as np
import torch

ORDER = 120


def _decaying(n, rng):
    return 10 * 0.8 ** np.arange(n)


def _outliers_on_a_bulk(n, rng):
    return np.concatenate([[9.0, 7.0, 6.5, 5.0, 3.0, 2.5], 0.3 * rng.normal(size=n - 6)])


def _clustered(n, rng):
    tight = 3 + 1e-7 * rng.normal(size=5)
    return np.concatenate([5 + 1e-3 * rng.normal(size=5), tight, rng.uniform(-1, 1, size=n - 10)])


def _degenerate(n, rng):
    return np.concatenate([[4.0, 4.0, 4.0, 3.0, 2.0, 2.0], rng.uniform(-1, 1, size=n - 6)])


def _all_degenerate(n, rng):
    return np.repeat([3.0, 1.0, 0.0, -2.0], n // 4)


def _negative_dominant(n, rng):
    head = [-10.0, -9.0, -8.0, -8.0, 1.0, 0.5, 0.5]
    return np.concatenate([head, rng.uniform(-0.3, 0.3, size=n - 7)])


def _negative_trace(n, rng):
    return np.concatenate([[2.0, 1.5], -rng.exponential(size=n - 2)])


def _low_rank(n, rng):
    return np.concatenate([[3.0, 2.0, 2.0, -1.0], np.zeros(n - 4)])


def _zero(n, rng):
    return np.zeros(n)


def _identity(n, rng):
    return np.ones(n)


def _even(n, rng):
    return np.linspace(-1, 1, n)


def _tiny(n, rng):
    return 1e-30 * _degenerate(n, rng)


SPECTRA = {f.__name__[1:]: f for f in (
    _decaying, _outliers_on_a_bulk, _clustered, _degenerate, _all_degenerate, _negative_dominant,
    _negative_trace, _low_rank, _zero, _identity, _even, _tiny,
)}  # fmt: skip

KINDS = {"numpy": np.asarray, "torch": torch.asarray}


def matrix(values, rng):
    """Return a symmetric matrix with these eigenvalues and random eigenvectors."""
    basis = np.linalg.qr(rng.normal(size=(len(values),) * 2))[0]
    full = (basis * values) @ basis.T
    return (full + full.T) / 2


def ends(values, k, which):
    """Return the k eigenvalues that are asked for, descending."""
    order = np.sort(values)[::-1]
    if which == "LA":
        return order[:k]
    if which == "SA":
        return order[len(order) - k :]
    if which == "BE":
        return np.concatenate([order[: (k + 1) // 2], order[len(order) - k // 2 :]])
    return np.sort(order[np.argsort(-np.abs(order), kind="stable")[:k]])[::-1]


def numbers(array):
    """Return any array as float64 in NumPy."""
    return np.asarray(array, dtype=np.float64)


class Counting:
    """A diagonal operator with the least that an operator needs, which counts its products."""

    def __init__(self, diagonal, kind="numpy"):
        self.diagonal = KINDS[kind](diagonal)
        self.shape = (len(diagonal),) * 2
        self.dtype = self.diagonal.dtype
        self.products = 0

    def __matmul__(self, other):
        self.products += 1 if other.ndim == 1 else int(other.shape[-1])
        return self.diagonal * other if other.ndim == 1 else self.diagonal[:, None] * other
