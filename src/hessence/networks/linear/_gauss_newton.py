r"""The Gauss–Newton part of a linear network: d_0 d_L numbers, whatever the hidden widths.

With J the map from parameters to dM, S the second derivative of the loss in M and
:math:`R^\top R = J J^\top`, the non-zero eigenvalues of :math:`J^\top S J` are those of
:math:`R S R^\top`, and an eigenvector u of this gives :math:`J^\top S R^\top u`. R is the
triangular factor of all :math:`S_\ell^\top \otimes P_\ell`, one below the other: no matrix is
squared and no square root is taken, so units of inputs and outputs do not cost digits.

The mean-squared error has :math:`S = I \otimes \Sigma`. If the matrices
:math:`S_\ell S_\ell^\top` are diagonal in one basis, as for two layers and for balanced ones
(:math:`W_\ell W_\ell^\top = W_{\ell+1}^\top W_{\ell+1}`), the problem splits into d_L problems of
size d_0. If the data are white and :math:`P_\ell^\top P_\ell` are diagonal in one basis, too, that
is a closed form: :math:`\sum_\ell \|S_\ell^\top u_j\|^2\, \|P_\ell v_i\|^2` for all pairs (i, j).
What is off the diagonal is measured; up to a bound it is neglected, and part of the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    constant,
    epsilon,
    identity,
    integers,
    largest,
    nonzero,
    requires_gradient,
    to_numpy,
    transpose,
)
from hessence.data.matrix_objectives import Separable
from hessence.networks.linear._products import LinearProducts
from hessence.spectra.frames import Complement
from hessence.spectra.subspaces import LARGEST_BLOCK, Columns, Subspaces

NEGLECTED = 400
"""How many ε of the largest eigenvalue may be neglected, as what is off a diagonal: 1e-13."""

FLAT = 100
"""How many ε of the largest eigenvalue count as zero."""


class TooLargeError(ValueError):
    """An exact route leaves more to a dense solver than it is given."""


@dataclass(frozen=True)
class GaussNewton:
    """The eigenvalues of the Gauss–Newton part and the matrices dM they belong to."""

    hessian: LinearProducts
    method: str
    values: Array  # (d_0 d_L,), zeros included
    labels: Any  # "dominant", "mixed", "outlier" or "flat" for each
    # Returns Z (count, d_L, d_0) for chosen eigenvalues; Jᵀ Z are eigenvectors of any length.
    directions: Callable[[Any], Array]
    neglected: float = 0.0  # bounds the error of an eigenvalue due to what is not quite diagonal

    def families(self) -> list[Subspaces]:
        """Return one family for each label, and the flat rest."""
        values, place = self._values, np.full(len(self.labels), -1)
        place[self._order] = np.arange(len(self._order))
        xp = api.array_namespace(values)
        families = []
        for label in dict.fromkeys(self.labels[self.labels != "flat"]):
            own = place[self.labels == label]
            chosen = xp.take(values, integers(own, values), axis=0)[:, None]
            isometry = partial(self._isometry, own)
            families.append(Subspaces((label,), isometry, 1, [""] * len(own), values=chosen))
        flat = self.hessian.shape[-1] - len(self._order)
        spare = Subspaces(("flat",), lambda _: Columns(self._flat), flat, values=self.hessian.zero)
        return [*families, spare]

    @cached_property
    def _order(self) -> Any:
        """The eigenvalues that are not flat, the largest magnitude first."""
        order = np.argsort(-np.abs(to_numpy(self.values)), stable=True)
        return order[self.labels[order] != "flat"]

    @cached_property
    def _values(self) -> Array:
        """The eigenvalues in that order."""
        H = self.hessian
        if len(self._order) and requires_gradient(*H.weights, H.loss_hessian(H.gradient)):
            # The derivative of an eigenvalue is zᵀ dH z; eigenvectors are constants.
            return api.array_namespace(self._basis).sum(self._basis * (H @ self._basis), axis=0)
        return api.array_namespace(self.values).take(
            self.values, integers(self._order, self.values), axis=0
        )

    @cached_property
    def _basis(self) -> Array:
        """The eigenvectors (p, rank) in that order.

        The vectors Jᵀ Z of small eigenvalues are contaminated by rounding of the large ones, so
        they are orthonormalised from the largest down.
        """
        columns = constant(self.hessian.chain.pull(self.directions(self._order)))
        xp = api.array_namespace(columns)
        # In two steps, since squares of small entries may vanish.
        columns = columns / nonzero(xp.max(xp.abs(columns), axis=0))
        basis, triangle = xp.linalg.qr(columns / nonzero(xp.sqrt(xp.sum(columns**2, axis=0))))
        diagonal = xp.linalg.diagonal(triangle)
        return xp.where(diagonal < 0, -basis, basis)

    def _isometry(self, places: Any, member: int) -> Columns:
        return Columns(lambda copies: self._basis[:, int(places[member])][:, None] * copies)

    def _flat(self, copies: Array) -> Array:
        return Complement(self._basis)(copies) if len(self._order) else copies


def gauss_newton(H: LinearProducts) -> GaussNewton:
    """Return the Gauss–Newton part of a Hessian by the cheapest route that applies."""
    if not isinstance(H.loss_hessian, Separable):
        return _in_full(H)
    variance = constant(H.loss_hessian.variance)
    outputs = Squares.of([transpose(s) for s in H.chain.after], transpose(H.weights[-1]))
    return _closed_form(H, variance, outputs) or _by_output(H, variance, outputs) or _in_full(H)


@dataclass(frozen=True)
class Squares:
    """Matrices A_1, …, A_L in the basis of the right singular vectors of one of them.

    Attributes
    ----------
    basis : array (n, n)
        The singular vectors u_i, as columns.
    sizeable : array of bool (n,)
        Whether their singular values are more than rounding.
    diagonals : list of array (n,)
        ‖A_ℓ u_i‖².
    rests : list of float
        The norm of what is off the diagonal of A_ℓᵀ A_ℓ in this basis.
    """

    basis: Array
    sizeable: Any
    diagonals: list[Array]
    rests: list[float]

    @classmethod
    def of(cls, matrices: Sequence[Array], leading: Array) -> Squares:
        """Turn matrices to the singular vectors of one of them."""
        xp = api.array_namespace(leading)
        # Of the triangular factor, since a tall matrix has a huge left basis.
        triangle = xp.linalg.qr(constant(leading))[1]
        _, singular, right = xp.linalg.svd(triangle, full_matrices=True)
        sizes = np.zeros(int(right.shape[0]))
        sizes[: int(singular.shape[0])] = to_numpy(singular)
        sizeable = sizes > sizes.size * epsilon(leading) * sizes.max(initial=0.0)
        turned = [xp.matmul(constant(matrix), transpose(right)) for matrix in matrices]
        squares = [to_numpy(xp.matmul(transpose(t), t)) for t in turned]
        return cls(
            transpose(right),
            sizeable,
            [xp.sum(t * t, axis=0) for t in turned],
            [_norm(square - np.diag(np.diagonal(square))) for square in squares],
        )


def _closed_form(H: LinearProducts, variance: Array, outputs: Squares) -> GaussNewton | None:
    """Return the sums over layers for white data, if inputs and outputs are diagonal."""
    size = int(variance.shape[0])
    scale = float(np.trace(to_numpy(variance))) / size
    off_white = _norm(variance - scale * identity(size, variance))
    if off_white > NEGLECTED * epsilon(variance) * scale:
        return None
    xp, inputs = api.array_namespace(variance), Squares.of(H.chain.before, H.weights[0])
    grid, neglected = 0.0, 0.0
    for a, b, off_a, off_b in zip(
        outputs.diagonals, inputs.diagonals, outputs.rests, inputs.rests, strict=True
    ):
        grid = grid + a[:, None] * b[None, :]
        most_a, most_b = largest(a), largest(b)
        neglected += (
            scale * (most_a * off_b + off_a * (most_b + off_b)) + off_white * most_a * most_b
        )
    values = xp.reshape(scale * grid, (-1,))
    if neglected > NEGLECTED * epsilon(values) * largest(values):
        return None

    def directions(own: Any) -> Array:
        j, i = np.divmod(np.asarray(own), H.dims[0])
        rows = xp.take(transpose(outputs.basis), integers(j, values), axis=0)
        columns = xp.take(transpose(inputs.basis), integers(i, values), axis=0)
        return rows[:, :, None] * columns[:, None, :]

    both = outputs.sizeable[:, None].astype(int) + inputs.sizeable[None, :]
    labels = np.asarray(["flat", "mixed", "dominant"], dtype=object)[both].ravel()
    if len(H.weights) == 1:
        labels[:] = "dominant"
    return GaussNewton(H, "closed form (white data)", values, labels, directions, neglected)


def _by_output(H: LinearProducts, variance: Array, outputs: Squares) -> GaussNewton | None:
    """Solve one problem for each output, RᵀR = Σ_ℓ ‖S_ℓᵀ u_j‖² P_ℓᵀ P_ℓ, if they are diagonal."""
    xp, size = api.array_namespace(variance), H.dims[0]
    factors = [xp.linalg.qr(constant(p))[1] for p in H.chain.before]
    norms = [_norm(xp.matmul(xp.matmul(r, variance), transpose(r))) for r in factors]
    neglected = sum(off * norm for off, norm in zip(outputs.rests, norms, strict=True))
    # Of positive semidefinite terms each is at most the sum.
    least = max(largest(a) * norm for a, norm in zip(outputs.diagonals, norms, strict=True))
    if neglected > NEGLECTED * epsilon(variance) * least:
        return None
    _require(H, size)
    weighted = [
        xp.sqrt(a)[:, None, None] * r for a, r in zip(outputs.diagonals, factors, strict=True)
    ]
    triangles = xp.linalg.qr(xp.concat(weighted, axis=-2))[1]
    weighted = xp.matmul(triangles, variance)
    values, vectors = _eigh(xp.matmul(weighted, transpose(triangles)))
    columns = xp.reshape(xp.matmul(transpose(vectors), weighted), (-1, size))

    def directions(own: Any) -> Array:
        j = integers(np.asarray(own) // size, columns)
        rows = xp.take(transpose(outputs.basis), j, axis=0)
        return rows[:, :, None] * xp.take(columns, integers(own, columns), axis=0)[:, None, :]

    values = xp.reshape(values, (-1,))
    method = "Gauss–Newton matrix, split by output"
    return GaussNewton(H, method, values, _labels(H, values), directions, neglected)


def _in_full(H: LinearProducts) -> GaussNewton:
    xp, (outputs, inputs) = api.array_namespace(H.gradient), H.gradient.shape
    size = int(outputs * inputs)
    _require(H, size)
    factors = []
    for p, s in zip(H.chain.before, H.chain.after, strict=True):
        outer, inner = (xp.linalg.qr(constant(a))[1] for a in (transpose(s), p))
        product = outer[:, None, :, None] * inner[None, :, None, :]
        factors.append(xp.reshape(product, (int(outer.shape[0]) * int(inner.shape[0]), size)))
    triangle = xp.linalg.qr(xp.concat(factors, axis=0))[1]
    shaped = xp.reshape(triangle, (int(triangle.shape[0]), outputs, inputs))
    weighted = xp.reshape(constant(H.loss_hessian(shaped)), tuple(triangle.shape))
    values, vectors = _eigh(xp.matmul(weighted, transpose(triangle)))
    rows = xp.reshape(xp.matmul(transpose(vectors), weighted), (-1, outputs, inputs))
    return GaussNewton(
        H,
        "Gauss–Newton matrix",
        values,
        _labels(H, values),
        lambda own: xp.take(rows, integers(own, rows), axis=0),
    )


def _require(H: LinearProducts, size: int) -> None:
    if size > LARGEST_BLOCK:
        raise TooLargeError(
            f"the Gauss–Newton part of this {'-'.join(map(str, H.dims))} network leaves an "
            f"eigenproblem of size {size}, more than the {LARGEST_BLOCK} that a dense solver is "
            "given; call H.ggn.top(k) for the extreme eigenvalues."
        )


def _eigh(matrix: Array) -> tuple[Array, Array]:
    result = api.array_namespace(matrix).linalg.eigh((matrix + transpose(matrix)) / 2)
    return result[0], result[1]


def _norm(symmetric: Array) -> float:
    return float(np.abs(np.linalg.eigvalsh(to_numpy(symmetric))).max())


def _labels(H: LinearProducts, values: Array) -> Any:
    sizes = np.abs(to_numpy(values))
    most = float(sizes.max())
    # Where nothing is larger than what rounding makes of a zero, all of it is zero.
    large = (sizes > FLAT * epsilon(values) * most) & (FLAT * most > H.rounding())
    return np.where(large, "outlier", "flat").astype(object)
