r"""Lanczos' recurrence from several random vectors in lock-step, each with its own basis.

From a unit vector v the recurrence builds an orthonormal basis Q of the Krylov space and the
tridiagonal T with :math:`H Q = Q T + \beta_m q_{m+1} e_m^\top`. One product with a block of columns
serves all vectors at once; no vector looks at another one's basis.

How this differs from ``basis``: there is no restart, nothing is exchanged, and a recurrence that
has found an invariant space ends there, because what would follow belongs to another start and
has no part in the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import array_api_compat as api
import numpy as np

from hessence.arrays import Array, epsilon
from hessence.krylov.gram_schmidt import subtract, take_out
from hessence.krylov.probes import Probes
from hessence.krylov.projected import Numbers
from hessence.krylov.scaling import ScaledProduct

NEGLIGIBLE = 32
"""A remainder below this many ε · ‖H‖ is rounding: the recurrence has found all there is."""

WORKSPACE = 6
"""How many vectors a recurrence needs beside its basis, while it takes a step."""


@dataclass(frozen=True)
class Chain:
    """The coefficients of one recurrence, in units of the product's scale.

    Attributes
    ----------
    diagonal : array (m,)
        The α of T, m being the number of steps until the recurrence ended.
    couplings : array (m,)
        The β: m − 1 of T, and the one that leads out of the basis, zero if nothing does.
    norm : float
        The longest image of a basis vector, a lower bound of ‖H‖.
    defect : float
        How far HQ is from QT + βq eᵀ, in the Frobenius norm: rounding, or that H is not symmetric.
    """

    diagonal: Numbers
    couplings: Numbers
    norm: float
    defect: float


def grow_chains(
    product: ScaledProduct, probes: Probes, members: Sequence[int], steps: int, reference: Array
) -> list[Chain]:
    """Run the recurrence from each of the members among the probes, `steps` steps at most."""
    xp, count = api.array_namespace(reference), len(members)
    start = probes.draw(members[0])
    size = int(start.shape[0])
    vectors = xp.empty(
        (count, steps, size), dtype=reference.dtype, device=api.device(reference)
    )  # touched as it fills
    for i, member in enumerate(members):
        vectors[i, 0, :] = start if i == 0 else probes.draw(member)
    chains = [_Growing(vectors[i, :, :]) for i in range(count)]
    for j in range(steps):
        alive = [chain for chain in chains if not chain.ended]
        if not alive:
            break
        columns = xp.matrix_transpose(xp.stack([chain.rows[j, :] for chain in alive]))
        images = product(columns)
        for i, chain in enumerate(alive):
            chain.advance(images[:, i])
    return [chain.finished() for chain in chains]


class _Growing:
    """A recurrence on its way; rows (steps, n) is where its basis goes, the first is its start."""

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        self.ended = False
        self._diagonal: list[float] = []
        self._couplings: list[float] = []
        self._norm = self._defect = 0.0

    def advance(self, image: Array) -> None:
        """Take the next step, given the image of the newest vector."""
        j, (steps, size) = len(self._diagonal), self.rows.shape
        first = max(j - 1, 0)
        # By symmetry the image meets the last two vectors only; the whole basis is taken out of
        # what they leave, which rounding has made necessary.
        along = np.zeros(j + 1)
        along[first:], rest = subtract(self.rows[first : j + 1, :], image)
        correction, rest, coupling = take_out(self.rows[: j + 1, :], rest)
        along += correction
        self._norm = max(self._norm, float(np.hypot(np.linalg.norm(along), coupling)))
        if j:
            along[j - 1] -= self._couplings[-1]
        self._defect = float(np.hypot(self._defect, np.linalg.norm(along[:j])))
        self._diagonal.append(float(along[j]))
        self.ended = j + 1 == size or coupling <= NEGLIGIBLE * epsilon(image) * self._norm
        self._couplings.append(0.0 if self.ended else coupling)
        if not self.ended and j + 1 < steps:
            self.rows[j + 1, :] = rest / coupling

    def finished(self) -> Chain:
        """Return the coefficients."""
        return Chain(
            np.asarray(self._diagonal), np.asarray(self._couplings), self._norm, self._defect
        )
