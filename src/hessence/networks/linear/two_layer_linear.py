"""Two-layer linear networks of any size, with and without a residual connection around both."""

from __future__ import annotations

from typing import Any, Self

import array_api_compat as api

from hessence._common.arrays import Array, floating, require_shape
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
        _, W1, W2 = floating(W1=W1, W2=W2)
        require_shape("W1", W1, ("m", "D"), batch=True)
        require_shape("W2", W2, ("K", int(W1.shape[-2])), batch=True)
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


class ResidualLinear(TwoLayerLinear):
    """f(x) = (I + W2 W1) x, with parameters ordered (W1, W2), each row by row.

    The loss sees M = I + W2 W1, and M moves as W2 W1 does: the Hessian of any loss is that of the
    narrow twin, whose hidden width is at most 2 d, beside a bulk ±σ_i(∂ℓ/∂M) on the hidden
    directions that neither matrix uses (:func:`hessence.narrow_twin`). Labels: ``twin``, ``bulk``,
    ``flat``. Layers I + W of any number are ``hs.DeepLinear(..., residual=True)``.

    Parameters
    ----------
    W1 : array (..., m, d)
        First layer.
    W2 : array (..., d, m)
        Second layer.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> net = hs.ResidualLinear(rng.normal(size=(50, 2)), rng.normal(size=(2, 50)))
    >>> x, y = rng.normal(size=(9, 2)), rng.normal(size=(9, 2))
    >>> bool(np.allclose(net(x), x + x @ net.W1.T @ net.W2.T))
    True
    >>> H = net.hessian(x, y)
    >>> s = H.spectrum()
    >>> len(s), s.method, s.verify(H).worst < 1e-13
    (200, 'narrow twin', True)
    """

    def __init__(self, W1: Array, W2: Array) -> None:
        super().__init__(W1, W2)
        if self.dims[0] != self.dims[-1]:
            raise ValueError(
                f"W2 must have as many outputs as W1 has inputs, {self.dims[0]}, for the residual "
                f"connection, got {self.dims[-1]}."
            )

    @property
    def product(self) -> Array:
        """The end-to-end matrix I + W2 W1."""
        xp = api.array_namespace(self.W1)
        eye = xp.eye(self.dims[0], dtype=self.W1.dtype, device=api.device(self.W1))
        return eye + self.chain.product

    def _rebuild(self, weights: dict[str, Array]) -> Self:
        return type(self)(**weights)
