"""Data files in their standard formats, whole, missing and damaged."""

import gzip
import pickle
import struct

import numpy as np
import pytest

from hessence.papers.experiments import cifar, datasets
from hessence.papers.experiments.datasets import (
    MissingDataError,
    load_images,
    read_idx,
    require_data,
)

IMAGES = np.arange(3 * 28 * 28, dtype=np.int64).reshape(3, 28, 28) % 256
LABELS = np.asarray([2, 0, 1])


def idx(values):
    head = b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return head + values.astype(np.uint8).tobytes()


def write_idx(folder, zipped=False):
    folder.mkdir(parents=True)
    for split in ("train", "t10k"):
        for name, values in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            content = gzip.compress(idx(values)) if zipped else idx(values)
            (folder / f"{split}-{name}-ubyte{'.gz' * zipped}").write_bytes(content)


def write_cifar(folder):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        batch = {
            b"data": rng.integers(256, size=(4, 3072)).astype(np.uint8),
            b"labels": [i, 1, 2, 3],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


@pytest.mark.parametrize(
    ("name", "folder", "zipped"),
    [
        ("mnist", "mnist", False),
        ("mnist", "MNIST/raw", False),
        ("fashion-mnist", "fashion-mnist", True),
    ],
)
def test_idx(tmp_path, monkeypatch, name, folder, zipped):
    write_idx(tmp_path / folder, zipped)
    monkeypatch.setenv("HESSENCE_DATA", str(tmp_path))
    require_data([name])
    for split in ("train", "test"):
        data = load_images(name, split)
        assert data.shape == (28, 28)
        np.testing.assert_array_equal(data.x, IMAGES.reshape(3, -1) / 255)
        np.testing.assert_array_equal(data.labels, LABELS)
        np.testing.assert_array_equal(data.one_hot, np.eye(3)[LABELS])


def test_cifar(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-py")
    train = load_images("cifar10", "train", folder=tmp_path)
    assert train.x.shape == (20, 3072)
    assert train.labels[::4].tolist() == [0, 1, 2, 3, 4]
    assert load_images("cifar10", "test", folder=tmp_path).labels[0] == 5


def test_cifar_runs_no_code(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder)
    (folder / "test_batch").write_bytes(b"cos\nsystem\n(S'touch harm'\ntR.")
    with pytest.raises(MissingDataError, match="not a batch"):
        load_images("cifar10", "test", folder=tmp_path)


def bad_batch(**changes):
    """Return a batch of two images with something else in it."""
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}
    return pickle.dumps(batch | {key.encode(): value for key, value in changes.items()}, protocol=2)


def laughing(levels=40):
    """Return labels that would fill the memory, written in few bytes."""
    labels = [0]
    for _ in range(levels):
        labels = [labels, labels]
    return labels


def endless_key(levels=60):
    """Return a table whose key is a tuple of tuples, which takes 2^levels steps to look up."""
    pairs = b"".join(bytes([*b"q", i, *b"h", i, 0x86]) for i in range(levels))
    return b"\x80\x02})" + pairs + b"K\x01"


@pytest.mark.parametrize(
    "content",
    [
        endless_key() + b"s.",
        endless_key().replace(b"})", b"}()") + b"u.",
        endless_key().replace(b"})", b"()") + b"d.",
        endless_key() + b"\x85\x91.",  # a set
        bad_batch(data=np.zeros((2, 3072))),
        bad_batch(data=np.zeros((2, 3071), np.uint8)),
        bad_batch(data=np.asfortranarray(np.zeros((2, 3072), np.uint8))),
        bad_batch(data=[[0] * 3072] * 2),
        bad_batch(labels=[1]),
        bad_batch(labels=[1, 99]),
        bad_batch(labels=[True, 1]),
        bad_batch(labels=laughing()),
        bad_batch(data=np.zeros((2, 3072), np.uint8))[:-30],
        bad_batch().replace(b"M\x00\x0c", b"J\xff\xff\xff\x7f"),  # 2³¹ − 1 pixels
        b"\x80\x02r\xff\xff\xff\x7f.",  # a place in the memo
        b"cnumpy\nsave\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        pickle.dumps(np.int64(3)),
        b"",
    ],
)
def test_damaged_batches(tmp_path, content):
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder)
    (folder / "test_batch").write_bytes(content)
    with pytest.raises(MissingDataError, match="not a batch"):
        load_images("cifar10", "test", folder=tmp_path)


def test_a_batch_changes_nothing_of_the_library(tmp_path):
    before = vars(cifar).copy(), vars(cifar._reconstruct).copy(), vars(cifar._Array).copy()
    for name in (b"numpy.core.multiarray\n_reconstruct", b"numpy\nndarray"):
        for state in (b"}U\x01aK\x01s", b"N}U\x01aK\x01s\x86", b"}U\x0c__defaults__)s"):
            with pytest.raises(ValueError, match="not a batch"):
                cifar.read_batch(b"\x80\x02c" + name + b"\n" + state + b"b.")
    assert before == (vars(cifar), vars(cifar._reconstruct), vars(cifar._Array))


@pytest.mark.parametrize("protocol", range(5))
def test_batches_of_every_protocol(protocol):
    batch = {b"data": np.arange(6144).astype(np.uint8).reshape(2, 3072), b"labels": [1, 2],
             b"filenames": [b"a.png", b"b.png"]}  # fmt: skip
    images, labels = cifar.read_batch(pickle.dumps(batch, protocol=protocol))
    assert (images == batch[b"data"]).all()
    assert labels.tolist() == [1, 2]


def test_gzip_is_unpacked_up_to_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(np.zeros((100, 28, 28)))))
    assert read_idx(path).shape == (100, 28, 28)
    monkeypatch.setattr(datasets, "LARGEST", 1000)
    with pytest.raises(MissingDataError, match="more than 1000 bytes"):
        read_idx(path)
    monkeypatch.undo()
    whole = gzip.compress(idx(IMAGES))
    for damaged in (whole[:-9], whole[:20] + b"x" + whole[21:], b"", b"\x1f\x8b"):
        path.write_bytes(damaged)
        with pytest.raises(MissingDataError, match=r"images\.gz"):
            read_idx(path)


def test_digits_are_always_there(monkeypatch):
    monkeypatch.delenv("HESSENCE_DATA", raising=False)
    require_data(["digits"])
    data = load_images("digits")
    assert data.x.min() == 0
    assert data.x.max() == 1
    assert data.one_hot.shape == (1797, 10)


def test_what_is_missing_and_where_it_goes(tmp_path, monkeypatch):
    monkeypatch.delenv("HESSENCE_DATA", raising=False)
    with pytest.raises(MissingDataError, match="environment variable HESSENCE_DATA"):
        require_data(["mnist"])
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(MissingDataError) as caught:
        require_data(["mnist"], tmp_path)
    assert str(caught.value) == (
        f"mnist is missing: put train-labels-idx1-ubyte into {tmp_path / 'mnist'}."
    )
    with pytest.raises(MissingDataError, match="there is no data set imagenet"):
        require_data(["imagenet"], tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x0d\x01" + bytes(8), "not an IDX file"),
        (idx(IMAGES)[:-1], "should hold"),
        (idx(IMAGES) + b"\0", "should hold"),
    ],
)
def test_damaged_files(tmp_path, content, sentence):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(MissingDataError, match=sentence):
        read_idx(path)


def test_damaged_gzip(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(IMAGES))[:-20])
    with pytest.raises(MissingDataError, match="not a whole gzip file"):
        read_idx(path)
