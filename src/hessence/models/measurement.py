"""One measurement of the Hessian of a network in training."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hessence._common.arrays import Numbers
from hessence._common.files import Saved


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

    def __post_init__(self) -> None:
        for name in _VECTORS:
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


_VECTORS = ("eigenvalues", "errors", "ggn_eigenvalues", "ggn_errors")
_INTEGERS = ("step", "products", "ggn_products", "trace_products")
_FLAGS = ("converged", "checked")


def to_plain(record: Measurement) -> dict[str, Any]:
    """Return a measurement as what JSON can hold."""
    return {f.name: _encoded(getattr(record, f.name)) for f in fields(record)}


def _encoded(value: Any) -> Any:
    """Write numbers as they are, NaN as null and infinity as a word: JSON has neither."""
    if isinstance(value, np.ndarray):
        return [_encoded(entry) for entry in value.tolist()]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else repr(value)
    return value


def from_plain(entry: dict[str, Any], k: int) -> Measurement:
    """Rebuild a measurement of k eigenvalues, or say what is wrong with it."""
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(Measurement)):
        value = entry[name]
        if name in _VECTORS:
            values[name] = [_number(number) for number in value]
            if len(values[name]) != k:
                raise ValueError(f"{name} must have {k} entries")
        elif name in _INTEGERS:
            values[name] = integer(value)
        elif name in _FLAGS:
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be true or false")
            values[name] = value
        else:
            values[name] = _number(value)
    return Measurement(**values)


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not (isinstance(value, (int, float)) or value in ("inf", "-inf")):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def integer(value: Any) -> int:
    """Return an integer, or refuse anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value
