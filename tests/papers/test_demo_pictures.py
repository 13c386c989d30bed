"""Pictures of the demo that are easily drawn so that nobody can read them."""

import numpy as np
import pytest

pytest.importorskip("torch")

from hessence.papers import demo_pictures


def test_swings_from_step_to_step_are_drawn_as_two_lines():
    axes = demo_pictures._edge_of_stability().figure.axes
    for ax in axes:
        for line in ax.lines:
            values = np.asarray(line.get_ydata())[-100:]
            turns = np.count_nonzero(np.diff(np.sign(np.diff(values))))
            assert turns < 20  # of 98
    names = {line.get_label(): line for line in axes[3].lines}
    assert names["key"].get_linestyle() == "--"
    assert axes[3].lines.index(names["key"]) > axes[3].lines.index(names["query"])
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == [
        "odd steps",
        "even steps",
    ]


@pytest.mark.parametrize("draw", [demo_pictures._data_scale, demo_pictures._attention_sweeps])
def test_sweeps_have_one_legend_and_show_the_bulk(draw):
    figure = draw().figure
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["outlier", "bulk"]
    for ax in figure.axes:
        assert ax.get_legend() is None
        assert ax.get_yscale() == "symlog"
