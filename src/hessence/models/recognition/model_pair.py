r"""Two adjacent Linear layers in a model's parameter vector, and their reduction to a core.

The pair enters the second variation of the loss by its change :math:`J v = dA\,B + A\,dB` of the
product and by :math:`\langle v, F v\rangle = 2\langle G, dA\,dB\rangle`. With
:math:`G = U \mathrm{diag}(\sigma) V^\top` of rank ρ and Q an orthonormal basis of
row(A) + col(B), the turned :math:`dA' = U^\top dA\,Q` and :math:`dB' = Q^\top dB\,V` have
:math:`\langle v, F v\rangle = 2\sum_{i \le \rho} \sigma_i \langle dA'_i, dB'^i\rangle`: rows and
columns beyond ρ matter only as far as J sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hessence._common.arrays import numerical_rank
from hessence.networks.twin import narrow_twin
from hessence.spectra.subspaces import Isometry, Subspaces

HALF = math.sqrt(0.5)

Places = tuple[slice, slice | None, slice]
"""Where a first weight, a first bias and a second weight are in a parameter vector."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two Linear layers in a model's parameter vector.

    Attributes
    ----------
    A : tensor (K, m)
        The second layer's weight.
    B : tensor (m, D)
        The first layer's weight, and its bias as a last column.
    slope : tensor (K, D)
        The gradient G of the loss in A B.
    places : tuple of slice
        Where the first weight, the first bias (or None) and the second weight are.
    names : tuple of str
        The layers' names.
    """

    A: Tensor
    B: Tensor
    slope: Tensor
    places: Places
    names: tuple[str, str]

    @property
    def size(self) -> int:
        """The number of entries of A B."""
        return int(self.slope.numel())

    def split(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Cut dA (n, K, m) and dB (n, m, D) out of parameter vectors (p, n)."""
        weight, bias, second = self.places
        m, n = self.A.shape[1], columns.shape[1]
        dB = columns[weight].T.reshape(n, m, -1)
        if bias is not None:
            dB = torch.cat([dB, columns[bias].T[:, :, None]], dim=2)
        return columns[second].T.reshape(n, -1, m), dB

    def place(self, columns: Tensor, dA: Tensor, dB: Tensor) -> Tensor:
        """Write dA and dB to parameter vectors (p, n), and return these."""
        weight, bias, second = self.places
        n, inputs = len(dB), dB.shape[2] - (bias is not None)
        columns[weight] = dB[:, :, :inputs].reshape(n, -1).T
        columns[second] = dA.reshape(n, -1).T
        if bias is not None:
            columns[bias] = dB[:, :, -1].T
        return columns

    def change(self, columns: Tensor) -> Tensor:
        """Return the change of A B along parameter vectors (p, n), (K D, n)."""
        dA, dB = self.split(columns)
        return (dA @ self.B + self.A @ dB).reshape(len(dA), -1).T

    def pull(self, bent: Tensor, columns: Tensor, out: Tensor) -> None:
        """Write Jᵀ T J v + F v to `out`, given T J v (K D, n) and v (p, n)."""
        dA, dB = self.split(columns)
        dM = bent.T.reshape(-1, *self.slope.shape)
        self.place(
            out,
            dM @ self.B.T + self.slope @ dB.transpose(1, 2),
            self.A.T @ dM + dA.transpose(1, 2) @ self.slope,
        )

    def gram(self) -> Tensor:
        """Return J Jᵀ = A Aᵀ ⊗ I + I ⊗ Bᵀ B."""
        outputs, inputs = (_eye(size, self.A) for size in self.slope.shape)
        return torch.kron(self.A @ self.A.T, inputs) + torch.kron(outputs, self.B.T @ self.B)

    def turned_swap(self) -> Tensor:
        """Return J F Jᵀ, which maps X to G Xᵀ M + M Xᵀ G."""
        G, M = self.slope, self.A @ self.B
        both = torch.einsum("kd,le->keld", G, M) + torch.einsum("kd,le->keld", M, G)
        return both.reshape(self.size, self.size)


