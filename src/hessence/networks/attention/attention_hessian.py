r"""The Hessian of a self-attention layer of embedding dimension 1.

The prediction :math:`f = w_V\, h(t)` depends on the query and key weights only through
:math:`t = \langle w_Q, w_K \rangle`. In the order (w_V, w_Q, w_K), with :math:`u = (w_K, w_Q)` and
K the swap of the two,

.. math:: H = \begin{pmatrix} \alpha & \beta u^\top \\ \beta u & \zeta u u^\top + \gamma K
          \end{pmatrix}.

The coordinates :math:`w_Q \pm w_K` diagonalise K: a 3 × 3 block for the outliers and a bulk
:math:`\pm\gamma`, each d_K − 1 times (*Cracking the Hessian*, Theorem 3.5, which gives the
characteristic polynomial of the block but no eigenvectors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import add
from typing import Any, NamedTuple

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    Numbers,
    as_scalar,
    epsilon,
    stack_rows,
    to_double,
    transpose,
    zero_rows,
)
from hessence.data.rounding import DerivativeErrors, terms
from hessence.networks.scalar.gram import Gram, root
from hessence.networks.scalar.products import Products
from hessence.spectra.hessian import Hessian, Part
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Subspaces


class Scalars(NamedTuple):
    """The four numbers α, β, γ, ζ that the data enter through, each of the batch's shape."""

    alpha: Array
    beta: Array
    gamma: Array
    zeta: Array

    def plus(self, other: Scalars) -> Scalars:
        """Add two sets of numbers."""
        return Scalars(*map(add, self, other))


@dataclass(frozen=True)
class AttentionBounds:
    """The paper's bounds on the spectrum, with its ξ corrected (squared norms in the trace).

    Attributes
    ----------
    xi : array
        ξ = ⅔ √(3[(β² − αζ) N + 2γζκ + γ²] + tr²), N = ‖w_Q‖² + ‖w_K‖², κ = ⟨w_Q, w_K⟩.
    outliers : tuple of array
        The interval tr/3 ± ξ that holds the three outliers.
    sharpness : tuple of array
        Lower and upper bound of the largest eigenvalue, tr/3 + ξ/2 and tr/3 + ξ.
    condition_number : array
        A lower bound of the condition number, (tr/3 + ξ/2)/abs(γ); NaN where there is no bulk (d_K
        = 1) or it vanishes (γ = 0).

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.SelfAttention(1.0, w_q=[1.0, 0.5], w_k=[0.5, 1.0])
    >>> x = np.asarray([[1.0, -1.0, 0.5]])
    >>> low, high = net.bounds(x, x[:, ::-1]).sharpness
    >>> bool(low <= net.hessian(x, x[:, ::-1]).spectrum().sharpness <= high)
    True
    """

    xi: Array
    outliers: tuple[Array, Array]
    sharpness: tuple[Array, Array]
    condition_number: Array


def outlier_block(s: Scalars, g: Gram) -> Array:
    """Return the 3 × 3 block of w_V and the directions of w_Q ± w_K, (..., 3, 3)."""
    p, q = root(g.plus / 2), root(g.minus / 2)
    return _symmetric(
        [s.alpha, s.beta * p, s.beta * q],
        [s.zeta * p * p + s.gamma, s.zeta * p * q],
        [s.zeta * q * q - s.gamma],
    )


def _symmetric(*rows: list[Array]) -> Array:
    """Return symmetric matrices (..., k, k) from the rows of their upper triangles."""
    xp, k = api.array_namespace(rows[0][0]), len(rows)
    whole = [[rows[min(i, j)][abs(i - j)] for j in range(k)] for i in range(k)]
    return xp.stack([xp.stack(row, axis=-1) for row in whole], axis=-2)


