"""Sharpness against norms of weights and of products without one, by depth (000 Figures 17–22)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least, may_be_empty
from hessence.papers.experiments.shared.correlation_studies import (
    NetworkSettings,
    on_training,
    trained_networks,
)
from hessence.papers.experiments.shared.correlations import (
    NAMES,
    WHEN,
    correlation,
    networks_of,
    pearson,
)
from hessence.papers.experiments.shared.network_batches import (
    Activation,
    Networks,
    sharpness,
    squared_norms,
    unexplained,
)

SHOWN = 0.5
"""From which correlation on a cell of the table has white letters."""


@dataclass(frozen=True)
class Settings(NetworkSettings):
    """Networks of several depths.

    Training starts at the rate `rate`, from the depth `deep_from` on at `deep_rate` in the standard
    parametrisation. Rates of maximal updates are divided by the fan-in of each layer; they start at
    `wide_rate` from the size `wide_from` on, else at `mup_rate` if there is a hidden matrix. The
    paper has 1e-3 there, which ``quick`` has no time for. At width 100 it takes linear networks of
    up to six layers to the noise within 2000 epochs; five ReLU networks of six layers had 16 to
    100 % of the loss left by then. A teacher with entries of variance 1 gives ``quick`` the same
    verdicts.
    """

    depths: tuple[Annotated[int, at_least(2)], ...] = (2, 3, 4, 5)
    sizes: Annotated[tuple[int, ...], may_be_empty] = (1, 10)
    relu_sizes: Annotated[tuple[int, ...], may_be_empty] = (1,)
    samples: int = 256
    deep_from: int = 4
    deep_rate: float = 1e-2
    mup_rate: float = 0.1
    wide_rate: float = 0.1
    wide_from: int = 10
    epochs: int = 400


def tasks(settings: Settings) -> Iterator[Task]:
    """All networks of one kind, size, parametrisation and depth at a time."""
    sizes = [("linear", size) for size in settings.sizes]
    sizes += [("relu", size) for size in settings.relu_sizes]
    for (activation, size), kind, depth in product(
        sizes, settings.parametrisations, settings.depths
    ):
        yield {"activation": activation, "size": size, "parametrisation": kind, "depth": depth}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Measure a batch of networks, train it, and measure it again."""
    kind, size, depth = task["parametrisation"], task["size"], task["depth"]
    activation: Activation = task["activation"]
    dims = (size, *[settings.width] * (depth - 1), size)
    rate = first_rate(settings, kind, size, depth)
    t = trained_networks(settings, activation, kind, dims, rate, rng)
    return {
        "initial": measured(t.before, t.x, t.y, activation),
        "trained": measured(t.after, t.x, t.y, activation),
        "left": unexplained(t.losses, t.y, settings.noise),
    }


def first_rate(settings: Settings, kind: str, size: int, depth: int) -> float:
    """Return the learning rate to start with."""
    if kind == "mup":
        if size >= settings.wide_from:
            return settings.wide_rate
        return settings.rate if depth == 2 else settings.mup_rate
    deep = depth >= settings.deep_from and kind == "standard"
    return settings.deep_rate if deep else settings.rate


def measured(nets: Networks, x: Any, y: Any, activation: Activation) -> Record:
    """Return sharpness and squared norms of layers and of products without one layer."""
    found = {"sharpness": sharpness(nets, x, y, activation)}
    for i, w in enumerate(nets.weights):
        own, without = squared_norms(w), squared_norms(knocked_out(nets.weights, i))
        for norm in ("spectral", "frobenius"):
            found |= {f"W{i + 1} {norm}": own[norm], f"without W{i + 1} {norm}": without[norm]}
    return found


def knocked_out(weights: tuple[Any, ...], missing: int) -> Any:
    """Return the product of all layers but one, the last to act on the left."""
    rest = [w for i, w in enumerate(weights) if i != missing]
    result = rest[0]
    for w in rest[1:]:
        result = w @ result
    return result


def _draw(activation: str, quantity: str, norm: str, large: bool) -> Any:
    def draw(settings: Settings, records: list[Record], figure: Any) -> None:
        """Draw a table of correlations by depth and layer for each parametrisation."""
        sizes = sorted({r["size"] for r in records if r["activation"] == activation})
        chosen = [size for size in sizes if (size > 1) == large] or sizes[-1:]
        rows = [r for r in records if r["activation"] == activation and r["size"] in chosen[:1]]
        kinds = list(settings.parametrisations)
        figure.set_size_inches(10, 2.4 * len(kinds) + 0.4)
        axes = figure.subplots(len(kinds), 2, squeeze=False, sharex=True, sharey=True)
        shown = None
        for row, kind in zip(axes, kinds, strict=True):
            own = [r for r in rows if r["parametrisation"] == kind]
            for ax, when in zip(row, WHEN, strict=True):
                shown = _table(ax, settings, own, when, quantity, norm)
                ax.set_title(f"{NAMES[kind]}, {WHEN[when]}", fontsize=10)
            row[0].set_ylabel("depth B")
        for ax in axes[-1]:
            ax.set_xlabel(
                "product without the layer b" if quantity.startswith("without") else "layer b"
            )
        figure.colorbar(shown, ax=axes, label="correlation with sharpness", shrink=0.8)
        title = f"{activation.replace('relu', 'ReLU')}, D = K = {chosen[0] if chosen else '–'}"
        title += f", squared {norm.replace('frob', 'Frob')} norm, {networks_of(rows)} networks"
        figure.suptitle(title, fontsize=11)

    return draw


