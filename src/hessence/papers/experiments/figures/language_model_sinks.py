"""The spectrum of a language model with attention sinks enforced (000 Figure 6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import Share, at_least
from hessence.papers.experiments.shared.texts import (
    GPT2_VOCABULARY,
    OPENWEBTEXT,
    STDLIB,
    require_text,
    text_data,
)
from hessence.plotting.axes import COLOURS

SHADES = (COLOURS[0], COLOURS[3], COLOURS[1], COLOURS[4], COLOURS[2])
NEAR = 0.01
"""Eigenvalues below this share of the sharpness without a sink count as close to zero."""

MANY = 0.9
"""The share of all eigenvalues that counts as "many"; chosen before the first run."""

TEXTS = {"": (STDLIB, OPENWEBTEXT), "gpt2": ("stories", OPENWEBTEXT)}
"""The texts besides files that checkpoints can read; those of llama2.c read ``stories``."""

GRID = 800
"""Places at which densities are kept, some three a width."""

TOL = 1e-3
"""Residuals of the largest eigenvalues' vectors, relative to ‖H‖."""


@dataclass(frozen=True)
class Settings:
    """A language model, and the attention that the first token gets in the first heads.

    The paper takes pretrained GPT-2 and raises the mean attention of the first heads to the first
    token from 0.32 to 0.81 by a bias, without training the model again. Here `levels` biases raise
    it in equal steps from what it is to `attention`.

    Without a `checkpoint` a small GPT is trained on `text`, byte by byte, for `steps` steps. With
    one, its sequences are stories, each from its beginning, and `text` is ``stories`` or the path
    of a file of stories. ``gpt2`` is the paper's model, and can also read ``openwebtext``; it needs
    its weights and its vocabulary in the folder ``gpt2`` of the data folder, and a GPU.
    ``stories15M.bin``, of llama2.c, has 15 million parameters, which a CPU can do::

        hessence reproduce language-model-sinks --preset paper --set checkpoint=stories15M.bin
    """

    checkpoint: str = ""
    text: str = "stdlib"
    layers: int = 4
    width: int = 64
    heads: int = 4
    context: int = 32
    steps: Annotated[int, at_least(0)] = 400
    batch: int = 16
    lr: float = 2e-3
    warmup: Annotated[int, at_least(0)] = 40
    sequences: int = 8
    attention: Share = 0.81
    levels: Annotated[int, at_least(2)] = 3
    outliers: int = 5
    probes: int = 8
    products: int = 48
    draws: int = 3

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of the heads, {self.heads}")
        if self.levels > len(SHADES):
            raise ValueError(f"levels must be at most {len(SHADES)}")
        if self.checkpoint not in ("", "gpt2") and not self.checkpoint.endswith(".bin"):
            raise ValueError("checkpoint must be gpt2 or the name of a file that ends in .bin")
        known = TEXTS.get(self.checkpoint, ("stories",))
        if self.text in (STDLIB, OPENWEBTEXT, "stories") and self.text not in known:
            model = self.checkpoint or "a model that is trained here"
            raise ValueError(f"text must be {', '.join(known)} or a file for {model}")
        require_text(self.text, 10 * self.context, known)


def data(settings: Settings) -> tuple[str, ...]:
    """Name the checkpoint, and the text if it comes from the data folder."""
    return ((settings.checkpoint,) if settings.checkpoint else ()) + text_data(settings.text)


