"""Sharpness against norms of weights and of products without one, by depth (000 Figures 17–22)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    listed,
    networks_of,
)
from hessence.papers.experiments.shared.network_batches import (
    Activation,
    Networks,
    sharpness,
    squared_norms,
)
from hessence.papers.experiments.shared.resampling import outlasting

SHOWN = 0.5
"""From which correlation on a cell of the table has white letters."""

KINDS = ("standard", "ntk", "mup")
SENTENCES = {
    ("linear", True): ("000-knocked-out", KINDS),
    ("linear", False): ("000-knocked-out-wide", ("mup",)),
    ("relu", True): ("000-knocked-out-relu", KINDS),
}
"""By activation, and whether D = 1: the statement, and the parametrisations it is about."""


@dataclass(frozen=True)
class Settings(NetworkSettings):
    """Networks of several depths; those with ReLU have sizes of their own.

    ReLU networks are trained to the loss of the noise, and a tenth more.
    """

    width: int = 50
    depths: tuple[Annotated[int, at_least(2)], ...] = (2, 3, 4, 5, 6)
    sizes: Annotated[tuple[int, ...], may_be_empty] = (1, 10)
    relu_sizes: Annotated[tuple[int, ...], may_be_empty] = (1,)
    relu_enough: float = 0.1


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
    activation: Activation = task["activation"]
    dims = (task["size"], *[settings.width] * (task["depth"] - 1), task["size"])
    own = settings_of(settings, activation)
    t = trained_networks(own, activation, task["parametrisation"], dims, rng)
    return {
        "initial": measured(t.before, t.x, t.y, activation),
        "trained": measured(t.after, t.x, t.y, activation),
        "excess": t.excess,
    }


def settings_of(settings: Settings, activation: str) -> Settings:
    """Return the settings with the activation's own goal of training."""
    return replace(settings, enough=settings.relu_enough) if activation == "relu" else settings


def measured(nets: Networks, x: Any, y: Any, activation: Activation) -> Record:
    """Return sharpness, squared norms of layers and of products without one layer, and the bound.

    ``bound`` is Σ_ℓ c_ℓ²‖P_ℓΣ^½‖²‖S_ℓ‖², P_ℓ and S_ℓ the products below and above a layer.
    """
    found = {"sharpness": sharpness(nets, x, y, activation)}
    for i, w in enumerate(nets.weights):
        own, without = squared_norms(w), squared_norms(knocked_out(nets.weights, i))
        for norm in ("spectral", "frobenius"):
            found |= {f"W{i + 1} {norm}": own[norm], f"without W{i + 1} {norm}": without[norm]}
    return found | ({"bound": bound(nets, x)} if activation == "linear" else {})


def bound(nets: Networks, x: Any) -> Any:
    """Return what no eigenvalue of the Gauss–Newton part exceeds, for linear networks (N,)."""
    factors = [c * w for c, w in zip(nets.multipliers, nets.weights, strict=True)]
    _, root = np.linalg.qr(x / len(x) ** 0.5)
    below, above = [root.T[None]], [np.eye(x.shape[1])[None]]
    for low, high in zip(factors[:-1], factors[:0:-1], strict=True):
        below.append(low @ below[-1])
        above.append(above[-1] @ high)
    terms = zip(nets.multipliers, below, reversed(above), strict=True)
    return sum(
        c**2 * squared_norms(low)["spectral"] * squared_norms(high)["spectral"]
        for c, low, high in terms
    )


def knocked_out(weights: tuple[Any, ...], missing: int) -> Any:
    """Return the product of all layers but one, the last to act on the left."""
    rest = [w for i, w in enumerate(weights) if i != missing]
    result = rest[0]
    for w in rest[1:]:
        result = w @ result
    return result


def _draw(
    settings: Settings, records: list[Record], figure: Any, activation: str, narrow: bool,
    quantity: str, norm: str,
) -> None:  # fmt: skip
    """Draw a table of correlations by depth and layer, before and after, for each kind."""
    fitting = [r for r in records if r["activation"] == activation]
    size = next((r["size"] for r in fitting if (r["size"] == 1) == narrow), fitting[0]["size"])
    rows = [r for r in fitting if r["size"] == size]
    kinds = list(settings.parametrisations)
    figure.set_size_inches(10, 0.42 * 2 * len(settings.depths) + 1.9)
    axes = figure.subplots(2, len(kinds), squeeze=False, sharex=True, sharey=True)
    shown = None
    for (when, words), line in zip(WHEN.items(), axes, strict=True):
        for ax, kind in zip(line, kinds, strict=True):
            own = [r for r in rows if r["parametrisation"] == kind]
            shown = _table(ax, settings, own, when, quantity, norm)
            ax.set_title(f"{NAMES[kind]}, {words}", fontsize=10)
        line[0].set_ylabel("depth L")
    for ax in axes[-1]:
        words = "the layer left out" if quantity else "the layer"
        ax.set_xlabel(f"{words}; B, the bound" if quantity and activation == "linear" else words)
    bar = figure.colorbar(shown, ax=axes, shrink=0.8, pad=0.01)
    bar.set_label(f"correlation with the sharpness, D = {size}", fontsize=9)


