"""Texts for language models: those that are always there, files, and what users get wrong."""

import string

import numpy as np
import pytest

from hessence.papers.experiments.datasets import MissingDataError, require_data
from hessence.papers.experiments.shared.texts import (
    STORIES,
    load_tokens,
    require_text,
    stories_of,
    text_data,
    windows,
)


def test_the_standard_library_is_text_and_stays_the_same():
    tokens = load_tokens("stdlib")
    assert tokens.size > 500_000
    assert np.array_equal(tokens, load_tokens("stdlib"))
    assert b"import" in bytes(tokens)
    assert np.isin(tokens, list(string.printable.encode())).mean() > 0.99
    assert text_data("stdlib") == ()


def test_windows_are_of_the_text_and_targets_one_further(rng):
    tokens = np.arange(100, dtype=np.uint8)
    x, y = windows(tokens, 50, 8, rng)
    assert x.shape == y.shape == (50, 8)
    np.testing.assert_array_equal(x, x[:, :1] + np.arange(8))
    np.testing.assert_array_equal(y, x + 1)
    x, _ = windows(tokens, 2000, 8, rng)
    assert {x.min(), x.max()} == {0, 98}
    with pytest.raises(ValueError, match="text must hold more than 100 tokens"):
        windows(tokens, 2, 100, rng)


def test_files(tmp_path):
    path = tmp_path / "plays.txt"
    path.write_bytes(b"abc\xff")
    require_text(str(path), 4)
    assert load_tokens(str(path)).tolist() == [97, 98, 99, 255]
    with pytest.raises(ValueError, match=r"text must hold at least 5 bytes, and .* holds 4"):
        require_text(str(path), 5)
    with pytest.raises(ValueError, match="text must be stdlib, openwebtext or the path of a file"):
        require_text(str(tmp_path / "none.txt"), 5)
    with pytest.raises(ValueError, match="text must be stories or the path of a file"):
        require_text(str(tmp_path), 5, ("stories",))


def test_openwebtext_is_nanogpts_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HESSENCE_DATA", str(tmp_path))
    assert text_data("openwebtext") == ("openwebtext",)
    with pytest.raises(MissingDataError, match=r"openwebtext is missing: put train\.bin into"):
        require_data(text_data("openwebtext"))
    (tmp_path / "openwebtext").mkdir()
    np.asarray([0, 50_256, 7], dtype="<u2").tofile(tmp_path / "openwebtext" / "train.bin")
    require_data(text_data("openwebtext"))
    assert load_tokens("openwebtext").tolist() == [0, 50_256, 7]
    for content in (b"", b"abc"):
        (tmp_path / "openwebtext" / "train.bin").write_bytes(content)
        with pytest.raises(MissingDataError, match=f"two bytes each, and holds {len(content)}"):
            load_tokens("openwebtext")


def test_tokens_beyond_gpt2s_are_one_sentence(rng):
    tokens = np.full(20, 50_256, dtype="<u2")
    assert windows(tokens, 2, 8, rng)[0].max() == 50_256
    tokens[:] = 50_257
    with pytest.raises(ValueError, match="text must hold tokens of GPT-2, below 50257, and holds"):
        windows(tokens, 2, 8, rng)


def test_stories(tmp_path):
    assert stories_of("stories") == STORIES
    path = tmp_path / "stories.txt"
    path.write_text("One.\nTwo.\n\n\nThree.\n", encoding="utf-8")
    assert stories_of(str(path)) == ("One.\nTwo.", "Three.")
    path.write_text("One.\n\nTwo.\n<|endoftext|>\nThree.\n", encoding="utf-8")
    assert stories_of(str(path)) == ("One.\n\nTwo.", "Three.")
