"""How far Gauss–Newton's sharpness is off in the solvable models (000 §3.3, cf. Figure 5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.plotting.axes import COLOURS

NETWORKS = {
    "attention": ("self-attention", COLOURS[1]),
    "linear": ("linear", COLOURS[0]),
    "relu": ("ReLU", COLOURS[2]),
}


@dataclass(frozen=True)
class Settings:
    """Networks of 2 · `width` weights, normal with standard deviation `scales`, on `tokens` inputs.

    Self-attention has queries and keys of this width and one value weight more. All three kinds see
    the same inputs, standard normal, and the same residuals: random directions, of root mean square
    `residuals`. The targets follow from the two.
    """

    width: int = 8
    tokens: int = 8
    scales: tuple[float, ...] = (0.25, 0.5, 1.0)
    residuals: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    draws: int = 200


def tasks(settings: Settings) -> Iterator[Task]:
    """Take one kind of network and one scale at a time."""
    for scale, network in product(settings.scales, NETWORKS):
        yield {"scale": scale, "network": network}


def samples(
    settings: Settings, task: Task, rng: np.random.Generator
) -> Iterator[tuple[Any, Any, Any]]:
    """Draw networks with their inputs, and a direction of residuals of root mean square one."""
    for _ in range(settings.draws):
        first, second = task["scale"] * rng.normal(size=(2, settings.width))
        value = task["scale"] * rng.normal()
        x, direction = rng.normal(size=(2, settings.tokens))
        net: Any = (
            hs.SelfAttention(value, first, second) if task["network"] == "attention"
            else hs.ScalarLinear(first, second) if task["network"] == "linear"
            else hs.ScalarReLU(first, second)
        )  # fmt: skip
        yield net, x, direction / np.sqrt(np.mean(direction**2))


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Return the relative errors of λ_max, (residuals, draws), from the closed forms."""
    errors = [
        [float(net.hessian(x, net(x) - size * direction).ggn_error())
         for size in settings.residuals]
        for net, x, direction in samples(settings, task, rng)
    ]  # fmt: skip
    return {"errors": np.transpose(errors)}


def draw(settings: Settings, records: list[Record], figure: Any) -> None:
    """The larger the weights, the further Gauss–Newton is off for self-attention than for others.

    Lines are medians at equal residuals, bands the quartiles.
    """
    figure.set_size_inches(3.2 * len(settings.scales), 3.6)
    axes = figure.subplots(1, len(settings.scales), sharey=True, squeeze=False)[0]
    for ax, scale in zip(axes, settings.scales, strict=True):
        for record in (record for record in records if record["scale"] == scale):
            label, colour = NETWORKS[record["network"]]
            low, middle, high = np.quantile(record["errors"], (0.25, 0.5, 0.75), axis=1)
            ax.plot(settings.residuals, middle, "o-", color=colour, markersize=4, label=label)
            ax.fill_between(settings.residuals, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(f"weights of size {scale:g}", fontsize=10)
        ax.set_xlabel("residual, root mean square")
    axes[0].set_ylabel("|λ(H) − λ(Gauss–Newton)| / |λ(H)|\nmedian and quartiles")
    axes[0].legend(loc="lower right")


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare medians at each residual and scale."""
    found = {
        (r["scale"], r["network"]): np.median(np.asarray(r["errors"]), axis=1) for r in records
    }
    ratios = np.asarray([
        found[scale, "attention"] / np.maximum(found[scale, "linear"], found[scale, "relu"])
        for scale in settings.scales
    ])  # fmt: skip
    larger = ratios > 1
    told = "; ".join(
        f"weights of size {scale:g}: {', '.join(f'{ratio:.2g}' for ratio in row)}"
        for scale, row in zip(settings.scales, ratios, strict=True)
    )
    return [
        Finding(
            "000-ggn-solvable",
            bool(larger.all()),
            f"larger in {larger.sum()} of {larger.size} cases, by closed forms of "
            f"{settings.draws} networks of {2 * settings.width} weights each; median error of "
            "attention against the larger of the other two, at residuals of "
            f"{', '.join(f'{size:g}' for size in settings.residuals)}: {told}",
            criterion="the larger median of all three at every residual and scale of weights",
        )
    ]


EXPERIMENT = Experiment(
    id="gauss-newton-solvable",
    title="Gauss–Newton's sharpness in the solvable models",
    figures=("000 F5",),
    shows="relative error of Gauss–Newton's top eigenvalue at equal residuals, by closed forms",
    presets={
        "tiny": Settings(width=3, tokens=4, scales=(0.5, 1.0), residuals=(0.1, 1.0), draws=4),
        "quick": Settings(),
        "paper": Settings(width=64, draws=1000),
    },
    tasks=tasks,
    run=run,
    draw=draw,
    findings=findings,
    minutes={"quick": 0.4, "paper": 2},
    common=("network",),
)  # fmt: skip
