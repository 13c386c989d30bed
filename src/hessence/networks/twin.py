r"""The narrow twin: a wide product of matrices, and all that its width matters for.

Let parameters :math:`A` (K × m) and :math:`B` (m × D) enter a loss only through :math:`M = AB`,
beside other parameters, and let Q be an orthonormal basis of
:math:`S = \mathrm{row}(A) + \mathrm{col}(B)`, of dimension r. The second variation is
:math:`\nabla^2\ell[dM, dM] + 2\langle G, dA\,dB\rangle` with :math:`dM = dA\,B + A\,dB` and
:math:`G = \partial\ell/\partial M`. Only the part of dA and dB inside S reaches dM, and inside and
outside do not mix in dA dB. So the Hessian is that of the *narrow twin*, the same product with
inner width r and factors :math:`(AQ, Q^\top B)`, beside a bulk :math:`\pm\sigma_i(G)`, each m − r
times, and zeros.

The twin has flat directions of its own. With :math:`G = U\,\mathrm{diag}(\sigma)\,V^\top` of rank
ρ, rows of :math:`U^\top dA` and columns of :math:`dB\,V` beyond ρ matter only through dM, hence
only inside col(B) and row(A), and there only as far as the loss's second derivative sees dM. That
leaves at most 2rρ + KD of the twin's r (K + D) dimensions; for K = 1, 2r + D − 1.

All of it is bases; no block is assembled here. Usage, for any operator whose loss sees A and B
only through AB::

    twin = TwinSubspaces(B, A, G, place)     # place(dB, dA): vectors (p, n) of those changes
    families = [twin.inside(), *twin.outside()]
    return Spectrum(families, "narrow twin", operator=H)     # the block: basisᵀ (H basis)

Where the network of width r has an operator of its own, its products are cheaper:
``twin.inside(products=lambda c: twin.project(*split(H_r @ join(*twin.embed(c)))))``. Several such
products, and other parameters beside them, share one block: embed them side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import array_api_compat as api

from hessence._common.arrays import (
    Array,
    constant,
    floating,
    identity,
    numerical_rank,
    require_shape,
    requires_gradient,
    transpose,
)
from hessence.spectra.frames import DROPPED, Complement, span
from hessence.spectra.subspaces import Columns, Subspaces

HALF = 0.5**0.5

Factors = tuple[Array, Array]
"""Changes dB (..., n, r, D) and dA (..., n, K, r) of the two factors, n at a time."""

Place = Callable[[Array, Array], Array]
"""Puts changes dB (..., n, m, D) and dA (..., n, K, m) among all parameters, (..., p, n)."""


@dataclass(frozen=True, eq=False, repr=False)
class NarrowTwin:
    """A product of two matrices with the inner width it needs.

    Attributes
    ----------
    W1 : array (r, D)
        Qᵀ W1.
    W2 : array (K, r)
        W2 Q, so that the product is the same.
    basis : array (m, r)
        Q, orthonormal columns that span the rows of W2 and the columns of W1.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> twin = hs.narrow_twin(W1=np.ones((1000, 3)), W2=np.ones((2, 1000)))
    >>> twin
    NarrowTwin(width=1 of 1000)
    >>> twin.W1.shape, twin.W2.shape, twin.basis.shape
    ((1, 3), (2, 1), (1000, 1))
    """

    W1: Array
    W2: Array
    basis: Array

    @property
    def width(self) -> int:
        """The inner width r of the twin."""
        return int(self.basis.shape[-1])

    def narrow(self, dB: Array, dA: Array) -> Factors:
        """Return the parts of changes of the wide factors that lie in the twin."""
        xp, basis = api.array_namespace(dB), self.basis[..., None, :, :]
        return xp.matmul(transpose(basis), dB), xp.matmul(dA, basis)

    def widen(self, dB: Array, dA: Array) -> Factors:
        """Return changes of the twin's factors as changes of the wide ones."""
        xp, basis = api.array_namespace(dB), self.basis[..., None, :, :]
        return xp.matmul(basis, dB), xp.matmul(dA, transpose(basis))

    def __repr__(self) -> str:
        return f"NarrowTwin(width={self.width} of {int(self.basis.shape[-2])})"


