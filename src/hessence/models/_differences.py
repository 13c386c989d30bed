r"""Derivatives by central differences, and how far off they may be.

Let g be a function with the derivative H at the parameters θ, and
:math:`q_i = (g(\theta + h_i v) - g(\theta - h_i v)) / 2 h_i` with steps that fall by 4. A step may
be too large for what g does in it, or too small for the rounding of g. Where two steps agree, they
are taken to be neither, and their gap is the error.

That can be wrong in one way: if g changes on a scale below all steps, as behind a normalisation of
small weights, the :math:`q_i` grow like :math:`1/h_i`, while all of them, and so all gaps, are
small beside Hv. Rounding grows in the same way, and which of the two it is cannot be seen from the
gaps. So ``Differences.refine`` measures the rounding :math:`\nu_i` of each quotient (see
``rounding.py``) and goes on to smaller steps while what changes is not rounding. The error is then

.. math::

    \|q_i - q_{i-1}\| + \nu_i + \max_{j > i} (\|q_i - q_j\| - \nu_i - \nu_j)_+ ,

where the last term is what smaller steps say against :math:`q_i`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hessence.models._parameters import length

STEPS = 8
"""How many step sizes are taken at first, at most, each a quarter of the one before. Small ones are
needed where large ones cross the kinks of a ReLU."""

REFINED = 20
"""How many in all. In double precision, the last one moves parameters of size 1 by less than their
rounding."""

CLOSE = 1e-7
"""Two step sizes that agree as well as this, relative, are enough."""

CONVERGED = 0.03
"""Quotients that still change by more than this, relative, beyond rounding, tell nothing."""


class Differences:
    """Central differences along a vector v, with smaller and smaller steps.

    Parameters
    ----------
    move : callable
        d ↦ g(θ + d), where g has the derivative H at the parameters θ: the gradient for a Hessian,
        Jᵀ∇²ℓ (f(θ + d) − f(θ)) for a Gauss–Newton matrix.
    v : Tensor
        The vector, in the precision that `move` works in.
    size : float
        The norm of the parameters.
    """

    def __init__(self, move: Callable[[Tensor], Tensor], v: Tensor, size: float) -> None:
        self._move, self._v = move, v
        self._eps = torch.finfo(v.dtype).eps
        self._largest: float = 4 * self._eps ** (1 / 3) * max(size, 1.0)
        self._quotients: list[Tensor] = []
        self._errors: list[float] = []
        for i in range(STEPS):
            there = self._take()
            # Rounding may leave two of them alike by chance.
            noise = self._eps * float(length(there)) / self._step(i)
            gap = self._gap(i, i - 1) if i else math.inf
            self._errors.append(gap + noise)
            if self._errors[-1] <= CLOSE * float(length(self._quotients[-1])):
                break

    def refine(self, rounding: Callable[[Tensor], float]) -> None:
        """Take smaller steps while rounding lets them tell more, and add it to the errors.

        `rounding` maps d to a bound on what rounding does to g(θ + d).
        """
        noise: list[float] = []
        for i in range(REFINED):
            if i == len(self._quotients):
                self._take()
            step = self._step(i)
            noise.append(max(rounding(step * self._v), rounding(-step * self._v)) / step)
            size = float(length(self._quotients[i]))
            change = self._gap(i, i - 1) - noise[i] - noise[i - 1] if i else math.inf
            if i >= len(self._errors) - 1 and change <= CLOSE * size:
                break
        if not change <= CONVERGED * size:
            self._errors = [math.inf]
            return
        last = len(self._quotients)
        against = [
            max([self._gap(i, j) - noise[i] - noise[j] for j in range(i + 1, last)], default=0.0)
            for i in range(last)
        ]
        self._errors = [math.inf] + [
            self._gap(i, i - 1) + noise[i] + max(against[i], 0.0) for i in range(1, last)
        ]

    def distance(self, image: Tensor, rounding: float = 0.0) -> tuple[float, float]:
        """Return the distance of Hv from the best of them and the error of both, relative."""
        # A large step may leave the domain of the model, of a logarithm for example.
        errors = [error if math.isfinite(error) else math.inf for error in self._errors]
        best = min(range(len(errors)), key=errors.__getitem__)
        if errors[best] == math.inf:
            return 0.0, math.inf
        # Central differences are off by the square of the step: a sixteenth for a quarter.
        fine, coarse = self._quotients[best], self._quotients[best - 1]
        extrapolated = fine + (fine - coarse) / 15
        scale = max(float(length(image)), float(length(extrapolated)))
        if scale == 0:
            return 0.0, 0.0
        return float(length(extrapolated - image)) / scale, (errors[best] + rounding) / scale

    def _step(self, i: int) -> float:
        return self._largest * math.ldexp(1.0, -2 * i)

    def _take(self) -> Tensor:
        """Append the quotient with the next step, and return what g is at the end of it."""
        step = self._step(len(self._quotients))
        there = self._move(step * self._v)
        self._quotients.append((there - self._move(-step * self._v)) / (2 * step))
        return there

    def _gap(self, i: int, j: int) -> float:
        gap = float(length(self._quotients[i] - self._quotients[j]))
        return gap if math.isfinite(gap) else math.inf
