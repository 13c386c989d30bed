"""How far the cells of a ReLU network are from being independent of each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import array_api_compat as api
import numpy as np

from hessence._common.arguments import require_int
from hessence._common.arrays import Array, Numbers, epsilon, integers
from hessence.networks.hidden_layers import scatter
from hessence.networks.relu.hessian import ReLUHessian
from hessence.spectra.small_eigen import eigenvalues
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Columns, Subspaces


@dataclass(frozen=True, eq=False)
class IndependentCells:
    """The Hessian H′ of cells that are independent of each other, and how far it is from H.

    Each cell of a hidden layer owns its incoming and outgoing weights, and all other weights form
    one more group. H′ is H without the blocks between different groups. Two cells meet in the
    predictions of a sample for which both are on. With one hidden layer and one input none do, and
    H′ = H; in a deeper network H′ also lacks the coupling to other layers.

    Attributes
    ----------
    spectrum : Spectrum
        All eigenvalues and eigenvectors of H′, those of every group by itself, labelled
        ``twin/cell c`` where H has ``twin``; for the other weights, ``twin/output`` (the biases of
        the outputs) with one hidden layer, and ``twin/other layers`` with more.
    distance : array
        A bound for the spectral norm ‖H − H′‖: as computed, with all that rounding may hide.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> net = hs.TwoLayerReLU(rng.normal(size=(50, 2)), rng.normal(size=(1, 50)))
    >>> x, y = rng.normal(size=(9, 2)), rng.normal(size=(9, 1))
    >>> cells, s = net.independent_cells(x, y), net.hessian(x, y).spectrum()
    >>> bool(np.all(cells.lower <= s.eigenvalues) and np.all(s.eigenvalues <= cells.upper))
    True
    >>> float((cells.spectrum.sharpness / s.sharpness).round(2))
    0.55
    """

    spectrum: Spectrum
    distance: Array

    @property
    def lower(self) -> Array:
        """A lower bound for each eigenvalue of H: Weyl's inequality, less ``spectrum.errors``."""
        return self.spectrum.eigenvalues - self.spectrum.errors - self.distance

    @property
    def upper(self) -> Array:
        """An upper bound for each eigenvalue of H."""
        return self.spectrum.eigenvalues + self.spectrum.errors + self.distance

    def __repr__(self) -> str:
        share = float(self.distance) / (float(self.spectrum.norm) or 1.0)
        return (
            f"IndependentCells({len(self.spectrum)} eigenvalues, distance "
            f"{float(self.distance):.3g}, {share:.2g} of their largest)"
        )


def independent_cells(H: ReLUHessian, layer: int) -> IndependentCells:
    """Return the Hessian in which the cells of a hidden layer are independent.

    Only this layer is reduced: what is invariant because of another layer's cells may lie in
    several cells of this one, and then H′ does not leave it invariant.
    """
    require_int("layer", layer, 1, H.depth - 1)
    H = replace(H, reducible=(layer,))
    H.require_small()
    reduction, xp = H.reduction, api.array_namespace(H.x)
    owners, block = reduction.owners(), H.block()
    same = xp.asarray(owners[:, None] == owners, device=api.device(H.x))
    cut = xp.where(same, xp.zeros_like(block), block)
    distance = xp.max(xp.abs(eigenvalues(cut))) if reduction.size else 0 * xp.sum(H.gradient)
    # Blocks of H′ and the rest are turned and rounded with all of H, which may be larger than both.
    turned = (100 + reduction.size) * epsilon(block) * float(xp.sqrt(xp.sum(block * block)))
    _, *outside = reduction.families()
    others = "output" if H.depth == 2 else "other layers"

    def inside(cell: int) -> Subspaces:
        own: Numbers = np.flatnonzero(owners == cell)
        index = integers(own, block)
        matrix = xp.take(xp.take(block, index, axis=0), index, axis=1)

        def embed(columns: Array) -> Array:
            placed = scatter(xp.matrix_transpose(columns), own, reduction.size)
            return reduction.widen(xp.matrix_transpose(placed))

        label = f"twin/{others if cell < 0 else f'cell {cell}'}"
        return Subspaces((label,) * len(own), lambda _: Columns(embed), matrix=matrix)

    families = [inside(int(cell)) for cell in np.unique(owners)]
    spectrum = Spectrum([*families, *outside], "independent cells", operator=H, defect=turned)
    return IndependentCells(spectrum, distance + turned + float(H.rounded))
