"""Moments of a data set: all that the mean-squared error of a linear predictor knows of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import array_api_compat as api

from hessence._common.arrays import Array, floating, is_finite, require_shape
from hessence._common.summation import exact_product, exact_sum

SUMS = ("sum_x", "sum_y", "sum_xx", "sum_yx", "sum_yy")


class Cells(NamedTuple):
    """The moments of the samples with x > 0 and of those with x ≤ 0."""

    plus: Moments
    minus: Moments


def _average(name: str, doc: str) -> Any:
    found = cached_property(lambda self: getattr(self, name) / self.n)
    found.__doc__ = doc
    return found


class Moments:
    r"""First and second moments of samples :math:`x_i \in \mathbb{R}^D, y_i \in \mathbb{R}^K`.

    Samples are rows. Sums are kept, and formed only when asked for; averages are sums over n.

    Parameters
    ----------
    x : array (n,) or (n, D)
        Inputs.
    y : array (n,) or (n, K)
        Targets.
    like : tuple of str and array, optional
        Name and value of an array whose kind and device the samples must share.

    Attributes
    ----------
    n : int
        How many samples.
    xx, yx, yy : array (D, D), (K, D), (K, K)
        The averages Σ = E[x xᵀ], C = E[y xᵀ] and E[y yᵀ], about zero.
    x_mean, y_mean : array (D,), (K,)
        The averages E[x] and E[y].
    samples : pair of arrays (n, D), (n, K), or None
        The samples themselves, where more than their moments was kept.
    cells : Cells
        For D = 1: the moments of the samples with x > 0 and with x ≤ 0.

    Examples
    --------
    >>> import numpy as np
    >>> m = Moments(np.asarray([1.0, -3.0]), np.asarray([2.0, 2.0]))
    >>> m.n, m.xx.item(), m.yx.item(), m.cells.plus.n
    (2, 5.0, -2.0, 1)

    Data that do not fit in memory come in batches, which need not be of one size:

    >>> batches = [([1.0], [2.0]), ([-3.0], [2.0])]
    >>> Moments.from_batches(batches).xx.item()
    5.0
    """

    n: int

    def __init__(self, x: Array, y: Array, *, like: tuple[str, Array] | None = None) -> None:
        _, x, y = floating(like, x=x, y=y)
        for name, array, letter in (("x", x, "D"), ("y", y, "K")):
            if not 1 <= array.ndim <= 2:
                shape = tuple(array.shape)
                raise ValueError(f"{name} must have shape (n,) or (n, {letter}), got {shape}.")
        self._hold(_columns(x), _columns(y))

    @classmethod
    def of_numbers(cls, x: Array, y: Array, like: tuple[str, Array]) -> Moments:
        """Return the moments of scalar samples x (n,) and y (n,), and of nothing else."""
        _, x, y = floating(like, x=x, y=y)
        require_shape("x", x, ("n",), batch=False)
        require_shape("y", y, ("n",), batch=False)
        return _subset(_columns(x), _columns(y))

    def _hold(self, x: Array, y: Array) -> None:
        if x.shape[0] != y.shape[0]:
            raise ValueError(
                f"y must have one row for each of the {x.shape[0]} samples in x, got {y.shape[0]}."
            )
        self.n = int(x.shape[0])
        self.samples: tuple[Array, Array] | None = (x, y)

    @classmethod
    def from_batches(cls, batches: Iterable[tuple[Array, Array]]) -> Moments:
        """Accumulate the moments of all batches (x, y) of an iterable, one after another."""
        totals: list[_Accumulator] = []
        for batch in batches:
            if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
                raise ValueError("batches must yield pairs (x, y).")
            whole = cls(*batch)
            parts = [whole, *(whole.cells if whole.dimensions[0] == 1 else ())]
            totals = totals or [_Accumulator(whole) for _ in parts]
            for total, part in zip(totals, parts, strict=False):
                total.add(part)
        if not totals:
            raise ValueError("batches is empty: expected at least one pair (x, y).")
        moments, *cells = (total.total() for total in totals)
        if cells:
            moments.__dict__["cells"] = Cells(*cells)
        return moments

    @property
    def dimensions(self) -> tuple[int, int]:
        """The numbers D of inputs and K of targets."""
        if self.samples is not None:
            return int(self.samples[0].shape[1]), int(self.samples[1].shape[1])
        return int(self.sum_yx.shape[1]), int(self.sum_yx.shape[0])

    @cached_property
    def sum_x(self) -> Array:
        """The sum of all x."""
        x = self._held()[0]
        return api.array_namespace(x).sum(x, axis=0)

    @cached_property
    def sum_y(self) -> Array:
        """The sum of all y."""
        y = self._held()[1]
        return api.array_namespace(y).sum(y, axis=0)

    @cached_property
    def sum_xx(self) -> Array:
        """The sum of all x xᵀ."""
        x = self._held()[0]
        total = _products(x, x)
        if not is_finite(total):
            raise ValueError("x is too large: its second moment overflows.")
        return total

    @cached_property
    def sum_yx(self) -> Array:
        """The sum of all y xᵀ."""
        x, y = self._held()
        return _products(y, x)

    @cached_property
    def sum_yy(self) -> Array:
        """The sum of all y yᵀ."""
        y = self._held()[1]
        return _products(y, y)

    x_mean = _average("sum_x", "The average of x.")
    y_mean = _average("sum_y", "The average of y.")
    xx = _average("sum_xx", "The average of x xᵀ.")
    yx = _average("sum_yx", "The average of y xᵀ.")
    yy = _average("sum_yy", "The average of y yᵀ.")

    @cached_property
    def cells(self) -> Cells:
        """The moments of the two halves of the line that a ReLU tells apart."""
        x, y = self._held()
        if x.shape[1] != 1:
            raise ValueError(f"cells are defined for one input, the data have {x.shape[1]}.")
        xp = api.array_namespace(x)
        positive = x[:, 0] > 0
        return Cells(*(_subset(x[m], y[m]) for m in (positive, xp.logical_not(positive))))

    def with_constant(self) -> Moments:
        """Return the moments of the inputs (x, 1), which give a predictor an intercept."""
        xp = api.array_namespace(self.sum_xx)
        if self.samples is not None:
            x, y = self.samples
            return _subset(xp.concat([x, xp.ones_like(x[:, :1])], axis=1), y)
        count = xp.ones_like(self.sum_x[:1]) * self.n
        top = xp.concat([self.sum_xx, self.sum_x[:, None]], axis=1)
        bottom = xp.concat([self.sum_x, count], axis=0)[None, :]
        changed = {
            "sum_x": bottom[0, :],
            "sum_xx": xp.concat([top, bottom], axis=0),
            "sum_yx": xp.concat([self.sum_yx, self.sum_y[:, None]], axis=1),
        }
        return self._changed(changed)

    def scaled(self, factor: float) -> Moments:
        """Return the moments of the inputs times a number."""
        if self.samples is not None:
            x, y = self.samples
            return _subset(factor * x, y)
        # "sum_xx" is of degree 2 in x, "sum_yx" of degree 1.
        return self._changed(
            {name: factor ** name.count("x") * getattr(self, name) for name in SUMS}
        )

    def less(self, matrix: Array, factor: float = 1.0) -> Moments:
        """Return the moments of the targets y − factor · A x, for a matrix A (K, D)."""
        xp, transposed = api.array_namespace(matrix), api.array_namespace(matrix).matrix_transpose
        if self.samples is not None:
            x, y = self.samples
            fitted, lost = exact_product(xp.matmul(x, transposed(matrix)), factor + 0 * y)
            return _subset(x, (y - fitted) - lost)
        matrix = factor * matrix
        fitted = xp.matmul(matrix, self.sum_xx)
        crossed = xp.matmul(self.sum_yx, transposed(matrix))
        explained = crossed + transposed(crossed) - xp.matmul(fitted, transposed(matrix))
        changed = {
            "sum_y": self.sum_y - xp.matmul(matrix, self.sum_x),
            "sum_yx": self.sum_yx - fitted,
            "sum_yy": self.sum_yy - explained,
        }
        return self._changed(changed)

    def _changed(self, sums: dict[str, Array]) -> Moments:
        """Return moments without samples, of which some sums differ from these."""
        return _from_sums(self.n, {name: getattr(self, name) for name in SUMS} | sums)

    def _held(self) -> tuple[Array, Array]:
        if self.samples is None:
            raise ValueError("these moments were accumulated without what is asked for here.")
        return self.samples

    def __repr__(self) -> str:
        inputs, targets = self.dimensions
        return f"Moments(n={self.n}, inputs={inputs}, targets={targets})"


class _Accumulator:
    """Running sums, each kept as a sum and the rounding errors it has made."""

    def __init__(self, like: Moments) -> None:
        xp = api.array_namespace(like.sum_xx)
        self._n = 0
        self._dimensions = like.dimensions
        self._sums = {name: xp.zeros_like(getattr(like, name)) for name in SUMS}
        self._errors = dict(self._sums)

    def add(self, part: Moments) -> None:
        if part.dimensions != self._dimensions:
            raise ValueError(
                f"batches must agree in the numbers of inputs and targets: {self._dimensions} "
                f"in the first, {part.dimensions} in a later one."
            )
        self._n += part.n
        for name in SUMS:
            self._sums[name], lost = exact_sum(self._sums[name], getattr(part, name))
            self._errors[name] = self._errors[name] + lost

    def total(self) -> Moments:
        return _from_sums(self._n, {name: self._sums[name] + self._errors[name] for name in SUMS})


def as_moments(x: Any, y: Any, like: tuple[str, Array]) -> Moments:
    """Return `x` itself if it is a Moments and `y` is None; otherwise the moments of samples."""
    if isinstance(x, Moments):
        if y is not None:
            raise ValueError("y must be left out when x is a Moments, which holds the targets.")
        floating(like, x=x.sum_xx)
        return x
    if y is None:
        raise ValueError("y is missing: give the targets, or a Moments in place of x.")
    return Moments(x, y, like=like)


def samples_of(moments: Moments) -> tuple[Array, Array]:
    """Return the samples behind moments; every loss but the squared one needs them."""
    if moments.samples is None:
        raise ValueError("loss must be 'mse' when x is a Moments; other losses need the samples.")
    return moments.samples


def _from_sums(n: int, sums: dict[str, Array]) -> Moments:
    moments = Moments.__new__(Moments)
    moments.__dict__.update(sums, n=n, samples=None)
    return moments


def _subset(x: Array, y: Array) -> Moments:
    moments = Moments.__new__(Moments)
    moments._hold(x, y)
    return moments


def _columns(array: Array) -> Array:
    return array[:, None] if array.ndim == 1 else array


def _products(a: Array, b: Array) -> Array:
    xp = api.array_namespace(a)
    if a.shape[1] == b.shape[1] == 1:
        return xp.reshape(xp.vecdot(a[:, 0], b[:, 0]), (1, 1))
    return xp.matmul(xp.matrix_transpose(a), b)
