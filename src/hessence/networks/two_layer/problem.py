r"""A two-layer network :math:`f = W\varphi(Vx + b) + c` on data, with its loss.

Its Hessian is :math:`H = F + G`. With :math:`s_i = \partial\ell/\partial f(x_i)`, the functional
part :math:`F = \oplus_j F_j` has a block for each hidden unit j,

.. math:: F_j = \sum_i \begin{pmatrix} (s_i\cdot w_j)\,\varphi''_{ij}\, x_i x_i^\top &
    \varphi'_{ij}\, x_i s_i^\top \\ \cdot & 0 \end{pmatrix},

and the Gauss–Newton part is :math:`G = T^\top T`, :math:`T = S^{1/2} J`, with S the loss Hessian in
the predictions. Where the bias b moves, x has a further entry 1. The bias c is seen by G alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hessence._common.arrays import Numbers

UNIT = 2.0**-53
"""The largest relative error of a sum or product in double precision."""

ULPS = 16
"""How many units of rounding the activation, the loss, and their derivatives may be off by."""

SUMMED = 8
"""How many hidden units are summed over at a time: short sums round off less."""

CHUNK = 2**20
"""How many numbers of hidden units and samples are held at a time."""


class Activation(Protocol):
    """A function of each number alone, with its derivatives."""

    @property
    def piecewise_linear(self) -> bool:
        """Whether the second derivative is zero between kinks."""

    @property
    def homogeneous(self) -> bool:
        """Whether also φ(z) = φ′(z) z, so that no piece has an intercept."""

    def derivatives(self, z: Numbers, order: int) -> tuple[Numbers, ...]:
        """Return φ(z), φ′(z), … up to the order."""


@dataclass(frozen=True)
class Rectified:
    """max(z, 0) + slope · min(z, 0); with a slope of 1, the identity.

    Examples
    --------
    >>> Rectified(0.5).derivatives(np.asarray([2.0, -4.0]), 1)
    (array([ 2., -2.]), array([1. , 0.5]))
    """

    slope: float = 0.0
    piecewise_linear = True
    homogeneous = True

    def derivatives(self, z: Numbers, order: int) -> tuple[Numbers, ...]:
        """Return φ(z), φ′(z), … up to the order."""
        first = np.where(z > 0, 1.0, self.slope)
        return (z * first, first, *(np.zeros_like(z) for _ in range(order - 1)))[: order + 1]


@dataclass(frozen=True, eq=False)
class LossAt:
    """The derivatives of a mean loss at the predictions of n samples."""

    gradient: Numbers  # (n, K): the derivatives s in the predictions
    hessian: Numbers  # (n, K, K): the second derivatives S, positive semi-definite
    noise: Numbers  # (n,): the part of the gradient that may be rounding in the loss itself
    targets: Numbers  # (n, K): the predictions without a residual, or zeros
    steepness: float = 0.0  # the share of S that a change of a prediction by 1 may add
    shifts: bool = False  # whether adding a number to all outputs leaves the loss unchanged


@dataclass(frozen=True, eq=False)
class TwoLayer:
    """A two-layer network at one point, its inputs and its loss, all in double precision."""

    inputs: Numbers  # (n, D): what enters the first of the two layers
    V: Numbers  # (m, D)
    W: Numbers  # (K, m)
    b: Numbers  # (m,): zero where there is no bias
    c: Numbers  # (K,): zero where there is no bias
    activation: Activation
    loss: Callable[[Numbers], LossAt]  # of predictions (n, K)
    moves_b: bool = False  # whether b is a parameter
    moves_c: bool = False  # whether c is a parameter

    @property
    def samples(self) -> int:
        """The number n of samples."""
        return len(self.inputs)

    @property
    def width(self) -> int:
        """The number m of hidden units."""
        return len(self.V)

    @property
    def outputs(self) -> int:
        """The number K of outputs."""
        return len(self.W)

    @property
    def size(self) -> int:
        """The number p of parameters."""
        incoming = int(self.inputs.shape[1]) + self.moves_b
        return self.width * (incoming + self.outputs) + self.moves_c * self.outputs

    @cached_property
    def features(self) -> Numbers:
        """The inputs as the weights of a unit see them (n, d), in an orthonormal basis of d ≤ n.

        Directions outside of the span of the inputs change no prediction, so that their eigenvalues
        are exactly zero.
        """
        x = self.inputs
        if self.moves_b:
            x = np.concatenate([x, np.ones((self.samples, 1))], axis=1)
        if x.shape[1] > x.shape[0]:
            x = np.asarray(np.linalg.qr(x.T, mode="r")).T
        return np.ascontiguousarray(x)

    @property
    def features_error(self) -> float:
        """The relative error of the features, by rounding (Higham, 2002, Theorem 19.4)."""
        inputs, features = self.inputs.shape[1] + self.moves_b, self.features.shape[1]
        return accumulated(4 * inputs * features) if features < inputs else 0.0

    @property
    def unseen(self) -> int:
        """How many directions of all weights lie outside of the span of the inputs."""
        return self.width * int(self.inputs.shape[1] + self.moves_b - self.features.shape[1])

    @property
    def chunk(self) -> int:
        """How many hidden units are computed at a time."""
        return max(1, min(self.width, CHUNK // (self.samples * self.outputs)))

    def chunks(self, most: int = CHUNK) -> Iterator[slice]:
        """Go through the hidden units, at most so many at a time."""
        step = max(1, min(self.chunk, most))
        for start in range(0, self.width, step):
            yield slice(start, min(start + step, self.width))

    def kinks(self, units: slice, first: Numbers) -> int:
        """Count the pre-activations whose slope rounding may have changed."""
        if not self.activation.piecewise_linear:
            return 0
        size = np.abs(self.V[units]) @ np.abs(self.inputs.T) + np.abs(self.b[units, None])
        margin = accumulated(self.inputs.shape[1] + 2) * size
        z = self.V[units] @ self.inputs.T + self.b[units, None]
        sides = [self.activation.derivatives(z + sign * margin, 1)[1] for sign in (-1, 1)]
        apart = (sides[0] != first) | (sides[1] != first)
        # A unit without weights sits at its kink exactly, and has no margin.
        return int((apart | ((size == 0) & self._bent)).sum())

    @cached_property
    def _bent(self) -> bool:
        """Whether the activation has a kink at zero."""
        tiny = np.asarray([[-1e-300, 1e-300]])
        slopes = self.activation.derivatives(tiny, 1)[1]
        return bool(slopes[0, 0] != slopes[0, 1])

    def hidden(self, units: Any, order: int) -> tuple[Numbers, ...]:
        """Return φ, φ′, … up to the order for some units, (units, n) each."""
        z = self.V[units] @ self.inputs.T
        z += self.b[units, None]
        return self.activation.derivatives(z, order)

    def outgoing(self, units: slice, phi: Numbers) -> Numbers:
        """Return what some units add to the predictions (K, n), in sums of few terms."""
        W, whole = self.W[:, units], len(phi) // SUMMED * SUMMED
        parts = W[:, :whole].T.reshape(-1, SUMMED, self.outputs).transpose(0, 2, 1)
        sums = parts @ phi[:whole].reshape(-1, SUMMED, self.samples)
        sums = np.concatenate([sums, (W[:, whole:] @ phi[whole:])[None]])
        while len(sums) > 1:
            half = len(sums) // 2
            pairs = sums[:half] + sums[half : 2 * half]
            sums = np.concatenate([pairs, sums[2 * half :]])
        return np.asarray(sums[0])

    @property
    def outgoing_terms(self) -> int:
        """How many terms follow one another in the sums of a prediction, at most."""
        return SUMMED + 2 * self.chunk.bit_length() + self.width // self.chunk + 4

    def curvature(
        self, dV: Numbers, dW: Numbers, db: Numbers, dc: Numbers
    ) -> tuple[float, float, float]:
        r"""Return the second derivative of the loss along a direction, its terms' size, and noise.

        With :math:`\dot z_{ij} = dv_j\cdot x_i + db_j` it is the sum over samples of
        :math:`\dot f^\top S \dot f + s\cdot\sum_j (w_j\varphi''\dot z^2 + 2\,dw_j\varphi'\dot z)`.
        """
        predictions, moved, bent = (np.zeros((self.samples, self.outputs)) for _ in range(3))
        predictions += self.c
        moved += dc
        for units in self.chunks():
            phi, first, second = self.hidden(units, 2)
            pace = dV[units] @ self.inputs.T + db[units, None]
            predictions += self.outgoing(units, phi).T
            moved += (self.W[:, units] @ (first * pace) + dW[:, units] @ phi).T
            bent += (self.W[:, units] @ (second * pace**2)).T
            bent += 2 * (dW[:, units] @ (first * pace)).T
        at = self.loss(predictions)
        curved = np.einsum("ik,ikl,il->i", moved, at.hessian, moved)
        linear = at.gradient * bent
        size = np.abs(curved).sum() + np.abs(linear).sum()
        noise = at.noise @ ((moved**2).sum(axis=1) + np.abs(bent).sum(axis=1))
        return float(curved.sum() + linear.sum()), float(size), float(noise)


def accumulated(terms: int) -> float:
    """Return the relative error of a sum of so many terms, in any order."""
    return terms * UNIT / (1 - terms * UNIT)


def stable_norm(array: Numbers, axis: int | tuple[int, ...]) -> Numbers:
    """Return norms along axes, also of numbers whose squares vanish or overflow.

    Examples
    --------
    >>> stable_norm(np.asarray([[3e-200, 4e-200], [0.0, 0.0]]), 1)
    array([5.e-200, 0.e+000])
    """
    largest = np.abs(array).max(axis=axis, keepdims=True, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    return np.asarray(np.linalg.norm(array / unit, axis=axis) * np.squeeze(unit, axis))
