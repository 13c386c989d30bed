r"""The Gauss–Newton part of a linear network: d_0 d_L numbers, whatever the hidden widths.

With :math:`J` the map from parameters to dM, the non-zero eigenvalues of :math:`J^\top B J` are
those of

.. math:: \sum_\ell (S_\ell S_\ell^\top) \otimes (\Sigma^{1/2} P_\ell^\top P_\ell \Sigma^{1/2}).

White data make :math:`\Sigma^{1/2}` a number. Then, if there are two layers or all layers are
balanced (:math:`W_\ell W_\ell^\top = W_{\ell+1}^\top W_{\ell+1}`), the sum is diagonal in the
singular vectors of the first and the last layer: a closed form, over all pairs (i, j) with i ≤ d_0,
j ≤ d_L and singular values padded with zeros. Two layers and any data split into d_L problems of
size d_0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    constant,
    epsilon,
    integers,
    largest,
    nonzero,
    to_numpy,
    transpose,
)
from hessence.data.matrix_objectives import Separable, is_scalar_multiple
from hessence.networks.linear.linear_hessian import LinearHessian
from hessence.spectra.frames import Frame
from hessence.spectra.subspaces import Isometry, Subspaces

LARGEST_BLOCK = 4000
"""The largest eigenproblem that a spectrum may leave to a dense solver."""

TOLERANCE = 1000
"""Data count as white and layers as balanced if they are off by at most this many ε, relative."""


class TooLargeError(ValueError):
    """An exact route leaves more to a dense solver than it is given."""


class GaussNewton:
    """The eigenvalues of the Gauss–Newton part and the matrices dM they belong to.

    Attributes
    ----------
    route : str
        How the eigenvalues were found.
    values : array (d_0 d_L,)
        Zeros included.
    labels : list of str
        ``dominant``, ``mixed``, ``outlier`` or ``flat`` for each.
    directions : callable
        Returns, for some of the eigenvalues, matrices Z (count, d_L, d_0) such that Jᵀ Z is an
        eigenvector, not normalised.
    """

    def __init__(self, H: LinearHessian) -> None:
        self._xp = api.array_namespace(H.gradient)
        self._hessian = H
        loss_hessian = H.loss_hessian
        white = isinstance(loss_hessian, Separable) and is_scalar_multiple(
            loss_hessian.variance, TOLERANCE
        )
        if white and len(H.weights) == 2:
            self._from_singular_values("white data, two layers")
        elif white and balance_defect(H.weights) <= TOLERANCE * epsilon(H.gradient):
            self._from_singular_values("white data, balanced")
        elif isinstance(loss_hessian, Separable) and len(H.weights) == 2:
            self._require(H.dims[0])
            self._by_output(loss_hessian)
        else:
            self._require(H.dims[0] * H.dims[-1])
            self._in_full()

    def _require(self, size: int) -> None:
        if size > LARGEST_BLOCK:
            raise TooLargeError(
                f"the Gauss–Newton part of this {'-'.join(map(str, self._hessian.dims))} network "
                f"leaves an eigenproblem of size {size}, more than the {LARGEST_BLOCK} that a "
                "dense solver is given; call H.ggn.top(k) for the extreme eigenvalues."
            )

    def blocks(self) -> list[Subspaces]:
        """Return one block for each kind of eigenvalue, and the flat rest."""
        xp = self._xp
        labels = np.asarray(self.labels)
        blocks = []
        for label in dict.fromkeys(self.labels):
            if label == "flat":
                continue
            own = np.flatnonzero(labels == label)
            values = xp.take(self.values, integers(own, self.values), axis=0)
            blocks.append(
                Subspaces(
                    (label,),
                    self._isometries(own),
                    1,
                    [""] * len(own),
                    matrix=values[:, None, None],
                )
            )
        flat = self._hessian.shape[-1] - int((labels != "flat").sum())
        zero = xp.zeros((1, 1), dtype=self.values.dtype, device=api.device(self.values))
        return [*blocks, Subspaces(("flat",), lambda _: self._flat_isometry, flat, matrix=zero)]

    # Routes.

    def _from_singular_values(self, name: str) -> None:
        xp, H = self._xp, self._hessian
        depth = len(H.weights)
        outer, s_out = _padded_svd(transpose(H.weights[-1]))
        inner, s_in = _padded_svd(H.weights[0])
        scale = H.loss_hessian.variance[0, 0]  # type: ignore[attr-defined]
        out_square, in_square = s_out * s_out, s_in * s_in
        if depth == 2:
            grid = out_square[:, None] + in_square[None, :]
        else:
            # The sum, and not the quotient of differences it equals, which cancels for close s.
            powers = [
                (out_square ** (depth - ell))[:, None] * (in_square ** (ell - 1))[None, :]
                for ell in range(1, depth + 1)
            ]
            grid = sum(powers)
        self.route = f"closed form ({name}, tolerance {TOLERANCE} ε)"
        self.values = xp.reshape(scale * grid, (-1,))

        def directions(own: Any) -> Array:
            j, i = np.divmod(np.asarray(own), H.dims[0])
            rows = xp.take(transpose(outer), integers(j, outer), axis=0)
            columns = xp.take(transpose(inner), integers(i, inner), axis=0)
            return rows[:, :, None] * columns[:, None, :]

        self.directions = directions
        large, small = _sizeable(s_out), _sizeable(s_in)
        self.labels = [
            "dominant" if a and b else "mixed" if a or b else "flat" for a in large for b in small
        ]
        if depth == 1:
            self.labels = ["dominant"] * len(self.labels)
        self._clear_flat()

    def _by_output(self, loss_hessian: Separable) -> None:
        xp, H = self._xp, self._hessian
        outer, s_out = _padded_svd(transpose(H.weights[1]))
        root = _symmetric_root(loss_hessian.variance)
        core = xp.matmul(transpose(H.weights[0]), H.weights[0])
        eye = xp.eye(H.dims[0], dtype=H.dtype, device=api.device(core))
        problems = xp.matmul(root, xp.matmul(core + (s_out * s_out)[:, None, None] * eye, root))
        values, vectors = xp.linalg.eigh(problems)
        self.route = "Gauss–Newton matrix, split by output"
        self.values = xp.reshape(values, (-1,))
        columns = xp.reshape(transpose(xp.matmul(root, vectors)), (-1, H.dims[0]))

        def directions(own: Any) -> Array:
            j = np.asarray(own) // H.dims[0]
            rows = xp.take(transpose(outer), integers(j, outer), axis=0)
            chosen = xp.take(columns, integers(own, columns), axis=0)
            return rows[:, :, None] * chosen[:, None, :]

        self.directions = directions
        self._label_by_size()

    def _in_full(self) -> None:
        xp, H = self._xp, self._hessian
        gram = H._jacobian_gram()
        outputs, inputs = H.dims[-1], H.dims[0]
        size = outputs * inputs
        flat = xp.reshape(gram, (size, size))
        tensor = xp.reshape(H.loss_hessian.tensor(), (size, size))
        lowest = float(xp.min(xp.linalg.eigvalsh(constant(tensor))))
        convex = lowest >= -100 * epsilon(tensor) * largest(tensor)
        # JᵀBJ shares its non-zero eigenvalues with B^½ (JJᵀ) B^½ and with (JJᵀ)^½ B (JJᵀ)^½; the
        # second also serves a loss that is not convex.
        root, other = (_symmetric_root(tensor), flat) if convex else (_symmetric_root(flat), tensor)
        values, vectors = xp.linalg.eigh(xp.matmul(root, xp.matmul(other, root)))
        self.route = "Gauss–Newton matrix"
        self.values = values
        lifted = xp.matmul(root, vectors) if convex else xp.matmul(_inverse_root(flat), vectors)
        rows = xp.reshape(transpose(lifted), (-1, outputs, inputs))
        self.directions = lambda own: xp.take(rows, integers(own, rows), axis=0)
        self._label_by_size()

    def _label_by_size(self) -> None:
        values = np.abs(to_numpy(self.values))
        threshold = values.size * epsilon(self.values) * values.max(initial=0.0)
        self.labels = ["outlier" if v > threshold else "flat" for v in values]
        self._clear_flat()

    def _clear_flat(self) -> None:
        xp = self._xp
        keep = xp.asarray(
            [label != "flat" for label in self.labels], device=api.device(self.values)
        )
        self.values = xp.where(keep, self.values, 0 * self.values)

    # Eigenvectors.

    @cached_property
    def _frame(self) -> tuple[Array, dict[int, int]]:
        """Return an orthonormal basis (p, rank) of the range, and each eigenvalue's column in it.

        The vectors Jᵀ Z of small eigenvalues are contaminated by rounding of the large ones, so
        they are orthonormalised from the largest down.
        """
        xp = self._xp
        values = np.abs(to_numpy(self.values))
        own = [g for g in np.argsort(-values, stable=True) if self.labels[g] != "flat"]
        columns = self._hessian.pull(self.directions(own))
        lengths = xp.sqrt(xp.sum(columns * columns, axis=0))
        basis, triangle = xp.linalg.qr(columns / nonzero(lengths))
        signs = xp.sign(xp.linalg.diagonal(triangle))
        return basis * signs, {int(g): k for k, g in enumerate(own)}

    def _isometries(self, own: Any) -> Callable[[int], Isometry]:
        def of(sibling: int) -> Isometry:
            def carry(coordinates: Array, copies: Array) -> Array:
                basis, position = self._frame
                column = position[int(own[sibling])]
                return basis[:, column : column + 1] * (coordinates[..., None] * copies)

            return carry

        return of

    def _flat_isometry(self, coordinates: Array, copies: Array) -> Array:
        return Frame(self._frame[0]).complement(coordinates[..., None] * copies)


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
    _, singular, right = xp.linalg.svd(matrix, full_matrices=True)
    missing = int(right.shape[0]) - int(singular.shape[0])
    zeros = xp.zeros((missing,), dtype=singular.dtype, device=api.device(singular))
    return transpose(right), xp.concat([singular, zeros])


def _sizeable(singular: Array) -> list[bool]:
    values = to_numpy(singular)
    return list(values > values.size * epsilon(singular) * values.max(initial=0.0))


def _symmetric_root(matrix: Array) -> Array:
    xp = api.array_namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    roots = xp.sqrt(xp.clip(values, 0, None))
    return xp.matmul(vectors * roots, transpose(vectors))


def _inverse_root(matrix: Array) -> Array:
    xp = api.array_namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    threshold = int(values.shape[0]) * epsilon(values) * largest(values)
    kept = values > threshold
    inverse = xp.where(kept, 1 / xp.sqrt(xp.where(kept, values, xp.ones_like(values))), 0 * values)
    return xp.matmul(vectors * inverse, transpose(vectors))
