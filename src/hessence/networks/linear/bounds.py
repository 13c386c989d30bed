"""What is known of a deep linear network's spectrum without an eigensolver for the Hessian."""

from __future__ import annotations

from dataclasses import dataclass

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, like, to_numpy, transpose
from hessence.data.matrix_objectives import Separable
from hessence.networks.linear.hessian import LinearHessian


@dataclass(frozen=True)
class LinearBounds:
    """Bounds on the spectrum of a deep linear network.

    Attributes
    ----------
    trace : array
        The trace of the Hessian, exactly: Σ_ℓ ‖P_ℓ Σ^½‖²_F ‖S_ℓ‖²_F. The functional part has none.
    ggn_norm : array
        An upper bound on the largest eigenvalue of the Gauss–Newton part: Σ_ℓ ‖P_ℓ Σ^½‖² ‖S_ℓ‖².
    functional_norm : array
        An upper bound on the norm of the functional part H − ggn.
    sharpness : tuple of array
        An interval that holds the largest eigenvalue of H.
    """

    trace: Array
    ggn_norm: Array
    functional_norm: Array
    sharpness: tuple[Array, Array]
    _hessian: LinearHessian

    def intervals(self) -> tuple[Array, Array]:
        """Return a lower and an upper bound for every eigenvalue of H, largest first.

        Weyl: the k-th eigenvalue of H is within ‖H − ggn‖ of the k-th of the Gauss–Newton part.
        """
        values = self._hessian.ggn.spectrum().eigenvalues
        return values - self.functional_norm, values + self.functional_norm


def bounds_of(H: LinearHessian) -> LinearBounds:
    """Compute the bounds of a Hessian of the mean-squared error."""
    if not isinstance(H.loss_hessian, Separable):
        raise TypeError("bounds are known for the mean-squared error.")
    xp = api.array_namespace(H.gradient)
    total = 0.0
    for p, s in zip(H.chain.before, H.chain.after, strict=True):
        triangle = xp.linalg.qr(p)[1]
        data = xp.matmul(xp.matmul(triangle, H.loss_hessian.variance), transpose(triangle))
        total += _spectral(data) * _spectral(s) ** 2
    norm = like(total, H.gradient)
    functional = like(_functional_norm(H), H.gradient)
    # At most d_0 d_L eigenvalues share the trace of the Gauss–Newton part.
    lower = H.trace() / min(H.dims[0] * H.dims[-1], H.shape[-1])
    return LinearBounds(
        trace=H.trace(),
        ggn_norm=norm,
        functional_norm=functional,
        sharpness=(lower - functional, norm + functional),
        _hessian=H,
    )


def _functional_norm(H: LinearHessian) -> float:
    """Return the norm of the L × L matrix of ‖P_l Gᵀ S_k‖ ‖W_{k−1} ⋯ W_{l+1}‖, which bounds it.

    Each term of the functional part is tr(P_l Gᵀ S_k dW_k W_{k−1} ⋯ W_{l+1} dW_l), at most that
    number times ‖dW_k‖ ‖dW_l‖.
    """
    xp = api.array_namespace(H.gradient)
    depth = len(H.weights)
    table = np.zeros((depth, depth))
    for k in range(1, depth + 1):
        for l in range(1, k):  # noqa: E741 - the papers' letter
            chain = xp.matmul(
                xp.matmul(H.chain.before[l - 1], transpose(H.gradient)), H.chain.after[k - 1]
            )
            middle = H.chain.between(k, l)
            size = _spectral(chain) * (1.0 if middle is None else _spectral(middle))
            table[k - 1, l - 1] = table[l - 1, k - 1] = size
    return float(np.abs(np.linalg.eigvalsh(table)).max())


def _spectral(matrix: Array) -> float:
    return float(np.linalg.norm(to_numpy(matrix), ord=2))
