r"""What the weights make: a chain of matrices and the derivatives of their product.

With :math:`M = F_L \cdots F_1`, :math:`P_\ell = F_{\ell-1}\cdots F_1` and
:math:`S_\ell = F_L\cdots F_{\ell+1}`, a change of the factors changes M by
:math:`dM = \sum_\ell S_\ell\, dF_\ell\, P_\ell`. A layer :math:`F_\ell` may be a weight
:math:`W_\ell` or, with a residual connection, :math:`I + W_\ell`: its change is the weight's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import array_api_compat as api

from hessence._common.arrays import Array, identity, transpose


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of matrices, first to act first; leading dimensions are a batch of networks."""

    factors: tuple[Array, ...]  # F_1, …, F_L, (..., d_ℓ, d_{ℓ−1})

    @property
    def dims(self) -> tuple[int, ...]:
        """The widths (d_0, …, d_L)."""
        return (int(self.factors[0].shape[-1]), *(int(f.shape[-2]) for f in self.factors))

    @property
    def size(self) -> int:
        """The number of entries of all factors."""
        return sum(math.prod(f.shape[-2:]) for f in self.factors)

    @cached_property
    def product(self) -> Array:
        """The end-to-end matrix M."""
        xp = api.array_namespace(self.factors[0])
        product = self.factors[0]
        for f in self.factors[1:]:
            product = xp.matmul(f, product)
        return product

    @cached_property
    def before(self) -> tuple[Array, ...]:
        """P_1 = I, …, P_L."""
        xp = api.array_namespace(self.factors[0])
        products = [identity(self.dims[0], self.factors[0])]
        for f in self.factors[:-1]:
            products.append(xp.matmul(f, products[-1]))
        return tuple(products)

    @cached_property
    def after(self) -> tuple[Array, ...]:
        """S_1, …, S_L = I."""
        xp = api.array_namespace(self.factors[0])
        products = [identity(self.dims[-1], self.factors[0])]
        for f in reversed(self.factors[1:]):
            products.insert(0, xp.matmul(products[0], f))
        return tuple(products)

    def between(self, k: int, l: int) -> Array | None:  # noqa: E741 - the papers' letter
        """Return F_{k−1} ⋯ F_{l+1} for layers k > l, counted from 1; None for the identity."""
        xp = api.array_namespace(self.factors[0])
        if k == l + 1:
            return None
        product = self.factors[l]
        for f in self.factors[l + 1 : k - 1]:
            product = xp.matmul(f, product)
        return product

    def split(self, columns: Array) -> list[Array]:
        """Cut parameter vectors (..., p, n) into matrices (..., n, d_ℓ, d_{ℓ−1})."""
        xp = api.array_namespace(columns)
        rows = transpose(columns)
        pieces, start = [], 0
        for f in self.factors:
            shape = tuple(f.shape[-2:])
            end = start + math.prod(shape)
            pieces.append(xp.reshape(rows[..., start:end], (*rows.shape[:-1], *shape)))
            start = end
        return pieces

    def join(self, pieces: list[Array]) -> Array:
        """Join matrices (..., n, d_ℓ, d_{ℓ−1}) to parameter vectors (..., p, n)."""
        xp = api.array_namespace(*pieces)
        flat = [
            xp.reshape(piece, (*piece.shape[:-2], math.prod(piece.shape[-2:]))) for piece in pieces
        ]
        lead = max((tuple(f.shape[:-1]) for f in flat), key=len)
        flat = [xp.broadcast_to(f, (*lead, int(f.shape[-1]))) for f in flat]
        return transpose(xp.concat(flat, axis=-1))

    def push(self, changes: list[Array]) -> list[Array]:
        """Return dP_1 = 0, …, dP_L, dM for changes (..., n, d_ℓ, d_{ℓ−1}) of the factors."""
        xp = api.array_namespace(*changes)
        running = [xp.zeros_like(self.before[0])[..., None, :, :], changes[0]]
        for f, p, change in zip(self.factors[1:], self.before[1:], changes[1:], strict=True):
            moved = xp.matmul(change, p[..., None, :, :])
            running.append(moved + xp.matmul(f[..., None, :, :], running[-1]))
        return running

    def pull(self, dM: Array) -> Array:
        """Return the parameter vectors Jᵀ dM of matrices (..., n, d_L, d_0): Sᵀ dM Pᵀ by layer."""
        xp = api.array_namespace(dM)
        pieces = [
            xp.matmul(xp.matmul(transpose(s)[..., None, :, :], dM), transpose(p)[..., None, :, :])
            for s, p in zip(self.after, self.before, strict=True)
        ]
        return self.join(pieces)

    def gram(self) -> Array:
        """Return J Jᵀ = Σ_ℓ S_ℓ S_ℓᵀ ⊗ P_ℓᵀ P_ℓ as an array (..., K, D, K, D)."""
        xp = api.array_namespace(self.factors[0])
        total = 0
        for p, s in zip(self.before, self.after, strict=True):
            outer, inner = xp.matmul(s, transpose(s)), xp.matmul(transpose(p), p)
            total = total + outer[..., :, None, :, None] * inner[..., None, :, None, :]
        return total
