"""Single networks on whitened images, looked at several times in training (002 Figures 3, 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

from hessence.papers.experiments.limits import at_least
from hessence.papers.experiments.protocol import Record, Task
from hessence.papers.experiments.stacked_training import class_subset, white_inputs
from hessence.plotting.axes import GREY


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

    The caller draws; the loss is drawn beside it, and the legend below.
    """
    columns = len(settings.data)
    figure.set_size_inches(max(5.2 * columns, 7), 4.4)
    for ax, data in zip(figure.subplots(1, columns, squeeze=False)[0], settings.data, strict=True):
        row = next(record for record in records if record["data"] == data)
        steps = np.asarray(row["step"]) + 1
        yield ax, row, steps
        ax.set_xscale("log")
        ax.set_xlabel("step + 1")
        ax.set_title(data)
        beside = ax.twinx()
        beside.plot(steps, row["loss"], ":", color=GREY)
        beside.set_ylim(bottom=0)
        beside.set_ylabel("loss (dotted)", color=GREY)
        beside.spines["right"].set_visible(True)
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
