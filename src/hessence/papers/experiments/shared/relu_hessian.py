r"""Products with the Hessians of a batch of ReLU networks, in batched matrix products.

With :math:`h_\ell = \phi(W_\ell h_{\ell-1})`, the last layer without φ, and
:math:`b_{\ell-1} = \phi' \odot W_\ell^\top b_\ell` from the residuals back, a direction dW moves h
by :math:`dz_\ell = dW_\ell h_{\ell-1} + W_\ell\,dh_{\ell-1}` and the gradient :math:`b_\ell
h_{\ell-1}^\top` by :math:`db_\ell h_{\ell-1}^\top + b_\ell\,dh_{\ell-1}^\top` (Pearlmutter's
R-operator). φ″ is zero wherever there is a Hessian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np


class ReLUHessian:
    """The Hessians of ½ E‖f − y‖² for ReLU networks without biases, as one batched operator.

    Parameters
    ----------
    weights : sequence of array (N, d_ℓ, d_{ℓ−1})
        The layers, first to act first; the type of products is theirs.
    x, y : array (n, d_0), (n, d_L)
        The data, shared by all networks.
    multipliers : sequence of float, optional
        One fixed factor for each layer.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> weights = [rng.normal(size=(2, 3, 1)), rng.normal(size=(2, 1, 3))]
    >>> H = ReLUHessian(weights, rng.normal(size=(5, 1)), rng.normal(size=(5, 1)))
    >>> H.shape, bool(np.allclose(H.dense(), np.swapaxes(H.dense(), 1, 2)))
    ((2, 6, 6), True)
    """

    def __init__(
        self, weights: Sequence[Any], x: Any, y: Any, multipliers: Sequence[float] | None = None
    ) -> None:
        self.dtype = weights[0].dtype
        self._factors = [1.0] * len(weights) if multipliers is None else list(multipliers)
        self._layers = [
            (w * c).astype(self.dtype) for w, c in zip(weights, self._factors, strict=True)
        ]
        self._sizes = [(int(w.shape[-2]), int(w.shape[-1])) for w in weights]
        self._samples = len(x)
        hidden = [np.broadcast_to(x.T.astype(self.dtype), (len(weights[0]), *x.T.shape))]
        self._gates = []
        for w in self._layers[:-1]:
            z = w @ hidden[-1]
            self._gates.append((z > 0).astype(self.dtype))
            hidden.append(np.maximum(z, 0))
        self._hidden = hidden
        self.residual = self._layers[-1] @ hidden[-1] - y.T.astype(self.dtype)
        back = [self.residual / self.dtype.type(self._samples)]
        for w, gate in zip(self._layers[:0:-1], self._gates[::-1], strict=True):
            back.append(gate * (np.swapaxes(w, 1, 2) @ back[-1]))
        self._back = back[::-1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The batch and the number of parameters, twice."""
        p = sum(math.prod(size) for size in self._sizes)
        return (len(self._layers[0]), p, p)

    def __matmul__(self, columns: Any) -> Any:
        """Multiply columns (N, p, b)."""
        images = [self._product(columns[..., i]) for i in range(columns.shape[-1])]
        return np.stack(images, axis=-1)

    def dense(self) -> Any:
        """Return the matrices (N, p, p), one product for each column."""
        count, p, _ = self.shape
        out = np.empty(self.shape, self.dtype)
        for i in range(p):
            unit = np.zeros((count, p), self.dtype)
            unit[:, i] = 1
            out[:, :, i] = self._product(unit)
        return out

    def _product(self, vectors: Any) -> Any:
        """Multiply one vector for each network, (N, p)."""
        ends = list(accumulate(math.prod(size) for size in self._sizes))
        changes = [
            (c * piece).astype(self.dtype).reshape(-1, *size)
            for c, piece, size in zip(
                self._factors, np.split(vectors, ends[:-1], axis=1), self._sizes, strict=True
            )
        ]
        moved: list[Any] = [None]
        for i, (w, change) in enumerate(zip(self._layers, changes, strict=True)):
            step = change @ self._hidden[i]
            if moved[-1] is not None:
                step += w @ moved[-1]
            if i < len(self._gates):
                step *= self._gates[i]
            moved.append(step)
        d_back = moved.pop() / self.dtype.type(self._samples)
        out = []
        for i in reversed(range(len(self._layers))):
            gradient = d_back @ np.swapaxes(self._hidden[i], 1, 2)
            if i:
                gradient += self._back[i] @ np.swapaxes(moved[i], 1, 2)
                d_back = np.swapaxes(self._layers[i], 1, 2) @ d_back
                d_back += np.swapaxes(changes[i], 1, 2) @ self._back[i]
                d_back *= self._gates[i - 1]
            out.append((self._factors[i] * gradient).reshape(len(gradient), -1))
        return np.concatenate(out[::-1], axis=1).astype(self.dtype)
