"""Verdicts on correlations, and draws of the networks that they stand on."""

import numpy as np
import pytest
from scipy.stats import norm

from hessence.papers.experiments import Finding
from hessence.papers.experiments.figures.sharpness_depth import _on_products
from hessence.papers.experiments.figures.sharpness_norms import _agreed
from hessence.papers.experiments.shared.correlations import correlation
from hessence.papers.experiments.shared.resampling import outlasting


def records_with(strength, networks=100):
    """Return networks whose sharpness follows one quantity this much more than the other."""
    rng = np.random.default_rng(1)
    common, *noise = rng.normal(size=(3, networks))
    table = {"sharpness": common, "a": strength * common + noise[0], "b": common + noise[1]}
    return [{"initial": table, "trained": {name: list(v) for name, v in table.items()}}]


def compared(records):
    a, b = (np.mean([correlation(r, "trained", "sharpness", n) for r in records]) for n in "ab")
    return [Finding("000-x", a > b, f"{a:.2f} and {b:.2f}", "more")]


@pytest.mark.parametrize(("strength", "holds"), [(4.0, True), (0.1, False), (1.0, None)])
def test_what_another_draw_may_turn_is_left_open(strength, holds):
    (found,) = outlasting(compared, records_with(strength))
    assert found.holds is holds
    assert found.evidence.startswith(compared(records_with(strength))[0].evidence)
    assert "% of 200 draws" in found.evidence
    assert found.criterion.startswith("more; ")


def test_the_share_is_that_of_the_normal_theory():
    records = records_with(1.3, 400)
    (found,) = outlasting(compared, records)
    share = float(found.evidence.split("met in ")[1].split("%")[0]) / 100
    # Differences of dependent correlations, with standard errors from disjoint sets of networks.
    table = records[0]["trained"]
    parts = [
        np.subtract(*(np.corrcoef(table["sharpness"][s], table[n][s])[0, 1] for n in "ab"))
        for s in (slice(i, None, 16) for i in range(16))
    ]
    z = np.mean(parts) / (np.std(parts, ddof=1) / 4)
    assert abs(share - norm.cdf(z)) < 0.1


def test_networks_are_the_same_before_and_after():
    seen = []

    def judged(records):
        seen.append([np.asarray(records[0][when]["sharpness"]) for when in ("initial", "trained")])
        return [Finding("000-x", True, "")]

    outlasting(judged, records_with(1.0))
    assert all(np.array_equal(before, after) for before, after in seen)
    assert not np.array_equal(seen[0][0], seen[1][0])


def deep_records(kind, strength):
    """Return networks of two layers whose sharpness follows one product this much."""
    rng = np.random.default_rng(3)
    common, *noise = rng.normal(size=(5, 60))
    names = ("without W2", "without W1", "W1", "W2")
    strengths = (strength, 1.0, 0.0, 0.0)
    table = {
        f"{n} spectral": s * common + e for n, s, e in zip(names, strengths, noise, strict=True)
    }
    table["sharpness"] = common
    return {"parametrisation": kind, "depth": 2, "initial": table, "trained": table}


@pytest.mark.parametrize(
    ("standard", "mup", "word"),
    [
        (4.0, 4.0, "holds"),
        (4.0, 0.0, "holds if the parametrisation is standard"),
        (0.85, 4.0, "holds if the parametrisation is maximal update"),
        (0.85, 0.0, "fails"),
        (0.85, 0.85, "cannot tell"),
    ],
)
def test_a_statement_about_all_parametrisations(standard, mup, word):
    records = [deep_records("standard", standard), deep_records("mup", mup)]
    assert _on_products("000-x", records).word == word


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        (True, True, "holds"),
        (False, False, "fails"),
        (True, False, "holds if the teacher's entries have variance 1/D"),
        (False, True, "holds if the teacher's entries have variance 1"),
        (None, True, "cannot tell"),
        (False, None, "cannot tell"),
    ],
)
def test_a_verdict_that_depends_on_the_teacher_says_so(first, second, word):
    found = [Finding("000-x", holds, "numbers") for holds in (first, second)]
    assert _agreed(*found, teachers=["scaled", "normal"]).word == word
