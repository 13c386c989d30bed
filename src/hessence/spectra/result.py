"""What a spectrum and an estimate have in common: numbers made of the eigenvalues, and tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from html import escape
from importlib import import_module
from typing import Any, NamedTuple

import array_api_compat as api
import numpy as np

from hessence._common.arguments import as_number
from hessence._common.arrays import Array, Numbers, to_numpy
from hessence._common.files import Saved
from hessence._common.messages import SHOWN
from hessence._common.summation import compensated_sum
from hessence.spectra.subspaces import Eigenspace

WORDS = ("outlier", "bulk", "flat", "dominant", "mixed", "twin", "range")
"""What labels begin with; a spectrum need not have all of them."""


class Inertia(NamedTuple):
    """How many eigenvalues are positive, negative, and zero to the tolerance.

    Examples
    --------
    >>> import hessence as hs
    >>> H = hs.ScalarLinear([1.0, 2.0], [0.5, 0.25]).hessian([1.0, -1.0], [2.0, -1.0])
    >>> H.spectrum().inertia(), H.ggn.spectrum().inertia()
    (Inertia(positive=3, negative=1, flat=0), Inertia(positive=1, negative=0, flat=3))
    """

    positive: Any
    negative: Any
    flat: Any


class UnknownLabelError(ValueError, KeyError):
    """A word that no label begins with."""

    __str__ = Exception.__str__


def require_label(label: Any) -> None:
    """Refuse what cannot be a label, such as an index."""
    if not isinstance(label, str):
        raise TypeError(f"a spectrum is indexed by label, got {type(label).__name__}.")


class SpectralResult(Saved):
    """What can be asked of a ``Spectrum`` and of an ``Estimate`` alike.

    A subclass has ``space``, ``size``, ``values``, ``multiplicities`` and ``errors``. What needs
    all eigenvalues, such as the rank, gets them by ``_all``, which refuses if some are not known.
    """

    def _all(self, wanted: str) -> tuple[Array, Array, Array]:
        """Return all values, counts and errors; a refusal says what is `wanted`."""
        raise NotImplementedError

    def space(self, index: int) -> Eigenspace:
        """Return one of ``spaces`` without making the others."""
        raise NotImplementedError

    @cached_property
    def spaces(self) -> tuple[Eigenspace, ...]:
        """The eigenspaces, largest eigenvalue first (for a batch: in one order for all)."""
        own: Any = self
        return tuple(map(self.space, range(own.values.shape[-1])))

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels there are, each once, in the order of ``spaces``."""
        return tuple(dict.fromkeys(space.label for space in self.spaces))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the eigenvalues, as often as ``len`` says."""
        own: Any = self
        return iter(own.eigenvalues)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Numbers:
        """Return the eigenvalues, for ``np.asarray``."""
        own: Any = self
        return np.asarray(to_numpy(own.eigenvalues), dtype=dtype)

    def __getitem__(self, label: str) -> tuple[Eigenspace, ...]:
        """Return the spaces whose label is `label` or starts with it and a slash."""
        require_label(label)
        found = tuple(s for s in self.spaces if s.label == label or s.label.startswith(label + "/"))
        if not found and label.partition("/")[0] not in WORDS:
            have = ", ".join(f'"{name}"' for name in self.labels)
            raise UnknownLabelError(f'no label begins with "{label}"; the labels here are {have}.')
        return found

    @property
    def squared_norm(self) -> Array:
        """The sum of all squared eigenvalues: the squared Frobenius norm."""
        values, counts, _ = self._all("the squared norm")
        xp = api.array_namespace(values)
        return xp.sum(values * values * xp.astype(counts, values.dtype), axis=-1)

    @property
    def logabsdet(self) -> Array:
        """The logarithm of the product of abs(λ) over the eigenvalues that are not flat.

        An eigenvalue is flat if abs(λ) does not exceed the bound of its error, see ``rank``. So a
        singular Hessian gets its pseudo-determinant rather than −∞, and a zero Hessian gets 0.
        """
        values, counts, errors = self._all("the determinant")
        xp = api.array_namespace(values)
        curved = xp.where(xp.abs(values) <= errors, xp.ones_like(values), xp.abs(values))
        return compensated_sum(xp.log(curved) * xp.astype(counts, values.dtype))

    @property
    def condition_number(self) -> Array:
        """The largest over the smallest abs(λ) among the eigenvalues that are not flat.

        Flat as in ``logabsdet``: a singular Hessian gets the condition number on its range. A zero
        Hessian has none: NaN.
        """
        values, counts, errors = self._all("the condition number")
        xp = api.array_namespace(values)
        infinite = xp.ones_like(values) * np.inf
        there = xp.logical_and(counts > 0, xp.abs(values) > errors)
        smallest = xp.min(xp.where(there, xp.abs(values), infinite), axis=-1)
        ratio = largest_magnitude(values, counts) / smallest
        return xp.where(xp.isinf(smallest), xp.ones_like(ratio) * np.nan, ratio)

    def rank(self, tol: float | None = None) -> Any:
        """Count the eigenvalues that are not flat.

        Parameters
        ----------
        tol : float, optional
            An eigenvalue is flat if abs(λ) ≤ tol · ‖H‖. By default it is flat if it may be zero,
            that is if abs(λ) does not exceed the bound of its error; ``tol=0`` counts exact zeros
            only.
        """
        self._all("the rank")
        inertia = self.inertia(tol)
        return inertia.positive + inertia.negative

    def inertia(self, tol: float | None = None) -> Inertia:
        """Count the positive, negative and flat eigenvalues; `tol` as in ``rank``."""
        values, counts, limits = self._all("the inertia")
        xp = api.array_namespace(values)
        if tol is not None:
            share = as_number("tol", tol, "a number that is not negative", lambda own: own >= 0)
            limits = share * largest_magnitude(values, counts)[..., None]
        flat = xp.abs(values) <= limits

        def count(mask: Array) -> Any:
            total = xp.sum(xp.where(mask, counts, xp.zeros_like(counts)), axis=-1)
            return int(total) if total.ndim == 0 else total

        positive = xp.logical_and(values > 0, xp.logical_not(flat))
        negative = xp.logical_and(values < 0, xp.logical_not(flat))
        return Inertia(count(positive), count(negative), count(flat))

    def to_frame(self) -> Any:
        """Return label, value, multiplicity and error of each eigenspace as a pandas table."""
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError as error:
            raise ImportError("to_frame needs pandas: pip install pandas.") from error
        return pandas.DataFrame(self._columns())

    def ends(self, most: int) -> tuple[Eigenspace, ...]:
        """Return at most so many of ``spaces``, from both ends."""
        own: Any = self
        count, half = int(own.values.shape[-1]), most // 2
        if count <= most:
            return self.spaces
        return tuple(map(self.space, (*range(half), *range(count - half, count))))

    def _columns(self, most: int | None = None) -> dict[str, Any]:
        """Return the columns of the table, whole or for at most so many of its ``ends``."""
        own: Any = self
        values, counts = to_numpy(own.values), to_numpy(own.multiplicities)
        if values.ndim > 1:
            raise ValueError("a table belongs to one network; pick one of the batch first.")
        first = np.cumsum(counts) - counts
        spaces = self.ends(most or len(values))
        half = len(spaces) // 2
        rows = np.r_[:half, len(values) - len(spaces) + half : len(values)]
        return {
            "label": [space.label for space in spaces],
            "value": values[rows],
            "multiplicity": counts[rows],
            "error": to_numpy(own.errors)[first[rows]],
        }

    def _repr_html_(self) -> str:
        """Return the table as notebooks show it, without making all eigenspaces of many."""
        own: Any = self
        if own.values.ndim > 1:
            return f"<pre>{escape(repr(self))}</pre>"
        columns = self._columns(SHOWN)
        rows = [
            f"<tr><td>{escape(label)}</td><td>{value:.6g}</td><td>{number}</td><td>{error:.1e}</td></tr>"
            for label, value, number, error in zip(*columns.values(), strict=True)
        ]
        if hidden := int(own.values.shape[0]) - len(rows):
            rows.insert(SHOWN // 2, f'<tr><td colspan="4">… {hidden} more …</td></tr>')
        head, names = repr(self).partition("\n")[0], "".join(f"<th>{n}</th>" for n in columns)
        return f"<table><caption>{escape(head)}</caption><tr>{names}</tr>{''.join(rows)}</table>"


def largest_magnitude(values: Array, counts: Array) -> Array:
    """Return the largest magnitude of an eigenvalue that is there: the spectral norm."""
    xp = api.array_namespace(values)
    magnitudes = xp.abs(values)
    return xp.max(xp.where(counts > 0, magnitudes, xp.zeros_like(magnitudes)), axis=-1)


def repeated(counts: Numbers) -> Numbers:
    """Return the index of each group as often as its count says, (..., size)."""
    groups = np.broadcast_to(np.arange(counts.shape[-1]), counts.shape)
    return np.repeat(groups.ravel(), counts.ravel()).reshape((*counts.shape[:-1], -1))


def expanded(values: Numbers, counts: Numbers) -> Numbers:
    """Return values as often as their counts say, largest first, (..., size)."""
    order = np.argsort(-values, axis=-1, stable=True)
    values, counts = (np.take_along_axis(a, order, axis=-1) for a in (values, counts))
    return np.take_along_axis(values, repeated(counts), axis=-1)