def _table(
    ax: Any, settings: Settings, rows: list[Record], when: str, quantity: str, norm: str
) -> Any:
    depths = list(settings.depths)
    table = np.full((len(depths), max(depths)), np.nan)
    for record in rows:
        line = depths.index(record["depth"])
        for b in range(record["depth"]):
            table[line, b] = correlation(record, when, "sharpness", f"{quantity}W{b + 1} {norm}")
    image = ax.imshow(table, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    for (line, b), value in np.ndenumerate(table):
        if np.isfinite(value):
            ax.text(b, line, f"{value:.2f}".replace("-", "−"), ha="center", va="center", fontsize=8,
                    color="white" if abs(value) > SHOWN else "black")  # fmt: skip
    ax.set_xticks(range(max(depths)), [str(b + 1) for b in range(max(depths))])
    ax.set_yticks(range(len(depths)), [str(depth) for depth in depths])
    return image


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with §4.2 and the figures' captions."""
    groups = list(dict.fromkeys((r["activation"], r["size"]) for r in records))
    found = []
    for activation, size in groups:
        for kind in settings.parametrisations:
            rows = [
                r
                for r in records
                if (r["activation"], r["size"], r["parametrisation"]) == (activation, size, kind)
            ]
            name = f"{activation.replace('relu', 'ReLU')}, D = {size}, {NAMES[kind]}"
            found.append(_on_products(name, rows, "spectral"))
            if activation == "relu":
                found.append(_on_frobenius(name, rows))
    found.append(on_training(settings, records, "000 App D.1.4"))
    return found


def _on_products(name: str, rows: list[Record], norm: str) -> Finding:
    """Ask whether the product without the last layer correlates most, among all quantities."""
    wins = 0
    lasts: dict[str, list[float]] = {when: [] for when in WHEN}
    rivals: list[float] = []
    for record in rows:
        depth = record["depth"]
        for when, values in lasts.items():
            values.append(correlation(record, when, "sharpness", f"without W{depth} {norm}"))
        others = [f"W{b + 1} {norm}" for b in range(depth)]
        others += [f"without W{b + 1} {norm}" for b in range(depth - 1)]
        best = max(_number(correlation(record, "trained", "sharpness", q)) for q in others)
        rivals.append(best)
        error = (1 - best**2) / max(networks_of([record]) - 1, 1) ** 0.5
        wins += _number(lasts["trained"][-1]) >= best - error
    trained = float(np.nanmean(lasts["trained"]))
    return Finding(
        f"trained, the product without the last layer correlates most with sharpness: {name}",
        "000 §4.2, Fig 17–21",
        wins > len(rows) / 2 and trained > 0.5,
        f"most, within a standard error, at {wins} of {len(rows)} depths; its mean correlation "
        f"{np.nanmean(lasts['initial']):.2f} at initialisation, {trained:.2f} trained; best other "
        f"quantity {np.mean(rivals):.2f}",
    )


def _on_frobenius(name: str, rows: list[Record]) -> Finding:
    means = {
        norm: float(np.nanmean([max(
            _number(pearson(r["trained"]["sharpness"], r["trained"][f"W{b + 1} {norm}"]))
            for b in range(r["depth"])
        ) for r in rows]))
        for norm in ("spectral", "frobenius")
    }  # fmt: skip
    return Finding(
        f"trained, single layers correlate with sharpness more by their Frobenius norm: {name}",
        "000 §4.2, Fig 22",
        means["frobenius"] > means["spectral"],
        f"best layer, mean over depths: Frobenius {means['frobenius']:.2f}, spectral "
        f"{means['spectral']:.2f}",
    )


def _number(value: float) -> float:
    return value if np.isfinite(value) else -1.0


EXPERIMENT = Experiment(
    id="sharpness-depth",
    title="Sharpness and products of layers, by depth",
    figures=("000 F17", "000 F18", "000 F19", "000 F20", "000 F21", "000 F22"),
    shows="how the largest eigenvalue correlates with the squared norm of each layer and of the "
    "product without it",
    presets={
        "tiny": Settings(
            width=5, depths=(2, 3), sizes=(1, 2), networks=4, samples=64, batch=32, epochs=3
        ),
        "quick": Settings(),
        "paper": Settings(
            width=100,
            depths=(2, 3, 4, 5, 6),
            networks=200,
            samples=1024,
            deep_rate=1e-3,
            mup_rate=1e-3,
            wide_rate=1.0,
            epochs=2000,
        ),
    },
    tasks=tasks,
    run=run,
    draw={
        "products-scalar": _draw("linear", "without ", "spectral", False),
        "products-wide": _draw("linear", "without ", "spectral", True),
        "layers-scalar": _draw("linear", "", "spectral", False),
        "layers-wide": _draw("linear", "", "spectral", True),
        "relu-products": _draw("relu", "without ", "spectral", False),
        "relu-layers": _draw("relu", "", "frobenius", False),
    },
    findings=findings,
    minutes={"quick": 0.8, "paper": 600},
)
