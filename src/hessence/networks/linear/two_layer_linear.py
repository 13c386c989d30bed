"""The two-layer linear network of any input, hidden and output size."""

from __future__ import annotations

from typing import Any, Self

from hessence._common.arrays import Array
from hessence.networks.linear.network import LinearNetwork, as_layers, as_multipliers


class TwoLayerLinear(LinearNetwork):
    """f(x) = W2 W1 x, with parameters ordered (W1, W2), each row by row.

    The Hessian of any loss is that of the narrow twin, whose hidden width is at most K + D, beside
    a bulk ±σ_i(∂ℓ/∂M) on the hidden directions that neither matrix uses
    (:func:`hessence.narrow_twin`). Labels: ``twin``, ``bulk``, ``flat``.

    Parameters
    ----------
    W1 : array (..., m, D)
        First layer.
    W2 : array (..., K, m)
        Second layer.
    multipliers : pair of float, optional
        Fixed factors c1, c2 in f(x) = c2 W2 c1 W1 x, as other parametrisations have them.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> net = hs.TwoLayerLinear(rng.normal(size=(100_000, 3)), rng.normal(size=(2, 100_000)))
    >>> x, y = rng.normal(size=(50, 3)), rng.normal(size=(50, 2))
    >>> s = net.hessian(x, y).spectrum()
    >>> len(s), s.method, sum(space.multiplicity for space in s["bulk"])
    (500000, 'narrow twin', 399980)
    """

    def __init__(self, W1: Array, W2: Array, multipliers: Any = None) -> None:
        self.weights = as_layers({"W1": W1, "W2": W2})
        self.multipliers = as_multipliers(multipliers, 2)

    @property
    def W1(self) -> Array:
        """The first layer."""
        return self.weights[0]

    @property
    def W2(self) -> Array:
        """The second layer."""
        return self.weights[1]

    def _rebuild(self, weights: dict[str, Array]) -> Self:
        return type(self)(**weights, multipliers=self.multipliers)
