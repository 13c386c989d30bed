r"""The Hessian of a network's loss from differences of its gradient, in extended precision.

A certificate that compares a spectrum with the Hessian it came from cannot see an error that both
share. The gradient knows nothing of second derivatives, and

.. math:: H z = \frac{4}{3}\,\frac{\nabla\ell(\theta + hz) - \nabla\ell(\theta - hz)}{2h}
          - \frac{1}{3}\,\frac{\nabla\ell(\theta + 2hz) - \nabla\ell(\theta - 2hz)}{4h} + O(h^4).

In ``numpy.longdouble``, which has 64 bits on x86, that is right to some 1e-15 of the terms that
cancel. Where a platform's long double is a double, it is right to some 1e-12.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence._common.arrays import Array, Numbers, extended_precision, like, to_numpy

LONG = np.longdouble


class GradientDifferences:
    """An operator that multiplies by differences of the gradient of ``net.loss(x, y, loss)``."""

    most_columns = 256
    """Larger networks do not have their trace and norm read off their columns."""

    def __init__(self, net: Any, x: Any, y: Any = None, loss: Any = "mse", **options: Any) -> None:
        if net.batch_shape:
            raise ValueError("verify takes one network at a time; pick one of the batch first.")
        with extended_precision():
            self._net = net._rebuild({name: _long(w) for name, w in net._weights.items()})
        self._data = tuple(_long(a) if _real(a) else a for a in (x, y) if a is not None)
        self._options = {"loss": loss, **options}
        self._theta = self._net.parameters()
        self.shape = (len(self._theta),) * 2
        size = float(np.abs(self._theta).max(initial=0.0)) or 1.0
        self._step = LONG(np.finfo(LONG).eps) ** LONG(0.2) * size / 4

    def __matmul__(self, columns: Array) -> Array:
        plain = _long(columns)
        images = [self._image(z) for z in np.atleast_2d(plain.T)]
        found = images[0] if plain.ndim == 1 else np.stack(images, axis=-1)
        return like(found.astype(np.float64), columns)

    def _image(self, z: Numbers) -> Numbers:
        length = np.abs(z).max(initial=LONG(0.0))
        if not length:
            return np.zeros_like(z)
        step = self._step * z / length
        near, far = (self._difference(k * step) / k for k in (1, 2))
        found: Numbers = (4 * near - far) / 3 * (length / self._step)
        return found

    def _difference(self, step: Numbers) -> Numbers:
        ahead, behind = (self._gradient(self._theta + sign * step) for sign in (1, -1))
        found: Numbers = (ahead - behind) / 2
        return found

    def _gradient(self, theta: Numbers) -> Numbers:
        with extended_precision():
            net = self._net.with_parameters(theta)
            found: Numbers = net.gradient(*self._data, **self._options)
        return found


def _long(array: Any) -> Numbers:
    return np.asarray(to_numpy(array) if hasattr(array, "shape") else array).astype(LONG)


def _real(array: Any) -> bool:
    """Tell numbers from classes, and from data that are neither."""
    kind = getattr(to_numpy(array) if hasattr(array, "shape") else np.asarray(array), "dtype", None)
    return kind is not None and kind.kind == "f"
