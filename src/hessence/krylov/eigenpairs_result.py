"""What ``hs.eigenpairs`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import array_api_compat as api

from hessence._common.arguments import MEANING, Which
from hessence._common.arrays import Array
from hessence._common.files import Saved
from hessence._common.messages import value_table
from hessence.krylov.request import Outcome, require_top


class ConvergenceWarning(UserWarning):
    """An iteration ended before it reached its tolerance; its result says how far it came."""


@dataclass(frozen=True, eq=False, repr=False)
class Eigenpairs(Saved, kind="eigenpairs"):
    """Some eigenvalues of a symmetric operator with error bounds, and their eigenvectors.

    Arrays are of the operator's kind, type and device. For a batch of operators each has the batch
    dimensions in front.

    Attributes
    ----------
    eigenvalues : array (k,)
        Descending, whatever end of the spectrum they come from; as often as their multiplicity.
    eigenvectors : array (n, k)
        Orthonormal eigenvectors as columns, in the same order.
    errors : array (k,)
        An eigenvalue of the operator lies within this distance of each: the norm of the residual
        Hz − λz, and an allowance for rounding.
    resolved : array of bool (k,)
        Whether the residual is below tol · ‖H‖.
    products : int
        How many vectors were multiplied by the operator; for a batch, by each of them.
    outcome : Outcome
        How the search has ended.
    message : str
        The outcome in a sentence and, where it is not all that was asked for, what to do next.
    norm : array
        The largest abs(λ) that the search has met, in the place of ‖H‖.
    method : str
        ``"Lanczos"``, or ``"dense"`` if all n columns of the operator were computed.
    which : str
        Which eigenvalues were asked for.
    confidence : float or None
        The probability that no copy of a multiple eigenvalue was overlooked, from a test with a
        random vector; None if no such test was made. A dense computation misses nothing: 1.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> found = hs.eigenpairs(np.diag([3.0, 2.0, 1.0]), k=2)
    >>> found.eigenvalues, found.converged, found.products
    (array([3., 2.]), True, 3)
    >>> bool((found.errors < 1e-12).all()), found.eigenvectors.shape
    (True, (3, 2))
    """

    eigenvalues: Array
    eigenvectors: Array
    errors: Array
    resolved: Array
    products: int
    norm: Array
    outcome: Outcome
    message: str
    method: str
    which: Which
    confidence: float | None = None

    exact: ClassVar[bool] = False
    shapes: ClassVar[dict[str, str]] = {
        "eigenvalues": "... k", "eigenvectors": "... n k", "errors": "... k", "resolved": "... k",
        "norm": "...",
    }  # fmt: skip

    @property
    def converged(self) -> bool:
        """Whether every eigenvalue is resolved."""
        return bool(api.array_namespace(self.resolved).all(self.resolved))

    @property
    def sharpness(self) -> Array:
        """The largest eigenvalue, if that end of the spectrum was asked for."""
        require_top(self.which, self.eigenvalues, int(self.eigenvectors.shape[-2]))
        return self.eigenvalues[..., 0]

    def __len__(self) -> int:
        """Return the number of eigenvalues, of each operator if there is a batch."""
        return int(self.eigenvalues.shape[-1])

    def __repr__(self) -> str:
        lines = value_table(self.eigenvalues, self.errors, self.resolved)
        count = len(self)
        order = int(self.eigenvectors.shape[-2])
        batch = tuple(self.eigenvalues.shape[:-1])
        of = f" of each of {batch} operators" if batch else ""
        head = (
            f"{count} of {order} eigenvalues, {MEANING[self.which]}{of}: "
            f"{self.method}, {self.products} product{'s' * (self.products != 1)}"
        )
        return "\n".join([head, *lines, *([] if self.converged else [f"  ! {self.message}"])])
