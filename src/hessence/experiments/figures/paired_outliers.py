r"""Two eigenvalues that add up to tr/D (000 Figures 3 and 10–13).

All eigenvalues, exactly, of networks with one output. Where the matrix is large, it is first
brought down to its range:

- Linear, any depth. The slope g of the loss is one row, so a change :math:`dW_\ell` enters the
  second variation only through :math:`s_\ell^\top dW_\ell` and :math:`dW_\ell p_\ell`, where
  :math:`s_\ell^\top = W_L \cdots W_{\ell+1}` and :math:`p_\ell = W_{\ell-1}\cdots W_1 g`. That
  leaves :math:`D + 2m - 1` of :math:`m(D+1)` dimensions at two layers, :math:`D + 6m - 3` at four.
- ReLU, two layers. The functional part has rank 2 for each neuron, the Gauss–Newton part rank n in
  all: 2m + n dimensions.
- ReLU, four layers. Samples differ in their gates, so the functional part has full rank and nothing
  is saved. These networks are solved in full, at the widths that allow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

import hessence as hs
from hessence.experiments import Experiment, Finding, Record, Task
from hessence.experiments.relu_products import ReLUHessian
from hessence.plotting import COLOURS, GREY

CONTROLS = (0.75, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.25)
"""Multiples of tr/D that no theory singles out."""

ROUNDING = 1e-16
"""What is below this, relative to eigenvalues of the order of 1, is rounding."""

KINDS = (("linear", 2), ("linear", 4), ("relu", 2), ("relu", 4))
FIGURES = {
    "two-layer-linear": ("linear", 2),
    "four-layer-linear": ("linear", 4),
    "two-layer-relu": ("relu", 2),
    "four-layer-relu": ("relu", 4),
}
NUMBERS = ("3b, 10", "11", "12", "13")
SHADES = {"best": COLOURS[0], "second": COLOURS[1], "control": COLOURS[3], "mean": GREY}
NAMES = {
    "best": "closest pair",
    "second": "second closest pair",
    "control": "closest pair to another target",
    "mean": "mean eigenvalue",
}


@dataclass(frozen=True)
class Settings:
    """Networks with one output on D inputs, D up to the width, in two settings of weights and data.

    `samples` go with `widths`; networks of four ReLU layers take `deep_relu_widths` instead, with
    the samples of the first width.
    """

    widths: tuple[int, ...] = (10, 150)
    samples: tuple[int, ...] = (102, 152)
    deep_relu_widths: tuple[int, ...] = (10,)
    sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 10, 25, 75, 150)
    settings: tuple[Literal["orthonormal", "standard"], ...] = ("orthonormal", "standard")
    models: int = 5

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.samples) or not self.widths:
            raise ValueError("samples must have one entry for each of the widths")
        if min(*self.samples, 10**9) < max(0, *self.deep_relu_widths) + 2:
            raise ValueError("samples must be at least the width plus 2, to be decorrelated")
        if any(n < m + 2 for m, n in zip(self.widths, self.samples, strict=True)):
            raise ValueError("samples must be at least the width plus 2, to be decorrelated")
        if self.models < 1 or min(self.sizes) < 1:
            raise ValueError("models and sizes must be at least 1")


def tasks(settings: Settings) -> Iterator[Task]:
    """One kind of network, width and input size at a time, D ≤ m."""
    for (activation, depth), setting in product(KINDS, settings.settings):
        deep = (activation, depth) == ("relu", 4)
        widths = settings.deep_relu_widths if deep else settings.widths
        for width, size in product(widths, settings.sizes):
            if size <= width:
                yield {"activation": activation, "depth": depth, "setting": setting,
                       "width": width, "size": size}  # fmt: skip


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Draw one set of data and many networks, and look at all pairs of their eigenvalues."""
    size, width, depth = task["size"], task["width"], task["depth"]
    samples = dict(zip(settings.widths, settings.samples, strict=True)).get(
        width, settings.samples[0]
    )
    orthonormal = task["setting"] == "orthonormal"
    x, y = (decorrelated if orthonormal else standardised)(samples, size, rng)
    dims = (size, *[width] * (depth - 1), 1)
    draw_one = hs.init.orthogonal if orthonormal else hs.init.standard
    found: Record = {name: [] for name in NAMES}
    for _ in range(settings.models):
        weights = draw_one(dims, rng).weights
        values, flat = eigenvalues(weights, x, y, task["activation"])
        total = float(values.sum())
        # Copies of zero beyond the third make no new pairs among the best two.
        values = np.sort(np.concatenate([values, np.zeros(min(flat, 3))]))
        best, second = closest_pairs(values, total / size)
        found["best"].append(best)
        found["second"].append(second)
        found["control"].append(
            float(np.median([closest_pairs(values, c * total / size)[0] for c in CONTROLS]))
        )
        found["mean"].append(total / sum(w.size for w in weights))
    return found


