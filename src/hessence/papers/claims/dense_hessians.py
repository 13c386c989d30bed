"""Dense Hessians straight from the definition of a loss, and how far statements are from them.

Nothing here knows a closed form, or uses automatic differentiation. The mean-squared error
of a linear network is of degree two in every single parameter, so that central differences of *any*
step give its Hessian without error; rounding apart, they are the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Loss = Callable[[NDArray[Any]], NDArray[Any]]

_STENCIL = ((1, 4 / 5), (2, -1 / 5), (3, 4 / 105), (4, -1 / 280))
_STEP = 0.008


def dense_hessian(loss: Loss, point: Array, step: float = 1.0) -> Array:
    """Return the Hessian of a loss of degree at most two in every single parameter.

    Parameters
    ----------
    loss : callable
        Takes parameters in the rows of a matrix, returns a loss for each.
    point : array
        Where.
    step : float
        The length of a step; any is exact as long as the loss is the same polynomial all along.

    Examples
    --------
    >>> dense_hessian(lambda t: (t[:, 0] * t[:, 1] - 1) ** 2 / 2, np.array([3.0, 1.0]))
    array([[1., 5.],
           [5., 9.]])
    """
    rows, columns = np.triu_indices(len(point))
    number = np.arange(len(rows))
    total = np.zeros(len(rows))
    for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        moved = np.tile(point, (len(rows), 1))
        moved[number, rows] += a * step
        moved[number, columns] += b * step
        total += a * b * loss(moved)
    hessian = np.zeros((len(point), len(point)))
    hessian[rows, columns] = hessian[columns, rows] = total / (4 * step**2)
    return hessian


def gradients(loss: Loss, points: Array) -> Array:
    """Return the gradients of an analytic loss at rows of points, by steps off the real line."""
    tiny, size = 1e-30, points.shape[1]
    moved = points[:, None, :] + 1j * tiny * np.eye(size)
    values = loss(moved.reshape(-1, size)).imag / tiny
    return np.asarray(values.reshape(-1, size), dtype=np.float64)


def gradient(loss: Loss, point: Array) -> Array:
    """Return the gradient of an analytic loss."""
    return np.asarray(gradients(loss, point[None])[0])


def smooth_hessians(loss: Loss, points: Array) -> Array:
    """Return the Hessians of an analytic loss, by differences of order eight of its gradient."""
    count, size = points.shape
    found = np.zeros((count, size, size))
    for k, weight in _STENCIL:
        for sign in (1, -1):
            moved = points[:, None, :] + sign * k * _STEP * np.eye(size)
            shifted = gradients(loss, moved.reshape(-1, size)).reshape(count, size, size)
            found += sign * weight / _STEP * shifted
    return (found + np.swapaxes(found, 1, 2)) / 2


def smooth_hessian(loss: Loss, point: Array) -> Array:
    """Return the Hessian of an analytic loss."""
    return np.asarray(smooth_hessians(loss, point[None])[0])


def curvature(loss: Loss, point: Array, direction: Array) -> float:
    """Return the second derivative of an analytic loss along a unit vector."""
    places = [sign * k for k, _ in _STENCIL for sign in (1, -1)]
    moved = point + (_STEP * np.array(places)[:, None] + 1e-30j) * direction
    derivatives = loss(moved).imag / 1e-30
    weights = [sign * weight for _, weight in _STENCIL for sign in (1, -1)]
    return float(np.dot(weights, derivatives) / _STEP)


def characteristic(hessian: Array) -> list[Fraction]:
    """Return det(λ − H) in exact arithmetic, highest power first (Faddeev and LeVerrier).

    Examples
    --------
    >>> [int(c) for c in characteristic(np.array([[2.0, 1.0], [1.0, 2.0]]))]
    [1, -4, 3]
    """
    size = range(len(hessian))
    exact = [[Fraction(float(entry)) for entry in row] for row in hessian]
    power = [[Fraction(0)] * len(hessian) for _ in size]
    found = [Fraction(1)]
    for k in size:
        for i in size:
            power[i][i] += found[-1]
        power = [
            [sum((exact[i][t] * power[t][j] for t in size), Fraction(0)) for j in size]
            for i in size
        ]
        found.append(-sum((power[i][i] for i in size), Fraction(0)) / (k + 1))
    return found


def multiplied(*factors: Sequence[Fraction]) -> list[Fraction]:
    """Return the product of polynomials in exact arithmetic, highest powers first.

    Examples
    --------
    >>> [int(c) for c in multiplied([Fraction(1), Fraction(-1)], [Fraction(1), Fraction(1)])]
    [1, 0, -1]
    """
    result = [Fraction(1)]
    for factor in factors:
        longer = [Fraction(0)] * (len(result) + len(factor) - 1)
        for i, a in enumerate(result):
            for j, b in enumerate(factor):
                longer[i + j] += a * b
        result = longer
    return result


def eigenvalue_gap(values: Sequence[float] | NDArray[Any], hessian: Array) -> float:
    """Return how far values are from the eigenvalues, relative to the largest; inf for a count."""
    truth = np.linalg.eigvalsh(hessian)
    if len(values) != len(truth):
        return float("inf")
    return float(np.max(np.abs(np.sort(np.asarray(values)) - truth)) / np.max(np.abs(truth)))


def without(values: Sequence[float] | NDArray[Any], taken: Sequence[float]) -> Array:
    """Remove from the eigenvalues, for each value given, the one nearest to it.

    Examples
    --------
    >>> without([-1.0, 0.1, 1.0, 3.0], [1.0, -1.0])
    array([0.1, 3. ])
    """
    left = [float(value) for value in values]
    for known in taken:
        left.remove(min(left, key=lambda value: abs(value - known)))
    return np.array(left)


def vector_gap(value: float, vector: Array, hessian: Array) -> float:
    """Return how far a vector is from an eigenvector; inf for the zero vector."""
    length = float(np.linalg.norm(vector))
    scale = float(np.linalg.norm(hessian, 2))
    if length < 1e-12 * scale:
        return float("inf")
    return float(np.linalg.norm(hessian @ vector - value * vector) / (length * scale))
