"""GPT-2's vocabulary: pieces, merges against a plain search, and files that do not fit."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hessence.papers.experiments.datasets import MissingDataError
from hessence.papers.experiments.shared.byte_pairs import BytePairs, load_byte_pairs, pieces
from tests.papers.experiments.shared.gpt2_files import START, spelt, write_vocabulary

MERGES = (("a", "b"), ("Ġ", "a"), ("a", "a"), ("ab", "c"), ("Ġ", "ab"), ("b", "c"), ("aa", "aa"))


CHARACTERS = {spelt(bytes([byte])): byte for byte in range(256)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, world!", ["Hello", ",", " world", "!"]),
        ("I've   don't'ss", ["I", "'ve", "  ", " don", "'t", "'s", "s"]),
        ("can'T 'tis we'll", ["can", "'", "T", " '", "tis", " we", "'ll"]),
        ("a1b22 33", ["a", "1", "b", "22", " 33"]),
        ("x\n\n  y \n", ["x", "\n\n ", " y", " \n"]),
        ("x\ty\u00a0z", ["x", "\t", "y", "\u00a0", "z"]),
        ("naïve ½²x ３日本…", ["naïve", " ½²", "x", " ３", "日本", "…"]),
        ("_a_ --", ["_", "a", "_", " --"]),
        ("e\u0301", ["e", "\u0301"]),
        ("", []),
    ],
)
def test_texts_are_cut_where_gpt2s_pattern_cuts_them(text, expected):
    assert pieces(text) == expected


def plainly_merged(letters, merges):
    """Merge one pair at a time: of all neighbours the first in the list, leftmost first."""
    parts = list(letters)
    while True:
        known = [
            (merges.index(pair), i) for i, pair in enumerate(pairwise(parts)) if pair in merges
        ]
        if not known:
            return parts
        _, i = min(known)
        parts[i : i + 2] = ["".join(parts[i : i + 2])]


@given(text=st.text("abc", min_size=1, max_size=14), order=st.permutations(MERGES))
def test_merges_are_those_of_a_plain_search(text, order):
    numbers = CHARACTERS | {"".join(pair): 256 + i for i, pair in enumerate(MERGES)}
    pairs = BytePairs(numbers, {pair: i for i, pair in enumerate(order)})
    for start, letters in (("", text), (" ", "Ġ" + text)):
        expected = [numbers[part] for part in plainly_merged(letters, order)]
        assert pairs.encode(start + text) == expected


@pytest.mark.parametrize("names", [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")])
def test_files(tmp_path, names):
    count = write_vocabulary(tmp_path, MERGES, names)
    pairs = load_byte_pairs(tmp_path / names[0], tmp_path / names[1], count)
    assert pairs.encode("abc ab\né") == [259, 260, 10, 0xC3, 0xA9]
    assert pairs.numbers[START] == count - 1
    with pytest.raises(MissingDataError, match=f"should number {count + 1} tokens"):
        load_byte_pairs(tmp_path / names[0], tmp_path / names[1], count + 1)


def test_damaged_files(tmp_path):
    count = write_vocabulary(tmp_path, MERGES)
    vocabulary, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    whole, lines = vocabulary.read_text("utf-8"), merges.read_text("utf-8")
    renamed = {f"<{k}>" if k == "Ġ" else k: v for k, v in json.loads(whole).items()}
    for first, second, sentence in (
        (whole[:-1], lines, "vocab.json is not a vocabulary: no JSON in it"),
        ("[" * 100_000, lines, "vocab.json is not a vocabulary: no JSON in it"),
        ("[]", lines, "vocab.json should number"),
        (whole.replace(" 0,", " 1,", 1), lines, "vocab.json should number"),
        (whole.replace(" 0,", " 0.0,", 1), lines, "vocab.json should number"),
        (whole.replace(" 0,", ' "0",', 1), lines, "vocab.json should number"),
        (json.dumps(renamed), lines, "vocab.json is not GPT-2's vocabulary: it lacks 'Ġ'"),
        (whole.replace("endof", "startof"), lines, f"it lacks {START!r}"),
        (whole, lines + "a c\n", "merges.txt does not belong to vocab.json: it merges 'a c'"),
        (whole, lines + "abc\n", "merges.txt does not belong to vocab.json: it merges 'abc'"),
    ):
        vocabulary.write_text(first, "utf-8")
        merges.write_text(second, "utf-8")
        with pytest.raises(MissingDataError) as caught:
            load_byte_pairs(vocabulary, merges, count)
        assert sentence in str(caught.value)
    merges.write_bytes(b"\xff\xfe")
    vocabulary.write_text(whole, "utf-8")
    with pytest.raises(MissingDataError, match="is not a text in UTF-8"):
        load_byte_pairs(vocabulary, merges, count)
