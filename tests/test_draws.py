"""Property tests draw the same examples in every folder, in every order and on every worker."""

import importlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def examples():
    """Return 200 numbers, drawn as a property test draws them."""
    drawn = []

    @settings(max_examples=200)
    @given(st.floats(-30, 30))
    def property_test(number):
        drawn.append(number)

    property_test()
    return drawn


@pytest.mark.skipif(not settings().derandomize, reason="a hunt draws new examples every time")
def test_constants_of_imported_modules_are_not_drawn(tmp_path, monkeypatch):
    before = examples()
    constants = [1.0 + i / 1000 for i in range(500)]
    (tmp_path / "module_of_constants.py").write_text(f"CONSTANTS = {constants}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("module_of_constants")
    assert examples() == before
    assert len(set(before) & set(constants)) <= 1  # 1.0 is a number that is drawn anyway
