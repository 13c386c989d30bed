"""What a monitor has measured: one record for each measurement, and all of them as arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hessence._common.arrays import Numbers
from hessence._common.files import Saved, read_json


@dataclass(frozen=True, eq=False)
class Measurement(Saved, kind="measurement"):
    """What a monitor measures at one step of training.

    What was not measured, or is not finite because training has diverged, is NaN.

    Attributes
    ----------
    step : int
        The step.
    loss : float
        The loss on the monitor's data.
    eigenvalues : array (k,)
        The largest eigenvalues of the Hessian, descending.
    errors : array (k,)
        Proved bounds: an eigenvalue lies within this distance of each, the residual ‖Hz − λz‖.
    ggn_eigenvalues, ggn_errors : array (k,)
        The same for the Gauss–Newton matrix; NaN if it was not asked for or the loss is a closure.
    trace, trace_stderr : float
        The Hessian's trace and its standard error; NaN if not asked for.
    lr : float
        The learning rate; NaN if not known.
    products : int
        How many vectors were multiplied by the Hessian to find its eigenvalues.
    ggn_products, trace_products : int
        How many products the Gauss–Newton matrix's eigenvalues and the trace took.
    converged : bool
        Whether all residuals are as small as the monitor was asked for.
    checked : bool
        Whether a search from a random vector has made sure that no eigenvalue was overlooked.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    >>> data = torch.randn(20, 3), torch.randn(20, 1)
    >>> record = hs.Monitor(model, data, k=2).measure(0)
    >>> record.step, record.eigenvalues.shape, bool(record.errors.max() < 1e-3)
    (0, (2,), True)
    """

    step: int
    loss: float
    eigenvalues: Numbers
    errors: Numbers
    ggn_eigenvalues: Numbers
    ggn_errors: Numbers
    trace: float
    trace_stderr: float
    lr: float
    products: int
    ggn_products: int
    trace_products: int
    converged: bool
    checked: bool

    shapes: ClassVar[dict[str, str]] = {
        "eigenvalues": "k", "errors": "k", "ggn_eigenvalues": "k", "ggn_errors": "k"
    }  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("eigenvalues", "errors", "ggn_eigenvalues", "ggn_errors"):
            array = np.array(getattr(self, name), dtype=np.float64)
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @property
    def sharpness(self) -> float:
        """The largest eigenvalue of the Hessian."""
        return float(self.eigenvalues[0])

    @property
    def ggn_gap(self) -> float:
        """|λ_max(H) − λ_max(G)| / |λ_max(H)|, G the Gauss–Newton matrix.

        NaN if the first is zero and the second is not.
        """
        difference = abs(self.sharpness - float(self.ggn_eigenvalues[0]))
        if self.sharpness == 0:
            return 0.0 if difference == 0 else math.nan
        return difference / abs(self.sharpness)


def _column(name: str, meaning: str, dtype: type = float, *, rows: bool = False) -> property:
    """Return a property of a history with one number for each record, or k of them in `rows`."""

    def column(self: History) -> Numbers:
        found: Numbers = np.asarray([getattr(record, name) for record in self.records], dtype=dtype)
        return found.reshape(len(self), self.k) if rows else found

    return property(column, doc=meaning)


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

    def __post_init__(self) -> None:
        if any(record.eigenvalues.shape != (self.k,) for record in self.records):
            raise ValueError(f"every measurement must have {self.k} eigenvalues.")

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self.records)

    def __getitem__(self, index: int) -> Measurement:
        """Return one measurement."""
        return self.records[index]

    def __iter__(self) -> Iterator[Measurement]:
        """Iterate over the measurements."""
        return iter(self.records)

    steps = _column("step", "The steps (n,).", int)
    loss = _column("loss", "The loss (n,).")
    sharpness = _column("sharpness", "The largest eigenvalue of the Hessian (n,).")
    eigenvalues = _column(
        "eigenvalues", "The largest eigenvalues of the Hessian (n, k).", rows=True
    )
    errors = _column("errors", "Error bounds of the Hessian's eigenvalues (n, k).", rows=True)
    ggn_eigenvalues = _column(
        "ggn_eigenvalues", "The largest eigenvalues of the Gauss–Newton matrix (n, k).", rows=True
    )
    ggn_errors = _column(
        "ggn_errors", "Error bounds of the Gauss–Newton matrix's eigenvalues (n, k).", rows=True
    )
    ggn_gap = _column(
        "ggn_gap", "How far the sharpness is from the Gauss–Newton matrix's, relative (n,)."
    )
    trace = _column("trace", "The Hessian's trace (n,).")
    trace_stderr = _column("trace_stderr", "The standard error of the trace (n,).")
    lr = _column("lr", "The learning rate (n,).")
    products = _column("products", "How many products the Hessian's eigenvalues took (n,).", int)
    converged = _column("converged", "Whether all residuals were small enough (n,).", bool)

    def before(self, step: int) -> History:
        """Return the measurements before a step."""
        earlier = tuple(record for record in self.records if record.step < step)
        return History(self.parameters, self.k, earlier)

    def plot(self, ax: Any = None) -> Any:
        """Draw eigenvalues through training and 2 / lr; see ``hessence.plotting.training``."""
        from hessence.plotting.training import draw_history

        return draw_history(self, ax)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read a saved history. A damaged file is refused and left as it is."""
        try:
            return cls.from_dict(read_json(path))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{os.fspath(path)} is no history that a monitor has saved, or is damaged "
                f"({str(error)[:120]}); it was left as it is."
            ) from error

    def __repr__(self) -> str:
        count = f"{len(self) or 'no'} measurement{'s' * (len(self) != 1)}"
        values = f"{self.k} eigenvalue{'s' * (self.k != 1)}"
        lines = [f"{count} of {values} of a model with {self.parameters} parameters"]
        for last in self.records[-1:]:
            lines += [f"  step {last.step}: sharpness {last.sharpness:.6g}, loss {last.loss:.6g}"]
        return "\n".join(lines)
