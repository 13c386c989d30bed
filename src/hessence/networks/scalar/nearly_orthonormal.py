r"""Two layers with one output whose first layer is nearly orthonormal: every eigenvalue, bracketed.

The Hessian of a loss of β = Vᵀw is :math:`H = J^\top S J + F(\delta)` with J = [I ⊗ wᵀ, Vᵀ], S and
δ the loss's second and first derivative in β, and F(δ) the map that exchanges dw and dV δ, of norm
‖δ‖. Let H₀ have the same w but V₀ with :math:`V_0^\top V_0 = \nu^2 I`, S₀ = s I, and δ₀ along
:math:`V_0^\top w`; it has the closed form of :mod:`hessence.networks.scalar._orthonormal`. With
e = ‖V − V₀‖, the difference of JᵀJ and J₀ᵀJ₀ has no block for dV with dV, one of norm at most
a = ‖w‖ e for dV with dw, and :math:`V V^\top - V_0 V_0^\top`, of norm at most b = e (2‖V₀‖ + e),
for dw with dw. So

.. math:: \|H - H_0\| \le |s|\big(b/2 + \sqrt{b^2/4 + a^2}\big)
    + (\|w\|^2 + \|V\|^2)\,\|S - s I\| + \|\delta - \delta_0\|,

and by Weyl's inequality no eigenvalue of H is further from that of H₀ in its place. V₀ is the polar
factor of V, times the ν that keeps ‖V‖_F: on white data H₀ has the trace of H, and its pair adds up
to tr/D.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hessence._common.arrays import Numbers, epsilon, like, to_double, to_numpy
from hessence.data.rounding import terms
from hessence.networks.scalar._orthonormal import Orthonormal
from hessence.networks.scalar.vector_hessian import VectorHessian
from hessence.spectra.brackets import Brackets
from hessence.spectra.spectrum import Spectrum

REASON = (
    "Weyl's inequality: the closed form at the nearest orthonormal first layer, at most {:.2g} away"
)


@dataclass(frozen=True)
class NearlyOrthonormal:
    """The closed form next to a network's Hessian, and how far away it may be.

    Attributes
    ----------
    spectrum : Spectrum
        That of H₀, the Hessian at the nearest orthonormal first layer.
    distance : float
        A bound for the spectral norm of H − H₀, with what rounding has done to H.
    zeros : int
        At least so many eigenvalues of H are exactly zero.
    """

    spectrum: Spectrum
    distance: float
    zeros: int

    def brackets(self) -> Brackets:
        """Return an interval for every eigenvalue of H; rounding is in them."""
        values, errors = map(to_double, (self.spectrum.eigenvalues, self.spectrum.errors))
        radius = np.nextafter(errors + self.distance, np.inf)
        lower, upper = values - radius, values + radius
        return Brackets(
            lower=np.maximum.accumulate(np.nextafter(lower, -np.inf)[::-1])[::-1],
            upper=np.minimum.accumulate(np.nextafter(upper, np.inf)),
            zeros=self.zeros,
            level=1.0,
            method="nearly orthonormal",
            reason=REASON.format(self.distance),
        )


def nearly_orthonormal(H: VectorHessian) -> NearlyOrthonormal | None:
    """Return the closed form nearest to a Hessian, None where no first layer is orthonormal."""
    inputs, m = map(int, H.V.shape)
    w, V, delta, second = map(to_double, (H.w, H.V, H.gradient, H.loss_hessian))
    if m < inputs or not V.any():
        return None
    left, _, right = np.linalg.svd(V, full_matrices=False)
    nearest = np.linalg.norm(V) / inputs**0.5 * (left @ right)
    s = float(np.trace(second)) / inputs
    H0 = replace(
        H,
        V=like(nearest, H.V),
        gradient=like(_along(delta, nearest @ w, 4 * inputs * abs(s)), H.gradient),
        loss_hessian=like(s * np.eye(inputs), H.loss_hessian),
        derivatives=None,
    )
    closed = Orthonormal(H0)
    spectrum = Spectrum(closed.hessian(), "closed form", operator=H0, defect=closed.neglected())
    distance = _distance(H, H0) + float(to_numpy(H.rounded))
    # dV with dV δ = 0 and dVᵀ w = 0 is seen neither by β nor by F(δ).
    return NearlyOrthonormal(spectrum, distance, (inputs - 1) * (m - 1))


def _along(delta: Numbers, beta: Numbers, cost: float) -> Numbers:
    """Return the part of δ along β, or δ itself if neglecting the rest of β costs less."""
    size = float(beta @ beta)
    if not size:
        return delta
    part: Numbers = (delta @ beta) / size * beta
    rest = beta - (beta @ delta) / max(float(delta @ delta), np.finfo(float).tiny) * delta
    cheaper = cost * np.abs(rest).max() < np.linalg.norm(delta - part)
    return delta if cheaper else part


def _distance(H: VectorHessian, H0: VectorHessian) -> float:
    """Return the bound of ‖H − H₀‖ for the numbers that both hold, rounded outward."""
    w, V, V0, delta, delta0, second, second0 = map(
        to_double, (H.w, H.V, H0.V, H.gradient, H0.gradient, H.loss_hessian, H0.loss_hessian)
    )
    share = epsilon(H.w) * (64 + 2 * terms(len(w)))
    length, size, size0, moved, coloured, turned = (
        (1 + share) * float(np.linalg.norm(a, 2))
        for a in (w, V, V0, V - V0, second - second0, delta - delta0)
    )
    a, b = length * moved, moved * (2 * size0 + moved)
    of_layer = abs(float(second0[0, 0])) * (b / 2 + np.hypot(b / 2, a))
    of_data = (length**2 + size**2) * coloured
    return float((1 + share) * (of_layer + of_data + turned))