def narrow_twin(W1: Array, W2: Array, *, tol: float | None = None) -> NarrowTwin:
    """Return the narrow twin of the product W2 W1.

    Parameters
    ----------
    W1 : array (..., m, D)
        The first factor to act.
    W2 : array (..., K, m)
        The second.
    tol : float, optional
        Each column of W1 and each row of W2 may lose this share of its length; directions of the
        hidden space that are needed for no more than that are dropped. The default is some ε, the
        spacing of the floating-point type. Dropping changes the product by rounding only,
        whatever the units of inputs and outputs; keeping a direction more than needed changes
        nothing at all. So the twins of a batch of products keep min(m, K + D) directions each.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> W1, W2 = rng.normal(size=(1000, 3)), rng.normal(size=(2, 1000))
    >>> twin = hs.narrow_twin(W1, W2)
    >>> twin.width, bool(np.allclose(twin.W2 @ twin.W1, W2 @ W1))
    (5, True)
    """
    xp, W1, W2 = floating(W1=W1, W2=W2)
    require_shape("W1", W1, ("m", "D"), batch=True)
    require_shape("W2", W2, ("K", int(W1.shape[-2])), batch=True)
    if tol is not None and not tol >= 0:
        raise ValueError(f"tol must not be negative, got {tol}.")
    both = xp.concat([W1, transpose(W2)], axis=-1)
    # The basis is a constant: eigenvalues do not depend on it, and so gradients are right.
    basis, rank = span(constant(both), tol=tol)
    basis = basis[..., : max(1, rank)]
    return NarrowTwin(xp.matmul(transpose(basis), W1), xp.matmul(W2, basis), basis)


