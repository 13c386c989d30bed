"""Claims of paper 002, sections 4 and 5: trained networks, with its assumptions and without."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np

import hessence as hs
from hessence.claims.dense_hessians import Array
from hessence.claims.linear_networks import balanced_weights, white
from hessence.claims.paper_002_data import labelled
from hessence.claims.protocol import Claim, Verdict, judge
from hessence.claims.trained_networks import Stack, stacked

Setting = Literal["all", "labels", "raw", "raw, alike", "unbalanced", "tanh"]
COUNTS = ((8, 8, 8), (12, 6, 6), (16, 4, 4), (20, 2, 2))
DEPTH = 3
NETWORKS = 4
PREDICTED = np.array([DEPTH * (max(counts) / 24) ** (1 - 1 / DEPTH) for counts in COUNTS])


@cache
def _trained(setting: Setting) -> Array:
    """Return λ_max of networks of three layers after training, (shares of the classes, networks).

    With all assumptions inputs are white and tell the labels linearly, and layers start balanced.
    Other settings drop one of them, or add tanh to the layers; inputs that are not white have
    another covariance for every share, or one for all.
    """
    tops = []
    for place, counts in enumerate(COUNTS):
        rng = np.random.default_rng(220)
        X, Y = labelled(rng, counts)
        if setting == "labels":
            X = white(rng, 4, 24)
        if setting in ("raw", "raw, alike"):
            shift = place if setting == "raw" else 0
            X = np.roll([[2.0], [1.0], [0.7], [0.5]], shift, axis=0) * X
        dims = (4, 6, 6, 3)
        nets = [
            hs.init.standard(dims, rng).weights
            if setting == "unbalanced"
            else balanced_weights(rng, dims, (0.5, 0.5, 0.5))
            for _ in range(NETWORKS)
        ]
        stack = Stack(stacked(nets), X, Y, "tanh" if setting == "tanh" else "linear")
        tops.append(stack.descend(0.1, 1500).sharpness())
    return np.array(tops)


def _told(setting: Setting) -> str:
    ratios = _trained(setting) / PREDICTED[:, None]
    return f"{ratios.min():.2f} to {ratios.max():.2f}"


def _gaps(setting: Setting, within: float) -> list[float]:
    away = np.abs(_trained(setting) / PREDICTED[:, None] - 1)
    return [float(gap) - within for gap in away.ravel()]


def _as_predicted() -> Verdict:
    inside = [True] * (len(COUNTS) * NETWORKS)
    return judge(
        _gaps("all", 0.01) + _gaps("labels", 0.01),
        f"λ_max after descent over L α_max^(1−1/L), L = 3: {_told('all')} where inputs tell the "
        f"labels linearly, {_told('labels')} for random inputs",
        "the labels are a linear function of the inputs",
        inside + [not each for each in inside],
    )


def _raw() -> Verdict:
    away = np.abs(_trained("raw") / PREDICTED[:, None] - 1)
    return judge([0.1 - float(away.max())], f"λ_max over the prediction {_told('raw')}")


def _unbalanced() -> Verdict:
    return judge(_gaps("unbalanced", 0.05), f"λ_max over the prediction {_told('unbalanced')}, "
                 "from PyTorch's initialisation")  # fmt: skip


def _tanh() -> Verdict:
    return judge(_gaps("tanh", 0.25), f"λ_max over the prediction {_told('tanh')}")


def _rising(setting: Setting) -> Verdict:
    means = _trained(setting).mean(axis=1)
    return judge(
        [float(means[0] - means[-1])],
        "mean λ_max for largest shares of 1/3, 1/2, 2/3, 5/6: "
        + ", ".join(f"{mean:.2f}" for mean in means),
    )


def _rising_raw() -> Verdict:
    gaps, told = [], []
    settings: tuple[Setting, ...] = ("all", "raw, alike", "raw")
    for setting in settings:
        means = _trained(setting).mean(axis=1)
        rises = [bool(low < high) for low, high in pairwise(means)]
        gaps.append(float(all(rises) or not any(rises)))
        told.append(", ".join(f"{mean:.2f}" for mean in means))
    return judge(
        gaps,
        f"mean λ_max for largest shares of 1/3, 1/2, 2/3, 5/6: {told[0]} for white inputs, "
        f"{told[1]} for inputs with one covariance for all shares, {told[2]} with another for each",
        "the inputs' covariance changes with the shares", [False, False, True],
    )  # fmt: skip


def _rising_unbalanced() -> Verdict:
    return _rising("unbalanced")


def _rising_tanh() -> Verdict:
    return _rising("tanh")


CLAIMS = (
    Claim(
        "002-trained", "002 §4, Fig 1c",
        "balanced networks trained on white inputs end at λ_max = L α_max^(1−1/L)",
        _as_predicted,
    ),
    Claim(
        "002-raw", "002 §5, Fig 2a",
        "without whitening, the prediction is off by more than a tenth",
        _raw,
    ),
    Claim(
        "002-raw-share", "002 §5, Fig 2a",
        "without whitening, λ_max neither rises nor falls all along with the largest share",
        _rising_raw,
    ),
    Claim(
        "002-unbalanced", "002 §5, Fig 2b",
        "from an initialisation without balance the prediction is as good, within five per cent",
        _unbalanced,
    ),
    Claim(
        "002-unbalanced-share", "002 §5, Fig 2b",
        "from there too, λ_max is larger if one class is in excess",
        _rising_unbalanced,
    ),
    Claim(
        "002-tanh", "002 §5, Fig 2c",
        "with tanh the prediction is off by a little, a quarter at most",
        _tanh,
    ),
    Claim(
        "002-tanh-share", "002 §5, Fig 2c",
        "with tanh too, λ_max is larger if one class is in excess",
        _rising_tanh,
    ),
)  # fmt: skip
