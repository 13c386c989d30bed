"""Real data from files in the usual formats, in a folder that the user names.

The folder is the argument, or else the environment variable ``HESSENCE_DATA``. Within it:

============= ============================================ =====================================
name          folder                                       files
============= ============================================ =====================================
digits        none: part of scikit-learn
mnist         ``mnist`` or ``MNIST/raw``                   ``train-images-idx3-ubyte``, …, as IDX
fashion-mnist ``fashion-mnist`` or ``FashionMNIST/raw``    the same names; each may end in ``.gz``
cifar10       ``cifar-10-batches-py``                      ``data_batch_1`` … ``5``, ``test_batch``
openwebtext   ``openwebtext``                              ``train.bin``, as nanoGPT prepares it
NAME.bin      ``llama2c``                                  and ``tokenizer.bin``, of llama2.c
gpt2          ``gpt2``                                     ``model.safetensors``, ``vocab.json`` and
                                                           ``merges.txt``, as Hugging Face has them
============= ============================================ =====================================
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hessence.papers.experiments.cifar import read_batch
from hessence.papers.experiments.settings import nearest

VARIABLE = "HESSENCE_DATA"
LARGEST = 2**28
"""No file of images holds more bytes, unpacked."""
Split = Literal["train", "test"]

FOLDERS = {
    "mnist": ("mnist", "MNIST/raw"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw"),
    "cifar10": ("cifar-10-batches-py",),
    "openwebtext": ("openwebtext",),
    "gpt2": ("gpt2",),
}
IMAGES = ("digits", "mnist", "fashion-mnist", "cifar10")
CHECKPOINTS = "llama2c"
"""The folder of all names that end in ``.bin``."""
IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
CIFAR_FILES = {
    "train": tuple(f"data_batch_{i}" for i in range(1, 6)),
    "test": ("test_batch",),
}
GPT2_FILES = ("model.safetensors", "vocab.json or encoder.json", "merges.txt or vocab.bpe")
"""The vocabulary's files have other names where OpenAI has them."""


class MissingDataError(Exception):
    """Data that are not there or not what they should be; the text is one sentence for the user."""


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images as rows of numbers between 0 and 1, and the classes they belong to.

    Attributes
    ----------
    x : array (n, pixels)
        One image a row; colours come one after the other.
    labels : array (n,)
        Classes as whole numbers from 0.
    shape : tuple of int
        The shape of one image: (height, width) or (colours, height, width).
    """

    x: Any
    labels: Any
    shape: tuple[int, ...]

    @property
    def one_hot(self) -> Any:
        """The labels as rows with a single one, (n, classes)."""
        return np.eye(int(self.labels.max()) + 1)[self.labels]


def load_images(
    name: str, split: Split = "train", folder: str | os.PathLike[str] | None = None
) -> LabelledImages:
    """Return a data set by its name; `digits` is not split.

    Examples
    --------
    >>> load_images("digits").x.shape
    (1797, 64)
    """
    if name == "digits":
        return _digits()
    if name in ("mnist", "fashion-mnist"):
        images, labels = (read_idx(path) for path in _paths(name, IDX_FILES[split], folder))
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise MissingDataError(f"the files of {name} do not hold as many labels as images.")
        x = images.reshape(len(images), -1) / 255
        return LabelledImages(x, labels.astype(np.int64), images.shape[1:])
    if name == "cifar10":
        batches = [_read_cifar(path) for path in _paths(name, CIFAR_FILES[split], folder)]
        x = np.concatenate([batch[0] for batch in batches]) / 255
        return LabelledImages(x, np.concatenate([batch[1] for batch in batches]), (3, 32, 32))
    raise ValueError(f"there are no images {name}; there are {', '.join(IMAGES)}.")


def openwebtext_file(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return where the tokens of OpenWebText are, as nanoGPT prepares them."""
    (path,) = _paths("openwebtext", ("train.bin",), folder, zipped=False)
    return path


