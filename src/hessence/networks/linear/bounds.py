"""What is known of a deep linear network's spectrum without an eigensolver for the Hessian."""

from __future__ import annotations

from dataclasses import dataclass

import array_api_compat as api

from hessence._common.arrays import Array, like
from hessence.data.matrix_objectives import Separable
from hessence.networks.linear.hessian import LinearHessian
from hessence.networks.scalar.nearly_orthonormal import NearlyOrthonormal


@dataclass(frozen=True)
class LinearBounds:
    """Bounds on the spectrum of a linear network.

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
    orthonormal : NearlyOrthonormal or None
        For two layers with one output: the closed form at the nearest orthonormal first layer, its
        ``spectrum``, the ``distance`` of H from it, and ``brackets()`` by Weyl's inequality.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> V = np.linalg.qr(rng.normal(size=(50, 3)))[0] + 1e-4 * rng.normal(size=(50, 3))
    >>> x = hs.whiten(rng.normal(size=(40, 3)))
    >>> net = hs.TwoLayerLinear(V, rng.normal(size=(1, 50)))
    >>> y = 0 * x[:, :1]
    >>> near, exact = net.bounds(x, y).orthonormal, net.hessian(x, y).spectrum()
    >>> b = near.brackets()
    >>> near.distance < 0.02, bool((b.lower <= exact.eigenvalues).all())
    (True, True)
    >>> pair = near.spectrum["outlier/pair"]
    >>> bool(np.isclose(pair[0].value + pair[1].value, exact.trace / 3))
    True
    """

    trace: Array
    ggn_norm: Array
    functional_norm: Array
    sharpness: tuple[Array, Array]
    orthonormal: NearlyOrthonormal | None
    _hessian: LinearHessian

    def intervals(self) -> tuple[Array, Array]:
        """Return a lower and an upper bound for every eigenvalue of H, largest first.

        Weyl: the k-th eigenvalue of H is within ‖H − ggn‖ of the k-th of the Gauss–Newton part, and
        within ``orthonormal.distance`` of the k-th of that closed form.
        """
        spectrum = self._hessian.ggn.spectrum()
        rounding = spectrum.errors + like(self._hessian.rounded, spectrum.eigenvalues)
        values, radius = spectrum.eigenvalues, self.functional_norm + rounding
        if self.orthonormal is None:
            return values - radius, values + radius
        xp, near = api.array_namespace(values), self.orthonormal.brackets()
        lower, upper = (like(ends, values) for ends in (near.lower, near.upper))
        return xp.maximum(values - radius, lower), xp.minimum(values + radius, upper)


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
        orthonormal=H.nearly_orthonormal(),
        _hessian=H,
    )
