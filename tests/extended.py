"""Hessians in extended precision, differentiated by jets, and their eigenvalues.

A jet is a value with gradient and Hessian in all parameters, each an array of ``np.longdouble``
(64 bits of mantissa where the platform has them). Networks are spelled out in jets and share no
formula with the library.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LONG = np.longdouble
SPACING = float(np.finfo(LONG).eps)


@dataclass(frozen=True)
class Jet:
    """Values (...), gradients (..., p) and Hessians (..., p, p)."""

    a: np.ndarray
    g: np.ndarray
    h: np.ndarray

    __array_ufunc__ = None

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        rest = (slice(None),) if Ellipsis in index else ()
        return Jet(self.a[index], self.g[(*index, *rest)], self.h[(*index, *rest, *rest)])

    def __add__(self, o):
        if not isinstance(o, Jet):
            return Jet(self.a + o, self.g, self.h)
        return Jet(self.a + o.a, self.g + o.g, self.h + o.h)

    def __mul__(self, o):
        if not isinstance(o, Jet):
            o = np.asarray(o, LONG)
            return Jet(self.a * o, self.g * o[..., None], self.h * o[..., None, None])
        cross = self.g[..., :, None] * o.g[..., None, :]
        return Jet(
            self.a * o.a,
            self.a[..., None] * o.g + o.a[..., None] * self.g,
            self.a[..., None, None] * o.h + o.a[..., None, None] * self.h
            + cross + np.swapaxes(cross, -1, -2),
        )  # fmt: skip

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self):
        return self * -1.0

    def __sub__(self, o):
        return self + -o

    def sum(self, axis=-1):
        axis = axis % self.a.ndim
        return Jet(*(part.sum(axis=axis) for part in (self.a, self.g, self.h)))

    def of(self, value, first, second):
        """Return φ of the jet from φ and its two derivatives at its values."""
        square = self.g[..., :, None] * self.g[..., None, :]
        bent = second[..., None, None] * square + first[..., None, None] * self.h
        return Jet(value, first[..., None] * self.g, bent)

    def exp(self):
        value = np.exp(self.a)
        return self.of(value, value, value)

    def log1p(self):
        inverse = 1 / (1 + self.a)
        return self.of(np.log1p(self.a), inverse, -inverse * inverse)

    def reciprocal(self):
        inverse = 1 / self.a
        return self.of(inverse, -(inverse**2), 2 * inverse**3)

    def reshape(self, *shape):
        p = self.g.shape[-1]
        return Jet(self.a.reshape(shape), self.g.reshape(*shape, p), self.h.reshape(*shape, p, p))

    def where(self, mask, other):
        return Jet(
            np.where(mask, self.a, other.a),
            np.where(mask[..., None], self.g, other.g),
            np.where(mask[..., None, None], self.h, other.h),
        )


def variables(values):
    """Return the parameters as jets of themselves."""
    values = np.asarray(values, LONG)
    p = len(values)
    return Jet(values, np.eye(p, dtype=LONG), np.zeros((p, p, p), LONG))


def stack(jets, axis=-1):
    axis = axis % (jets[0].a.ndim + 1)
    return Jet(*(np.stack([getattr(j, n) for j in jets], axis=axis) for n in "agh"))


def matmul(a, b):
    """Multiply jets (..., m, n) by jets (n, k), or by numbers."""
    if not isinstance(b, Jet):
        b = np.asarray(b, LONG)
        rows = [(a * b[:, k]).sum() for k in range(b.shape[1])]
    else:
        rows = [(a * b[:, k]).sum() for k in range(b.a.shape[1])]
    return stack(rows)


# Losses of predictions (n, K) and targets (n, K), summed over all.


def squared(f, y):
    r = f - np.asarray(y, LONG)
    return (r * r * LONG(0.5)).sum().sum()


def logistic(f, y):
    margin = f * np.asarray(y, LONG)
    large, small = (-margin).exp().log1p(), margin.exp().log1p() - margin
    return large.where(margin.a > 0, small).sum().sum()


def huber(f, y):
    r = f - np.asarray(y, LONG)
    sign = r * np.sign(r.a)
    return (r * r * LONG(0.5)).where(np.abs(r.a) <= 1, sign - LONG(0.5)).sum().sum()


def cross_entropy(f, y):
    """Return Σ log(1 + Σ_{j≠k} exp(f_j − f_k)) for class indices k, which keeps small terms."""
    total = 0
    for i, k in enumerate(y):
        row = f[i]
        others = [j for j in range(len(row.a)) if j != k]
        gaps = [row[j] - row[int(k)] for j in others]
        top = max([0.0, *(float(gap.a) for gap in gaps)])
        if not gaps:
            continue
        if top <= 0:
            total = stack(gaps).exp().sum().log1p() + total
            continue
        # The largest term is taken out, and 1 becomes exp(−top).
        first = int(np.argmax([float(gap.a) for gap in gaps]))
        rest = [gap - gaps[first] for j, gap in enumerate(gaps) if j != first] + [-gaps[first]]
        total = stack(rest).exp().sum().log1p() + gaps[first] + total
    return total if isinstance(total, Jet) else f[0, 0] * 0.0


LOSSES = {"mse": squared, "logistic": logistic, "huber": huber, "cross-entropy": cross_entropy}


def eigenvalues(matrix):
    """Return the eigenvalues of a symmetric matrix in extended precision, largest first.

    The solver's eigenvectors, made orthogonal in extended precision, leave a matrix that is nearly
    diagonal; a few Jacobi rotations do the rest.
    """
    size = np.abs(matrix).max()
    if not size:
        return np.zeros(len(matrix), LONG)
    scaled = (matrix + matrix.T) / (2 * size)
    q = np.linalg.eigh(scaled.astype(float))[1].astype(LONG)
    for _ in range(2):
        q = q @ (3 * np.eye(len(q), dtype=LONG) - q.T @ q) / 2
    t = q.T @ scaled @ q
    t = (t + t.T) / 2
    for _ in range(6):
        off = np.abs(t - np.diag(np.diag(t)))
        if off.max() < SPACING:
            break
        for i, j in zip(*np.nonzero(np.triu(off, 1) > SPACING / 8), strict=True):
            if t[i, j] == 0:
                continue
            theta = (t[j, j] - t[i, i]) / (2 * t[i, j])
            tangent = (1 if theta >= 0 else -1) / (abs(theta) + np.sqrt(theta * theta + 1))
            cos = 1 / np.sqrt(tangent * tangent + 1)
            sin = tangent * cos
            for side in (0, 1):
                a, b = (t[i].copy(), t[j].copy()) if side else (t[:, i].copy(), t[:, j].copy())
                a, b = cos * a - sin * b, sin * a + cos * b
                if side:
                    t[i], t[j] = a, b
                else:
                    t[:, i], t[:, j] = a, b
    return np.sort(np.diag(t))[::-1] * size
