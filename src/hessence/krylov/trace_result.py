"""What ``hs.trace`` returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trace:
    """The trace of an operator, and how well it is known.

    Attributes
    ----------
    value : float
        The trace.
    stderr : float
        Its standard error, and an allowance for rounding: the true trace lies within twice this
        distance with a probability of 95 %. Zero only if the result is exact.
    products : int
        How many vectors were multiplied by the operator.
    method : str
        ``"xtrace"``, ``"hutch++"``, or ``"dense"`` if all n columns of the operator were computed.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> found = hs.trace(np.diag(np.arange(500.0)), products=50)
    >>> found.method, found.products, bool(abs(found.value - 124750) < 3 * found.stderr)
    ('xtrace', 50, True)
    """

    value: float
    stderr: float
    products: int
    method: str

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        plural = "s" * (self.products != 1)
        return (
            f"trace {self.value:.6g} ± {self.stderr:.1e} "
            f"({self.method}, {self.products} product{plural})"
        )
