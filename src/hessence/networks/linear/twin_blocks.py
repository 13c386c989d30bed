r"""The Hessian of a two-layer linear network as blocks: the narrow twin, its bulk, and zeros.

With :math:`G = U \mathrm{diag}(\sigma) V^\top` of rank ρ and the factors turned to
:math:`A' = U^\top A, B' = B V`, the functional part of the twin is
:math:`2\sum_{i \le \rho} \sigma_i \langle dA'_i, dB'^i\rangle`. Rows :math:`dA'_k` and columns
:math:`dB'^d` beyond ρ matter only through dM, hence only inside col(B) and row(A), and there only
as far as dM and the curvature see them; the rest is flat. For K = 1 this leaves 2r + D − 1 of the
twin's r (D + 1) dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import array_api_compat as api

from hessence._common.arrays import Array, constant, epsilon, numerical_rank, transpose
from hessence.data.matrix_objectives import Dense, LossHessian, Separable
from hessence.networks.linear.linear_hessian import LinearHessian
from hessence.networks.scalar.products import HALF
from hessence.networks.twin import narrow_twin
from hessence.spectra.frames import Frame
from hessence.spectra.subspaces import Isometry, Subspaces


class TwinReduction:
    """The reduction of one two-layer network, its bases kept for the eigenvectors."""

    def __init__(self, H: LinearHessian) -> None:
        self._xp = xp = api.array_namespace(H.gradient)
        self._hessian = H
        # All bases are constants: eigenvalues do not depend on them, and so gradients are right.
        self._basis = narrow_twin(*(constant(w) for w in H.weights)).basis
        self._width = int(self._basis.shape[-1])
        left, singular, right = xp.linalg.svd(constant(H.gradient), full_matrices=True)
        self._rank = numerical_rank(singular, H.gradient.shape, H.noise)
        self._left, self._right = left, transpose(right)
        self._gradient = xp.matmul(transpose(left), xp.matmul(H.gradient, self._right))
        first, second = H.weights
        self._a = xp.matmul(transpose(left), xp.matmul(second, self._basis))
        self._b = xp.matmul(xp.matmul(transpose(self._basis), first), self._right)
        self._loss_hessian = _turn(H.loss_hessian, left, self._right)

    @property
    def bound(self) -> int:
        """An upper bound of ``size`` that costs nothing."""
        return 2 * self._width * self._rank + sum(self._rest_counts(inside=True))

    @property
    def size(self) -> int:
        """The dimension of the eigenproblem that is left."""
        return 2 * self._width * self._rank + int(self._rest_basis.shape[-1])

    def blocks(self) -> list[Subspaces]:
        """Return the direct sum that the Hessian is."""
        return [
            block
            for block in (self._twin_block(), *self._bulk_blocks(), *self._flat_blocks())
            if block is not None
        ]

    # Coordinates of the block: dA'_i and dB'^i for i ≤ ρ, then those of the rest that matter.

    def _twin_block(self) -> Subspaces | None:
        xp = self._xp
        if self.size == 0:
            return None
        dA, dB = self._directions()
        jacobian = self._jacobian(dA, dB)
        matrix = xp.matmul(transpose(jacobian), self._bent(jacobian)) / 2
        # ⟨G', dA dB⟩ of every two directions. Only its first ρ rows and columns are not zero, but
        # a gradient sees the others move.
        pulled = xp.matmul(self._gradient, transpose(dB))
        count, size = int(dA.shape[0]), int(dA.shape[1]) * int(dA.shape[2])
        swap = xp.matmul(
            xp.reshape(dA, (count, size)), transpose(xp.reshape(pulled, (count, size)))
        )
        matrix = matrix + swap
        matrix = matrix + transpose(matrix)

        def isometry(_: int) -> Isometry:
            return lambda coordinates, copies: self._carry(coordinates[..., None] * copies)

        return Subspaces(("twin",) * count, isometry, matrix=matrix)

    def _directions(self) -> tuple[Array, Array]:
        """Return the unit directions of the block as dA' (n, K, r) and dB' (n, r, D)."""
        main, rest = self._main_directions(), self._rest(transpose(self._rest_basis), inside=True)
        return tuple(self._xp.concat(list(both), axis=0) for both in zip(main, rest, strict=True))

    def _main_directions(self) -> tuple[Array, Array]:
        """Return the 2ρr unit directions as dA' (2ρr, K, r) and dB' (2ρr, r, D)."""
        count = 2 * self._rank * self._width
        eye = self._xp.eye(count, dtype=self._a.dtype, device=api.device(self._a))
        return self._unpack_main(eye)

    def _unpack_main(self, coordinates: Array) -> tuple[Array, Array]:
        """Turn coordinates (n, 2ρr) into dA' (n, K, r) and dB' (n, r, D)."""
        xp, r, rank = self._xp, self._width, self._rank
        n = int(coordinates.shape[0])
        outputs, inputs = int(self._a.shape[0]), int(self._b.shape[1])
        rows = xp.reshape(coordinates[:, : rank * r], (n, rank, r))
        columns = xp.reshape(coordinates[:, rank * r : 2 * rank * r], (n, rank, r))
        return (
            _pad_rows(rows, outputs),
            transpose(_pad_rows(columns, inputs)),
        )

    def _bent(self, jacobian: Array) -> Array:
        """Apply the curvature to columns dM', (K D, n)."""
        xp, (outputs, inputs) = self._xp, (int(self._a.shape[0]), int(self._b.shape[1]))
        n = int(jacobian.shape[-1])
        matrices = xp.reshape(transpose(jacobian), (n, outputs, inputs))
        return transpose(xp.reshape(self._loss_hessian(matrices), (n, outputs * inputs)))

    def _jacobian(self, dA: Array, dB: Array) -> Array:
        """Return dM' of directions as columns (K D, n)."""
        xp = self._xp
        change = xp.matmul(dA, self._b) + xp.matmul(self._a, dB)
        return transpose(xp.reshape(change, (int(change.shape[0]), -1)))

    @cached_property
    def _spans(self) -> tuple[Array, int, Array, int]:
        """Return bases of the twin's hidden space led by col(B) and by row(A), and their ranks."""
        xp = self._xp
        of_b, singular_b, _ = xp.linalg.svd(constant(self._b), full_matrices=True)
        _, singular_a, of_a = xp.linalg.svd(constant(self._a), full_matrices=True)
        rank_b = numerical_rank(singular_b, self._b.shape)
        rank_a = numerical_rank(singular_a, self._a.shape)
        return of_b, rank_b, transpose(of_a), rank_a

    def _rest_counts(self, inside: bool) -> tuple[int, int]:
        """Return the dimensions of the rows and columns beyond ρ, in the spans or outside."""
        _, rank_b, _, rank_a = self._spans
        r = self._width
        rows, columns = int(self._a.shape[0]) - self._rank, int(self._b.shape[1]) - self._rank
        if inside:
            return rows * rank_b, columns * rank_a
        return rows * (r - rank_b), columns * (r - rank_a)

    def _rest(self, coordinates: Array, inside: bool) -> tuple[Array, Array]:
        """Turn coordinates (n, count) of the rows and columns beyond ρ into dA' and dB'."""
        xp, rank = self._xp, self._rank
        of_b, rank_b, of_a, rank_a = self._spans
        basis_b = of_b[:, :rank_b] if inside else of_b[:, rank_b:]
        basis_a = of_a[:, :rank_a] if inside else of_a[:, rank_a:]
        outputs, inputs = int(self._a.shape[0]), int(self._b.shape[1])
        n, split = int(coordinates.shape[0]), self._rest_counts(inside)[0]
        rows = xp.reshape(coordinates[:, :split], (n, outputs - rank, int(basis_b.shape[1])))
        columns = xp.reshape(coordinates[:, split:], (n, inputs - rank, int(basis_a.shape[1])))
        rows = xp.matmul(rows, transpose(basis_b))
        columns = xp.matmul(columns, transpose(basis_a))
        return (
            _pad_rows(rows, outputs, first=rank),
            transpose(_pad_rows(columns, inputs, first=rank)),
        )

    @cached_property
    def _split_rest(self) -> tuple[Array, Array]:
        """Return what matters of the rest inside the spans, and what there is flat, as columns."""
        xp = self._xp
        count = sum(self._rest_counts(inside=True))
        eye = xp.eye(count, dtype=self._a.dtype, device=api.device(self._a))
        if count == 0:
            return eye, eye
        seen = _seen(self._loss_hessian, constant(self._jacobian(*self._rest(eye, inside=True))))
        _, singular, right = xp.linalg.svd(seen, full_matrices=True)
        basis, keep = transpose(right), numerical_rank(singular, seen.shape)
        return basis[:, :keep], basis[:, keep:]

    @property
    def _rest_basis(self) -> Array:
        return self._split_rest[0]

    def _carry(self, coordinates: Array) -> Array:
        """Carry block coordinates (size, n) to parameter vectors (p, n)."""
        xp = self._xp
        main = 2 * self._width * self._rank
        rows = transpose(coordinates)
        dA, dB = self._unpack_main(rows[:, :main])
        basis = self._rest_basis
        if basis.shape[-1]:
            rest = xp.matmul(rows[:, main:], transpose(basis))
            more = self._rest(rest, inside=True)
            dA, dB = dA + more[0], dB + more[1]
        return self._back(dA, dB)

    def _back(self, dA: Array, dB: Array) -> Array:
        """Turn dA' and dB' of the twin back to the weights of the network."""
        xp, basis = self._xp, self._basis
        dW2 = xp.matmul(xp.matmul(self._left, dA), transpose(basis))
        dW1 = xp.matmul(xp.matmul(basis, dB), transpose(self._right))
        return self._hessian.join([dW1, dW2])

    # Outside the twin.

    @property
    def _spare(self) -> int:
        return int(self._basis.shape[0]) - self._width

    @cached_property
    def _frame(self) -> Frame:
        return Frame(self._basis)

    def _bulk_blocks(self) -> list[Subspaces]:
        if not (self._spare and self._rank):
            return []

        def isometry(sign: int) -> Callable[[int], Isometry]:
            def of(i: int) -> Isometry:
                def carry(coordinates: Array, copies: Array) -> Array:
                    hidden = self._hidden(HALF * coordinates[..., None] * copies)
                    dW2 = self._left[:, i][None, :, None] * hidden[:, None, :]
                    dW1 = sign * hidden[:, :, None] * self._right[:, i][None, None, :]
                    return self._hessian.join([dW1, dW2])

                return carry

            return of

        names = [f"/{i}" for i in range(self._rank)]
        sigma = self._xp.linalg.diagonal(self._gradient)[: self._rank]
        return [
            Subspaces(
                ("bulk",), isometry(sign), self._spare, names, matrix=sign * sigma[:, None, None]
            )
            for sign in (1, -1)
        ]

    def _hidden(self, copies: Array) -> Array:
        """Return unused hidden directions (n, m) for copies (m − r, n)."""
        return transpose(self._frame.complement(copies))

    def _flat_blocks(self) -> list[Subspaces]:
        xp = self._xp
        outputs, inputs = int(self._a.shape[0]), int(self._b.shape[1])
        loose = outputs + inputs - 2 * self._rank
        zero = xp.zeros((1, 1), dtype=self._a.dtype, device=api.device(self._a))
        outside = sum(self._rest_counts(inside=False))
        within = outside + int(self._split_rest[1].shape[-1])

        def in_twin(_: int) -> Isometry:
            def carry(coordinates: Array, copies: Array) -> Array:
                scaled = transpose(coordinates[..., None] * copies)
                hidden = xp.matmul(scaled[:, outside:], transpose(self._split_rest[1]))
                dA, dB = self._rest(scaled[:, :outside], inside=False)
                more = self._rest(hidden, inside=True)
                return self._back(dA + more[0], dB + more[1])

            return carry

        def unused(_: int) -> Isometry:
            def carry(coordinates: Array, copies: Array) -> Array:
                scaled = coordinates[..., None] * copies
                n = int(scaled.shape[-1])
                hidden = self._hidden(
                    xp.reshape(
                        xp.permute_dims(xp.reshape(scaled, (loose, self._spare, n)), (1, 2, 0)),
                        (self._spare, n * loose),
                    )
                )
                hidden = xp.reshape(hidden, (n, loose, -1))
                rows = outputs - self._rank
                left, right = self._left[:, self._rank :], self._right[:, self._rank :]
                dW2 = xp.matmul(left, hidden[:, :rows, :])
                dW1 = xp.matmul(transpose(hidden[:, rows:, :]), transpose(right))
                return self._hessian.join([dW1, dW2])

            return carry

        return [
            Subspaces(("flat/twin",), in_twin, within, matrix=zero),
            Subspaces(("flat/unused",), unused, loose * self._spare, matrix=zero),
        ]