def tasks(settings: Settings) -> Iterator[Task]:
    """Look at one model at a time."""
    for draw in range(settings.draws):
        yield {"draw": draw}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train or load a model, and find its spectrum at each strength of the sink."""
    import torch

    from hessence.papers.experiments.shared.language_models import (
        enforce_sink,
        sink_attention,
        sink_for_attention,
    )

    model, x, y = _model(settings, rng)
    plain = sink_attention(model, x)
    if plain >= settings.attention:
        raise ValueError(
            f"attention must be above {plain:.3g}, what the first token gets without a sink"
        )
    wanted = np.linspace(plain, settings.attention, settings.levels)
    sinks = [0.0, *(sink_for_attention(model, x, float(share)) for share in wanted[1:])]
    seed = int(rng.integers(2**32))
    found, rows, start = [], [], None
    for sink in sinks:
        enforce_sink(model, sink)
        H = hs.hessian(model, (x, y), torch.nn.CrossEntropyLoss())
        top = hs.eigenpairs(H, k=settings.outliers, tol=TOL, v0=start, rng=seed)
        start = top.eigenvectors
        # The same random vectors for all strengths, so that changes come from the sink alone.
        found.append(hs.density(H, settings.probes, settings.products, rng=seed))
        rows.append({"sink": sink, "attention": sink_attention(model, x), "loss": H.loss(),
                     "outliers": top.eigenvalues.tolist()})  # fmt: skip
        H.release()
    near = NEAR * rows[0]["outliers"][0]
    width = max(density.width for density in found)
    low, high = min(d.ends[0] for d in found), max(d.ends[1] for d in found)
    grid = np.linspace(low - 5 * width, high + 5 * width, GRID)
    for row, density in zip(rows, found, strict=True):
        values, error = density.at(grid, width)
        close, _ = density.average(lambda nodes: np.asarray(np.abs(nodes) < near, dtype=float))
        row |= {"values": values, "band": error, "ends": density.ends, "near_zero": close}
    return {
        "grid": grid,
        "width": width,
        "parameters": found[0].size,
        **{name: [row[name] for row in rows] for name in rows[0]},
    }


def _model(settings: Settings, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Load a model or train one; return it with sequences of text and their targets."""
    import torch

    from hessence.papers.experiments.shared import language_training as training
    from hessence.papers.experiments.shared.language_models import Gpt, GptShape
    from hessence.papers.experiments.shared.pretrained import load_pretrained
    from hessence.papers.experiments.shared.texts import load_tokens, windows

    if settings.checkpoint:
        return load_pretrained(
            settings.checkpoint, settings.text, settings.sequences, settings.context, rng
        )
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    tokens = load_tokens(settings.text)
    vocabulary = GPT2_VOCABULARY if settings.text == OPENWEBTEXT else 256
    shape = GptShape(vocabulary, settings.context, settings.width, settings.heads, settings.layers)
    where = training.device()
    model = Gpt(shape, generator).to(where)
    pair = windows(tokens, settings.sequences, settings.context, rng)
    ((x, y),) = training.as_batches(pair, settings.sequences, where)
    recipe = training.Recipe(settings.steps, settings.batch, settings.context, settings.lr,
                             settings.warmup, settings.batch)  # fmt: skip
    for _ in training.pretrain(model, tokens, recipe, rng, ()):
        pass
    return model, x, y


def draw_densities(settings: Settings, records: list[Record], figure: Any) -> None:
    """As a sink grows, from top to bottom, the largest eigenvalue moves out; most stay near zero.

    Bands are one standard error of the estimated density, which is that of the first model.
    """
    figure.set_size_inches(9, 0.6 + 1.5 * settings.levels)
    axes = figure.subplots(settings.levels, 1, sharex=True, sharey=True)
    first = records[0]
    grid, width = np.asarray(first["grid"]), first["width"]
    # What lies lower is the tail of a Gaussian, not an eigenvalue.
    floor = 0.04 / (first["parameters"] * width)
    for level, ax in enumerate(axes):
        colour, outliers = SHADES[level], first["outliers"][level]
        values, band = (np.asarray(first[name][level]) for name in ("values", "band"))
        low, high = np.maximum(values - band, floor), np.maximum(values + band, floor)
        ax.fill_between(grid, low, high, color=colour, alpha=0.25, linewidth=0)
        ax.plot(grid, np.where(values > floor, values, np.nan), color=colour, linewidth=1.2)
        ax.plot(outliers, np.full(len(outliers), 2 * floor), "|", color="black", markersize=8)
        bias = f"bias {first['sink'][level]:.1f}" if level else "no bias"
        told = f"attention {first['attention'][level]:.2f} to the first token, {bias}"
        ax.set_title(told, loc="left", fontsize=10, color=colour)
        ax.axvline(outliers[0], color=colour, linestyle=":", linewidth=1)
    axes[0].set_yscale("log")
    axes[0].set_ylim(bottom=floor)
    figure.suptitle(f"{first['parameters']:,} eigenvalues, smoothed by {width:.2g}; marks: the "
                    f"largest {settings.outliers}", fontsize=10)  # fmt: skip
    figure.supylabel("density", fontsize=10)
    axes[-1].set_xlabel("eigenvalue")


