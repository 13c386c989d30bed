"""Which exact route brings the Hessian of a linear network down to a size that can be solved."""

from __future__ import annotations

from hessence._common.arrays import epsilon, requires_gradient, to_numpy
from hessence.data.matrix_objectives import Separable
from hessence.networks.linear.aligned import TOLERANCE, find_chains
from hessence.networks.linear.ggn_blocks import LARGEST_BLOCK, GaussNewton, TooLargeError
from hessence.networks.linear.linear_hessian import LinearHessian
from hessence.networks.linear.pair_blocks import PairReduction
from hessence.networks.linear.range_reduction import RangeReduction
from hessence.networks.linear.twin_blocks import TwinReduction
from hessence.spectra.spectrum import Spectrum


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
    no_residual = H.part == "hessian" and not to_numpy(H.gradient).any()
    too_large = None
    if H.part == "ggn" or no_residual:
        try:
            parts = GaussNewton(H)
            return Spectrum(parts.blocks(), parts.route)
        except TooLargeError as error:
            too_large = error
    if len(H.weights) == 2:
        twin = TwinReduction(H)
        if twin.bound <= LARGEST_BLOCK:
            return Spectrum(twin.blocks(), "narrow twin")
    # The pair blocks are found in NumPy, out of PyTorch's sight.
    if isinstance(H.loss_hessian, Separable) and not requires_gradient(H.gradient, *H.weights):
        chains = find_chains(H)
        if chains.defect <= TOLERANCE * epsilon(H.gradient):
            method = f"aligned pairs (off by {chains.defect:.0e}, tolerance {TOLERANCE} ε)"
            return Spectrum(PairReduction(H, chains).blocks(), method)
    if too_large is not None:
        raise too_large
    reduced = RangeReduction(H, H.before[:-1], H.after[1:])
    if reduced.size <= LARGEST_BLOCK:
        return Spectrum(reduced.blocks(), "range reduction")
    raise ValueError(
        f"no exact route leads to the whole spectrum of this {'-'.join(map(str, H.dims))} network: "
        f"it is not aligned, and {reduced.size} of its {H.shape[-1]} dimensions matter, more than "
        f"the {LARGEST_BLOCK} that a dense solver is given; call H.top(k) for the extreme "
        "eigenvalues, or H.ggn.spectrum()."
    )
