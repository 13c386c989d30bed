"""Reading what was saved: a spectrum, an estimate or a history, told by the format in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hessence.spectra.spectrum import Spectrum

if TYPE_CHECKING:
    from hessence.models.history import History
    from hessence.spectra.estimate import Estimate


def load(path: str | os.PathLike[str]) -> Spectrum | Estimate | History:
    """Read what ``save`` of a spectrum or an estimate wrote, or the history of a monitor.

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
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"path is not a spectrum file: {path} does not hold JSON.") from error
    form = str(data.get("format")) if isinstance(data, dict) else ""
    if form.startswith("hessence.estimate"):
        from hessence.spectra.estimate import Estimate

        return Estimate.from_dict(data)
    if form.startswith("hessence.history"):
        from hessence.models.history import History

        return History.load(path)
    if not form.startswith("hessence.spectrum"):
        raise ValueError(
            f"path: {os.fspath(path)} holds no spectrum, estimate or history that was saved by "
            "this library."
        )
    return Spectrum.from_dict(data)
