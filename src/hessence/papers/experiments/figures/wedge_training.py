"""The outlier pair through training on a wedge (000 Figure 8, 001 Figure 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least, between
from hessence.plotting.axes import COLOURS, GREY, signed_scale
from hessence.plotting.training import PHASES

APPROACHES = {
    "above": ("to zero from above", COLOURS[2]),
    "around": ("wiggling around zero", COLOURS[3]),
    "below": ("to zero from below", COLOURS[1]),
    "diverges": ("diverges", "#d0d0d0"),
}
RESOLVED = 1e-6
"""A smaller outlier below this part of the larger one is taken to have reached zero."""
LAST = 6
"""An approach is of one sign in the last third of the resolved values, and so many at least."""
ROUNDING = 1e-9
MOST = ", where more than half is asked for"


@dataclass(frozen=True)
class Settings:
    """Width, rate and momentum as in the papers, which do not specify the wedge.

    Here y = abs(x), with x uniform from `lowest` to 1: were it symmetric, the best linear fit would
    be zero and a linear network would have no phases. Weights are in the standard parametrisation.
    Linear networks also run at `rates`, with and without momentum; ReLU networks at `rate` with and
    without momentum, and at `high_rate` without.
    """

    width: Annotated[int, at_least(2)] = 10
    rate: float = 0.18
    momentum: Annotated[float, between(0, 1)] = 0.9
    high_rate: float = 1.0
    rates: tuple[float, ...] = (0.05, 0.1, 0.18, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
    samples: Annotated[int, at_least(2)] = 100
    lowest: Annotated[float, between(-1, 0)] = -0.5
    steps: Annotated[int, at_least(10)] = 400
    networks: int = 500
    relu_networks: int = 12

    @property
    def all_rates(self) -> list[float]:
        """The rates of linear networks, in order."""
        return sorted({*self.rates, self.rate, self.high_rate})


def tasks(settings: Settings) -> Iterator[Task]:
    """All linear networks at one rate are a batch; ReLU networks come one by one."""
    for momentum, rate in product((settings.momentum, 0.0), settings.all_rates):
        yield {"network": "linear", "rate": rate, "momentum": momentum, "draw": 0}
    for (rate, momentum), draw in product(_columns(settings), range(settings.relu_networks)):
        yield {"network": "relu", "rate": rate, "momentum": momentum, "draw": draw}


def _columns(settings: Settings) -> tuple[tuple[float, float], ...]:
    """Return rates and momenta of the picture's columns."""
    slow = (settings.rate, settings.momentum), (settings.rate, 0.0)
    return (*slow, (settings.high_rate, 0.0))


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train, and follow the outlier pair; of ReLU networks that of the + cell, as in the paper."""
    x = rng.uniform(settings.lowest, 1, size=settings.samples)
    y = np.abs(x)
    relu = task["network"] == "relu"
    batch = () if relu else (settings.networks,)
    v = rng.normal(size=(*batch, settings.width))
    w = rng.normal(size=(*batch, settings.width)) / settings.width**0.5
    if relu:
        v[0] = abs(v[0])  # a + cell without units would have no pair
    net = hs.ScalarReLU(w, v) if relu else hs.ScalarLinear(w, v)
    t: Any = hs.gradient_descent(
        net, x, y, lr=task["rate"], steps=settings.steps, momentum=task["momentum"]
    )
    pair, delta = (t.outliers[:, 0], t.bulk[:, 0]) if relu else (t.outliers, t.bulk)
    pair, delta = pair.reshape(len(t), -1, 2), delta.reshape(len(t), -1)
    covariance = np.sum((x * y)[x > 0 if relu else slice(None)]) / len(x)
    with np.errstate(invalid="ignore", over="ignore"):
        progress = 1 + delta / covariance  # g over the solution θ*
        trace = pair[..., 0] + pair[..., 1] if relu else t.trace
        kept = [_summary(pair[:, i], progress[:, i], trace[:, i]) for i in range(pair.shape[1])]
    shown = _choose(kept, task["rate"] == settings.high_rate)
    good = np.isfinite(pair[:, shown]).all(axis=-1)
    return {
        **{name: [row[name] for row in kept] for name in kept[0]},
        "shown": shown,
        "larger": np.where(good, pair[:, shown, 0], np.nan),
        "smaller": np.where(good, pair[:, shown, 1], np.nan),
        "bulk": np.where(good, delta[:, shown], np.nan),
        "progress": np.where(good, progress[:, shown], np.nan),
    }


def _summary(pair: Any, progress: Any, trace: Any) -> Record:
    """Describe how the smaller outlier starts, turns and ends."""
    finite = bool(np.isfinite(pair).all() and np.isfinite(progress).all())
    larger, smaller = pair[:, 0], pair[:, 1]
    seen = np.flatnonzero(np.abs(smaller) > RESOLVED * larger) if finite else np.arange(0)
    signs = np.sign(smaller[seen])
    turns = np.flatnonzero(np.diff(signs))
    ends = set(signs[-max(LAST, len(signs) // 3) :])
    approach = "diverges" if not finite else "around"
    if finite and len(ends) == 1:
        approach = "above" if ends == {1.0} else "below"
    early, late = progress <= 1 / 3, (progress > 1 / 3) & (progress <= 1)
    # Within rounding of a border the phases are not told apart.
    clear = np.minimum(np.abs(progress - 1 / 3), np.abs(progress - 1)) > ROUNDING
    slack = ROUNDING * larger
    right = np.where(
        late,
        (smaller >= -slack) & (larger <= trace + slack),
        (smaller <= slack) & (larger >= trace - slack),
    )
    return {
        "approach": approach,
        "start": "early" if early[0] else "late" if late[0] else "divergent",
        "starts_negative": bool(smaller[0] < 0),
        "first_turn": int(seen[turns[0] + 1]) if len(turns) else -1,
        "turns": len(turns),
        "drops_first": bool(np.argmin(smaller[:20]) > 0) if finite else False,
        "violations": int(np.sum(~right & clear)) if finite else 0,
        "pairing": float(np.abs(pair.sum(axis=1) / trace - 1).max()) if finite else 0.0,
        "converged": finite and abs(progress[-1] - 1) < 1e-3,
        "rest": float(abs(smaller[-1] / larger[-1])) if finite else float("nan"),
    }


def _choose(rows: list[Record], high: bool) -> int:
    """Return a network that starts early and ends as most do; at the high rate, from below."""
    ends = [row["approach"] for row in rows]
    wanted = "below" if high else max(APPROACHES, key=ends.count)
    return max(
        range(len(rows)),
        key=lambda i: (ends[i] == wanted, rows[i]["start"] == "early", -i),
    )


def draw_pairs(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw the pair over the phases of learning: linear above, ReLU below."""
    figure.set_size_inches(14, 7.6)
    axes = figure.subplots(2, 3)
    for column, (rate, momentum) in enumerate(_columns(settings)):
        for ax, network in zip(axes[:, column], ("linear", "relu"), strict=True):
            rows = _rows(records, network, rate, momentum)
            row = rows[_choose([_of_shown(r) for r in rows], rate == settings.high_rate)]
            _draw_pair(ax, row)
            ends = [approach for r in rows for approach in r["approach"]]
            own = row["approach"][row["shown"]]
            ax.set_title(
                f"{'linear' if network == 'linear' else 'ReLU, + cell'}: rate {rate:g}, momentum "
                f"{momentum:g}\none of the {ends.count(own) / len(ends):.0%} that end "
                f"{APPROACHES[own][0]}",
                fontsize=10,
            )
    axes[0, 0].legend(frameon=False)
    for ax in axes[-1]:
        ax.set_xlabel("step (shades: early, late and divergent phase)")
    for ax in axes[:, 0]:
        ax.set_ylabel("eigenvalue")