def decorrelated(samples: int, size: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return inputs and targets of mean 0 and variance 1 without any correlation in the sample."""
    columns = np.concatenate([np.ones((samples, 1)), rng.normal(size=(samples, size + 1))], axis=1)
    basis, _ = np.linalg.qr(columns)
    data = basis[:, 1:] * samples**0.5
    return data[:, :size], data[:, size:]


def standardised(samples: int, size: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return Gaussian inputs and targets, each shifted and scaled to mean 0 and variance 1."""
    data = rng.normal(size=(samples, size + 1))
    data = (data - data.mean(axis=0)) / data.std(axis=0)
    return data[:, :size], data[:, size:]


def eigenvalues(weights: Any, x: Any, y: Any, activation: str) -> tuple[Any, int]:
    """Return eigenvalues, and how many more are zero."""
    parameters = sum(w.size for w in weights)
    if activation == "linear":
        matrix = linear_on_range(weights, x, y)
    elif len(weights) == 2 and 2 * len(weights[0]) + len(x) < parameters:
        matrix = relu_on_range(weights[0], weights[1], x, y)
    else:
        matrix = ReLUHessian([w[None] for w in weights], x, y).dense()[0]
    return np.linalg.eigvalsh((matrix + matrix.T) / 2), parameters - len(matrix)


def linear_on_range(weights: Any, x: Any, y: Any) -> Any:
    r"""Return the Hessian of a linear network with one output on its range.

    Coordinates are :math:`a_\ell = \hat s_\ell^\top dW_\ell` for every layer and, for all but the
    last, the part of :math:`dW_\ell \hat p_\ell` across :math:`s_\ell`. The second variation is
    :math:`dM\,\Sigma\,dM^\top + 2\sum_{k>l} (s_k^\top dW_k)\, W_{k-1}\cdots W_{l+1}\, (dW_l p_l)`
    with :math:`dM = \sum_\ell (s_\ell^\top dW_\ell)\, P_\ell`.
    """
    before, after = [np.eye(x.shape[1])], [np.ones((1, 1))]
    for w in weights:
        before.append(w @ before[-1])
    for w in weights[:0:-1]:
        after.insert(0, after[0] @ w)
    slope = (before[-1] @ x.T - y.T) @ x / len(x)
    root = x.T / len(x) ** 0.5
    rows = []
    changes: list[tuple[Any, Any]] = []
    widths = [len(p) for p in before[:-1]]
    across = [_complement(s[0]) for s in after[:-1]]
    size = sum(widths) + sum(basis.shape[1] for basis in across)
    start = 0
    for i, width in enumerate(widths):
        s, p = after[i][0], before[i] @ slope[0]
        out, inward = np.zeros((size, width)), np.zeros((size, len(s)))
        along = np.arange(start, start + width)
        start += width
        out[along, np.arange(width)] = np.linalg.norm(s)
        inward[along] = np.outer(p, s / np.linalg.norm(s))
        if i < len(across):
            beside = np.arange(start, start + across[i].shape[1])
            start += len(beside)
            inward[beside] = across[i].T * np.linalg.norm(p)
        changes.append((out, inward))
        rows.append(out @ before[i] @ root)
    moved = sum(rows[1:], rows[0])
    matrix = moved @ moved.T
    for low in range(len(weights) - 1):
        carried = changes[low][1]
        for high in range(low + 1, len(weights)):
            cross = changes[high][0] @ carried.T
            matrix += cross + cross.T
            carried = carried @ weights[high].T
    return matrix


def _complement(vector: Any) -> Any:
    """Return an orthonormal basis of what is across a vector, as columns."""
    basis, _ = np.linalg.qr(vector[:, None], mode="complete")
    return basis[:, 1:]


def relu_on_range(first: Any, second: Any, x: Any, y: Any) -> Any:
    r"""Return the Hessian of w·φ(Vx) on a space that holds its range, of dimension 2m + n.

    The functional part couples :math:`w_j` with :math:`v_j` along :math:`q_j = E[\delta\,
    \phi'(v_j x)\, x]`. What the gradients J of the samples have across these 2m directions is known
    to the Hessian by its Gram matrix alone, of which a square root takes its place.
    """
    n, m = len(x), len(first)
    w, z = second[0], x @ first.T
    gates, hidden = (z > 0).astype(float), np.maximum(z, 0)
    residual = hidden @ w - y[:, 0]
    q = (gates * residual[:, None]).T @ x / n
    size = np.linalg.norm(q, axis=1)
    unit = q / np.where(size > 0, size, 1)[:, None]
    along = np.concatenate([gates * w * (x @ unit.T), hidden], axis=1)
    gram = ((gates * w**2) @ gates.T) * (x @ x.T) + hidden @ hidden.T
    kept, vectors = np.linalg.eigh(gram - along @ along.T)
    root = vectors * np.sqrt(np.maximum(kept, 0))
    jacobian = np.concatenate([along, root], axis=1)
    matrix = jacobian.T @ jacobian / n
    neurons = np.arange(m)
    matrix[neurons, neurons + m] += size
    matrix[neurons + m, neurons] += size
    return matrix


def closest_pairs(values: Any, target: float) -> tuple[float, float]:
    """Return the two smallest |λ_i + λ_j − target| over pairs i < j of sorted eigenvalues."""
    count = len(values)
    index = np.arange(count)
    # The two best partners of each, itself left out, are among the three on either side.
    places = np.searchsorted(values, target - values)[:, None] + np.arange(-3, 3)
    inside = np.clip(places, 0, count - 1)
    fits = (places == inside) & (inside != index[:, None])
    gaps = np.where(fits, np.abs(values[:, None] + values[inside] - target), np.inf)
    # Each pair is there twice at most, so the first four entries hold two pairs.
    pairs: dict[tuple[int, int], float] = {}
    for flat in np.argsort(gaps, axis=None)[:4]:
        i, column = divmod(int(flat), gaps.shape[1])
        if fits[i, column]:
            j = int(inside[i, column])
            pairs[min(i, j), max(i, j)] = float(gaps[i, column])
    best, second, *_ = [*sorted(pairs.values()), np.inf, np.inf]
    return best, second


def _draw(activation: str, depth: int) -> Any:
    def draw(settings: Settings, records: list[Record], figure: Any) -> None:
        """Draw the closest pairs against the input size, one panel for each width and setting."""
        rows = [r for r in records if (r["activation"], r["depth"]) == (activation, depth)]
        panels = list(dict.fromkeys((r["setting"], r["width"]) for r in rows))
        widths = max(1, len({width for _, width in panels}))
        lines = -(-len(panels) // widths)
        figure.set_size_inches(max(5.5 * widths, 7), 3.8 * lines)
        axes = figure.subplots(lines, widths, squeeze=False, sharey=True)
        for ax, (setting, width) in zip(axes.flat, panels, strict=True):
            own = [r for r in rows if (r["setting"], r["width"]) == (setting, width)]
            sizes = [r["size"] for r in own]
            for name, colour in SHADES.items():
                low, middle, high = (
                    np.asarray([np.quantile(r[name], q) for r in own]) for q in (0.25, 0.5, 0.75)
                )
                style = "--" if name in ("control", "mean") else "-"
                ax.loglog(sizes, np.maximum(middle, ROUNDING), f"o{style}", color=colour,
                          markersize=4, label=NAMES[name])  # fmt: skip
                ax.fill_between(sizes, np.maximum(low, ROUNDING), np.maximum(high, ROUNDING),
                                color=colour, alpha=0.15, linewidth=0)  # fmt: skip
            weights, data = (
                ("orthonormal weights", "decorrelated data")
                if setting == "orthonormal"
                else ("standard weights", "standardised data")
            )
            ax.set_title(f"width {width}: {weights}, {data}", fontsize=10)
            ax.set_xlabel("input size D")
        for ax in axes[:, 0]:
            ax.set_ylabel("|λᵢ + λⱼ − tr/D|, median and quartiles")
        axes[0, 0].legend(fontsize=8)

    return draw


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with §4.1, and ask whether tr/D is a special target at all."""
    found = []
    for (name, (activation, depth)), numbers in zip(FIGURES.items(), NUMBERS, strict=True):
        rows = [r for r in records if (r["activation"], r["depth"]) == (activation, depth)]
        good = [r for r in rows if r["setting"] == "orthonormal"]
        # With one input, two layers have an exact pair for any weights (Theorem 3.1).
        rest = [r for r in rows if r["setting"] == "standard" and r["size"] > 1]
        title = name.replace("-", " ").replace("relu", "ReLU")
        if good and name == "two-layer-linear":
            found.append(_on_the_pair(title, good))
        elif good:
            found.append(_on_closeness(f"orthonormal {title}", numbers, good))
        if rest:
            found.append(_on_closeness(f"standard {title}, D > 1", numbers, rest))
            found.append(_on_other_targets(title, rest))
    return found


def _on_the_pair(title: str, rows: list[Record]) -> Finding:
    off, apart = _medians(rows, "best", "mean"), _medians(rows, "second", "best")
    return Finding(
        "with orthonormal weights and decorrelated data, one pair adds up to tr/D, orders of "
        f"magnitude closer than the next pair and the mean eigenvalue: {title}",
        "000 §4.1, Fig 3a, 10",
        off.max() < 1e-2 and apart.min() > 100,
        f"closest pair off by at most {off.max():.0e} mean eigenvalues, the second at least "
        f"{apart.min():.0e} times as far (medians at each of {len(rows)} sizes and widths)",
    )


def _on_closeness(title: str, numbers: str, rows: list[Record]) -> Finding:
    off, apart = _medians(rows, "best", "mean"), _medians(rows, "second", "best")
    return Finding(
        f"a pair adds up to nearly tr/D, and the second closest is close too: {title}",
        f"000 §4.1, Fig {numbers}",
        np.median(off) < 1 and np.median(apart) < 100,
        f"closer than the mean eigenvalue at {np.sum(off < 1)} of {len(rows)} sizes and widths; "
        f"median {np.median(off):.1g} mean eigenvalues, worst {off.max():.1g}; the second "
        f"{np.median(apart):.1f} times as far",
    )


def _on_other_targets(title: str, rows: list[Record]) -> Finding:
    missed = _medians(rows, "control", "best")
    return Finding(
        "this closeness is owed to a pair, as other targets within 25% of tr/D are missed by far "
        f"more: standard {title}, D > 1",
        "000 §4.1, the hypothesis; a control of our own",
        np.median(missed) > 10,
        f"other targets are missed by {np.median(missed):.1f} times as much in the median, "
        f"{missed.min():.2g} to {missed.max():.2g} times",
    )


def _medians(rows: list[Record], above: str, below: str) -> Any:
    """Return the median ratio of two quantities over the networks of each record."""
    return np.asarray(
        [np.median(np.divide(r[above], np.maximum(r[below], ROUNDING))) for r in rows]
    )


EXPERIMENT = Experiment(
    id="paired-outliers",
    title="Pairs of eigenvalues that add up to tr/D",
    figures=("000 F3", "000 F10", "000 F11", "000 F12", "000 F13"),
    shows="how close two eigenvalues come to adding up to tr/D, beside the next pair, the mean "
    "eigenvalue and other targets",
    presets={
        "tiny": Settings((4,), (12,), (3,), sizes=(1, 2, 3), models=2),
        "quick": Settings(),
        "paper": Settings(
            deep_relu_widths=(10, 20),
            sizes=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 50, 75, 100, 125, 150),
            models=100,
        ),
    },
    tasks=tasks,
    run=run,
    draw={name: _draw(*kind) for name, kind in FIGURES.items()},
    findings=findings,
    minutes={"quick": 1, "paper": 100},
)
