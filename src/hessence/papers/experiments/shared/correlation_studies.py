"""Correlation studies over batches of networks: what 000's have in common (Appendices D.1.3–4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

from hessence.papers.experiments.protocol import Finding, Record, Task
from hessence.papers.experiments.settings import at_least
from hessence.papers.experiments.shared.gradient_flow import least_loss, train
from hessence.papers.experiments.shared.network_batches import (
    Activation,
    Networks,
    Parametrisation,
    Teacher,
    draw_data,
    draw_networks,
    squared_norms,
)


@dataclass(frozen=True)
class NetworkSettings:
    """Networks with as many inputs as outputs, and a random teacher with noise.

    Each is trained along the gradient flow until its loss is above the least one, or that of the
    noise with ReLU, by a share of `enough`; those that are not after so many `steps` are left out.
    The paper does not state the scale of its teacher: entries of variance 1/D (``scaled``) keep
    that of the targets at every size, ``normal`` ones have variance 1.

    Parametrisations are those of the works that the paper cites, not as it prints them. Neural
    tangent: standard normal entries and a factor 1/√fan-in for each layer (printed: 1/√n_ℓ, the
    fan-out). Maximal update: variance min(1, n_ℓ/n_{ℓ−1})/n_{ℓ−1} (printed: Θ(n_ℓ/n_{ℓ−1})), and
    rates that go as 1/fan-in (as printed).
    """

    width: int = 100
    parametrisations: tuple[Parametrisation, ...] = ("standard", "ntk", "mup")
    networks: Annotated[int, at_least(3)] = 60
    samples: int = 1024
    noise: float = 0.01
    teacher: Teacher = "scaled"
    enough: float = 0.01
    steps: int = 5000


@dataclass(frozen=True)
class TwoLayerSettings(NetworkSettings):
    """Two layers of several sizes D = K."""

    sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 10, 20, 30, 50, 75, 100)


def size_tasks(settings: TwoLayerSettings) -> Iterator[Task]:
    """All networks of one parametrisation and size at a time."""
    for kind, size in product(settings.parametrisations, settings.sizes):
        yield {"parametrisation": kind, "size": size}


@dataclass(frozen=True)
class Trained:
    """Networks before and after training, the data, and how far losses are above the least.

    Networks that are not trained far enough are NaN.
    """

    before: Networks
    after: Networks
    x: Any
    y: Any
    excess: Any


def trained_networks(
    settings: NetworkSettings,
    activation: Activation,
    kind: Parametrisation,
    dims: Sequence[int],
    rng: np.random.Generator,
) -> Trained:
    """Draw data and networks, and train them."""
    x, y, noise = draw_data(
        activation, dims[0], settings.samples, settings.noise, settings.teacher, rng
    )
    nets = draw_networks(kind, dims, settings.networks, rng)
    least = least_loss(x, y, noise, activation)
    after, losses = train(nets, x, y, activation, (1 + settings.enough) * least, settings.steps)
    excess = losses / least - 1
    # Losses are summed in single precision.
    for w in after.weights:
        w[excess > settings.enough + 1e-6] = np.nan
    return Trained(nets, after, x, y, excess)


def layer_norms(nets: Networks) -> Record:
    """Return the squared norms of all layers, as ``W1 spectral`` and so on."""
    return {
        f"W{i + 1} {norm}": values
        for i, w in enumerate(nets.weights)
        for norm, values in squared_norms(w).items()
    }


def on_training(settings: NetworkSettings, records: list[Record]) -> Finding:
    """Say how far training came."""
    excess = np.concatenate([np.asarray(r["excess"], dtype=float) for r in records])
    short = excess > settings.enough + 1e-6
    hardest = max(float(np.median(r["excess"])) for r in records)
    return Finding(
        "000-trained",
        hardest <= settings.enough + 1e-6,
        f"losses end {np.median(excess):.1%} above in the median over all networks, "
        f"{hardest:.1%} in the median of the hardest setting; {int(short.sum())} of {excess.size} "
        "networks end further above and are left out. "
        f"{teacher_note(settings)}; parametrisations are not as printed (E-000-ntp, E-000-mup)",
        criterion=f"at most {settings.enough:.0%} above the least loss (ReLU: that of the noise) "
        "in the median of every setting",
    )


def teacher_note(settings: NetworkSettings) -> str:
    """Say which teacher was chosen."""
    variance = "1/D" if settings.teacher == "scaled" else "1"
    return f"The teacher has entries of variance {variance}, a choice of our own"
