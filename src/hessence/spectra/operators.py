"""Symmetric operators on parameter space: what ``hessian`` returns, and what is made of them.

An operator multiplies: a subclass says its ``shape``, gives some array of its kind (``reference``)
and multiplies columns (``times``). Everything else follows: the algebra ``H + 2 * G``, ``-H``,
``H.T``, the restriction to some of the parameters, the dense matrix, SciPy's operator, and what
products tell of the spectrum. A ``Hessian`` knows more, and answers from theorems.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, wraps
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Self

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    Numbers,
    dtype_name,
    floating,
    integers,
    kind,
    like,
    nonzero,
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

Part = Literal["hessian", "ggn", "functional"]
"""A Hessian, or one of the two parts that it is the sum of."""

OF_SPECTRA = (
    "eigenvalues eigenvectors errors values multiplicities spaces labels sharpness trace_stderr "
    "squared_norm norm logabsdet rank inertia condition_number density verify plot save to_frame "
    "exact method reason converged products"
)
"""What can be asked of a spectrum, and of an operator only through its spectrum."""


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
        """Return the diagonal block of some of the parameters, by their places in a vector.

        Parameters
        ----------
        indices : slice, or array of int or bool
            The places, as NumPy takes them; none twice.
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
        """Return an estimate of the spectrum: see ``hessence.spectra.estimating.estimate``.

        The arguments are ``k=10, which="LA", tol=1e-6, rng=0``, and ``probes, steps, memory`` for
        the density.
        """
        return estimate(self, *arguments, **options)

    def trace(self, *arguments: Any, **options: Any) -> Any:
        """Return the trace by random products, with its standard error, as ``hs.trace`` does."""
        return trace(self, *arguments, **options)

    def rounding(self) -> Any:
        """Return a bound for the spectral norm of what rounding has done to the operator.

        To the derivatives of the loss that it holds, and to its products. Here nothing is known
        about them but that a sum rounds: 0. What large terms cancel in overrides it.
        """
        return 0.0

    @cached_property
    def rounded(self) -> Any:
        """What ``rounding`` returns, found once for all families of a spectrum."""
        return self.rounding()

    def release(self) -> None:
        """Let go of what is kept from one product to the next; it is made again when needed."""
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
        return self.times(
            xp.eye(self.shape[-1], dtype=self.dtype, device=api.device(self.reference))
        )

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
        if others or arguments or options or not isinstance(part, Hessian):
            return super().spectrum(*arguments, **options)
        return part.spectrum().mapped(lambda vectors: vectors, factor)

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
        """The shape of the block, batch dimensions in front."""
        return (*self.whole.shape[:-2], len(self.indices), len(self.indices))

    @property
    def reference(self) -> Array:
        return self.whole.reference

    def times(self, columns: Array) -> Array:
        xp, count = api.array_namespace(columns), len(self.indices)
        # Rows that are not chosen come from a row of zeros below the columns.
        source = np.full(self.whole.shape[-1], count)
        source[self.indices] = np.arange(count)
        padded = stack_rows(columns, zero_rows(1, columns))
        images = self.whole.times(xp.take(padded, integers(source, columns), axis=-2))
        return xp.take(images, integers(self.indices, columns), axis=-2)

    def rounding(self) -> Any:
        return self.whole.rounding()

    def release(self) -> None:
        self.whole.release()


class Hessian(Operator):
    """The Hessian of a loss, split as H = ggn + functional.

    The Gauss–Newton part is what remains if the network is linearised; the functional part is the
    residual times the network's own second derivative, and vanishes at zero residual. A subclass is
    a dataclass with a field ``part``, which tells which of the three it is.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "spectrum" in vars(cls):
            cls.spectrum = _without_arguments(cls.spectrum)  # type: ignore[method-assign]

    @abstractmethod
    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""

    @abstractmethod
    def trace(self) -> Array:
        """Return the sum of the diagonal, from the entries and not from eigenvalues."""

    @abstractmethod
    def squared_norm(self) -> Array:
        """Return the sum of all squared entries, from the entries and not from eigenvalues."""

    @property
    def ggn(self) -> Self:
        """The Gauss–Newton part."""
        return self._only("ggn", "gradient")

    @property
    def functional(self) -> Self:
        """The functional part."""
        return self._only("functional", "loss_hessian")

    def _only(self, part: Part, without: str) -> Self:
        """Return one part; a derivative of the loss that does not enter it becomes zero."""
        zero = {f.name: 0 * getattr(self, f.name) for f in fields(self) if f.name == without}  # type: ignore[arg-type]
        return replace(self, part=part, **zero)  # type: ignore[type-var]

    def ggn_error(self) -> Array:
        """Return how far the Gauss–Newton part's largest eigenvalue is off, relative to H's.

        Zero where the residual vanishes; NaN where the largest eigenvalue of H is zero and that of
        the Gauss–Newton part is not.
        """
        xp = api.array_namespace(self.reference)
        mine, theirs = self.spectrum().sharpness, self.ggn.spectrum().sharpness
        gap = xp.abs(mine - theirs)
        missing = xp.where(gap == 0, 0 * gap, float("nan") + 0 * gap)
        return xp.where(mine == 0, missing, gap / xp.abs(nonzero(mine)))[()]


def positive_norm(operator: Operator) -> Any:
    """Return an upper bound (...,) for the norm of an operator without negative entries.

    It is at most the largest (A d)_i / d_i for any positive vector d (Collatz), and close to that
    if d is close to the leading eigenvector. Products that add up, with positive signs, all that
    is added up in those of a Hessian bound what rounding does to it.
    """
    reference, bound = operator.reference, np.asarray(np.inf)
    ones = np.ones((*operator.shape[:-1], 1))
    d = like(ones, reference)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(4):
            image = to_numpy(operator.times(d)).astype(np.float64)
            ratio = image / to_numpy(d)
            # Where a product overflows, nothing is known.
            bound = np.minimum(bound, np.where(np.isnan(ratio), np.inf, ratio).max(axis=(-2, -1)))
            top = image.max(axis=(-2, -1), keepdims=True)
            closer = image / np.where(top == 0, 1.0, top) + 0.01 * ones
            d = like(np.where(np.isfinite(closer), closer, 1.0), reference)
    return bound


def _without_arguments(spectrum: Callable[[Any], Spectrum]) -> Callable[..., Spectrum]:
    """Return the method with a sentence for those who ask it for k eigenvalues."""

    @wraps(spectrum)
    def whole(self: Any, *arguments: Any, **options: Any) -> Spectrum:
        if arguments or options:
            raise ValueError(
                "this spectrum is exact and whole, and takes no k or other arguments: ask for "
                "H.spectrum(), or for H.top(k) if a few eigenvalues will do."
            )
        return spectrum(self)

    return whole


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
