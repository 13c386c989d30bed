"""Claims of paper 001, section 2: the smaller outlier in the course of training."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np

from hessence.papers.claims.dense_hessians import Array, gradient
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import Scalar

RATE, MOMENTUM = 0.18, 0.9
HIGH_RATES = (0.5, 0.7, 1.0)
NETWORKS = 6
RESOLVED = 1e-6


def _start(seed: int, progress: float, scale: float) -> Scalar:
    """Draw a network of width 10 on a wedge y = |x|, this far on its way to the best fit."""
    rng = np.random.default_rng((180, seed))
    x = scale * rng.uniform(-0.5, 1, size=40)
    v, w = rng.normal(size=(2, 10)) / np.sqrt([[1.0], [10.0]])
    net = Scalar(w, v, x, np.abs(x))
    along = (progress * net.target / net.variance - net.product) / float(v @ v)
    return replace(net, w=w + along * v)


@cache
def _smaller(
    seed: int, progress: float, rate: float, momentum: float, scale: float = 1.0
) -> tuple[Array, float]:
    """Return λ2 = tr − λ_max over λ_max of dense Hessians along training, nothing if it diverges.

    Values that cannot be told from zero are left out. The last λ_max comes with them.
    """
    net = _start(seed, progress, scale)
    point, speed = net.point, np.zeros(len(net.point))
    found: list[float] = []
    top = np.inf
    for _ in range(150 if scale == 1 else 500):
        v, w = np.split(point, 2)
        values = np.linalg.eigvalsh(replace(net, w=w, v=v).hessian())
        top = float(values[-1])
        found.append(float(values.sum() - top) / top)
        if abs(found[-1]) < RESOLVED and momentum == 0:
            break
        speed = momentum * speed - rate * gradient(net.loss, point)
        point = point + speed
        if np.linalg.norm(point) > 1e3:
            return np.zeros(0), np.inf
    seen = np.array(found)
    return np.asarray(seen[np.abs(seen) > RESOLVED]), top


def _turning() -> Verdict:
    gaps, inside, steps = [], [], []
    for progress in (-0.5, 0.0, 0.25, 0.5, 0.8):
        for seed in range(NETWORKS):
            found, _ = _smaller(seed, progress, RATE, 0.0)
            turns = bool(found[0] < 0 and (found > 0).any())
            gaps.append(0.0 if turns else 1.0)
            inside.append(progress < 1 / 3)
            if turns:
                steps.append(int(np.argmax(found > 0)))
    return judge(
        gaps, f"descent at rate {RATE}: λ2 of dense Hessians turns after {min(steps)} to "
        f"{max(steps)} steps", "training starts in the early phase", inside,
    )  # fmt: skip


def _from_above() -> Verdict:
    gaps, inside, told = [], [], []
    for scale, rate, momentum in (
        (1.0, RATE, 0.0), (1.0, HIGH_RATES[0], 0.0), (1.0, RATE, MOMENTUM),
        (1.0, 0.02, 0.5), (0.05, RATE, MOMENTUM),
    ):  # fmt: skip
        for seed in range(NETWORKS):
            path, top = _smaller(seed, 0.0, rate, momentum, scale)
            turned = path[int(np.argmax(path > 0)) :] if (path > 0).any() else path[:0]
            gaps.append(float((turned < 0).any() or len(turned) == 0))
            # Along the top direction the loss is close to a parabola at last, and a step of
            # momentum μ does not overshoot where the roots of z² − (1 + μ − ηλ)z + μ are positive.
            inside.append(rate * top < (1 - np.sqrt(momentum)) ** 2)
        told.append(
            f"{sum(gaps[-NETWORKS:]):.0f} (rate {rate:g}, momentum {momentum:g}, inputs up to "
            f"{scale:g})"
        )
    return judge(
        gaps,
        "λ2 of dense Hessians is negative again after it has turned positive, or all diverges, in "
        f"so many of {NETWORKS} networks: {', '.join(told)}",
        "descent is overdamped, η λ_max < (1 − √μ)²", inside,
    )  # fmt: skip


def _high_rate() -> Verdict:
    gaps, told = [], []
    for momentum, rate in product((MOMENTUM, 0.0), HIGH_RATES):
        ends = {"above": 0, "below": 0, "on both sides": 0, "diverging": 0}
        for seed in range(NETWORKS):
            found, _ = _smaller(seed, 0.0, rate, momentum)
            end = found[-max(3, len(found) // 3) :]
            sides = {bool(value > 0) for value in end}
            side = (
                "diverging" if not sides else "on both sides" if len(sides) > 1
                else "above" if True in sides else "below"
            )  # fmt: skip
            ends[side] += 1
            gaps.append(float(side != "below"))
        counts = ", ".join(f"{count} {side}" for side, count in ends.items() if count)
        told.append(f"{counts} (rate {rate:g}, momentum {momentum:g})")
    return judge(gaps, f"the side of zero on which λ2 ends: {'; '.join(told)}")


CLAIMS = (
    Claim(
        "001-turning", "001 §2, Fig 3",
        "in training the smaller outlier starts out negative and turns positive",
        _turning,
    ),
    Claim(
        "001-from-above", "001 §2, Fig 3",
        "once positive, the smaller outlier converges to zero from above",
        _from_above,
        revised="the experiment first asked it of all networks at the papers' rate and momentum, "
        "which fails for inputs up to 1; the condition was derived after that",
    ),
    Claim(
        "001-high-rate", "001 §2",
        "at high rates the smaller outlier ends small and negative, and goes to zero from below",
        _high_rate, measured=True,
    ),
)  # fmt: skip
