"""Reading what was saved: any result, told by the format in its file."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from hessence._common.files import KINDS, kind_of, read_json

LATER = {
    "check": "hessence.models.checks",
    "flat-directions": "hessence.models.flat_directions",
    "history": "hessence.models.history",
    "layer-spectra": "hessence.models.layers",
    "measurement": "hessence.models.history",
}
"""Where the kinds are defined that are not loaded with the library."""


def load(path: str | os.PathLike[str]) -> Any:
    """Read what ``save`` of any result wrote, or the history that a monitor keeps.

    Arrays come back as NumPy's. A spectrum or an estimate comes back without its eigenvectors.

    Examples
    --------
    >>> import hessence as hs, tempfile, os
    >>> spectrum = hs.ScalarLinear([1.0], [0.5]).hessian([1.0], [2.0]).spectrum()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "spectrum.json")
    ...     spectrum.save(path)
    ...     hs.load(path) == spectrum
    True
    """
    try:
        data = read_json(path)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"path is not a file of ours: {path} does not hold JSON.") from error
    kind = kind_of(data.get("format")) if isinstance(data, dict) else ""
    if kind in LATER:
        import_module(LATER[kind])
    if kind not in KINDS:
        raise ValueError(f"path: {os.fspath(path)} holds no result that this library has saved.")
    return KINDS[kind].from_dict(data)
