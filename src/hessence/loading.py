"""Reading what was saved: a spectrum or an estimate, told by the format that the file names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hessence.spectra import Spectrum

if TYPE_CHECKING:
    from hessence.estimates import Estimate


def load(path: str | os.PathLike[str]) -> Spectrum | Estimate:
    """Read what ``Spectrum.save`` or ``Estimate.save`` wrote.

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
    if isinstance(data, dict) and str(data.get("format")).startswith("hessence.estimate"):
        from hessence.estimates import Estimate

        return Estimate.from_dict(data)
    return Spectrum.from_dict(data)
