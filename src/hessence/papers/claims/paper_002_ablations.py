"""Claims of paper 002, sections 4 and 5: trained networks, with its assumptions and without."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

import hessence as hs
from hessence.papers.claims.dense_hessians import Array
from hessence.papers.claims.linear_networks import balanced_weights, white
from hessence.papers.claims.paper_002_data import labelled
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.trained_networks import NetworkBatch, batched

Setting = Literal["all", "labels", "raw", "raw, alike", "unbalanced", "tanh", "tanh, balanced"]
COUNTS = ((8, 8, 8), (12, 6, 6), (16, 4, 4), (20, 2, 2))
DEPTH = 3
DRAWS = 16
PREDICTED = np.array([DEPTH * (max(counts) / 24) ** (1 - 1 / DEPTH) for counts in COUNTS])
SHARES = "largest shares of 1/3, 1/2, 2/3, 5/6"


def _data(setting: Setting, place: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw inputs, and labels with one of the shares of the classes."""
    X, Y = labelled(rng, COUNTS[place])
    if setting == "labels":
        X = white(rng, 4, 24)
    if setting in ("raw", "raw, alike"):
        shift = place if setting == "raw" else 0
        X = np.roll([[2.0], [1.0], [0.7], [0.5]], shift, axis=0) * X
    return X, Y


@cache
def _trained(setting: Setting) -> Array:
    """Return λ_max of networks of three layers after training, (shares of the classes, draws).

    With all assumptions inputs are white and tell the labels linearly, and layers start balanced.
    Other settings drop one of them; tanh comes with and without balance, since the paper's caption
    and appendix contradict each other. Inputs that are not white have another covariance for every
    share, or one for all.
    """
    dims, nets, data = (4, 6, 6, 3), [], []
    for place in range(len(COUNTS)):
        for draw in range(DRAWS):
            rng = np.random.default_rng((220, draw))
            data.append(_data(setting, place, rng))
            nets.append(
                hs.init.standard(dims, rng).weights
                if setting in ("unbalanced", "tanh")
                else balanced_weights(rng, dims, (0.5, 0.5, 0.5))
            )
    X, Y = batched(data)
    bent = setting in ("tanh", "tanh, balanced")
    batch = NetworkBatch(batched(nets), X, Y, "tanh" if bent else "linear")
    return batch.descend(0.1, 1500).sharpness().reshape(len(COUNTS), DRAWS)


def _told(setting: Setting) -> str:
    ratios = _trained(setting) / PREDICTED[:, None]
    return f"{ratios.min():.2f} to {ratios.max():.2f}"


def _gaps(setting: Setting, within: float) -> list[float]:
    away = np.abs(_trained(setting) / PREDICTED[:, None] - 1)
    return [float(gap) - within for gap in away.ravel()]


def _as_predicted() -> Verdict:
    inside = [True] * (len(COUNTS) * DRAWS)
    return judge(
        _gaps("all", 0.01) + _gaps("labels", 0.01),
        f"λ_max after descent over L α_max^(1−1/L), L = 3: {_told('all')} where inputs tell the "
        f"labels linearly, {_told('labels')} for random inputs",
        "the labels are a linear function of the inputs",
        inside + [not each for each in inside],
    )


def _raw() -> Verdict:
    away = np.abs(_trained("raw") / PREDICTED[:, None] - 1)
    return judge(
        [0.1 - float(np.median(away))],
        f"λ_max over the prediction {_told('raw')}; off by {np.median(away):.0%} in the median, "
        f"and by more than a tenth in {np.mean(away > 0.1):.0%} of {away.size} networks",
    )


def _means(setting: Setting) -> str:
    return ", ".join(f"{mean:.2f}" for mean in _trained(setting).mean(axis=1))