class TwinSubspaces:
    """The subspaces that a loss of W2 W1 leaves invariant, whatever else it depends on.

    Parameters
    ----------
    W1, W2 : array (..., m, D), (..., K, m)
        The factors B and A. Leading dimensions are a batch of networks, for which no rank is
        decided: all have as many directions as their shapes allow.
    gradient : array (..., K, D)
        G = ∂ℓ/∂M.
    place : callable
        Puts changes of the factors among all parameters.
    loss_hessian : callable, optional
        The second derivative of the loss as a map of matrices (..., n, K, D), where the loss
        depends on nothing but M: directions that it does not see are flat, too.
    """

    def __init__(
        self,
        W1: Array,
        W2: Array,
        gradient: Array,
        place: Place,
        *,
        loss_hessian: Callable[[Array], Array] | None = None,
    ) -> None:
        self._xp = xp = api.array_namespace(W1, gradient)
        self.twin = narrow_twin(W1, W2)
        self._place, self._loss_hessian = place, loss_hessian
        left, singular, right = xp.linalg.svd(constant(gradient), full_matrices=True)
        # A singular value too many does no harm: it makes the block larger. A zero that PyTorch is
        # to differentiate is kept, and so is what depends on it.
        self._whole = gradient.ndim > 2 or requires_gradient(W1, W2, gradient)
        most = min(gradient.shape[-2:])
        self._rank = most if self._whole else numerical_rank(singular, (DROPPED,))
        self._left, self._right = left, transpose(right)
        turned = xp.matmul(transpose(left), xp.matmul(gradient, self._right))
        self._singular = xp.linalg.diagonal(turned)[..., : self._rank]

    @property
    def bound(self) -> int:
        """An upper bound of ``size`` that costs nothing."""
        return 2 * self.twin.width * self._rank + sum(self._rest_sizes(inside=True))

    @property
    def size(self) -> int:
        """The dimension of the part of the twin that is not known to be flat."""
        return 2 * self.twin.width * self._rank + int(self._seen.shape[-1])

    def inside(
        self, label: str = "twin", products: Callable[[Array], Array] | None = None
    ) -> Subspaces:
        """Return the part of the twin that is not known to be flat, one dense block.

        Its matrix comes from products of the operator, or from `products` of coordinates
        (size, n), such as those of a network of width r.
        """

        def embed(columns: Array) -> Array:
            return self._place(*self.widen(*self.embed(columns)))

        return Subspaces((label,) * self.size, lambda _: Columns(embed), products=products)

    def outside(self, names: str = "") -> list[Subspaces]:
        """Return all the rest: the bulk ±σ_i(G), and what is flat within the twin and beyond it.

        `names` is appended to the labels, before the index of a singular value.
        """
        return [*self.beyond(names), self.flat(names)]

    def beyond(self, names: str = "") -> list[Subspaces]:
        """Return what the hidden directions beyond the twin give: the bulk ±σ_i(G), and zeros."""
        return [*self._bulk(names), self._unused(names)]

    def embed(self, columns: Array) -> Factors:
        """Return the changes of the twin's factors that coordinates (..., size, n) stand for."""
        xp, rank, width = self._xp, self._rank, self.twin.width
        rows = transpose(columns)
        main = xp.reshape(rows[..., : 2 * rank * width], (*rows.shape[:-1], 2, rank, width))
        rest = xp.matmul(rows[..., 2 * rank * width :], transpose(self._seen))
        dB, dA = self._embed_rest(rest, inside=True)
        left, right = (basis[..., None, :, :rank] for basis in (self._left, self._right))
        dA = dA + xp.matmul(left, main[..., 0, :, :])
        return dB + xp.matmul(transpose(main[..., 1, :, :]), transpose(right)), dA

    def project(self, dB: Array, dA: Array) -> Array:
        """Return the coordinates (..., size, n) of changes of the twin's factors."""
        xp, rank = self._xp, self._rank
        parts, rest = [], []
        for turn, (basis, size), change in zip(
            (self._left, self._right), self._spans, (dA, transpose(dB)), strict=True
        ):
            turned = transpose(turn)[..., None, :, :]
            parts.append(_flat(xp.matmul(turned[..., :rank, :], change)))
            inside = xp.matmul(change, basis[..., None, :, :size])
            rest.append(_flat(xp.matmul(turned[..., rank:, :], inside)))
        seen = xp.matmul(xp.concat(rest, axis=-1), self._seen)
        return transpose(xp.concat([*parts, seen], axis=-1))

    def widen(self, dB: Array, dA: Array) -> Factors:
        """Return changes of the twin's factors as changes of the wide ones."""
        return self.twin.widen(dB, dA)

    # Inside. Coordinates: rows of Uᵀ dA and columns of dB V up to ρ, then what matters beyond.

    @cached_property
    def _spans(self) -> tuple[tuple[Array, int], tuple[Array, int]]:
        """Orthogonal bases of the twin's hidden space that begin with col(B) and with row(A)."""
        W1, W2 = constant(self.twin.W1), constant(self.twin.W2)
        return span(W1, full=True), span(transpose(W2), full=True)

    def _rest_sizes(self, inside: bool) -> tuple[int, int]:
        """Return the dimensions of rows and columns beyond ρ, in the spans or outside."""
        (_, b), (_, a) = self._spans
        r = self.twin.width
        rows, columns = self._rest_counts
        return (rows * b, columns * a) if inside else (rows * (r - b), columns * (r - a))

    @property
    def _rest_counts(self) -> tuple[int, int]:
        outputs, inputs = int(self._left.shape[-1]), int(self._right.shape[-1])
        return outputs - self._rank, inputs - self._rank

    def _embed_rest(self, coordinates: Array, inside: bool) -> Factors:
        """Return the changes of coordinates (..., n, ·) of rows and columns beyond ρ."""
        xp, start, pieces = self._xp, 0, []
        sizes = self._rest_sizes(inside)
        for turn, (basis, rank), size in zip(
            (self._left, self._right), self._spans, sizes, strict=True
        ):
            own = basis[..., None, :, :rank] if inside else basis[..., None, :, rank:]
            beyond = turn[..., None, :, self._rank :]
            piece = coordinates[..., start : start + size]
            shape = (*piece.shape[:-1], int(beyond.shape[-1]), int(own.shape[-1]))
            pieces.append((beyond, xp.reshape(piece, shape), own))
            start += size
        (left, rows, of_b), (right, columns, of_a) = pieces
        dA = xp.matmul(xp.matmul(left, rows), transpose(of_b))
        dB = xp.matmul(of_a, xp.matmul(transpose(columns), transpose(right)))
        return dB, dA

    @cached_property
    def _split(self) -> tuple[Array, int]:
        """An orthogonal basis of the rest inside the spans, what matters of it first."""
        xp, W1 = self._xp, constant(self.twin.W1)
        W2, count = constant(self.twin.W2), sum(self._rest_sizes(inside=True))
        eye = identity(count, W1)
        if self._whole or count == 0:
            return eye, count
        dB, dA = self._embed_rest(eye, inside=True)
        # Columns Jᵀ S e for every entry e of M: H is zero on whatever is orthogonal to all.
        change = xp.matmul(dA, W1) + xp.matmul(W2, dB)
        if self._loss_hessian is not None:
            change = constant(self._loss_hessian(change))
        return span(_flat(change), full=True)

    @property
    def _seen(self) -> Array:
        basis, rank = self._split
        return basis[:, :rank]

    # Outside.

    @property
    def _spare(self) -> int:
        return int(self.twin.basis.shape[-2]) - self.twin.width

    @cached_property
    def _complement(self) -> Complement:
        return Complement(self.twin.basis)

    def _bulk(self, names: str) -> list[Subspaces]:
        if not (self._spare and self._rank):
            return []

        def isometry(sign: int, i: int) -> Columns:
            def embed(copies: Array) -> Array:
                hidden = transpose(self._complement(HALF * copies))
                dA = self._left[..., None, :, i, None] * hidden[..., :, None, :]
                dB = sign * hidden[..., :, :, None] * self._right[..., None, None, :, i]
                return self._place(dB, dA)

            return Columns(embed)

        def bulk(sign: int) -> Subspaces:
            members = [f"{names}/{i}" for i in range(self._rank)]
            values = (sign * self._singular)[..., None]
            return Subspaces(
                ("bulk",), partial(isometry, sign), self._spare, members, values=values
            )

        return [bulk(1), bulk(-1)]

    def flat(self, names: str = "") -> Subspaces:
        """Return what is known to be flat within the twin."""
        xp = self._xp
        outer = sum(self._rest_sizes(inside=False))
        basis, rank = self._split

        def embed(copies: Array) -> Array:
            rows = transpose(copies)
            hidden = xp.matmul(rows[..., outer:], transpose(basis[:, rank:]))
            dB, dA = self._embed_rest(rows[..., :outer], inside=False)
            more_dB, more_dA = self._embed_rest(hidden, inside=True)
            return self._place(*self.widen(dB + more_dB, dA + more_dA))

        count = outer + int(basis.shape[0]) - rank
        return Subspaces((f"flat/twin{names}",), lambda _: Columns(embed), count, values=self._zero)

    def _unused(self, names: str) -> Subspaces:
        xp = self._xp
        rows, columns = self._rest_counts

        def embed(copies: Array) -> Array:
            *batch, _, n = copies.shape
            # One vector of the complement for each of n copies and each row and column beyond ρ.
            apart = xp.reshape(transpose(copies), (*batch, n * (rows + columns), self._spare))
            hidden = transpose(self._complement(transpose(apart)))
            hidden = xp.reshape(hidden, (*hidden.shape[:-2], n, rows + columns, hidden.shape[-1]))
            left = self._left[..., None, :, self._rank :]
            right = self._right[..., None, :, self._rank :]
            dA = xp.matmul(left, hidden[..., :rows, :])
            dB = transpose(xp.matmul(right, hidden[..., rows:, :]))
            return self._place(dB, dA)

        count = (rows + columns) * self._spare
        return Subspaces(
            (f"flat/unused{names}",), lambda _: Columns(embed), count, values=self._zero
        )

    @property
    def _zero(self) -> Array:
        return 0 * self._left[..., 0, :1]


def _flat(matrices: Array) -> Array:
    """Join the last two axes."""
    xp = api.array_namespace(matrices)
    return xp.reshape(matrices, (*matrices.shape[:-2], math.prod(matrices.shape[-2:])))
