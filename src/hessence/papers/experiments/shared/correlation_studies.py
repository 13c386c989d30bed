"""Correlation studies over batches of networks: what 000's have in common (Appendices D.1.3–4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

from hessence.papers.experiments.protocol import Finding, Record, Task
from hessence.papers.experiments.settings import at_least
from hessence.papers.experiments.shared.network_batches import (
    Activation,
    Networks,
    Parametrisation,
    Schedule,
    Teacher,
    draw_data,
    draw_networks,
    squared_norms,
    train,
)


@dataclass(frozen=True)
class NetworkSettings:
    """Networks with as many inputs as outputs, and a random teacher with noise.

    Training follows :class:`~hessence.papers.experiments.shared.network_batches.Schedule`. The
    paper does not state the scale of its teacher: entries of variance 1/D (``scaled``) keep that of
    the targets at every size, ``normal`` ones have variance 1.
    """

    width: int = 30
    parametrisations: tuple[Parametrisation, ...] = ("standard", "ntk", "mup")
    networks: Annotated[int, at_least(3)] = 50
    samples: int = 1024
    noise: Annotated[float, at_least(0)] = 0.01
    teacher: Teacher = "scaled"
    rate: float = 1e-2
    smallest_rate: float = 1e-5
    batch: int = 128
    epochs: int = 1000


@dataclass(frozen=True)
class TwoLayerSettings(NetworkSettings):
    """Two layers, from the size `wide_from` on with maximal updates that start at `wide_rate`."""

    sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 20, 30)
    wide_rate: float = 1.0
    wide_from: int = 10

    def first_rate(self, kind: str, size: int) -> float:
        """Return the learning rate to start with."""
        return self.wide_rate if kind == "mup" and size >= self.wide_from else self.rate


def size_tasks(settings: TwoLayerSettings) -> Iterator[Task]:
    """All networks of one parametrisation and size at a time."""
    for kind, size in product(settings.parametrisations, settings.sizes):
        yield {"parametrisation": kind, "size": size}


@dataclass(frozen=True)
class Trained:
    """Networks before and after training, the data, and the last losses."""

    before: Networks
    after: Networks
    x: Any
    y: Any
    losses: Any


def trained_networks(
    settings: NetworkSettings,
    activation: Activation,
    kind: Parametrisation,
    dims: Sequence[int],
    rate: float,
    rng: np.random.Generator,
) -> Trained:
    """Draw data and networks, and train them from a learning rate on."""
    x, y = draw_data(activation, dims[0], settings.samples, settings.noise, settings.teacher, rng)
    nets = draw_networks(kind, dims, settings.networks, rng)
    schedule = Schedule(rate, settings.smallest_rate, settings.batch, epochs=settings.epochs)
    after, losses = train(nets, x, y, activation, schedule, rng)
    return Trained(nets, after, x, y, losses)


def layer_norms(nets: Networks) -> Record:
    """Return the squared norms of all layers, as ``W1 spectral`` and so on."""
    return {
        f"W{i + 1} {norm}": values
        for i, w in enumerate(nets.weights)
        for norm, values in squared_norms(w).items()
    }


def on_training(settings: NetworkSettings, records: list[Record], where: str) -> Finding:
    """Say how far training came, by the share of the loss above the noise that is left."""
    share = np.concatenate([r["left"] for r in records]).astype(float)
    hardest = max(float(np.nanmedian(np.asarray(r["left"], dtype=float))) for r in records)
    return Finding(
        "training brings the loss close to zero",
        where,
        hardest < 0.1,
        f"{np.nanmedian(share):.1%} of the loss above the noise is left in the median, "
        f"{hardest:.1%} in the hardest case, where less than 10 % is asked for; "
        f"{int(np.isnan(share).sum())} of {share.size} networks diverged and are left out"
        f"{teacher_note(settings)}",
    )


def teacher_note(settings: NetworkSettings) -> str:
    """Say which teacher was chosen."""
    variance = "1/D" if settings.teacher == "scaled" else "1"
    return f"; the teacher has entries of variance {variance}, a choice of our own"
