"""The two-layer linear network with a residual connection around both layers."""

from __future__ import annotations

from typing import Self

from hessence._common.arrays import Array, identity
from hessence.networks.linear.two_layer_linear import TwoLayerLinear


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
    def constant(self) -> Array:
        """The identity."""
        return identity(self.dims[0], self.W1)

    def _rebuild(self, weights: dict[str, Array]) -> Self:
        return type(self)(**weights)