def _rising_raw() -> Verdict:
    gaps, told = [], []
    settings: tuple[Setting, ...] = ("all", "raw, alike", "raw")
    for setting in settings:
        rises = np.diff(_trained(setting), axis=0) > 0
        mixed = ~rises.all(axis=0) & rises.any(axis=0)
        gaps.append(0.5 - float(mixed.mean()))
        told.append(f"{mixed.sum()}")
    return judge(
        gaps,
        f"along {SHARES}, λ_max goes both up and down in so many of {DRAWS} draws: {told[0]} for "
        f"white inputs, {told[1]} for inputs with one covariance for all shares, {told[2]} with "
        f"another for each; its means are {_means('raw')} with the last",
        "the inputs' covariance changes with the shares", [False, False, True],
    )  # fmt: skip


def _rising(settings: dict[Setting, str]) -> Verdict:
    gaps, told = [], []
    for setting, start in settings.items():
        tops = _trained(setting)
        rises = np.all(np.diff(tops, axis=0) > 0, axis=0)
        gaps += (1.0 - rises).tolist()
        spread = tops.std(axis=1, ddof=1) / tops.mean(axis=1)
        told.append(
            f"{rises.sum()} of {DRAWS} draws from {start}, and from the first share to the last in "
            f"{np.sum(tops[-1] > tops[0])}, with means {_means(setting)}, a standard deviation of "
            f"{spread.min():.0%} to {spread.max():.0%} of them, and {_told(setting)} of the "
            "prediction"
        )
    return judge(gaps, f"λ_max rises at every step along {SHARES} in {'; '.join(told)}")


def _unbalanced() -> Verdict:
    return _rising({"unbalanced": "PyTorch's initialisation"})


def _tanh() -> Verdict:
    starts: dict[Setting, str] = {
        "tanh": "PyTorch's initialisation", "tanh, balanced": "balanced layers",
    }  # fmt: skip
    return _rising(starts)


CLAIMS = (
    Claim(
        "002-trained", "002 §4, Fig 1c",
        "balanced networks trained on white inputs end at λ_max = L α_max^(1−1/L)",
        _as_predicted, measured=True,
        differs="Images do not tell their labels linearly: training ends above zero loss, and the "
        "formula is exact at zero loss alone.",
    ),
    Claim(
        "002-trained-data", "002 eq 12, Fig 1c",
        "labels and inputs together predict λ_max of balanced networks after training",
        None, measured=True,
    ),
    Claim(
        "002-raw", "002 §5, Fig 2a",
        "without whitening, the prediction breaks down",
        _raw, measured=True,
    ),
    Claim(
        "002-raw-share", "002 §5, Fig 2a",
        "without whitening, λ_max varies inconsistently with the largest class's share",
        _rising_raw, measured=True,
        revised="the experiment first asked for one fall of the mean sharpness at least, over all "
        "data sets together; now for a rise and a fall on each of them, which is more",
    ),
    Claim(
        "002-unbalanced", "002 §5, Fig 2b",
        "without balance the prediction stays intact: λ_max rises with the largest class's share",
        _unbalanced, measured=True,
        differs="Steps between shares are small beside the spread of draws in the exact case: they "
        "raise the mean by 5 to 11 %, with a standard deviation of 7 to 14 %, on digits by 23 to "
        "44 % with one of 2 to 3 %. The spread comes from the start, which is as far out of "
        "balance in both, ‖W₂ᵀW₂ − W₁W₁ᵀ‖ = 0.7 to 1.2: from a start of 0.7 times the size λ_max "
        "rises at every step in 32 of 32 draws, from the usual one in 27.",
        revised="the experiment first asked for λ_max within 10 % of the prediction in the median, "
        "which digits do not meet (18 %) and larger data do (5 %), and for the rise of the mean; "
        "the paper explains its \"intact\" by the rise, which is now asked for in every draw",
    ),
    Claim(
        "002-tanh", "002 §5, Fig 2c",
        "with tanh λ_max differs slightly from the prediction, and rises with the share all the "
        "same",
        _tanh, measured=True,
        revised="the experiment first asked for the rise of the mean sharpness, from a balanced "
        "start alone; now for the rise in every draw and from both starts, which is more",
    ),
)  # fmt: skip