@dataclass(frozen=True, eq=False, repr=False)
class AttentionHessian(Hessian):
    """The Hessian of a self-attention layer, with parameters ordered (w_V, w_Q, w_K).

    Attributes
    ----------
    w_q, w_k : array (..., d_K)
        The query and key weights.
    gauss_newton, residual : Scalars
        The parts of α, β, γ, ζ that belong to the Gauss–Newton and to the functional part.
    numbers : Gram
        The Gram numbers of the key and the query weights.
    part : str
        Which of the Hessian and its two parts this is.
    errors : callable, optional
        Returns bounds for the errors of `gauss_newton` and `residual`.
    """

    w_q: Array
    w_k: Array
    gauss_newton: Scalars
    residual: Scalars
    numbers: Gram
    part: Part = "hessian"
    errors: Callable[[], tuple[Any, Any]] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, m = self.w_q.shape
        return (*batch, 2 * m + 1, 2 * m + 1)

    @property
    def scalars(self) -> Scalars:
        """α, β, γ, ζ of this part."""
        match self.part:
            case "ggn":
                return self.gauss_newton
            case "functional":
                return self.residual
        return self.gauss_newton.plus(self.residual)

    @property
    def reference(self) -> Array:
        return self.w_q

    def block(self, name: str) -> Products:
        """Return the block of the query and key weights alone, ζ u uᵀ + γ K, for ``"qk"``."""
        if name != "qk":
            raise ValueError(f"name must be 'qk', got {name!r}.")
        return self._inner

    @cached_property
    def _inner(self) -> Products:
        """The block ζ u uᵀ + γ K."""
        s = self.scalars

        def derivatives(slack: Numbers) -> DerivativeErrors:
            gamma, zeta = (np.asarray(error)[..., None] for error in self._errors[2:])
            size = np.abs(to_double(s.zeta))[..., None]
            return DerivativeErrors(gamma, np.sqrt(size), np.sqrt(zeta))

        return Products(
            self.w_k[..., None, :],
            self.w_q[..., None, :],
            s.gamma[..., None],
            s.zeta[..., None],
            self.numbers.at(None),
            # The functional part has a second derivative here, too: a ζ of its own.
            part="ggn" if self.part == "ggn" else "hessian",
            derivatives=derivatives,
        )

    def trace(self) -> Array:
        """Return α + ζ (‖w_Q‖² + ‖w_K‖²)."""
        return self.scalars.alpha + self._inner.trace()

    def squared_norm(self) -> Array:
        """Return α² + 2 β² N + ‖ζ u uᵀ + γ K‖², N = ‖w_Q‖² + ‖w_K‖²."""
        alpha, beta, *_ = self.scalars
        return alpha**2 + 2 * beta**2 * self.numbers.norm + self._inner.squared_norm()

    def rounding(self) -> Any:
        """Return Δα + Δβ ‖u‖ + Δζ ‖u‖² + Δγ, and what rounding does to the Gram numbers."""
        norm = to_double(self.numbers.norm)
        return sum(e * size for e, size in zip(self._errors, (1, norm**0.5, 1, norm), strict=True))

    @property
    def _errors(self) -> list[Any]:
        """Bounds for α, β, γ, ζ of this part, with the error of what they are multiplied by."""
        share = epsilon(self.w_q) * (32 + 2 * terms(int(self.w_q.shape[-1])))
        sizes = [share * np.abs(to_double(s)) for s in self.scalars]
        if self.errors is None:
            return sizes
        ggn, functional = self.errors()
        used = {"ggn": (ggn,), "functional": (functional,)}.get(self.part, (ggn, functional))
        return [size + sum(errors) for size, *errors in zip(sizes, *used, strict=True)]

    def bounds(self) -> AttentionBounds:
        """Return the paper's bounds on outliers, sharpness and condition number."""
        xp = api.array_namespace(self.w_q)
        s, g, trace = self.scalars, self.numbers, self.trace()
        inside = (s.beta**2 - s.alpha * s.zeta) * g.norm + 2 * s.gamma * s.zeta * g.inner
        square = 3 * (inside + s.gamma**2) + trace**2
        # A sum of squared differences of eigenvalues, so negative by rounding only.
        xi = 2 * root(xp.where(square > 0, square, 0 * square)) / 3
        third = trace / 3
        size = xp.abs(s.gamma)
        no_bulk = xp.logical_or(size == 0, 0 * size + int(self.w_q.shape[-1]) < 2)
        ratio = (third + xi / 2) / xp.where(no_bulk, size + 1, size)
        missing = float("nan") + 0 * ratio
        return AttentionBounds(
            xi,
            (third - xi, third + xi),
            (third + xi / 2, third + xi),
            as_scalar(xp.where(no_bulk, missing, ratio)),
        )

    def times(self, columns: Array) -> Array:
        xp, m = api.array_namespace(self.w_q), int(self.w_q.shape[-1])
        dv, dq, dk = columns[..., :1, :], columns[..., 1 : m + 1, :], columns[..., m + 1 :, :]
        w_q, w_k = self.w_q[..., None], self.w_k[..., None]
        alpha, beta, gamma, zeta = (a[..., None, None] for a in self.scalars)
        along = xp.matmul(transpose(w_k), dq) + xp.matmul(transpose(w_q), dk)
        on_inner = beta * dv + zeta * along
        return stack_rows(
            alpha * dv + beta * along, gamma * dk + w_k * on_inner, gamma * dq + w_q * on_inner
        )

    def exact_spectrum(self) -> Spectrum:
        """Return the outliers of ζ u uᵀ + γ K in one block with w_V, and its other eigenvalues."""
        s, (outliers, *others) = self.scalars, self._inner.families()
        if self.part == "ggn":
            length = root(self.numbers.norm)
            matrix = _symmetric([s.alpha, s.beta * length], [s.zeta * length * length])
        else:
            matrix = outlier_block(s, self.numbers)

        def embed(coordinates: Array, copies: Array) -> Array:
            value = coordinates[..., :1, None] * copies
            return stack_rows(value, outliers.isometry(0)(coordinates[..., 1:], copies))

        def place(vectors: Array) -> Array:
            return stack_rows(zero_rows(1, vectors), vectors)

        labels = ("outlier",) * int(matrix.shape[-1])
        families = [Subspaces(labels, lambda _: embed, matrix=matrix)]
        families += [family.mapped(place, 1.0, None) for family in others]
        return Spectrum(families, "closed form", operator=self)