def draw_ends(settings: Settings, records: list[Record], figure: Any) -> None:
    """Each line follows one eigenvalue of a model while its first token gets more attention."""
    figure.set_size_inches(9.6, 3.4)
    outliers = np.asarray([record["outliers"] for record in records])
    panels = (
        ("largest eigenvalue", outliers[..., 0]),
        (f"number {settings.outliers} from the top", outliers[..., -1]),
        ("smallest eigenvalue", np.asarray([record["ends"] for record in records])[..., 0]),
    )
    for ax, (told, values) in zip(figure.subplots(1, 3), panels, strict=True):
        for i, (record, row) in enumerate(zip(records, values, strict=True)):
            label = f"model {i + 1}" if len(records) > 1 else None
            ax.plot(record["attention"], row, "o-", color=COLOURS[i % len(COLOURS)], label=label)
        ax.set_title(told, fontsize=10)
        ax.set_xlabel("attention to the first token")
    if len(records) > 1:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(records))


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with what the paper reads from its figure."""
    outliers = np.asarray([r["outliers"] for r in records])
    losses = np.asarray([r["loss"] for r in records])
    ends = np.asarray([r["ends"] for r in records])
    attention = np.asarray([r["attention"] for r in records])
    near = np.asarray([r["near_zero"] for r in records])
    rising = (np.diff(outliers, axis=1) > 0).all(axis=(1, 2))
    top = (np.diff(outliers[..., 0], axis=1) > 0).all(axis=1)
    extent = ends[..., 1] - ends[..., 0]
    wider = (np.diff(extent, axis=1) > 0).all(axis=1)
    rise, stretch = outliers[:, -1, 0] / outliers[:, 0, 0], extent[:, -1] / extent[:, 0]
    model = settings.checkpoint or "trained here"
    count = f"{len(records)} model{'s' * (len(records) != 1)}"
    size = f"{records[0]['parameters']:,} parameters, {model}"
    shares = " → ".join(f"{share:.2f}" for share in np.median(attention, axis=0))
    return [
        Finding(
            "000-gpt-sinks",
            bool(rising.all()),
            f"{size}: with attention {shares}, all grow at each step in {rising.sum()} of {count}, "
            f"the sharpness in {top.sum()}; strongest sink against none: {_listed(rise)} times the "
            f"sharpness, {_listed(losses[:, -1] / losses[:, 0])} times the loss",
            criterion=f"each of the largest {settings.outliers} eigenvalues grows at each step of "
            "the sink, in every model",
        ),
        Finding(
            "000-gpt-stretch",
            bool(wider.all()),
            f"longer at each step in {wider.sum()} of {count}, in the end {_listed(stretch)} times "
            "as long",
            criterion="from the smallest to the largest eigenvalue it is longer at each step of "
            "the sink, in every model",
        ),
        Finding(
            "000-gpt-zero",
            bool(near.min() >= MANY),
            f"at least {near.min():.1%}",
            criterion=f"at least {MANY:.0%} of all eigenvalues are within {NEAR:.0%} of the "
            "sharpness without a sink, at every step and in every model",
        ),
    ]


def _listed(values: Any) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


EXPERIMENT = Experiment(
    id="language-model-sinks",
    title="Attention sinks in a language model",
    figures=("000 F6",),
    shows="the Hessian's density in a language model whose first heads attend to the first token",
    presets={
        "tiny": Settings(layers=1, width=8, heads=2, context=8, steps=3, batch=2, sequences=2,
                         outliers=2, probes=2, products=8, draws=1),
        "quick": Settings(),
        "paper": Settings(checkpoint="gpt2", text="stories", context=128, sequences=4, probes=16,
                          products=64, draws=1),
    },
    tasks=tasks,
    run=run,
    draw={"densities": draw_densities, "ends": draw_ends},
    findings=findings,
    minutes={"quick": 2.7, "paper": 60},
    data=data,
    packages=("torch",),
    gpu=("paper",),
)  # fmt: skip