def _of_shown(row: Record) -> Record:
    return {name: row[name][row["shown"]] for name in ("approach", "start")}


def _draw_pair(ax: Any, row: Record) -> None:
    end = 120 if row["momentum"] else 40
    larger, smaller, bulk, progress = (
        np.asarray(row[name][: end + 1], dtype=float)
        for name in ("larger", "smaller", "bulk", "progress")
    )
    phase = np.select([progress <= 1 / 3, progress <= 1], ["early", "late"], "divergent")
    for step, name in enumerate(phase):
        ax.axvspan(step - 0.5, step + 0.5, color=PHASES[str(name)], zorder=0, linewidth=0)
    ax.plot(larger, color=COLOURS[0], label="larger outlier")
    ax.plot(smaller, color=COLOURS[1], label="smaller outlier")
    for sign in (1, -1):
        ax.plot(sign * bulk, color=GREY, linewidth=0.8, label="bulk" if sign == 1 else None)
    ax.axhline(0, color="black", linestyle=":", linewidth=1)
    signed_scale(ax, 0.02)
    ax.margins(x=0)


def draw_rates(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw how the smaller outlier of linear networks ends, by rate."""
    figure.set_size_inches(11, 4.2)
    for ax, momentum in zip(figure.subplots(1, 2), (settings.momentum, 0.0), strict=True):
        base = np.zeros(len(settings.all_rates))
        places = np.arange(len(base))
        rows = [_rows(records, "linear", rate, momentum)[0] for rate in settings.all_rates]
        for name, (label, colour) in APPROACHES.items():
            share = np.asarray([np.mean([a == name for a in row["approach"]]) for row in rows])
            ax.bar(places, share, bottom=base, color=colour, width=0.9, label=label)
            base = base + share
        ax.set_xticks(places, [f"{rate:g}" for rate in settings.all_rates])
        ax.set_xlabel("learning rate")
        ax.set_title(f"momentum {momentum:g}", fontsize=11)
        ax.set_ylabel(f"share of {settings.networks} linear networks")
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with the phases of learning, and with what the papers see in training."""
    violations = sum(sum(record["violations"]) for record in records)
    linear = [record for record in records if record["network"] == "linear"]
    pairing = max(max(record["pairing"]) for record in linear)
    rest = [r for row in records for r, c in zip(row["rest"], row["converged"], strict=True) if c]
    found = [
        Finding(
            "the two outliers add up to the trace at every step",
            "000 Eq 122, 001 §2",
            pairing < ROUNDING,
            f"largest deviation {pairing:.0e} in {len(linear) * settings.networks} linear networks",
        ),
        Finding(
            "early and divergent: λ₂ ≤ 0 and λ₁ ≥ tr H; late: λ₂ ≥ 0 and λ₁ ≤ tr H",
            "000 App C, 001 §1",
            violations == 0,
            f"{violations} violations in all steps of {sum(len(r['start']) for r in records)} "
            "networks, ReLU's + cells among them",
        ),
        Finding(
            "at the solution the Hessian has rank one",
            "000 App C",
            None if not rest else float(np.median(rest)) < 1e-3,
            f"{len(rest)} networks arrive; λ₂/λ₁ is then {np.median(rest):.0e} in the median"
            if rest
            else "no network arrives",
        ),
    ]
    for network in ("linear", "relu"):
        for rate, momentum in _columns(settings)[:2]:
            found += _at_the_papers_rate(_rows(records, network, rate, momentum))
        high = _rows(records, network, *_columns(settings)[2])
        found.append(_at_a_high_rate(high))
    return found


def _setting(row: Record) -> str:
    name = "linear" if row["network"] == "linear" else "ReLU"
    return f"{name}, rate {row['rate']:g}, momentum {row['momentum']:g}"


def _gather(rows: list[Record], name: str) -> Any:
    return np.asarray([value for row in rows for value in row[name]])


def _at_the_papers_rate(rows: list[Record]) -> list[Finding]:
    approach, start = _gather(rows, "approach"), _gather(rows, "start")
    negative, turn = _gather(rows, "starts_negative"), _gather(rows, "first_turn")
    early = start == "early"
    turned = early & (turn > 0)
    ends = ", ".join(f"{np.mean(approach == a):.0%} {APPROACHES[a][0]}" for a in APPROACHES)
    where = f" ({_setting(rows[0])})"
    return [
        Finding(
            "the smaller outlier starts out negative and turns positive a little later" + where,
            "001 §2, Fig 3",
            np.mean(turned) > 0.5,
            f"negative at first in {np.mean(negative):.0%} of {len(early)} networks; "
            f"{np.mean(turned):.0%} start in the early phase and turn, "
            f"after {np.median(turn[turned]) if turned.any() else 0:.0f} steps in the median{MOST}",
        ),
        Finding(
            "it finally converges to zero from above" + where,
            "001 §2, Fig 3",
            np.mean(approach == "above") > 0.5,
            f"{ends}{MOST}{_of_early(approach[early])}",
        ),
    ]


def _of_early(approach: Any) -> str:
    if not len(approach):
        return ""
    return f"; of those from the early phase {np.mean(approach == 'above'):.0%} from above"


def _at_a_high_rate(rows: list[Record]) -> Finding:
    approach = _gather(rows, "approach")
    drops, turns = _gather(rows, "drops_first"), _gather(rows, "turns")
    below = approach == "below"
    whole = np.mean(below & drops & (turns > 1))
    ends = ", ".join(f"{np.mean(approach == a):.0%} {APPROACHES[a][0]}" for a in APPROACHES)
    return Finding(
        "at a high rate the smaller outlier drops, wiggles around zero and stays negative "
        f"({_setting(rows[0])})",
        "001 §2",
        whole > 0.5,
        f"{ends}; all of it in {whole:.0%} of {len(below)} networks{MOST}",
    )


def _rows(records: list[Record], network: str, rate: float, momentum: float) -> list[Record]:
    return [
        record
        for record in records
        if (record["network"], record["rate"], record["momentum"]) == (network, rate, momentum)
    ]


EXPERIMENT = Experiment(
    id="wedge-training",
    title="The outlier pair through training on a wedge",
    figures=("000 F8", "001 F3"),
    shows="both outliers and the phases of learning, linear and ReLU, at low and high rates",
    presets={
        "tiny": Settings(rates=(0.18, 1.0), steps=30, networks=10, relu_networks=2),
        "quick": Settings(),
        "paper": Settings(steps=1000, networks=5000, relu_networks=100),
    },
    tasks=tasks,
    run=run,
    draw={"pairs": draw_pairs, "rates": draw_rates},
    findings=findings,
    minutes={"quick": 0.2, "paper": 3},
    common=("rate", "momentum"),
)
