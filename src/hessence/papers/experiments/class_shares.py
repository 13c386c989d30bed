"""Networks trained on images with one class in excess: their settings and their picture (002)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from hessence.papers.experiments.limits import Share, at_least, may_be_empty
from hessence.papers.experiments.protocol import Record
from hessence.plotting.axes import COLOURS, GREY


@dataclass(frozen=True)
class ShareSettings:
    """What the experiments on the shares of classes have in common, as in 002 Appendix C."""

    data: tuple[str, ...] = ("digits",)
    subset: Annotated[int, at_least(100)] = 5000
    shares: tuple[Share, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    hidden: Annotated[tuple[int, ...], may_be_empty] = (64, 64, 64)
    networks: int = 3
    initial: float = 1.0
    lr: float = 0.01
    steps: int = 10_000

    @property
    def layers(self) -> int:
        """The depth of the networks that are trained."""
        return len(self.hidden) + 1


def label_sharpness(layers: int, share: Any) -> Any:
    """Return L α^(1 − 1/L), what the labels alone say (002 equation 14)."""
    return layers * share ** (1 - 1 / layers)


def draw_shares(
    ax: Any, settings: ShareSettings, records: list[Record], predicted: bool = True
) -> None:
    """Draw the sharpness of trained networks against the largest share of a class."""
    grid = np.linspace(0, 1, 200)
    ax.plot(grid, label_sharpness(settings.layers, grid), color=GREY, label="L α^(1 − 1/L)")
    for data, colour in zip(settings.data, COLOURS, strict=False):
        rows = [record for record in records if record["data"] == data]
        alpha = [row["largest_share"] for row in rows]
        if predicted:
            ax.plot(alpha, [row["by_data"] for row in rows], "+", color=colour, markersize=11,
                    label=f"{data}, predicted from all data")  # fmt: skip
        for i, values in enumerate(zip(*(row["sharpness"] for row in rows), strict=True)):
            ax.plot(alpha, values, "o", color=colour, markersize=5, markerfacecolor="none",
                    label=f"{data}, trained" if i == 0 else None)  # fmt: skip
    ax.set_xlabel("largest share α of a class")
    ax.set_ylabel("sharpness")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
