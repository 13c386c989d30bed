"""What a monitor has measured: one record for each measurement, and all of them as arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hessence._common.arrays import Numbers
from hessence._common.files import Saved, require_format, write_atomically
from hessence.models.measurement import Measurement, from_plain, integer, to_plain


@dataclass(frozen=True, eq=False, repr=False)
class History(Saved, kind="history"):
    """Measurements in the order of their steps; each of their numbers is an array here.

    Attributes
    ----------
    parameters : int
        How many parameters the model has.
    k : int
        How many eigenvalues are measured.
    records : tuple of Measurement
        One for each measurement. ``history[i]``, ``len`` and iteration give them too.

    Examples
    --------
    >>> history = History(parameters=10, k=2)
    >>> history
    no measurements of 2 eigenvalues of a model with 10 parameters
    >>> history.eigenvalues.shape
    (0, 2)
    """

    parameters: int
    k: int
    records: tuple[Measurement, ...] = ()

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self.records)

    def __getitem__(self, index: int) -> Measurement:
        """Return one measurement."""
        return self.records[index]

    def __iter__(self) -> Iterator[Measurement]:
        """Go through the measurements."""
        return iter(self.records)

    @property
    def steps(self) -> Numbers:
        """The steps (n,)."""
        return self._integers("step")

    @property
    def loss(self) -> Numbers:
        """The loss (n,)."""
        return self._numbers("loss")

    @property
    def sharpness(self) -> Numbers:
        """The largest eigenvalue of the Hessian (n,)."""
        return self._numbers("sharpness")

    @property
    def eigenvalues(self) -> Numbers:
        """The largest eigenvalues of the Hessian (n, k)."""
        return self._vectors("eigenvalues")

    @property
    def errors(self) -> Numbers:
        """Error bounds of the Hessian's eigenvalues (n, k)."""
        return self._vectors("errors")

    @property
    def ggn_eigenvalues(self) -> Numbers:
        """The largest eigenvalues of the Gauss–Newton matrix (n, k)."""
        return self._vectors("ggn_eigenvalues")

    @property
    def ggn_errors(self) -> Numbers:
        """Error bounds of the Gauss–Newton matrix's eigenvalues (n, k)."""
        return self._vectors("ggn_errors")

    @property
    def ggn_gap(self) -> Numbers:
        """How far the sharpness is from the Gauss–Newton matrix's, relative (n,)."""
        return self._numbers("ggn_gap")

    @property
    def trace(self) -> Numbers:
        """The Hessian's trace (n,)."""
        return self._numbers("trace")

    @property
    def trace_stderr(self) -> Numbers:
        """The standard error of the trace (n,)."""
        return self._numbers("trace_stderr")

    @property
    def lr(self) -> Numbers:
        """The learning rate (n,)."""
        return self._numbers("lr")

    @property
    def products(self) -> Numbers:
        """How many products the Hessian's eigenvalues took (n,)."""
        return self._integers("products")

    @property
    def converged(self) -> Numbers:
        """Whether all residuals were small enough (n,)."""
        return np.asarray([record.converged for record in self.records], dtype=bool)

    def before(self, step: int) -> History:
        """Return the measurements before a step."""
        earlier = tuple(record for record in self.records if record.step < step)
        return History(self.parameters, self.k, earlier)

    def with_record(self, record: Measurement) -> History:
        """Return the history with one more measurement, instead of any at or after its step."""
        earlier = self.before(record.step).records
        return History(self.parameters, self.k, (*earlier, record))

    def plot(self, ax: Any = None) -> Any:
        """Draw eigenvalues through training and 2 / lr; see ``hessence.plotting.training``."""
        from hessence.plotting.training import draw_history

        return draw_history(self, ax)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the history as JSON, whole or not at all; ``load`` gives back every bit of it."""
        write_atomically(path, self.to_json())

    def to_dict(self) -> dict[str, Any]:
        """Return the history as what JSON can hold; NaN is null."""
        records = [to_plain(record) for record in self.records]
        return self._head() | {"records": records}

    def _head(self) -> dict[str, Any]:
        return {"format": self.format, "parameters": self.parameters, "k": self.k}

    def to_json(self) -> str:
        """Return the history as JSON, one line for each measurement."""
        lines = ",\n".join(json.dumps(to_plain(record), allow_nan=False) for record in self.records)
        return json.dumps(self._head())[:-1] + ', "records": [\n' + lines + "\n]}\n"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read a history that was saved. One that is damaged is refused and left as it is."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{os.fspath(path)} is no history that a monitor has saved, or is damaged "
                f"({error!r}); it was left as it is."
            ) from error

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> History:
        """Rebuild a history from ``to_dict``, or say what is wrong with it."""
        require_format(data, cls)
        parameters, k = (integer(data[name]) for name in ("parameters", "k"))
        records = tuple(from_plain(entry, k) for entry in data["records"])
        if any(b.step <= a.step for a, b in pairwise(records)):
            raise ValueError("its steps do not increase")
        return cls(parameters, k, records)

    def __repr__(self) -> str:
        count = f"{len(self) or 'no'} measurement{'s' * (len(self) != 1)}"
        said = f"{count} of {self.k} eigenvalue{'s' * (self.k != 1)} of a model with "
        said += f"{self.parameters} parameters"
        if not len(self):
            return said
        last = self.records[-1]
        return f"{said}\n  step {last.step}: sharpness {last.sharpness:.6g}, loss {last.loss:.6g}"

    def _numbers(self, name: str) -> Numbers:
        return np.asarray([getattr(record, name) for record in self.records], dtype=np.float64)

    def _integers(self, name: str) -> Numbers:
        return np.asarray([getattr(record, name) for record in self.records], dtype=np.int64)

    def _vectors(self, name: str) -> Numbers:
        rows = [getattr(record, name) for record in self.records]
        return np.asarray(rows, dtype=np.float64).reshape(len(rows), self.k)
