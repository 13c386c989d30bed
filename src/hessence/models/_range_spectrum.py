"""Spectra on the range of a model's Hessian: exact where it is small, else estimated inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hessence._common.device import budget
from hessence.models._range import Coordinates, HessianRange, NoRange
from hessence.models.rounding import DRAWS, FACTOR
from hessence.spectra.reduced import Reduced
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Columns, Subspaces

LARGEST = 4096
"""The most dimensions of a range on which the whole spectrum is computed."""

MATRICES = 6
"""How many matrices of that size a dense solver needs at a time."""

AGREEMENT = {torch.float64: 1e-8, torch.float32: 2e-4}
"""How much of a product may lie where the theorem says that there is nothing, relative."""

THEOREM = (
    "range: the Hessian sees a change of a layer only through what the layer takes and through the "
    "gradients at what it makes, and all other directions are flat."
)


def on_range(H: Any, most: int) -> Reduced:
    """Return a model's Hessian on its range, after products have confirmed it.

    Raises
    ------
    NoRange
        If the range has more than `most` dimensions.
    """
    coordinates = Coordinates(HessianRange(H, most))
    flat = Subspaces(
        ("flat",), lambda _: Columns(coordinates.embed_flat), coordinates.flat,
        values=H.reference.new_zeros(1),
    )  # fmt: skip
    found = Reduced(H, coordinates.seen, coordinates.embed, coordinates.project, (flat,), "range")
    return replace(found, known=(flat.of(H, _neglected(found)),))


def range_spectrum(rest: Reduced) -> Spectrum:
    """Return the whole spectrum: one dense block on the range, and zeros."""
    order = rest.order
    if order > LARGEST:
        raise NoRange(f"the range has {order} dimensions, more than the {LARGEST} of a dense one.")
    if MATRICES * 8.0 * order**2 > budget(None, rest.reference):
        raise NoRange(f"a dense matrix of order {order} does not fit into memory.")
    defect = rest.known[0].defect
    block = Subspaces(
        ("range",) * order, lambda _: Columns(rest.embed, rest.project), defect=defect
    )
    found = Spectrum([block, *rest.known], "range", operator=rest.whole)
    found.reason = THEOREM
    _ = rest.whole.rounded  # measured while the model is what it is
    rest.release()
    return found


def _neglected(found: Reduced) -> float:
    """Multiply flat vectors and vectors of the range, and see where their images are.

    Returns a bound for the norm of what is neglected where some columns were taken for rounding,
    which holds as that of :mod:`hessence.models.rounding` does.
    """
    (flat,), rng = found.known, np.random.default_rng(0)
    counts = [found.order, int(flat.multiplicity)]
    drawn = [
        torch.as_tensor(rng.normal(size=(count, DRAWS))).to(found.reference) for count in counts
    ]
    seen, unseen = found.embed(drawn[0]), flat.isometry(0)(drawn[1].new_ones(1), drawn[1])
    images = found.whole @ torch.cat([seen, unseen], 1)
    inside, outside = images[:, :DRAWS], images[:, DRAWS:]
    leaving = (inside - found.embed(found.project(inside))).norm(dim=0)
    gaps = [float(leaving.max()), float(outside.norm(dim=0).max())]
    scale = float(inside.norm(dim=0).max()) or 1.0
    worst = max(gap / max(count, 1) ** 0.5 for gap, count in zip(gaps, counts, strict=True)) / (
        scale / max(counts[0], 1) ** 0.5
    )
    if not worst <= AGREEMENT[found.reference.dtype]:
        raise NoRange(f"products leave the range of the Hessian by {worst:.1e}, relative.")
    return FACTOR * sum(gaps)