class LayerPairReduction:
    """The core of a pair, its bulk and its zeros, with the bases kept for the eigenvectors.

    Where :class:`hessence.networks.linear.twin_blocks.TwinReduction` solves two layers that are
    the whole network, this leaves the core open, for the model's other parameters and pairs to
    join.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        twin = narrow_twin(pair.B, pair.A)
        left, singular, right = torch.linalg.svd(pair.slope, full_matrices=True)
        self._basis, self._left, self._right = twin.basis, left, right.T
        self._rank = numerical_rank(singular, pair.slope.shape)
        self._singular = singular[: self._rank]
        self._a, self._b = left.T @ twin.W2, twin.W1 @ self._right

    @property
    def size(self) -> int:
        """The dimension of the core."""
        return 2 * self._rank * self._width + int(self._seen.shape[1])

    @property
    def bound(self) -> int:
        """An upper bound of ``size`` that costs nothing."""
        rest = len(self._rest_rows) * self._width
        return 2 * self._rank * self._width + min(rest, self._pair.size)

    @cached_property
    def jacobian(self) -> Tensor:
        """The change of A B along the core's coordinates, (K D, size)."""
        main = self._turned_jacobian[:, :, self._main_rows].flatten(2)
        rest = self._turned_jacobian[:, :, self._rest_rows].flatten(2) @ self._seen
        turned = torch.cat([main, rest], dim=2)
        both = torch.einsum("ik,kdn,jd->ijn", self._left, turned, self._right)
        return both.flatten(0, 1)

    @property
    def swap(self) -> Tensor:
        """The matrix of F on the core, (size, size)."""
        count = self._rank * self._width
        matrix = self._pair.slope.new_zeros(self.size, self.size)
        coupling = torch.kron(self._singular, self._singular.new_ones(self._width)).diag()
        matrix[:count, count : 2 * count] = coupling
        matrix[count : 2 * count, :count] = coupling
        return matrix

    def carry(self, coordinates: Tensor, out: Tensor) -> Tensor:
        """Write the vectors of core coordinates (size, n) to `out` (p, n), and return it."""
        count = 2 * self._rank * self._width
        return self._inside(coordinates[:count], self._seen @ coordinates[count:], out)

    def blocks(self, parameters: int) -> list[Subspaces]:
        """Return everything but the core, for a parameter vector of so many entries."""

        def vectors(copies: Tensor) -> Tensor:
            return copies.new_zeros(parameters, copies.shape[1])

        def bulk(sign: int) -> Callable[[int], Isometry]:
            def of(i: int) -> Isometry:
                def carry(coordinates: Tensor, copies: Tensor) -> Tensor:
                    hidden = self._unused(HALF * coordinates[0] * copies).T
                    dA = self._left[:, i, None] * hidden[:, None, :]
                    dB = sign * hidden[:, :, None] * self._right[:, i]
                    return self._pair.place(vectors(copies), dA, dB)

                return carry

            return of

        def unseen(coordinates: Tensor, copies: Tensor) -> Tensor:
            rest = self._outside_seen(coordinates[0] * copies)
            return self._inside(rest[:0], rest, vectors(copies))

        def unused(coordinates: Tensor, copies: Tensor) -> Tensor:
            return self._outside(coordinates[0] * copies, vectors(copies))

        values, zero = self._singular[:, None, None], self._pair.slope.new_zeros(1, 1)
        names = [f"/{self._pair.names[0]}/{i}" for i in range(self._rank)]
        unseen_count = len(self._rest_rows) * self._width - self._seen.shape[1]
        flat = f"flat/{self._pair.names[0]}"
        return [
            *(
                Subspaces(("bulk",), bulk(sign), self._spare, names, matrix=sign * values)
                for sign in (1, -1)
                if self._spare and self._rank
            ),
            Subspaces((flat,), lambda _: unseen, unseen_count, matrix=zero),
            Subspaces((flat,), lambda _: unused, len(self._rest_rows) * self._spare, matrix=zero),
        ]

    # Turned coordinates: the rows of dA' and then the columns of dB', K + D rows of length r.

    @property
    def _width(self) -> int:
        return int(self._basis.shape[1])

    @property
    def _spare(self) -> int:
        return int(self._basis.shape[0]) - self._width

    @property
    def _main_rows(self) -> list[int]:
        outputs = len(self._a)
        return [*range(self._rank), *range(outputs, outputs + self._rank)]

    @property
    def _rest_rows(self) -> list[int]:
        outputs, inputs = self._pair.slope.shape
        return [*range(self._rank, outputs), *range(outputs + self._rank, outputs + inputs)]

    @cached_property
    def _turned_jacobian(self) -> Tensor:
        """The derivative of Uᵀ (A B) V in the turned coordinates, (K, D, K + D, r)."""
        outputs, inputs = (_eye(size, self._a) for size in self._pair.slope.shape)
        of_rows = torch.einsum("kl,rd->kdlr", outputs, self._b)
        of_columns = torch.einsum("de,kr->kder", inputs, self._a)
        return torch.cat([of_rows, of_columns], dim=2)

    @cached_property
    def _seen(self) -> Tensor:
        """An orthonormal basis of what J sees of the rows beyond ρ, as columns."""
        jacobian = self._turned_jacobian[:, :, self._rest_rows].flatten(2).flatten(0, 1)
        if not jacobian.numel():
            return jacobian.new_zeros(jacobian.shape[1], 0)
        _, singular, right = torch.linalg.svd(jacobian, full_matrices=False)
        return right[: numerical_rank(singular, jacobian.shape)].T

    @cached_property
    def _outside_seen(self) -> Complement:
        return Complement(self._seen)

    @cached_property
    def _unused(self) -> Complement:
        return Complement(self._basis)

    def _inside(self, main: Tensor, rest: Tensor, out: Tensor) -> Tensor:
        """Carry turned coordinates inside Q; no main ones stand for zeros."""
        outputs, inputs = self._pair.slope.shape
        turned = rest.new_zeros(outputs + inputs, self._width, rest.shape[1])
        if len(main):
            turned[self._main_rows] = main.reshape(-1, *turned.shape[1:])
        turned[self._rest_rows] = rest.reshape(-1, *turned.shape[1:])
        dA, dB = turned[:outputs].permute(2, 0, 1), turned[outputs:].permute(2, 1, 0)
        return self._pair.place(
            out, self._left @ dA @ self._basis.T, self._basis @ dB @ self._right.T
        )

    def _outside(self, copies: Tensor, out: Tensor) -> Tensor:
        """Carry coordinates of the rows beyond ρ outside Q."""
        rows, n = len(self._rest_rows), copies.shape[1]
        spread = copies.reshape(rows, self._spare, n).transpose(0, 1).reshape(self._spare, -1)
        hidden = self._unused(spread).reshape(-1, rows, n).permute(2, 1, 0)
        count = len(self._a) - self._rank
        dA = self._left[:, self._rank :] @ hidden[:, :count]
        dB = hidden[:, count:].transpose(1, 2) @ self._right[:, self._rank :].T
        return self._pair.place(out, dA, dB)


class Complement:
    """An orthonormal basis of the complement of independent columns, held as reflectors.

    :class:`hessence.spectra.frames.Frame` does the same, also for dependent columns and arrays of
    any kind, but reflector by reflector: LAPACK, which PyTorch calls here, needs a fraction of
    its time.
    """

    def __init__(self, columns: Tensor) -> None:
        self._count = columns.shape[1]
        self._reflectors, self._scales = torch.geqrf(columns)

    def __call__(self, coordinates: Tensor) -> Tensor:
        """Carry coordinates (m − r, n) to vectors (m, n)."""
        if not self._count:
            return coordinates
        zeros = coordinates.new_zeros(self._count, coordinates.shape[1])
        padded = torch.cat([zeros, coordinates])
        return torch.ormqr(self._reflectors, self._scales, padded)


def _eye(size: int, reference: Tensor) -> Tensor:
    return torch.eye(size, dtype=reference.dtype, device=reference.device)
