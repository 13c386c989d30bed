"""Which exact route brings the Hessian of a linear network down to a size that can be solved."""

from __future__ import annotations

from hessence.arrays import epsilon, to_numpy
from hessence.matrix_objectives import Separable
from hessence.networks.aligned import TOLERANCE, find_chains
from hessence.networks.ggn_blocks import GaussNewton
from hessence.networks.linear_hessian import LinearHessian
from hessence.networks.pair_blocks import PairReduction
from hessence.networks.range_reduction import RangeReduction
from hessence.networks.twin_blocks import TwinReduction
from hessence.spectra import Spectrum

DENSE_LIMIT = 4000
"""The largest eigenproblem that a spectrum may leave to a dense solver."""


def spectrum_of(H: LinearHessian) -> Spectrum:
    """Return the whole spectrum by the cheapest exact route that applies.

    The Gauss–Newton part, which is all there is at a solution, needs the d_0 d_L matrix at most.
    Two layers go to the narrow twin. Deeper networks are tried for alignment, and else restricted
    to the range of their Hessian.
    """
    if len(H.shape) > 2:
        raise ValueError(
            "a spectrum is for one network; pick one of the batch, as in net[0].hessian(x, y), "
            "or call H.top(k) for the extreme eigenvalues of all."
        )
    no_residual = H.part == "hessian" and not to_numpy(H.slope).any()
    if (H.part == "ggn" or no_residual) and H.dims[0] * H.dims[-1] <= DENSE_LIMIT:
        parts = GaussNewton(H)
        return Spectrum(parts.blocks(), parts.route)
    if len(H.weights) == 2:
        twin = TwinReduction(H)
        if twin.bound <= DENSE_LIMIT:
            return Spectrum(twin.blocks(), "narrow twin")
    if isinstance(H.bend, Separable):
        chains = find_chains(H)
        if chains.defect <= TOLERANCE * epsilon(H.slope):
            method = f"aligned pairs (off by {chains.defect:.0e}, tolerance {TOLERANCE} ε)"
            return Spectrum(PairReduction(H, chains).blocks(), method)
    reduced = RangeReduction(H)
    if reduced.size <= DENSE_LIMIT:
        return Spectrum(reduced.blocks(), "range reduction")
    raise ValueError(
        f"no exact route leads to the whole spectrum of this {'-'.join(map(str, H.dims))} network: "
        f"it is not aligned, and {reduced.size} of its {H.shape[-1]} dimensions matter, more than "
        f"the {DENSE_LIMIT} that a dense solver is given; call H.top(k) for the extreme "
        "eigenvalues, or H.ggn.spectrum()."
    )