def checkpoint_files(name: str, folder: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
    """Return where a checkpoint of llama2.c and its tokenizer are; `name` ends in ``.bin``."""
    path, tokenizer = _paths(name, (name, "tokenizer.bin"), folder, zipped=False)
    return path, tokenizer


def gpt2_files(folder: str | os.PathLike[str] | None = None) -> tuple[Path, Path, Path]:
    """Return where GPT-2's weights, its vocabulary and its merges are."""
    weights, vocabulary, merges = _paths("gpt2", GPT2_FILES, folder, zipped=False)
    return weights, vocabulary, merges


def require_data(names: Iterable[str], folder: str | os.PathLike[str] | None = None) -> None:
    """Raise MissingDataError unless all these data sets are there; nothing is read."""
    for name in names:
        if name == "digits":
            if find_spec("sklearn") is None:
                raise MissingDataError("digits need scikit-learn: pip install 'hessence[data]'.")
        elif name.endswith(".bin"):
            checkpoint_files(name, folder)
        elif name == "openwebtext":
            openwebtext_file(folder)
        elif name == "gpt2":
            gpt2_files(folder)
        elif name in FOLDERS:
            files = CIFAR_FILES if name == "cifar10" else IDX_FILES
            _paths(name, (*files["train"], *files["test"]), folder)
        else:
            known = nearest(name, ("digits", *FOLDERS))
            raise MissingDataError(f"there is no data set {name}; near it: {known}.")


def read_idx(path: Path) -> Any:
    """Return the array of an IDX file of bytes, plain or gzipped."""
    content = _content(path)
    rank = content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08" or not 1 <= rank <= 3 or len(content) < 4 + 4 * rank:
        raise MissingDataError(f"{path} is not an IDX file of bytes.")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", rank, 4))
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if values.size != math.prod(shape) or not values.size:
        raise MissingDataError(f"{path} should hold {shape} bytes and holds {values.size}.")
    return values.reshape(shape)


def _digits() -> LabelledImages:
    require_data(["digits"])
    from sklearn.datasets import load_digits

    x, labels = load_digits(return_X_y=True)
    return LabelledImages(x / 16, labels.astype(np.int64), (8, 8))


def _read_cifar(path: Path) -> tuple[Any, Any]:
    try:
        return read_batch(_content(path))
    except ValueError as error:
        raise MissingDataError(f"{path} is not a batch of CIFAR-10.") from error


def _paths(
    name: str,
    files: Iterable[str],
    folder: str | os.PathLike[str] | None,
    *,
    zipped: bool = True,
) -> tuple[Path, ...]:
    """Return where the files are, each plain or gzipped, or tell what to put where.

    A file that may have either of two names is given as ``"one or other"``.
    """
    wanted = list(files)
    root = folder if folder is not None else os.environ.get(VARIABLE)
    homes = FOLDERS.get(name, (CHECKPOINTS if name.endswith(".bin") else "",))
    if root is None:
        where = f"the folder {homes[0]} of a data folder" if homes[0] else "a data folder"
        raise MissingDataError(
            f"{name} is missing: put {_listed(wanted)} into {where}, and the data folder's path "
            f"into the environment variable {VARIABLE}."
        )
    for home in homes:
        found = [_present(Path(root) / home, file, zipped) for file in wanted]
        present = [path for path in found if path is not None]
        if len(present) == len(wanted):
            return tuple(present)
    missing = [file for file in wanted if _present(Path(root) / homes[0], file, zipped) is None]
    raise MissingDataError(
        f"{name} is missing: put {_listed(missing)} into {Path(root) / homes[0]}."
    )


def _present(folder: Path, file: str, zipped: bool) -> Path | None:
    names = [name + tail for name in file.split(" or ") for tail in ("", ".gz")[: 1 + zipped]]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _content(path: Path) -> bytes:
    """Return what is in a file, plain or gzipped, if it is no more than any data set has."""
    try:
        with path.open("rb") as plain:
            stream: Any = gzip.GzipFile(fileobj=plain) if path.suffix == ".gz" else plain
            content: bytes = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise MissingDataError(f"{path} is not a whole gzip file.") from error
    if len(content) > LARGEST:
        raise MissingDataError(f"{path} holds more than {LARGEST} bytes, which no data set does.")
    return content


def _listed(files: list[str]) -> str:
    return files[0] if len(files) == 1 else f"{', '.join(files[:-1])} and {files[-1]}"
