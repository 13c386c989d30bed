"""The two-layer linear network of one input and one output, of any width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hessence._common.arrays import Array
from hessence.data.losses import PointwiseLoss
from hessence.data.moments import Moments
from hessence.data.objectives import scalar_objective
from hessence.networks.scalar.anatomy import Anatomy, dissect, phase_of
from hessence.networks.scalar.descent import ScalarDescent
from hessence.networks.scalar.network import ProductNetwork, ScalarNetwork


@dataclass(frozen=True, eq=False, repr=False)
class ScalarLinear(ScalarNetwork, ProductNetwork):
    r"""f(x) = ⟨w, v⟩ x, with parameters ordered (v, w).

    With σ² = E[x²], c = E[y x], g = ⟨w, v⟩ and δ = σ² g − c, the Hessian of ½ E(f − y)² has

    - the bulk +δ and −δ, each m − 1 times;
    - the outlier pair :math:`\tfrac12\big(T \pm \sqrt{T^2 + 4\delta(\delta + 2\sigma^2 g)}\big)`,
      where :math:`T = \sigma^2(\|w\|^2 + \|v\|^2)` is the trace

    (Singh & Hofmann, Theorems 1–3, with the bulk eigenvectors' signs corrected: they go with λδ,
    not with λ). For any other loss ℓ(g), δ and σ² become ℓ′(g) and ℓ″(g).

    Parameters
    ----------
    w, v : array (..., m)
        Weights of the second and of the first layer.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.ScalarLinear(w=np.asarray([1.0, 2.0]), v=np.asarray([0.5, 0.25]))
    >>> x, y = np.asarray([1.0, -1.0, 2.0]), np.asarray([1.0, -1.5, 2.25])
    >>> s = net.hessian(x, y).spectrum()
    >>> float(s.sharpness.round(4)), float(s.trace)
    (10.5087, 10.625)
    >>> net.phase(x, y)
    'late'
    """

    w: Array
    v: Array

    order: ClassVar[tuple[str, ...]] = ("v", "w")

    @property
    def _rows(self) -> tuple[Array, Array]:
        return self.w[..., None, :], self.v[..., None, :]

    def anatomy(self, x: Array, y: Array = None) -> Anatomy:
        """Take the sharpness of the mean-squared error apart into four terms that add up to it."""
        return dissect(self.w, self.v, self._gram.at(0), self._objective(self._data(x, y), "mse"))

    def phase(self, x: Array, y: Array = None) -> Any:
        """Return ``"early"``, ``"late"`` or ``"divergent"``; None if the solution is g = 0.

        Early up to a third of the least-squares solution, late from there to the solution,
        divergent beyond it (Singh & Hofmann, Section 1). A residual–input covariance that is zero
        to rounding counts as late.
        """
        return phase_of(self._coefficients[..., 0], self._objective(self._data(x, y), "mse"))

    def descent(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse"
    ) -> ScalarDescent:
        """Return how gradient descent moves the network: along w + v and w − v."""
        return ScalarDescent(self, self._data(x, y), loss)

    def _predict(self, inputs: Array) -> Array:
        return self._coefficients[..., None] * inputs

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        return scalar_objective(data, loss)
