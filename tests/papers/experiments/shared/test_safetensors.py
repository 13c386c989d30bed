"""The safetensors format: what is read is what was written, and damaged files are one sentence."""

import struct
import tracemalloc

import numpy as np
import pytest

from hessence.papers.experiments.datasets import MissingDataError
from hessence.papers.experiments.shared.safetensors import open_tensors
from tests.papers.experiments.shared.gpt2_files import write_tensors

TENSORS = {"a": np.arange(6.0).reshape(2, 3), "b": np.asarray(2.5), "c": np.zeros((0, 4))}


def test_what_is_read_is_what_was_written(tmp_path):
    # Small whole numbers and halves have all types.
    for kind in ("F32", "F16", "BF16"):
        write_tensors(tmp_path / "m", TENSORS, kinds=dict.fromkeys(TENSORS, kind))
        tensors = open_tensors(tmp_path / "m")
        assert tensors.entries.keys() == TENSORS.keys()
        for name, values in TENSORS.items():
            found = tensors.read(name)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, values)
    write_tensors(tmp_path / "m", TENSORS, kinds={"a": "I64"})
    with pytest.raises(MissingDataError, match="holds a as I64, where F32, F16, BF16 are read"):
        open_tensors(tmp_path / "m").read("a")


def at(name, **fields):
    return lambda header: header[name].update(fields)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (at("b", data_offsets=[20, 24]), "'b' begins at byte 20 and not at 24"),
        (at("b", data_offsets=[25, 29]), "'b' begins at byte 25 and not at 24"),
        (at("c", shape=[10**12], data_offsets=[28, 28 + 4 * 10**12]),
         "its tensors have 4000000000028 bytes, and 28 follow the header"),
        (at("a", shape=[2, 2**40]), "'a' has no type, shape and offsets that fit together"),
        (at("a", shape=[-2, -3]), "'a' has no type"),
        (at("a", shape=[2.0, 3]), "'a' has no type"),
        (at("a", shape=[True] * 3), "'a' has no type"),
        (at("a", shape=[1] * 100 + [6]), "'a' has no type"),
        (at("a", data_offsets=[24, 0]), "'a' has no type"),
        (at("a", data_offsets=[0]), "'a' has no type"),
        (at("a", dtype="F"), "'a' has no type"),
        (at("a", dtype=32), "'a' has no type"),
        (at("a", more=1), "'a' has no type"),
        (lambda h: h.update(a=[]), "'a' has no type"),
        (lambda h: h.pop("a"), "'b' begins at byte 24 and not at 0"),
        (lambda h: (h.pop("b"), h.pop("c")), "its tensors have 24 bytes, and 28 follow the header"),
    ],
)  # fmt: skip
def test_headers_that_lie(tmp_path, change, sentence):
    write_tensors(tmp_path / "m", TENSORS, change=change)
    refused(tmp_path / "m", sentence)


def test_files_that_are_cut_or_something_else(tmp_path):
    path = tmp_path / "m"
    write_tensors(path, TENSORS)
    whole = path.read_bytes()
    twice = b'{"a": 1, "a": 2}'
    for content, sentence in (
        (b"", "it is too short"),
        (whole[:7], "it is too short"),
        (whole[:8], "its header cannot have"),
        (whole[:-1], "and 27 follow the header"),
        (whole + b"\0", "and 29 follow the header"),
        (struct.pack("<Q", 2**63), f"its header cannot have {2**63} bytes"),
        (struct.pack("<Q", 4) + b"null", "its header is no table"),
        (struct.pack("<Q", 4) + b"\xff{}\0", "its header is no JSON"),
        (struct.pack("<Q", 6000) + b"[" * 6000, "its header is no JSON"),
        (struct.pack("<Q", 6000) + b"9" * 6000, "its header is no JSON"),
        (struct.pack("<Q", len(twice)) + twice, "names something twice"),
    ):
        path.write_bytes(content)
        refused(path, sentence)


def refused(path, sentence):
    """Check the sentence, and that nothing large was set aside for what the header claims."""
    tracemalloc.start()
    try:
        with pytest.raises(MissingDataError) as caught:
            open_tensors(path)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()
    told = str(caught.value)
    assert sentence in told
    assert told.startswith(f"{path} is not a safetensors file: ")
    assert told.endswith(".")
