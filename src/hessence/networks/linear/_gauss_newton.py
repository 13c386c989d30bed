r"""The Gauss–Newton part of a linear network: d_0 d_L numbers, whatever the hidden widths.

With J the map from parameters to dM, S the second derivative of the loss in M and
:math:`R^\top R = J J^\top`, the non-zero eigenvalues of :math:`J^\top S J` are those of
:math:`R S R^\top`, and an eigenvector u of this gives :math:`J^\top S R^\top u`. R is the
triangular factor of all :math:`S_\ell^\top \otimes P_\ell`, one below the other: no matrix is
squared and no square root is taken, so units of inputs and outputs do not cost digits.

White data make S a number. Then, if there are two layers or all layers are balanced
(:math:`W_\ell W_\ell^\top = W_{\ell+1}^\top W_{\ell+1}`), the matrix is diagonal in the singular
vectors of the first and the last layer: a closed form, over all pairs (i, j) with i ≤ d_0, j ≤ d_L
and singular values padded with zeros. Two layers and any data split into d_L problems of size d_0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    constant,
    epsilon,
    integers,
    nonzero,
    requires_gradient,
    to_numpy,
    transpose,
)
from hessence.data.matrix_objectives import Separable, is_scalar_multiple
from hessence.networks.linear._products import LinearProducts
from hessence.spectra.frames import Complement
from hessence.spectra.subspaces import LARGEST_BLOCK, Columns, Subspaces

TOLERANCE = 1000
"""Data count as white and layers as balanced if they are off by at most this many ε, relative."""

FLAT = 100
"""How many ε of the largest eigenvalue count as zero."""


class TooLargeError(ValueError):
    """An exact route leaves more to a dense solver than it is given."""


def gauss_newton(H: LinearProducts) -> GaussNewton:
    """Return the Gauss–Newton part of a Hessian by the cheapest route that applies."""
    S, depth = H.loss_hessian, len(H.weights)
    if isinstance(S, Separable):
        white = is_scalar_multiple(S.variance, TOLERANCE)
        if white and depth == 2:
            return _from_singular_values(H, S, "white data, two layers")
        if white and balance_defect(H.weights) <= TOLERANCE * epsilon(H.gradient):
            return _from_singular_values(H, S, "white data, balanced")
        if depth == 2:
            return _by_output(H, S)
    return _in_full(H)


@dataclass(frozen=True)
class GaussNewton:
    """The eigenvalues of the Gauss–Newton part and the matrices dM they belong to.

    Attributes
    ----------
    hessian : LinearProducts
        The operator.
    method : str
        How the eigenvalues were found.
    values : array (d_0 d_L,)
        Zeros included.
    labels : array of str
        ``dominant``, ``mixed``, ``outlier`` or ``flat`` for each.
    directions : callable
        Returns, for some of the eigenvalues, matrices Z (count, d_L, d_0) such that Jᵀ Z is an
        eigenvector, not normalised.
    """

    hessian: LinearProducts
    method: str
    values: Array
    labels: Any
    directions: Callable[[Any], Array]

    def families(self) -> list[Subspaces]:
        """Return one family for each label, and the flat rest."""
        values, place = self._values, np.full(len(self.labels), -1)
        place[self._order] = np.arange(len(self._order))
        xp = api.array_namespace(values)
        families = []
        for label in dict.fromkeys(self.labels):
            if label == "flat":
                continue
            own = place[self.labels == label]
            chosen = xp.take(values, integers(own, values), axis=0)[:, None]
            isometry = partial(self._isometry, own)
            families.append(Subspaces((label,), isometry, 1, [""] * len(own), values=chosen))
        flat = self.hessian.shape[-1] - len(self._order)
        zero = xp.zeros((1,), dtype=values.dtype, device=api.device(values))
        return [*families, Subspaces(("flat",), lambda _: Columns(self._flat), flat, values=zero)]

    @cached_property
    def _order(self) -> Any:
        """The eigenvalues that are not flat, the largest magnitude first."""
        order = np.argsort(-np.abs(to_numpy(self.values)), stable=True)
        return order[self.labels[order] != "flat"]

    @cached_property
    def _values(self) -> Array:
        """The eigenvalues in that order."""
        H = self.hessian
        if requires_gradient(*H.weights, H.loss_hessian(H.gradient)):
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


def _from_singular_values(H: LinearProducts, S: Separable, name: str) -> GaussNewton:
    xp, depth = api.array_namespace(H.gradient), len(H.weights)
    outer, s_out = _padded_svd(transpose(constant(H.weights[-1])))
    inner, s_in = _padded_svd(constant(H.weights[0]))
    scale = constant(S.variance)[0, 0]
    out_square, in_square = s_out * s_out, s_in * s_in
    if depth == 2:
        grid = out_square[:, None] + in_square[None, :]
    else:
        # The sum, and not the quotient of differences it equals, which cancels for close s.
        grid = sum(
            (out_square ** (depth - ell))[:, None] * (in_square ** (ell - 1))[None, :]
            for ell in range(1, depth + 1)
        )

    def directions(own: Any) -> Array:
        j, i = np.divmod(np.asarray(own), H.dims[0])
        rows = xp.take(transpose(outer), integers(j, outer), axis=0)
        columns = xp.take(transpose(inner), integers(i, inner), axis=0)
        return rows[:, :, None] * columns[:, None, :]

    large, small = (_sizeable(s) for s in (s_out, s_in))
    both = large[:, None].astype(int) + small[None, :]
    labels = np.asarray(["flat", "mixed", "dominant"], dtype=object)[both].ravel()
    if depth == 1:
        labels[:] = "dominant"
    method = f"closed form ({name}, tolerance {TOLERANCE} ε)"
    return GaussNewton(H, method, xp.reshape(scale * grid, (-1,)), labels, directions)


def _by_output(H: LinearProducts, S: Separable) -> GaussNewton:
    """Diagonalise W₂W₂ᵀ: for each eigenvalue q one problem with RᵀR = W₁ᵀW₁ + q I."""
    xp, inputs = api.array_namespace(H.gradient), H.dims[0]
    _require(H, inputs)
    outer, s_out = _padded_svd(transpose(constant(H.weights[1])))
    first = xp.linalg.qr(constant(H.weights[0]))[1]
    eye = xp.eye(inputs, dtype=first.dtype, device=api.device(first))
    shape = (int(s_out.shape[0]), *first.shape)
    both = [xp.broadcast_to(first, shape), s_out[:, None, None] * eye]
    triangles = xp.linalg.qr(xp.concat(both, axis=-2))[1]
    weighted = xp.matmul(triangles, constant(S.variance))
    values, vectors = _eigh(xp.matmul(weighted, transpose(triangles)))
    columns = xp.reshape(xp.matmul(transpose(vectors), weighted), (-1, inputs))

    def directions(own: Any) -> Array:
        rows = xp.take(transpose(outer), integers(np.asarray(own) // inputs, outer), axis=0)
        chosen = xp.take(columns, integers(own, columns), axis=0)
        return rows[:, :, None] * chosen[:, None, :]

    values = xp.reshape(values, (-1,))
    method = "Gauss–Newton matrix, split by output"
    return GaussNewton(H, method, values, _labels(values), directions)


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
        _labels(values),
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


def _labels(values: Array) -> Any:
    sizes = np.abs(to_numpy(values))
    large = sizes > FLAT * epsilon(values) * sizes.max(initial=0.0)
    return np.where(large, "outlier", "flat").astype(object)


def balance_defect(weights: tuple[Array, ...]) -> float:
    """Return the largest ‖W_ℓ W_ℓᵀ − W_{ℓ+1}ᵀ W_{ℓ+1}‖ over layers, relative to the larger term."""
    xp = api.array_namespace(weights[0])
    worst = 0.0
    for low, high in pairwise(weights):
        low, high = constant(low), constant(high)
        a, b = xp.matmul(low, transpose(low)), xp.matmul(transpose(high), high)
        size = max(float(xp.linalg.matrix_norm(a)), float(xp.linalg.matrix_norm(b)))
        if size:
            worst = max(worst, float(xp.linalg.matrix_norm(a - b)) / size)
    return worst


def _padded_svd(matrix: Array) -> tuple[Array, Array]:
    """Return right singular vectors as columns (n, n) and n singular values, zeros appended."""
    xp = api.array_namespace(matrix)
    # Of the triangular factor, since a tall matrix has a huge left basis.
    _, singular, right = xp.linalg.svd(xp.linalg.qr(matrix)[1], full_matrices=True)
    missing = int(right.shape[0]) - int(singular.shape[0])
    zeros = xp.zeros((missing,), dtype=singular.dtype, device=api.device(singular))
    return transpose(right), xp.concat([singular, zeros])


def _sizeable(singular: Array) -> Any:
    values = to_numpy(singular)
    return values > values.size * epsilon(singular) * values.max(initial=0.0)
