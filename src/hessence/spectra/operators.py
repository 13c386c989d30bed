"""Symmetric operators on parameter space, and their algebra.

A subclass has a ``shape``, some array of its kind (``reference``), and multiplies columns
(``times``). Everything else follows: ``H + 2 * G``, ``-H``, ``H.T``, the restriction to some of the
parameters, the dense matrix, SciPy's operator, and estimates of the spectrum by products. The
spectrum of a ``Hessian`` (``hessian.py``) comes from theorems.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    Numbers,
    dtype_name,
    floating,
    identity,
    integers,
    kind,
    like,
    stack_rows,
    to_numpy,
    transpose,
    zero_rows,
)
from hessence._common.device import available
from hessence.krylov.eigenpairs import eigenpairs
from hessence.krylov.eigenpairs_result import Eigenpairs
from hessence.krylov.trace import trace
from hessence.spectra.estimating import estimate
from hessence.spectra.spectrum import Spectrum

OF_SPECTRA = (
    "eigenvalues eigenvectors errors values multiplicities spaces labels sharpness trace_stderr "
    "squared_norm norm logabsdet rank inertia condition_number density verify plot save to_frame "
    "exact method reason converged products"
)
"""Attributes of a spectrum that users may look for on the operator."""


class Operator(ABC):
    """A symmetric matrix that is applied rather than stored.

    ``H @ V`` follows ``matmul``: V is a vector (p,) or columns (p, k); where H stands for a batch
    of networks, V may have the batch dimensions in front. Operators add and scale.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> H = hs.ScalarLinear([1.0, 2.0], [0.5, 1.0]).hessian([1.0, -1.0], [2.0, -1.0])
    >>> A, v = H - 2 * H.ggn, np.ones(4)
    >>> bool(np.allclose(A @ v, H @ v - 2 * (H.ggn @ v)))
    True
    >>> A.restrict([0, 3]).dense().shape, A.T is A
    ((2, 2), True)
    """

    # NumPy's arrays and numbers leave a product or a multiple to the operator.
    __array_ufunc__ = None

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix, batch dimensions in front."""

    @abstractmethod
    def times(self, columns: Array) -> Array:
        """Multiply columns (..., p, k) as they are, without the checks of ``@``."""

    @property
    @abstractmethod
    def reference(self) -> Array:
        """Some array of the kind, type and device that vectors must have."""

    @property
    def dtype(self) -> Any:
        """The floating-point type."""
        return self.reference.dtype

    def __matmul__(self, other: Array) -> Array:
        _, columns = floating(("H", self.reference), **{"the operand of @": other})
        size = self.shape[-1]
        vector = columns.ndim == 1
        fits = 0 < columns.ndim <= max(2, len(self.shape))
        if not fits or columns.shape[0 if vector else -2] != size:
            raise ValueError(
                f"the operand of @ must be a vector ({size},) or columns ({size}, k), "
                f"got {tuple(columns.shape)}."
            )
        return self.times(columns[:, None])[..., 0] if vector else self.times(columns)

    def __rmatmul__(self, other: Array) -> Array:
        # H is its own transpose: v @ H is H @ v, and of rows the transpose of H @ Vᵀ.
        return self @ other if other.ndim == 1 else transpose(self @ transpose(other))

    @property
    def T(self) -> Operator:
        """The transpose, which is the operator itself."""
        return self

    def __add__(self, other: Any) -> Operator:
        return _combined(self, other, 1.0) if isinstance(other, Operator) else NotImplemented

    def __sub__(self, other: Any) -> Operator:
        return _combined(self, other, -1.0) if isinstance(other, Operator) else NotImplemented

    def __mul__(self, factor: Any) -> Operator:
        if not isinstance(factor, Real) and getattr(factor, "ndim", None) != 0:
            return NotImplemented
        number = float(factor)
        if not math.isfinite(number):
            raise ValueError(f"an operator is multiplied by a finite number, got {number}.")
        return Combination(tuple((number * own, part) for own, part in _terms(self)))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Operator:
        factor: float = 1.0 / divisor
        return self * factor

    def __neg__(self) -> Operator:
        return self * -1.0

    def restrict(self, indices: Any) -> Operator:
        """Return the diagonal block of some parameters.

        Their `indices` in a vector are a slice or an array of int or bool, as in NumPy; none twice.
        """
        size = self.shape[-1]
        try:
            chosen = np.arange(size)[indices if isinstance(indices, slice) else to_numpy(indices)]
        except IndexError as error:
            raise ValueError(f"indices must choose among {size} parameters: {error}.") from error
        chosen = np.atleast_1d(chosen)
        if chosen.ndim != 1 or not chosen.size or len(np.unique(chosen)) != chosen.size:
            raise ValueError("indices must be one-dimensional, and choose some parameters, once.")
        return Restriction(self, chosen)

    def top(self, k: int = 1, which: str = "LA", **options: Any) -> Eigenpairs:
        """Return extreme eigenpairs by Lanczos; the arguments are those of ``hs.eigenpairs``."""
        return eigenpairs(self, k, which, **options)

    def spectrum(self, *arguments: Any, **options: Any) -> Any:
        """Return an estimate of the spectrum.

        The arguments are ``k=10, which="LA", tol=1e-6, rng=0``, and ``probes, steps, memory`` for
        the density.
        """
        return estimate(self, *arguments, **options)

    def exact_spectrum(self) -> Spectrum | None:
        """Return the whole spectrum where a theorem gives it, None elsewhere."""
        return None

    def trace(self, *arguments: Any, **options: Any) -> Any:
        """Return the trace by random products, with its standard error, as ``hs.trace`` does."""
        return trace(self, *arguments, **options)

    def rounding(self) -> Any:
        """Return a bound for the spectral norm of what rounding has done to the operator.

        That is, to the derivatives of the loss that it holds and to its products. 0 unless a
        subclass, in which large terms may cancel, overrides it.
        """
        return 0.0

    @cached_property
    def rounded(self) -> Any:
        """What ``rounding`` returns, computed once."""
        return self.rounding()

    def release(self) -> None:
        """Drop what is cached between products; it is made again when needed."""
        return

    def dense(self) -> Array:
        """Return the matrix itself, all p² entries of it."""
        xp, size = api.array_namespace(self.reference), math.prod(self.shape)
        needed = 2 * size * xp.finfo(self.dtype).bits / 8
        if needed > available(self.reference):
            raise ValueError(
                f"H has {size:.1e} entries, which would take {needed / 1e9:.0f} GB: use "
                "hs.eigenpairs, hs.density or hs.trace instead."
            )
        return self.times(identity(self.shape[-1], self.reference))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Numbers:
        """Return the matrix itself, for ``np.asarray``."""
        return np.asarray(to_numpy(self.dense()), dtype=dtype)

    def to_scipy(self) -> Any:
        """Return the operator for SciPy, which has NumPy vectors of any floating-point type.

        Examples
        --------
        >>> import hessence as hs
        >>> from scipy.sparse.linalg import eigsh
        >>> H = hs.ScalarLinear([1.0, 2.0, 0.5], [0.5, 1.0, 1.0]).hessian([1.0, -1.0], [2.0, -1.0])
        >>> eigsh(H.to_scipy(), k=1, which="LA", return_eigenvectors=False).round(4)
        array([8.7812])
        """
        # Loading SciPy's solvers would slow down the import of the library.
        from scipy.sparse.linalg import LinearOperator

        if len(self.shape) != 2:
            raise ValueError(f"SciPy takes one matrix, but H is a batch of shape {self.shape}.")
        reference = self.reference

        def multiply(columns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return to_numpy(self @ like(columns, reference))

        return LinearOperator(
            self.shape, matvec=multiply, matmat=multiply, rmatvec=multiply, rmatmat=multiply,
            dtype=to_numpy(reference).dtype,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"{type(self).__name__} of shape {self.shape}"

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name in OF_SPECTRA.split():
                raise AttributeError(
                    f"an operator has no {name} until its spectrum is computed: "
                    f"ask for H.spectrum().{name}."
                )
            # Ask again, for the error that a property may have raised on the way.
            return object.__getattribute__(self, name)


@dataclass(frozen=True, eq=False, repr=False)
class Combination(Operator):
    """A sum of operators, each times a number."""

    terms: tuple[tuple[float, Operator], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.terms[0][1].shape

    @property
    def reference(self) -> Array:
        return self.terms[0][1].reference

    def times(self, columns: Array) -> Array:
        images = ((factor, part.times(columns)) for factor, part in self.terms)
        return sum(image if factor == 1 else factor * image for factor, image in images)

    def spectrum(self, *arguments: Any, **options: Any) -> Any:
        """Return an estimate; without arguments, a multiple of a Hessian has its exact spectrum."""
        (factor, part), *others = self.terms
        exact = None if others or arguments or options else part.exact_spectrum()
        if exact is None:
            return super().spectrum(*arguments, **options)
        return exact.mapped(lambda vectors: vectors, factor)

    def rounding(self) -> Any:
        return sum(abs(factor) * part.rounding() for factor, part in self.terms)

    def release(self) -> None:
        for _, part in self.terms:
            part.release()

    def __repr__(self) -> str:
        said = " + ".join(f"{factor:g} · {type(part).__name__}" for factor, part in self.terms)
        return f"{said} of shape {self.shape}"


@dataclass(frozen=True, eq=False, repr=False)
class Restriction(Operator):
    """The diagonal block of an operator at some places, in the order that its vectors have."""

    whole: Operator
    indices: Numbers

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.whole.shape[:-2], len(self.indices), len(self.indices))

    @property
    def reference(self) -> Array:
        return self.whole.reference

    def times(self, columns: Array) -> Array:
        xp, count = api.array_namespace(columns), len(self.indices)
        # Rows that are not chosen are copies of a row of zeros below the columns.
        source = np.full(self.whole.shape[-1], count)
        source[self.indices] = np.arange(count)
        padded = stack_rows(columns, zero_rows(1, columns))
        images = self.whole.times(xp.take(padded, integers(source, columns), axis=-2))
        return xp.take(images, integers(self.indices, columns), axis=-2)

    def rounding(self) -> Any:
        return self.whole.rounding()

    def release(self) -> None:
        self.whole.release()


def _terms(operator: Operator) -> tuple[tuple[float, Operator], ...]:
    return operator.terms if isinstance(operator, Combination) else ((1.0, operator),)


def _combined(first: Operator, second: Operator, sign: float) -> Combination:
    """Return first + sign · second; the same operator in both is multiplied once."""
    if first.shape != second.shape:
        raise ValueError(f"operators that are added need one shape: {first.shape}, {second.shape}.")
    kinds = [
        (kind(part.reference), dtype_name(part.reference), str(api.device(part.reference)))
        for part in (first, second)
    ]
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"operators that are added need vectors of one kind: {kinds[0]} is not {kinds[1]}."
        )
    factors: dict[int, float] = {}
    parts: dict[int, Operator] = {}
    for scale, operator in ((1.0, first), (sign, second)):
        for factor, part in _terms(operator):
            factors[id(part)] = factors.get(id(part), 0.0) + scale * factor
            parts[id(part)] = part
    return Combination(tuple((factors[key], part) for key, part in parts.items()))
