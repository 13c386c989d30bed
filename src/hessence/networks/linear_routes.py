"""Which exact route brings the Hessian of a linear network down to a size that can be solved."""

from __future__ import annotations

from hessence.networks.linear_hessian import LinearHessian
from hessence.networks.twin_blocks import TwinReduction
from hessence.spectra import Spectrum

DENSE_LIMIT = 4000
"""The largest eigenproblem that a spectrum may leave to a dense solver."""


def spectrum_of(H: LinearHessian) -> Spectrum:
    """Return the whole spectrum by the cheapest exact route that applies."""
    if len(H.shape) > 2:
        raise ValueError(
            "a spectrum is for one network; pick one of the batch, as in net[0].hessian(x, y), "
            "or call H.top(k) for the extreme eigenvalues of all."
        )
    twin = TwinReduction(H)
    return Spectrum(twin.blocks(), "narrow twin")
