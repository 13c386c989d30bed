"""Verdicts on correlations, and draws of the networks that they stand on."""

import numpy as np
import pytest

from hessence.papers.experiments import Finding
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
    from scipy.stats import norm

    assert abs(share - norm.cdf(z)) < 0.1


def test_networks_are_the_same_before_and_after():
    seen = []

    def judged(records):
        seen.append([np.asarray(records[0][when]["sharpness"]) for when in ("initial", "trained")])
        return [Finding("000-x", True, "")]

    outlasting(judged, records_with(1.0))
    assert all(np.array_equal(before, after) for before, after in seen)
    assert not np.array_equal(seen[0][0], seen[1][0])
