"""CIFAR-10's batches: pickles, read without running anything that stands in them.

A batch is a dictionary with an array ``data`` of bytes and a list ``labels``, as Python 2 and NumPy
pickled it. NumPy's own unpickling trusts what it is told of shapes, types and sizes, and a damaged
file can crash it. So nothing of NumPy takes part: stand-ins collect what the file says of its
array, which is checked before there is one. Python's unpickler in Python is used, as the one in C
makes room for whatever number a file names.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from hessence._common.arrays import Numbers

PIXELS, CLASSES = 3 * 32 * 32, 10


class _Dtype:
    """Stands for NumPy's type of bytes, the only one there is."""

    def __init__(self, name: Any, *_: Any) -> None:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError("the images are no bytes")

    def __setstate__(self, state: Any) -> None:
        """Take no notice: bytes have no order and no parts."""


class _Array:
    """Stands for NumPy's array, and keeps its rows."""

    rows: Numbers

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, in_columns, content = state
        count, *rest = shape
        if not isinstance(dtype, _Dtype) or in_columns or rest != [PIXELS]:
            raise pickle.UnpicklingError("the images have another shape")
        if not isinstance(content, bytes) or type(count) is not int or count < 1:
            raise pickle.UnpicklingError("the images have another shape")
        if len(content) != count * PIXELS:
            raise pickle.UnpicklingError("the images are not all there")
        self.rows = np.frombuffer(content, np.uint8).reshape(count, PIXELS)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: Any, encoding: Any) -> bytes:
    """Return bytes that were written as text, as Python 3 does for Python 2."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("a text is no bytes")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}
"""What a batch may name; nothing is imported."""


NEEDED = (
    "PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NONE", "NEWFALSE",
    "NEWTRUE", "INT", "BININT", "BININT1", "BININT2", "LONG1", "PUT", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE",
    "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT",
)  # fmt: skip
"""The instructions of pickles that a batch consists of, beside those below."""


def _set_items(unpickler: Any) -> None:
    _fill(unpickler.pop_mark(), unpickler.stack[-1])


def _set_item(unpickler: Any) -> None:
    value, key = unpickler.stack.pop(), unpickler.stack.pop()
    _fill([key, value], unpickler.stack[-1])


def _make_table(unpickler: Any) -> None:
    table: dict[Any, Any] = {}
    _fill(unpickler.pop_mark(), table)
    unpickler.append(table)


def _fill(items: list[Any], table: Any) -> None:
    """Put pairs into a table. Its keys are texts: a tuple of tuples may take years to look up."""
    if type(table) is not dict or not all(isinstance(key, (bytes, str)) for key in items[::2]):
        raise pickle.UnpicklingError("a key is no text")
    table.update(zip(items[::2], items[1::2], strict=True))


def _set_state(unpickler: Any) -> None:
    """Give a stand-in its state; nothing else has any."""
    state, stand_in = unpickler.stack.pop(), unpickler.stack[-1]
    if not isinstance(stand_in, (_Array, _Dtype)):
        raise pickle.UnpicklingError("what has no state is given one")
    stand_in.__setstate__(state)


class _Unpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{
            code: pickle._Unpickler.dispatch[code]
            for (code,) in (getattr(pickle, n) for n in NEEDED)
        },
        pickle.SETITEMS[0]: _set_items,
        pickle.SETITEM[0]: _set_item,
        pickle.DICT[0]: _make_table,
        pickle.BUILD[0]: _set_state,
    }

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError("it names what has no place in a batch of images")
        return ADMITTED[module, name]


def read_batch(content: bytes) -> tuple[Numbers, Numbers]:
    """Return images (n, 3072) and labels (n,); a ValueError says that this is no batch."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        images, labels = batch[b"data"], batch[b"labels"]
        if not isinstance(images, _Array) or not isinstance(labels, list):
            raise ValueError("no images or no labels")
        if len(labels) != len(images.rows) or not all(
            type(label) is int and 0 <= label < CLASSES for label in labels
        ):
            raise ValueError("not a class for every image")
        return images.rows, np.asarray(labels, dtype=np.int64)
    except Exception as error:
        # A damaged pickle may end in any exception of Python's.
        raise ValueError(f"not a batch of CIFAR-10 ({type(error).__name__})") from error
