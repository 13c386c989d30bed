"""The picture of spectra against what they differ in. Needs the extra ``hessence[plot]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hessence._common.arrays import to_numpy
from hessence.plotting.pictures import COLOURS, GREY, linear_stretch, one_axes

if TYPE_CHECKING:
    from hessence.spectra.spectrum import Spectrum


def draw_sweep(
    parameter: Any,
    spectra: Spectrum | Sequence[Spectrum],
    ax: Any = None,
    *,
    name: str = "parameter",
) -> Any:
    """Draw the eigenvalues of several spectra against the parameter they differ in.

    Either the spectrum of a batch of networks, or a sequence of spectra of one shape. Where
    eigenvalues differ by more than a factor of 10, the scale is logarithmic on either side of a
    linear stretch around zero, so that the bulk is seen beside the outliers.
    """
    ax = one_axes(ax)
    shades = {"outlier": COLOURS[1], "bulk": COLOURS[0]}
    styles = {"outlier": "-", "bulk": "--"}
    everything: list[Any] = []
    many = list(spectra) if isinstance(spectra, Sequence) else [spectra]
    for head in dict.fromkeys(space.label.partition("/")[0] for space in many[0].spaces):
        values = [[to_numpy(space.value) for space in s[head]] for s in many]
        lines = np.asarray(values if len(many) > 1 else np.transpose(values[0]))
        everything.append(lines)
        for i, line in enumerate(lines.T):
            ax.plot(
                to_numpy(parameter),
                line,
                color=shades.get(head, GREY),
                linestyle=styles.get(head, ":"),
                label=head if i == 0 else None,
            )
    linear = linear_stretch(np.concatenate(everything, axis=1))
    if linear is not None:
        ax.set_yscale("symlog", linthresh=linear)
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.set_xlabel(name)
    ax.set_ylabel("eigenvalue")
    ax.margins(x=0)
    ax.legend(frameon=False)
    return ax
