"""Certificates: checks of a spectrum that do not rely on the formula behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arguments import generator
from hessence._common.arrays import Array, like, to_numpy
from hessence._common.files import Saved
from hessence.spectra.subspaces import Eigenspace

MOST_SPACES = 64
MOST_COLUMNS = 2048
"""Larger operators do not have their trace and norm read off their columns."""


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Saved, kind="certificate"):
    """How far a spectrum is from the operator it belongs to.

    Attributes
    ----------
    residual : float
        The worst ‖Hz − λz‖/‖H‖ over the tested eigenvectors z. For a symmetric H an eigenvalue of
        H lies within residual · ‖H‖ of every tested λ.
    orthogonality : float
        The largest overlap of two tested eigenvectors, of one space or of two.
    trace_defect : float or None
        The gap between the traces relative to the sum of all abs(λ); None if the operator is too
        large to have its diagonal read and does not know its trace.
    norm_defect : float or None
        The gap between the squared Frobenius norms, relative; None as above, or if they overflow.
    vectors : int
        How many eigenvectors were tested.

    Examples
    --------
    >>> import hessence as hs
    >>> H = hs.ScalarLinear([1.0, 2.0], [0.5, 0.25]).hessian([1.0, -1.0], [2.0, -1.0])
    >>> certificate = H.spectrum().verify(H)
    >>> certificate.vectors, certificate.worst < 1e-14
    (4, True)
    """

    residual: float
    trace_defect: float | None
    norm_defect: float | None
    vectors: int
    orthogonality: float = 0.0

    @property
    def worst(self) -> float:
        """The largest of the four numbers."""
        defects = (self.residual, self.orthogonality, self.trace_defect, self.norm_defect)
        # NumPy's maximum, unlike Python's, returns NaN if there is one.
        return float(np.max([defect or 0.0 for defect in defects]))

    def __repr__(self) -> str:
        defects = [
            ("orthogonality", self.orthogonality),
            ("trace", self.trace_defect),
            ("squared norm", self.norm_defect),
        ]
        said = [f"{n} {'not checked' if d is None else f'{d:.1e}'}" for n, d in defects]
        return f"residual {self.residual:.1e} over {self.vectors} vectors, {', '.join(said)}"


def require_operator(H: Any, size: int, what: str) -> None:
    """Refuse anything but an operator or matrix of this size."""
    if not hasattr(H, "shape"):
        raise TypeError(
            "H must be an operator or a matrix, such as hs.hessian(model, data, loss), "
            f"got {type(H).__name__}."
        )
    if tuple(H.shape) != (size, size):
        raise ValueError(
            f"H must have shape {(size, size)} to match the {what}, got {tuple(H.shape)}."
        )


def certify(spectrum: Any, H: Any, *, samples: int, rng: Any) -> Certificate:
    """Test eigenvectors, trace and squared norm of a spectrum against an operator."""
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}.")
    values = to_numpy(spectrum.values)
    if values.ndim > 1:
        raise ValueError("verify takes one network at a time; pick one of the batch first.")
    require_operator(H, len(spectrum), "spectrum")
    norm = float(to_numpy(spectrum.norm))
    source = generator(rng)
    residual, columns = 0.0, []
    for space in spectrum.ends(MOST_SPACES):
        few = space.multiplicity <= samples
        vectors = space.vectors() if few else space.sample(samples, rng=source)
        residual = float(np.maximum(residual, _residual(H, space, vectors, norm or 1.0)))
        columns.append(to_numpy(vectors))
    tested = np.concatenate(columns, axis=-1)
    magnitudes = np.abs(values) * to_numpy(spectrum.multiplicities)
    with np.errstate(over="ignore", invalid="ignore"):
        trace, squared_norm = _invariants(H, spectrum.values)
        own_squared_norm = spectrum.squared_norm
    return Certificate(
        residual=residual,
        trace_defect=_gap(trace, spectrum.trace, float(magnitudes.sum())),
        norm_defect=_gap(squared_norm, own_squared_norm, squared_norm),
        vectors=int(tested.shape[-1]),
        orthogonality=overlap(tested),
    )


def overlap(columns: Any) -> float:
    """Return the largest inner product of two different columns, in double precision."""
    wide = np.asarray(columns, dtype=np.float64)
    inner = np.abs(wide.T @ wide)
    np.fill_diagonal(inner, 0.0)
    return float(inner.max(initial=0.0))


def _residual(H: Any, space: Eigenspace, vectors: Array, scale: float) -> float:
    # Divided by ‖H‖ before anything is squared, which could overflow.
    defects = to_numpy(H @ vectors - space.value * vectors) / scale
    lengths = to_numpy(vectors)
    # A vector that is not of unit length must not pass for a small residual.
    size = abs(float(to_numpy(space.value))) / scale
    off_unit = np.abs(np.linalg.norm(lengths, axis=0) - 1) * size
    return float((np.linalg.norm(defects, axis=0) + off_unit).max(initial=0.0))


def _invariants(H: Any, reference: Array) -> tuple[float | None, float | None]:
    """Return trace and squared Frobenius norm: the operator's own, or read off its columns."""
    if hasattr(H, "squared_norm"):
        return float(to_numpy(H.trace())), float(to_numpy(H.squared_norm()))
    p = int(H.shape[0])
    if p > getattr(H, "most_columns", MOST_COLUMNS):
        return None, None
    dense = to_numpy(H) if api.is_array_api_obj(H) else to_numpy(H @ like(np.eye(p), reference))
    return float(np.trace(dense)), float((dense * dense).sum())


def _gap(mine: float | None, other: Array, scale: float | None) -> float | None:
    own = float(to_numpy(other))
    if mine is None or np.isinf(own):
        return None
    return abs(mine - own) / (scale or 1.0)
