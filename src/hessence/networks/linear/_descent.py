r"""Gradient descent of linear networks: singular value by singular value if they are aligned.

Alignment survives gradient descent: each mode's singular values follow
:math:`s_\ell \leftarrow s_\ell - \eta\,\omega \prod_{k \ne \ell} s_k` with
:math:`\omega = c \prod_k s_k - \tau` and c, τ the mode's parts of E[x xᵀ] and E[y xᵀ], on their
own. Other networks are trained on their weights, from the moments of the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from hessence._common.arrays import Array, Numbers, like, to_numpy
from hessence.data.matrix_objectives import MatrixQuadratic
from hessence.networks.descent import Coordinates, Descent, Moving, Rule, WeightDescent
from hessence.networks.linear._modes import Modes, find_modes
from hessence.networks.linear._pair_blocks import largest_eigenvalue
from hessence.networks.linear.hessian import LinearHessian

TRUSTED = 1e-9
"""How far the weights may get from the modes, relative, before steps are taken on them instead."""


class ModeDescent(Descent):
    """Gradient descent of an aligned network, on the singular values (L, N) of its modes."""

    method = "modes"

    def __init__(self, net: Any, objective: MatrixQuadratic, modes: Modes) -> None:
        super().__init__(net, x=objective)
        self._objective, self._modes = objective, modes
        exists = modes.place >= 0
        self._crosses = (exists[1:] & exists[:-1]).astype(float)
        self._target = modes.variance * np.prod(modes.singular, axis=0) - modes.gradient
        self.start = Moving((modes.singular,))
        self.state_bytes = 2 * modes.singular.nbytes

    def trusted(self, rule: Rule, steps: int) -> bool:
        """Tell whether what recognition neglects stays small.

        A small change off the modes is multiplied by I − ηH in each step, whose norm off the modes
        is bounded by the Gauss–Newton part of pairs i ≠ j and by ‖F‖, F the functional part. At a
        saddle it grows without end, and the weights leave along it.
        """
        away, state = 0.0, self.start
        for _ in range(steps if self._modes.defect else 0):
            part, rest = self._off_modes(*state.coordinates)
            growth = rule.lr * rest / (1 - rule.momentum)
            overshoot = rule.lr * (part + rest) - 2 * (1 + rule.momentum)
            away = (1 + max(growth, overshoot)) * (
                away + rule.lr * (part + rest) * self._modes.defect
            )
            if not away <= TRUSTED:
                return False
            state = self.advance(state, rule)
        return True

    def _off_modes(self, singular: Numbers) -> tuple[float, float]:
        """Return bounds on the Gauss–Newton part of pairs i ≠ j, and on the functional part."""
        at = replace(self._modes, singular=singular)
        pairs = (at.above**2).T @ (at.below**2 * at.variance)
        np.fill_diagonal(pairs, 0.0)
        most = np.abs(singular).max(axis=1, initial=0.0)
        others = [[np.prod(np.delete(most, [k, i])) for i in range(len(most)) if i != k]
                  for k in range(len(most))]  # fmt: skip
        functional = max(map(sum, others)) * np.abs(self._omega(singular)).max()
        return float(pairs.max()), float(functional)

    def gradient(self, coordinates: Coordinates) -> Coordinates:
        """Return ω Π_{k≠ℓ} s_k."""
        (singular,) = coordinates
        at = replace(self._modes, singular=singular)
        return (self._omega(singular) * at.below * at.above * self._crosses,)

    def network(self, state: Moving) -> Any:
        """Return the network with the singular values of a state."""
        modes, (singular,) = self._modes, state.coordinates
        layers = {}
        for i, name in enumerate(self._net._weights):
            both = (modes.place[i] >= 0) & (modes.place[i + 1] >= 0)
            left = modes.bases[i + 1][:, modes.place[i + 1][both]]
            right = modes.bases[i][:, modes.place[i][both]]
            layers[name] = like((left * singular[i][both]) @ right.T, self.reference)
        return self._net._rebuild(layers)

    def measure(self, states: Iterable[Moving]) -> dict[str, Numbers]:
        """Return loss and trace at each state."""
        least = float(to_numpy(self._objective.solution[1]))
        rows = [(least + self._excess(s), self._trace(s)) for (s,), _ in states]
        losses, traces = np.asarray(rows).T
        return {"loss": losses, "trace": traces}

    def sharpness(self, states: Iterable[Moving]) -> Numbers:
        """Return the largest eigenvalue at each state, found among the pairs."""
        moved = (
            replace(self._modes, singular=singular, gradient=self._omega(singular))
            for (singular,), _ in states
        )
        return np.asarray([largest_eigenvalue(modes) for modes in moved])

    def _omega(self, singular: Numbers) -> Numbers:
        product = np.prod(singular, axis=0)
        return np.asarray(self._modes.variance * product - self._target)

    def _excess(self, singular: Numbers) -> float:
        """Return the loss above the least: Σ ω² / 2c."""
        omega, variance = self._omega(singular), self._modes.variance
        seen = variance > 0
        return float(np.sum(omega[seen] ** 2 / variance[seen])) / 2

    def _trace(self, singular: Numbers) -> float:
        at = replace(self._modes, singular=singular)
        first, last = at.place[0] >= 0, at.place[-1] >= 0
        inputs = (at.variance * at.below**2)[:, first].sum(axis=1)
        outputs = (at.above**2)[:, last].sum(axis=1)
        return float(inputs @ outputs)


class LinearWeightDescent(WeightDescent):
    """Gradient descent of any linear network on its weights, from the moments of the data."""

    method = "moments"

    def reduced(self, rule: Rule, steps: int) -> Descent:
        """Return a descent on the modes of an aligned network, where they stay the weights'."""
        net, objective = self._net, self._arguments["x"]
        plain = net.factors is net.weights and not net.batch_shape
        if rule.sam or not plain or not isinstance(objective, MatrixQuadratic):
            return self
        modes = find_modes(net.hessian(objective))
        if not modes.aligned:
            return self
        found = ModeDescent(net, objective, modes)
        return found if found.trusted(rule, steps) else self

    def _trace(self, net: Any) -> Array:
        # The gradient has no part in the trace, and is not needed here.
        learned = net.learned
        return LinearHessian(net.factors, learned, self._arguments["x"].hessian(learned)).trace()

    def sharpness(self, states: Iterable[Moving]) -> Numbers:
        """Return the largest eigenvalue at each state, by Lanczos from the one before."""
        values: list[Numbers] = []
        start = None
        for step, state in enumerate(states):
            pairs = self.hessian(state).top(1, tol=1e-10, v0=start, rng=step)
            start = pairs.eigenvectors
            start = start if start.ndim > 2 else start[:, 0]
            values.append(to_numpy(pairs.eigenvalues)[..., 0])
        return np.asarray(values)
