"""Curves in pairs: where they are compared, and intervals that hold what they should."""

import numpy as np
import pytest

from hessence.papers.experiments.shared.paired_curves import (
    compare,
    mean_and_error,
    on_shared_places,
)


def test_pairs_are_compared_where_both_are_and_down_to_what_half_of_the_seeds_reach():
    def line(low, high):
        return [high, low], [2 * high, 2 * low]

    pairs = [(line(0, 9), line(1, 9)), (line(2, 8), line(0, 9)), (line(3, 9), line(3, 7))]
    places, first, second = on_shared_places(pairs)
    assert (places[0], places[-1]) == (2, 7)
    for rows in (first, second):
        np.testing.assert_allclose(rows[:2], np.stack([2 * places] * 2))
        np.testing.assert_array_equal(np.isnan(rows[2]), places < 3)
    assert on_shared_places([(line(0, 1), line(1, 2))]) is None


def test_means_leave_out_what_is_unknown():
    mean, error = mean_and_error(np.asarray([[1.0, 2.0], [3.0, np.nan], [5.0, 4.0]]))
    np.testing.assert_allclose(mean, [3, 3])
    np.testing.assert_allclose(error, [2 / 3**0.5, 2**0.5 / 2**0.5])


def test_intervals_hold_the_truth_as_often_as_they_say(rng):
    """Of 300 intervals for 95 %, 285 are expected to hold it, give or take 4."""
    held = 0
    for _ in range(300):
        first, second = rng.lognormal(0, 0.3, size=(2, 6, 1))
        found = compare(1.5 * first, second)
        held += found.ratio[1] < 1.5 < found.ratio[2]
    assert 270 <= held < 300


def test_a_difference_in_the_lowest_fifth_alone():
    first, second = np.ones((4, 200)), np.ones((4, 200))
    first[:, :40] = 3.0
    first[0, :20] = second[0, :20] = np.nan
    found = compare(first, second)
    assert found.share == 0.2
    assert (found.shares <= 0.2).all()
    assert found.lowest == pytest.approx((3, 3, 3))
    assert found.ratio[0] == pytest.approx(3**0.2)
