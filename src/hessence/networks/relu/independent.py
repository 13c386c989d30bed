"""How far the cells of a ReLU network are from being independent of each other."""

from __future__ import annotations

from dataclasses import dataclass

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, integers
from hessence.networks.hidden_layers import scatter
from hessence.networks.relu.hessian import ReLUHessian
from hessence.spectra.small_eigen import eigenvalues
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Columns, Subspaces


@dataclass(frozen=True, eq=False)
class IndependentCells:
    """The Hessian H′ in which cells know nothing of each other, and how far it is from H.

    H′ is H without the blocks between parameters of different cells. Two cells meet in the
    predictions of a sample for which both are on: with one input none do, and H′ = H.

    Attributes
    ----------
    spectrum : Spectrum
        All eigenvalues and eigenvectors of H′, those of every cell by itself, labelled
        ``twin/cell c`` where H has ``twin``.
    distance : array
        The spectral norm ‖H − H′‖, rounding included.

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
        """A lower bound for each eigenvalue of H, descending: Weyl's inequality."""
        return self.spectrum.eigenvalues - self.distance

    @property
    def upper(self) -> Array:
        """An upper bound for each eigenvalue of H, descending."""
        return self.spectrum.eigenvalues + self.distance

    def __repr__(self) -> str:
        share = float(self.distance) / (float(self.spectrum.norm) or 1.0)
        return (
            f"IndependentCells({len(self.spectrum)} eigenvalues, distance "
            f"{float(self.distance):.3g}, {share:.2g} of their largest)"
        )


def independent_cells(H: ReLUHessian) -> IndependentCells:
    """Return the Hessian of independent cells, for a network with one hidden layer."""
    if H.depth != 2:
        raise ValueError(
            "independent cells are for networks with one hidden layer: a weight between two hidden "
            f"layers belongs to a cell of each, and this network has {H.depth - 1}."
        )
    H.require_small()
    reduction, xp = H.reduction, api.array_namespace(H.x)
    owners, block = reduction.owners(), H.block()
    same = xp.asarray(owners[:, None] == owners, device=api.device(H.x))
    cut = xp.where(same, xp.zeros_like(block), block)
    distance = xp.max(xp.abs(eigenvalues(cut))) if reduction.size else 0 * xp.sum(H.gradient)
    rounding = (100 + reduction.size) * epsilon(block) * xp.sqrt(xp.sum(block * block))
    _, *outside = reduction.families()

    def inside(cell: int) -> Subspaces:
        own: Numbers = np.flatnonzero(owners == cell)
        index = integers(own, block)
        matrix = xp.take(xp.take(block, index, axis=0), index, axis=1)

        def embed(columns: Array) -> Array:
            placed = scatter(xp.matrix_transpose(columns), own, reduction.size)
            return reduction.widen(xp.matrix_transpose(placed))

        label = "twin/output" if cell < 0 else f"twin/cell {cell}"
        return Subspaces((label,) * len(own), lambda _: Columns(embed), matrix=matrix)

    families = [inside(int(cell)) for cell in np.unique(owners)]
    spectrum = Spectrum([*families, *outside], "independent cells")
    return IndependentCells(spectrum, distance + rounding)