def _table(
    ax: Any, settings: Settings, rows: list[Record], when: str, quantity: str, norm: str
) -> Any:
    """Draw one table; the bound stands in a last column beside products of linear layers."""
    depths, most = list(settings.depths), max(settings.depths)
    bounded = bool(quantity) and all("bound" in r["trained"] for r in rows)
    table = np.full((len(depths), most + bounded), np.nan)
    for record in rows:
        line, depth = depths.index(record["depth"]), record["depth"]
        names = [f"{quantity}W{b + 1} {norm}" for b in range(depth)]
        table[line, :depth] = [correlation(record, when, "sharpness", name) for name in names]
        if bounded:
            table[line, -1] = correlation(record, when, "sharpness", "bound")
    image = ax.imshow(table, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    for (line, b), value in np.ndenumerate(table):
        if np.isfinite(value):
            ax.text(b, line, f"{value:.2f}".replace("-", "−"), ha="center", va="center", fontsize=8,
                    color="white" if abs(value) > SHOWN else "black")  # fmt: skip
    names = [str(b + 1) for b in range(most)] + ["B"] * bounded
    ax.set_xticks(range(len(names)), names)
    ax.set_yticks(range(len(depths)), [str(depth) for depth in depths])
    return image


def draw_products_scalar(settings: Settings, records: list[Record], figure: Any) -> None:
    """With one input, trained sharpness follows the bound B exactly, and products less."""
    _draw(settings, records, figure, "linear", True, "without ", "spectral")


def draw_products_wide(settings: Settings, records: list[Record], figure: Any) -> None:
    """With ten inputs, trained sharpness follows the bound B more than any product of layers."""
    _draw(settings, records, figure, "linear", False, "without ", "spectral")


def draw_layers_scalar(settings: Settings, records: list[Record], figure: Any) -> None:
    """With one input, sharpness follows the first layer's norm, and in part the last one's."""
    _draw(settings, records, figure, "linear", True, "", "spectral")


def draw_layers_wide(settings: Settings, records: list[Record], figure: Any) -> None:
    """With ten inputs, sharpness follows the norms of single layers less in deeper networks."""
    _draw(settings, records, figure, "linear", False, "", "spectral")


def draw_relu_products(settings: Settings, records: list[Record], figure: Any) -> None:
    """With ReLU, sharpness follows the product without the last layer less in deeper networks."""
    _draw(settings, records, figure, "relu", True, "without ", "spectral")


def draw_relu_layers(settings: Settings, records: list[Record], figure: Any) -> None:
    """With ReLU, sharpness does not follow the Frobenius norm of a matrix between hidden layers."""
    _draw(settings, records, figure, "relu", True, "", "frobenius")


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with §4.2 and the figures' captions."""
    found = []
    for (activation, narrow), (name, kinds) in SENTENCES.items():
        rows = [
            r for r in records
            if (r["activation"], r["size"] == 1) == (activation, narrow)
            and r["parametrisation"] in kinds
        ]  # fmt: skip
        if rows:
            found.append(_on_products(name, rows))
    relu = [r for r in records if r["activation"] == "relu"]
    linear = [r for r in records if r["activation"] == "linear"]
    if deep := [r for r in relu if r["depth"] > 2]:
        found += outlasting(lambda rows: [_on_frobenius(rows)], deep)
    if linear:
        found += outlasting(lambda rows: [_on_the_bound(rows)], linear)
        found.append(on_training(settings, linear))
    return found + ([on_training(settings_of(settings, "relu"), relu)] if relu else [])


def _rivals(record: Record) -> tuple[float, float]:
    """Return the correlation of the product without the last layer, and the best other one."""
    depth = record["depth"]
    others = [f"W{b + 1} spectral" for b in range(depth)]
    others += [f"without W{b + 1} spectral" for b in range(depth)]
    *rest, last = (_number(correlation(record, "trained", "sharpness", q)) for q in others)
    return last, max(rest)


def _error(record: Record, r: float) -> float:
    """Return the standard error of a correlation."""
    return float((1 - r**2) / max(networks_of([record]) - 1, 1) ** 0.5)


def _on_products(name: str, rows: list[Record]) -> Finding:
    """Ask whether the product without the last layer correlates most, by parametrisation."""
    kinds = list(dict.fromkeys(r["parametrisation"] for r in rows))
    each = {
        kind: outlasting(
            lambda own: [_on_one_kind(name, own)], [r for r in rows if r["parametrisation"] == kind]
        )[0]
        for kind in kinds
    }
    held = [NAMES[kind] for kind, found in each.items() if found.holds]
    failed = any(found.holds is False for found in each.values())
    return Finding(
        name,
        True if held else False if failed else None,
        "; ".join(f"{NAMES[kind]}: {found.word}, {found.evidence}" for kind, found in each.items()),
        criterion=each[kinds[0]].criterion,
        condition=None
        if len(held) == len(kinds)
        else f"the parametrisation is {' or '.join(held)}",
    )


def _on_one_kind(name: str, rows: list[Record]) -> Finding:
    pairs = [_rivals(record) for record in rows]
    wins = sum(last >= best - _error(r, best) for r, (last, best) in zip(rows, pairs, strict=True))
    last, best = np.mean(pairs, axis=0)
    return Finding(
        name,
        wins > len(rows) / 2 and last > 0.5,
        f"most at {wins} of {len(rows)}, mean {last:.2f}, best other quantity {best:.2f}".replace(
            "-", "−"
        ),
        criterion="most of all layers and products without one, within a standard error, at more "
        "than half of the depths and sizes, and by more than 0.5 in the mean, trained",
    )


def _on_the_bound(rows: list[Record]) -> Finding:
    before, after = (
        [_number(correlation(r, when, "sharpness", "bound")) for r in rows] for when in WHEN
    )
    best = [max(_rivals(r)) for r in rows]
    least = {
        f"D = {size}, {NAMES[kind]}": min(
            v for v, r in zip(after, rows, strict=True)
            if (r["size"], r["parametrisation"]) == (size, kind)
        )
        for size, kind in dict.fromkeys((r["size"], r["parametrisation"]) for r in rows)
    }  # fmt: skip
    ahead = [v >= b - _error(r, b) for v, b, r in zip(after, best, rows, strict=True)]
    return Finding(
        "A-000-depth",
        all(ahead),
        f"most at {sum(ahead)} of {len(rows)} depths, sizes and parametrisations; least over "
        f"depths: {listed(least)}; means {np.mean(after):.2f} trained and {np.mean(before):.2f} at "
        f"initialisation, where the best layer or product has {np.mean(best):.2f} trained",
        criterion="most of all quantities, within a standard error, at every depth, size and "
        "parametrisation, trained",
    )


def _on_frobenius(rows: list[Record]) -> Finding:
    # With one input and output the first and the last layer are vectors, with one norm.
    means = {
        kind: {
            norm: float(np.mean([
                max(_number(correlation(r, "trained", "sharpness", f"W{b} {norm}"))
                    for b in range(2, r["depth"]))
                for r in rows if r["parametrisation"] == kind
            ]))
            for norm in ("spectral", "frobenius")
        }
        for kind in dict.fromkeys(r["parametrisation"] for r in rows)
    }  # fmt: skip
    return Finding(
        "000-relu-deep",
        all(row["frobenius"] > row["spectral"] for row in means.values()),
        "; ".join(f"{NAMES[kind]}: {listed(row)}" for kind, row in means.items()),
        criterion="the best hidden matrix's Frobenius norm more than the best one's spectral norm, "
        "mean over depths above 2, in every parametrisation, trained",
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
        "tiny": Settings(width=5, depths=(2, 3), sizes=(1, 2), networks=4, samples=64),
        "quick": Settings(networks=150, samples=256),
        "paper": Settings(width=100, networks=200),
    },
    tasks=tasks,
    run=run,
    draw={
        "products-scalar": draw_products_scalar,
        "products-wide": draw_products_wide,
        "layers-scalar": draw_layers_scalar,
        "layers-wide": draw_layers_wide,
        "relu-products": draw_relu_products,
        "relu-layers": draw_relu_layers,
    },
    findings=findings,
    minutes={"quick": 4, "paper": 40},
)
