"""The eigenspaces of a Gauss–Newton matrix, from its dual K = Lᵀ J Jᵀ L."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hessence._common.device import budget
from hessence.models._jacobian import Jacobian
from hessence.models._parameters import length
from hessence.spectra.frames import Complement
from hessence.spectra.subspaces import ROUNDING, Columns, Isometry, Subspaces

FORMING = 4
"""What forming the dual may do to an eigenvalue, in ε times the size of the terms added up."""

PASSES = 8
"""How often an eigenvector is made orthogonal to those of larger eigenvalues, at most."""


@dataclass(frozen=True, eq=False)
class LossFactors:
    """L with S = L Lᵀ, one square block after another along the diagonal.

    Attributes
    ----------
    blocks : list of Tensor
        (n, K, K) for n samples of a batch, or (n, K) where they are diagonal.
    """

    blocks: list[Tensor]

    def apply(self, columns: Tensor, *, transposed: bool) -> Tensor:
        """Return L or Lᵀ times columns (N, m)."""
        images = torch.empty_like(columns)
        for own, image in zip(self._cut(columns), self._cut(images), strict=True):
            block, part = own
            if block.ndim == 2:
                torch.mul(block[..., None], part, out=image[1])
            else:
                torch.matmul(block.mT if transposed else block, part, out=image[1])
        return images

    def between(self, gram: Tensor) -> Tensor:
        """Return Lᵀ K L of a symmetric K, whose memory it takes."""
        for side in (gram, gram.mT):
            for block, part in self._cut(side):
                for own, rows in zip(block, part, strict=True):
                    rows.copy_(own[:, None] * rows if own.ndim == 1 else own.mT @ rows)
        return gram

    def size(self, gram: Tensor) -> float:
        """Return a bound for the norm of |L|ᵀ |J| |J|ᵀ |L|, given J Jᵀ.

        Terms of this size are added up in Lᵀ J Jᵀ L, where they may cancel.
        """
        lengths = gram.diagonal().clamp(min=0).sqrt()[:, None]
        absolute = LossFactors([block.abs() for block in self.blocks])
        return float(absolute.apply(lengths, transposed=True).square().sum())

    def _cut(self, columns: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each block with its rows (n, K, m)."""
        parts = columns.split([block.shape[0] * block.shape[1] for block in self.blocks])
        return [
            (block, part.view(*block.shape[:2], -1))
            for block, part in zip(self.blocks, parts, strict=True)
        ]


class Dual:
    """A Gauss–Newton matrix by its dual K = Lᵀ J Jᵀ L.

    Parameters
    ----------
    jacobian : Jacobian
        J.
    gram : Tensor (N, N)
        The dual.
    factors : LossFactors
        L.
    rounding : float
        ε times the size of the terms that are added up in the dual.
    """

    def __init__(
        self, jacobian: Jacobian, gram: Tensor, factors: LossFactors, rounding: float
    ) -> None:
        self._jacobian, self._gram, self._factors = jacobian, gram, factors
        self._size, self._formed = jacobian.size, FORMING * rounding
        values = torch.linalg.eigvalsh(gram).flip(0)[: self._size]
        # What rounding may have made is no range: these are flat, within the errors.
        solved = ROUNDING * float(torch.finfo(values.dtype).eps * values.abs().max())
        self._values = values[values > max(solved, self._formed)]

    @property
    def rank(self) -> int:
        """How many eigenvalues are not zero."""
        return len(self._values)

    @property
    def defect(self) -> float:
        """What forming and solving the dual may do to an eigenvalue.

        A family knows of its own order only.
        """
        largest = float(self._values[0]) if self.rank else 0.0
        solved = len(self._gram) * float(torch.finfo(self._gram.dtype).eps) * largest
        return solved + self._formed

    def families(self) -> list[Subspaces]:
        """Return the range, eigenvector by eigenvector, and the flat rest."""
        families = []
        if self.rank:
            families.append(
                Subspaces(("range",), self._eigenvector, members=_unnamed,
                          values=self._values[:, None])
            )  # fmt: skip
        zero = self._gram.new_zeros(1)
        flat = Columns(lambda copies: self._complement(copies))
        families.append(Subspaces(("flat",), lambda _: flat, self._size - self.rank, values=zero))
        return families

    @cached_property
    def _vectors(self) -> Tensor:
        """The eigenvectors of the dual, in the order of the values, (N, rank)."""
        return torch.linalg.eigh(self._gram)[1].flip(1)[:, : self.rank]

    def _pull(self, columns: Tensor) -> Tensor:
        """Return Jᵀ L times columns (N, m)."""
        return self._jacobian.pull(self._factors.apply(columns, transposed=False))

    def _push(self, columns: Tensor) -> Tensor:
        """Return Lᵀ J times columns (p, m)."""
        return self._factors.apply(self._jacobian.push(columns), transposed=True)

    def _eigenvector(self, member: int) -> Isometry:
        return lambda coordinates, copies: self._embedded(member) * (coordinates[0] * copies)

    def _embedded(self, member: int) -> Tensor:
        """Return one eigenvector of G (p, 1).

        Where γ is small, rounding leaves a part along the eigenvectors of larger eigenvalues. What
        Lᵀ J makes of the vector tells how much, and it is taken off; again where these vectors are
        small themselves, and so not quite orthogonal.
        """
        larger, values = self._vectors[:, :member], self._values[:member, None]
        z = self._pull(self._vectors[:, member : member + 1])
        for _ in range(PASSES if member else 0):
            z /= length(z)
            along = larger.mT @ self._push(z)
            z -= self._pull(larger @ (along / values))
            if float((along / values.sqrt()).abs().max()) <= 16 * torch.finfo(z.dtype).eps:
                break
        return z / length(z)

    @cached_property
    def _complement(self) -> Complement:
        """The flat directions: what is orthogonal to all eigenvectors of the range."""
        needed = 4.0 * self._size * self.rank * self._gram.itemsize
        if needed > budget(None, self._gram):
            raise ValueError(
                f"flat directions are what is orthogonal to {self.rank} vectors of length "
                f"{self._size}, which would take {needed / 1e9:.0f} GB: project a vector v of your "
                "own by v − Z Zᵀ v, with Z the eigenvectors that are not flat."
            )
        # By the same products as eigenvectors one by one, which round alike.
        pulled = self._pull(self._vectors)
        return Complement(torch.linalg.qr(pulled / length(pulled, 0).to(pulled))[0])


def _unnamed(member: int) -> str:
    return ""
