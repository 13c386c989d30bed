"""The functional part of a two-layer network: one small block for each hidden unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hessence._common.arrays import Numbers
from hessence.networks.two_layer.gauss_newton import GaussNewton, reach
from hessence.networks.two_layer.problem import ULPS, UNIT, TwoLayer, accumulated, stable_norm

KEPT = 2**25
"""Up to so many entries of eigenvectors of blocks are kept for counts."""

PAIRED = 32
"""Up to so many inputs, all products of two of them are formed at once."""


class Bases(NamedTuple):
    """Some units, and the eigenvalues (units, d + K) and eigenvectors of their blocks."""

    units: Numbers
    values: Numbers
    vectors: Numbers


@dataclass(frozen=True, eq=False)
class Functional:
    """The eigenvalues of the functional part."""

    lower: Numbers  # (p,): bounds, descending; both are zero for eigenvalues that are exactly zero
    upper: Numbers  # (p,)
    zeros: int  # how many eigenvalues the structure makes exactly zero, whatever the weights
    error: float  # the largest error of a block, in norm
    bases: list[Bases] | None = None  # the solved blocks, if they are few enough to be kept


class Blocks:
    """The blocks F_j of some units at a time, and how far rounding may have moved them."""

    def __init__(self, problem: TwoLayer, part: GaussNewton) -> None:
        self.problem, self.part = problem, part
        self.inner, self.outer = int(problem.features.shape[1]), problem.outputs
        self.order: int = self.inner + self.outer
        self._upper = np.triu_indices(self.inner)
        x = problem.features
        if self.inner <= PAIRED:
            self._pairs = x[:, self._upper[0]] * x[:, self._upper[1]]
        self._of_units, self._of_samples = reach(problem)
        self._lengths = np.linalg.norm(x, axis=1)

    @property
    def straight(self) -> bool:
        """Whether the activation has no curvature."""
        return self.problem.activation.piecewise_linear

    @property
    def structural_zeros(self) -> int:
        """How many eigenvalues of each block are zero whatever the numbers in it are."""
        return abs(self.inner - self.outer) if self.straight else max(self.outer - self.inner, 0)

    def chunks(self) -> Iterator[slice]:
        """Go through the units."""
        return self.problem.chunks(2**22 // self.order**2)

    def couplings(self, first: Numbers) -> Numbers:
        """Return Σ_i φ′_ij x_i s_iᵀ for units of given slopes, (units, d, K)."""
        s, x = self.part.at.gradient, self.problem.features
        return np.stack([first @ (x * s[:, k, None]) for k in range(self.outer)], axis=2)

    def matrices(self, units: slice, first: Numbers, second: Numbers | None = None) -> Numbers:
        """Return the blocks of some units, (units, d + K, d + K)."""
        x, d = self.problem.features, self.inner
        found = np.zeros((len(first), self.order, self.order))
        coupling = self.couplings(first)
        found[:, :d, d:] = coupling
        found[:, d:, :d] = np.swapaxes(coupling, 1, 2)
        if second is None:
            return found
        bent = second * (self.problem.W[:, units].T @ self.part.at.gradient.T)
        if d <= PAIRED:
            entries = bent @ self._pairs
            found[:, self._upper[0], self._upper[1]] = entries
            found[:, self._upper[1], self._upper[0]] = entries
        else:
            for unit, weights in enumerate(bent):
                found[unit, :d, :d] = (x.T * weights) @ x
        return found

    def solved(self, units: slice, matrices: Numbers) -> Bases:
        """Solve blocks; what is exactly zero is set to zero."""
        values, vectors = np.linalg.eigh(matrices)
        if self.structural_zeros:
            smallest = np.argsort(np.abs(values), axis=1)[:, : self.structural_zeros]
            np.put_along_axis(values, smallest, 0.0, axis=1)
        return Bases(np.arange(self.problem.width)[units], values, vectors)

    def errors(self, units: slice, first: Numbers, second: Numbers | None) -> Numbers:
        """Bound what rounding may have done to each block in norm, (units,), without a solver's."""
        s = stable_norm(self.part.at.gradient, 1)
        n, lengths = self.problem.samples, self._lengths
        own = accumulated(n + self.outer + ULPS) + 2 * self.problem.features_error
        entry = accumulated(self.problem.inputs.shape[1] + 2) * self._of_units[units]
        jitter = ULPS * UNIT
        steep, curved, third = self.part.scales
        gradient = own * s + self.part.gradient_error
        found = np.abs(first) @ (lengths * gradient)
        found += curved * entry * (s @ (lengths * self._of_samples))
        if second is not None:
            found += jitter * steep * (s @ lengths)
            squares = lengths**2
            bent = np.abs(second) @ (squares * gradient)
            bent += third * entry * (s @ (squares * self._of_samples))
            bent += jitter * curved * (s @ squares)
            found += bent * np.linalg.norm(self.problem.W[:, units], axis=0)
        return np.asarray(np.sqrt(2.0) * found)


def functional(problem: TwoLayer, part: GaussNewton) -> Functional:
    """Compute all eigenvalues of the functional part, with bounds."""
    blocks = Blocks(problem, part)
    kept = blocks.order - blocks.structural_zeros
    lower, upper = (np.empty((problem.width, kept)) for _ in range(2))
    worst, keeps = 0.0, problem.width * blocks.order**2 <= KEPT and not blocks.straight
    bases: list[Bases] = []
    for units in blocks.chunks():
        if blocks.straight:
            _, first = problem.hidden(units, 1)
            second = None
            singular = _singular(blocks.couplings(first))
            values, norms = np.concatenate([singular, -singular], axis=1), singular[:, 0]
        else:
            _, first, second = problem.hidden(units, 2)
            matrices = blocks.matrices(units, first, second)
            norms = stable_norm(matrices, (1, 2))
            if keeps:
                bases.append(blocks.solved(units, matrices))
            values = bases[-1].values if keeps else np.linalg.eigvalsh(matrices)
            values = _without_zeros(values, blocks.structural_zeros)
        errors = blocks.errors(units, first, second) + solver_error(blocks.order) * norms
        if blocks.structural_zeros and not blocks.straight:
            # Which of the smallest are the zeros is not known: they may have changed places.
            errors *= 3
        lower[units], upper[units] = values - errors[:, None], values + errors[:, None]
        worst = max(worst, float(errors.max()))
    zeros = problem.size - lower.size
    return Functional(
        _sorted(lower, zeros), _sorted(upper, zeros), zeros, worst, bases if keeps else None
    )


def solver_error(order: int) -> float:
    """Return the relative error of eigenvalues of a small symmetric matrix."""
    return (ULPS + 4 * order) * UNIT


def _singular(couplings: Numbers) -> Numbers:
    if min(couplings.shape[1:]) == 1:
        return stable_norm(couplings, (1, 2))[:, None]
    return np.linalg.svd(couplings, compute_uv=False)


def _without_zeros(values: Numbers, zeros: int) -> Numbers:
    """Leave out the eigenvalues of smallest magnitude, which stand for so many exact zeros."""
    if not zeros:
        return values
    order = np.argsort(np.abs(values), axis=1)[:, zeros:]
    return np.take_along_axis(values, order, axis=1)


def _sorted(values: Numbers, zeros: int) -> Numbers:
    """Return all values and so many zeros, descending."""
    flat = np.concatenate([values.ravel(), np.zeros(zeros)])
    flat.sort()
    return flat[::-1]