def _turn(loss_hessian: LossHessian, left: Array, right: Array) -> LossHessian:
    """Return the curvature in the coordinates dM' = Uᵀ dM V."""
    xp = api.array_namespace(left)
    if isinstance(loss_hessian, Separable):
        turned = xp.matmul(transpose(right), xp.matmul(loss_hessian.variance, right))
        return Separable(turned, loss_hessian.outputs)
    tensor = loss_hessian.tensor()
    outputs, inputs = int(left.shape[0]), int(right.shape[0])
    rotation = xp.reshape(
        left[:, None, :, None] * right[None, :, None, :], (outputs * inputs, outputs * inputs)
    )
    flat = xp.reshape(tensor, (outputs * inputs, outputs * inputs))
    turned = xp.matmul(transpose(rotation), xp.matmul(flat, rotation))
    return Dense(xp.reshape(turned, (outputs, inputs, outputs, inputs)))


def _seen(loss_hessian: LossHessian, jacobian: Array) -> Array:
    """Return what the curvature sees of columns dM', (K D, n): S^½ dM' if S is not indefinite."""
    xp = api.array_namespace(jacobian)
    n = int(jacobian.shape[-1])
    if isinstance(loss_hessian, Separable):
        root, inputs = _root(constant(loss_hessian.variance)), int(loss_hessian.variance.shape[0])
        shaped = xp.reshape(jacobian, (loss_hessian.outputs, inputs, n))
        return xp.reshape(xp.matmul(root, shaped), (loss_hessian.outputs * inputs, n))
    size = int(jacobian.shape[0])
    root = _root(xp.reshape(constant(loss_hessian.tensor()), (size, size)))
    return jacobian if root is None else xp.matmul(root, jacobian)


def _root(matrix: Array) -> Array | None:
    """Return a square root of a matrix without negative eigenvalues, and None for any other."""
    xp = api.array_namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    largest = float(xp.max(xp.abs(values)))
    if float(values[0]) < -100 * epsilon(values) * largest:
        return None
    threshold = int(matrix.shape[-1]) * epsilon(values) * largest
    kept = xp.where(values > threshold, values, xp.zeros_like(values))
    return xp.sqrt(kept)[:, None] * transpose(vectors)


def _pad_rows(rows: Array, count: int, first: int = 0) -> Array:
    """Put rows (n, q, r) at first … first + q of `count` rows of zeros."""
    xp = api.array_namespace(rows)
    n, q, r = (int(s) for s in rows.shape)

    def zeros(height: int) -> Array:
        return xp.zeros((n, height, r), dtype=rows.dtype, device=api.device(rows))

    return xp.concat([zeros(first), rows, zeros(count - first - q)], axis=1)
