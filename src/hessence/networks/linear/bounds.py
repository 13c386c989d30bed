"""What is known of a deep linear network's spectrum without an eigensolver for the Hessian."""

from __future__ import annotations

from dataclasses import dataclass

from hessence._common.arrays import Array, like
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
    (_, most), functional = H.ggn_bounds(), like(H.functional_bound(), H.gradient)
    norm = like(most, H.gradient)
    # At most d_0 d_L eigenvalues share the trace of the Gauss–Newton part.
    lower = H.trace() / min(H.dims[0] * H.dims[-1], H.shape[-1])
    return LinearBounds(
        trace=H.trace(),
        ggn_norm=norm,
        functional_norm=functional,
        sharpness=(lower - functional, norm + functional),
        _hessian=H,
    )
