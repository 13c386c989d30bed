"""The files of llama2.c: whole, damaged, and against the merging that its program does."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hessence.papers.experiments.datasets import MissingDataError, checkpoint_files, require_data
from hessence.papers.experiments.shared.llama import LlamaShape
from hessence.papers.experiments.shared.llama2c import Tokenizer, load_checkpoint, load_tokenizer
from tests.papers.experiments.shared.llama2c_files import (
    BYTE_PIECES,
    write_checkpoint,
    write_tokenizer,
)

SHAPE = LlamaShape(
    width=12, hidden=10, layers=2, heads=3, kv_heads=1, vocabulary=7, context=5, tied=True
)
WORDS = (b" ", b"a", b"b", b"c", b"ab", b" a", b"abc", b"bc", b"aa", b" ab", "é".encode())


@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_finds_its_place(tmp_path, tied):
    shape = LlamaShape(**{**vars(SHAPE), "tied": tied})
    weights = write_checkpoint(tmp_path / "m.bin", shape)
    model = load_checkpoint(tmp_path / "m.bin")
    expected = {"embedding.weight": weights["embedding"], "last.weight": weights["rms_final"]}
    for i in range(2):
        for ours, theirs in (("attention_norm", "rms_att"), ("feed_norm", "rms_ffn")):
            expected[f"blocks.{i}.{ours}.weight"] = weights[theirs][i]
        for name in ("wq", "wk", "wv", "wo"):
            expected[f"blocks.{i}.attention.{name}.weight"] = weights[name][i]
        for name in ("w1", "w2", "w3"):
            expected[f"blocks.{i}.feed.{name}.weight"] = weights[name][i]
    if not tied:
        expected["classifier.weight"] = weights["classifier"]
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name].detach().numpy(), values)


def test_damaged_checkpoints(tmp_path):
    path = tmp_path / "m.bin"
    write_checkpoint(path, SHAPE)
    whole = path.read_bytes()
    for content in (whole[:-4], whole + b"\0" * 4, whole[:28]):
        path.write_bytes(content)
        with pytest.raises(MissingDataError) as caught:
            load_checkpoint(path)
        assert str(caught.value) == (
            f"{path} should hold {len(whole)} bytes by its header and holds {len(content)}."
        )
    newer = struct.pack("<7i", 0x616B3432, 1, 12, 10, 2, 3, 1)
    for content, sentence in (
        (newer, "export it with --version 0"),
        (b"", "is not a checkpoint"),
        (b"\xff" * 100, "is not a checkpoint"),
        (struct.pack("<7i", 12, 10, 2, 5, 1, 7, 5), "is not a checkpoint"),
        (struct.pack("<7i", 12, 10, 2, 3, 1, 0, 5), "is not a checkpoint"),
        (struct.pack("<7i", 12, 10, 2, 3, 1, 10**8, 5), "is not a checkpoint"),
    ):
        path.write_bytes(content)
        with pytest.raises(MissingDataError, match=sentence):
            load_checkpoint(path)


def test_where_the_files_go(tmp_path):
    with pytest.raises(MissingDataError) as caught:
        require_data(["stories15M.bin"], tmp_path)
    assert str(caught.value) == (
        "stories15M.bin is missing: put stories15M.bin and tokenizer.bin into "
        f"{tmp_path / 'llama2c'}."
    )
    (tmp_path / "llama2c").mkdir()
    (tmp_path / "llama2c" / "stories15M.bin.gz").touch()
    (tmp_path / "llama2c" / "tokenizer.bin").touch()
    with pytest.raises(MissingDataError, match=r"put stories15M\.bin into"):
        checkpoint_files("stories15M.bin", tmp_path)
    (tmp_path / "llama2c" / "stories15M.bin").touch()
    require_data(["stories15M.bin"], tmp_path)


def naively_merged(pieces, scores, text):
    """Merge as llama2.c does: look through all neighbours, join the best, begin again."""
    tokens = []
    for character in " " + text:
        spelt = character.encode()
        known = [i for i, piece in enumerate(pieces) if piece == spelt]
        tokens += known[-1:] or [3 + byte for byte in spelt]
    while True:
        best, where, joint = -1e10, None, None
        for i in range(len(tokens) - 1):
            both = pieces[tokens[i]] + pieces[tokens[i + 1]]
            known = [k for k, piece in enumerate(pieces) if piece == both]
            if known and scores[known[-1]] > best:
                best, where, joint = scores[known[-1]], i, known[-1]
        if where is None:
            return [1, *tokens]
        tokens[where : where + 2] = [joint]


@given(
    text=st.text("abc é\n", min_size=1, max_size=12),
    scores=st.lists(st.sampled_from([-1.0, -2.0, -3.0, -4.0]), min_size=11, max_size=11),
)
def test_tokens_are_llama2cs(text, scores):
    pieces = (*BYTE_PIECES, *WORDS)
    numbers = (*(0.0,) * len(BYTE_PIECES), *scores)
    assert Tokenizer(pieces, numbers).encode(text) == naively_merged(pieces, numbers, text)


def test_tokenizer_files(tmp_path):
    path = tmp_path / "tokenizer.bin"
    count = write_tokenizer(path, WORDS)
    tokenizer = load_tokenizer(path, count)
    assert tokenizer.pieces == (*BYTE_PIECES, *WORDS)
    # "ab" has the best score of all pairs, and then "abc" a better one than " ab".
    assert tokenizer.encode("abc\nx") == [1, 259, 259 + 6, 3 + 10, 3 + ord("x")]
    assert tokenizer.encode("") == [1]
    whole = path.read_bytes()
    for content, expected in ((whole[:-1], count), (whole, count + 1), (whole, count - 1)):
        path.write_bytes(content)
        with pytest.raises(MissingDataError, match=f"tokenizer of {expected} tokens"):
            load_tokenizer(path, expected)


def test_a_tokenizer_that_is_longer_than_the_memory(tmp_path):
    path = tmp_path / "tokenizer.bin"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(MissingDataError, match=r"is not llama2\.c's tokenizer of 5 tokens"):
        load_tokenizer(path, 5)
