"""Networks trained on images (002): the data, common settings, and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments.datasets import LabelledImages, load_images
from hessence.papers.experiments.protocol import Record, Task
from hessence.papers.experiments.settings import Share, at_least, may_be_empty
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


def draw_shares(ax: Any, settings: ShareSettings, records: list[Record]) -> None:
    """Draw the sharpness of networks trained on one data set against the largest class's share."""
    grid = np.linspace(0, 1, 200)
    ax.plot(grid, label_sharpness(settings.layers, grid), color=GREY,
            label="labels alone: L α^(1 − 1/L)")  # fmt: skip
    alpha = [row["largest_share"] for row in records]
    if all("by_data" in row for row in records):
        ax.plot(alpha, [row["by_data"] for row in records], "+", color=COLOURS[1], markersize=9,
                label="labels and inputs")  # fmt: skip
    for i, values in enumerate(zip(*(row["sharpness"] for row in records), strict=True)):
        ax.plot(alpha, values, "o", color=COLOURS[0], markersize=4.5, markerfacecolor="none",
                label="trained networks" if i == 0 else None)  # fmt: skip
    ax.set_xlabel("largest share α of a class")
    ax.set_ylabel("sharpness")
    ax.set_ylim(bottom=0)


@dataclass(frozen=True)
class PathSettings:
    """What the experiments along training have in common."""

    data: tuple[str, ...] = ("digits",)
    subset: Annotated[int, at_least(100)] = 5000
    lr: float = 0.003
    steps: int = 10_000
    looks: Annotated[int, at_least(2)] = 20
    draws: int = 1


def path_tasks(settings: PathSettings) -> Iterator[Task]:
    """One network at a time."""
    for data, draw in product(settings.data, range(settings.draws)):
        yield {"data": data, "draw": draw}


def white_images(settings: PathSettings, task: Task, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return whitened inputs and one-hot labels, all classes alike."""
    images = class_subset(task["data"], settings.subset, 0.1, (0.1,), rng)
    return white_inputs(images.x), images.one_hot


def path_panels(
    settings: PathSettings, records: list[Record], figure: Any
) -> Iterator[tuple[Any, Record, Any]]:
    """Yield an axis, a record and its steps for the first network of each data set.

    The caller draws; the loss is drawn below, and the legend above all.
    """
    columns = len(settings.data)
    figure.set_size_inches(max(3.3 * columns, 5.5), 4.6)
    axes, below = figure.subplots(
        2, columns, squeeze=False, sharex=True, sharey="row", height_ratios=(3, 1)
    )
    for ax, low, data in zip(axes, below, settings.data, strict=True):
        row = next(record for record in records if record["data"] == data)
        steps = np.asarray(row["step"]) + 1
        yield ax, row, steps
        ax.set_title(data)
        low.plot(steps, row["loss"], color=GREY)
        low.set_xscale("log")
        low.set_ylim(bottom=0)
        low.set_xlabel("step + 1")
    below[0].set_ylabel("loss")
    for ax in axes[1:]:
        ax.set_ylabel("")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)


def class_subset(
    name: str, samples: int, share: float, shares: Sequence[float], rng: Any
) -> LabelledImages:
    """Return a subset in which class 0 has the given share and the others have equal parts.

    The size is the same for all `shares`: at most `samples`, and no more than the images of any
    class allow. (002 prints ⌊(1 − α)n⌋ for each of the other nine classes; the nearest whole
    number to a ninth of it is taken here.)
    """
    images = load_images(name)
    counts = np.bincount(images.labels)
    others = len(counts) - 1
    size = min(
        samples,
        int(counts[0] / max(shares)),
        int(counts[1:].min() * others / (1 - min(shares))),
    )
    while any(_taken(size, a, others)[0] > counts[0] for a in shares):
        size -= 1
    wanted = _taken(size, share, others)
    chosen = np.concatenate(
        [
            rng.permutation(np.flatnonzero(images.labels == label))[:take]
            for label, take in enumerate(wanted)
        ]
    )
    return LabelledImages(images.x[chosen], images.labels[chosen], images.shape)


def _taken(size: int, share: float, others: int) -> list[int]:
    """Return how many samples of each class make up a subset."""
    each = round((1 - share) * size / others)
    return [size - others * each, *[each] * others]


def white_inputs(x: Any, scale: float = 1.0) -> Any:
    """Return whitened inputs, without pixels that depend on others (such as those always blank)."""
    from scipy.linalg import qr
    from scipy.linalg.lapack import dtrcon

    if len(x) >= len(x[0]):
        q, r = np.linalg.qr(x)
        # No pivot of R is below its least singular value, so that no pixel would be left out.
        if dtrcon(r)[0] > 1e-8:
            return q * np.sign(np.diagonal(r)) * (scale * len(x) ** 0.5)
    r, order = qr(x, mode="r", pivoting=True)
    size = np.abs(np.diagonal(r))
    rank = int((size > 1e-10 * size[0]).sum())
    return hs.whiten(x[:, np.sort(order[:rank])], scale)
