"""Spectra that are not known exactly: some eigenvalues with error bounds, and the trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from hessence._common.arrays import Array, dtype_name, integers, to_numpy
from hessence._common.files import decoded, encoded
from hessence._common.messages import value_table
from hessence._common.schema import as_dtype, as_numbers, require_fields, require_shapes
from hessence.krylov.density_result import Density
from hessence.krylov.request import Outcome, require_top
from hessence.spectra.certificate import Certificate, overlap, require_operator
from hessence.spectra.result import SpectralResult, UnknownLabelError, require_label
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Eigenspace, Subspaces

LABEL = "estimate"
"""The label of eigenvalues that no theorem names."""

ARRAYS = ("eigenvalues", "errors", "trace", "trace_stderr")
PLAIN = ("method", "reason", "which", "size", "message", "products")
"""What a file holds, as arrays and as they are."""


@dataclass(eq=False, repr=False)
class Estimate(SpectralResult, kind="estimate"):
    """Eigenvalues of a Hessian with error bounds; reads like a ``Spectrum``, as far as it goes.

    Attributes
    ----------
    eigenvalues : array (k,)
        Descending.
    errors : array (k,)
        An eigenvalue of the Hessian, as its products are computed, lies within this distance of
        each: a proved bound. What rounding does inside of a model is measured and added if the
        method is ``"dense"``, as in ``Spectrum.errors``; otherwise add ``H.rounding()``.
    eigenvectors : array (p, k) or None
        Orthonormal columns in the order of ``model.parameters()``; None if read from a file.
    trace, trace_stderr : array
        The sum of all eigenvalues and its standard error (for all p eigenvalues known, a bound).
    size : int
        The number p of all eigenvalues.
    outcome : Outcome
        How the search has ended.
    method : str
        ``"Lanczos"``, or ``"dense"`` if the whole matrix was computed.
    message : str
        The outcome in a sentence and, where it is not all that was asked for, what to do next.
    reason : str
        Why the spectrum is not exact.
    which : str
        Which eigenvalues were asked for, see ``hs.eigenpairs``.
    products : int
        How many products with the Hessian the eigenvalues and the trace took; the density takes
        ``density.products`` more.
    norm : float
        The largest abs(λ) that was met, an estimate of ‖H‖.
    known : Spectrum or None
        The eigenvalues that a theorem gives exactly, with multiplicities and labels; only the
        others were searched for. ``estimate["flat"]`` has those of a label.
    labelled : tuple of str
        A label for each of ``eigenvalues``: "estimate", or that of a known one.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    >>> s = hs.spectrum(model, (torch.randn(20, 3), torch.randn(20, 1)), k=3)
    >>> s.exact, s.method, len(s), s.size
    (False, 'dense', 3, 21)
    """

    eigenvalues: Array
    errors: Array
    eigenvectors: Array | None
    trace: Array
    trace_stderr: Array
    size: int
    outcome: Outcome
    method: str
    message: str
    reason: str
    which: str
    products: int
    norm: float = math.nan
    known: Spectrum | None = None
    labelled: tuple[str, ...] = ()
    _density: Density | Callable[[], Density] | None = field(default=None)

    exact = False

    @property
    def converged(self) -> bool:
        """Whether every eigenvalue is as accurate as was asked for."""
        return self.outcome.converged

    @property
    def values(self) -> Array:
        """The eigenvalues, under the name that a ``Spectrum`` has for one of each eigenspace."""
        return self.eigenvalues

    @property
    def multiplicities(self) -> Array:
        """The multiplicity of each entry of ``values``, 1."""
        return integers(np.ones(len(self)), self.eigenvalues)

    def __getitem__(self, label: str) -> tuple[Eigenspace, ...]:
        """Return the known spaces with a label."""
        if self.known is not None:
            return self.known[label]
        require_label(label)
        raise UnknownLabelError(
            f'an estimate has no labels such as "{label}", as no theorem says what its eigenvalues '
            "are; spaces has all of them."
        )

    def space(self, index: int) -> Eigenspace:
        """Return the eigenspace of one of the eigenvalues; most are labelled "estimate"."""
        value, vectors = self.eigenvalues[index], self.eigenvectors
        label = self.labelled[index] if self.labelled else LABEL
        if vectors is None:
            return Eigenspace(value, 1, label)

        def embed(coordinates: Array, copies: Array) -> Array:
            return vectors[:, index : index + 1] * coordinates * copies

        family = Subspaces((label,), lambda _: embed, values=self.eigenvalues[index : index + 1])
        return Eigenspace(value, 1, label, family)

    def _all(self, wanted: str) -> tuple[Array, Array, Array]:
        if len(self) < self.size:
            raise ValueError(
                f"{len(self)} of {self.size} eigenvalues do not tell {wanted}: ask for all of them "
                "with k=None, or look at density."
            )
        return self.values, self.multiplicities, self.errors

    @property
    def sharpness(self) -> Array:
        """The largest eigenvalue, if that end of the spectrum was asked for."""
        require_top(self.which, self.eigenvalues, self.size)
        return self.eigenvalues[0]

    @property
    def density(self) -> Density:
        """The density of all eigenvalues with a band; computed when first asked for."""
        if self._density is None:
            raise ValueError(
                "the density was not computed before the estimate was saved, and a file cannot "
                "compute it: look at density once, then save."
            )
        if callable(self._density):
            self._density = self._density()
        return self._density

    def __len__(self) -> int:
        """Return the number of eigenvalues found."""
        return int(self.eigenvalues.shape[-1])

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the function that computes the density, which holds the model and its data."""
        state = {name: value for name, value in vars(self).items() if name != "spaces"}
        if callable(self._density):
            state["_density"] = None
        return state

    def verify(self, H: Any) -> Certificate:
        """Multiply every eigenvector by an operator and return the worst residual.

        Examples
        --------
        >>> import torch, hessence as hs
        >>> _ = torch.manual_seed(0)
        >>> layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
        >>> model = torch.nn.Sequential(*layers)
        >>> data = torch.randn(20, 3), torch.randn(20, 1)
        >>> certificate = hs.spectrum(model, data).verify(hs.hessian(model, data))
        >>> certificate.vectors, certificate.residual < 1e-5
        (10, True)
        """
        if self.eigenvectors is None:
            raise ValueError(
                "these eigenvectors are gone: an estimate read from a file keeps eigenvalues and "
                "errors only; compute it again to get vectors."
            )
        require_operator(H, self.size, "estimate")
        defects = to_numpy(H @ self.eigenvectors - self.eigenvalues * self.eigenvectors)
        worst = float(np.linalg.norm(defects.astype(np.float64), axis=0).max())
        overlaps = overlap(to_numpy(self.eigenvectors))
        return Certificate(worst / (self.norm or 1.0), None, None, len(self), overlaps)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the eigenvectors as plain data, exactly."""
        data: dict[str, Any] = {"format": self.format, "exact": False, "converged": self.converged}
        data |= {name: getattr(self, name) for name in PLAIN}
        arrays = {name: to_numpy(getattr(self, name)) for name in ARRAYS}
        data |= {name: encoded(array.tolist()) for name, array in arrays.items()}
        data |= {"dtype": dtype_name(self.eigenvalues), "outcome": self.outcome.name}
        if not math.isnan(self.norm):
            data["norm"] = encoded(self.norm)
        if self.known is not None:
            data |= {"known": self.known.to_dict(), "labelled": list(self.labelled)}
        if isinstance(self._density, Density):
            data["density"] = self._density.to_dict()
        return data

    @classmethod
    def _rebuilt(cls, data: dict[str, Any]) -> Self:
        dtype = as_dtype(data["dtype"])
        known: dict[str, Any] = {name: as_numbers(decoded(data[name]), dtype) for name in ARRAYS}
        require_shapes({"eigenvalues": "k", "errors": "k", "trace": "", "trace_stderr": ""}, known)
        known |= {name: data[name] for name in PLAIN} | {
            "norm": decoded(data.get("norm", math.nan))
        }
        known["labelled"] = decoded(data.get("labelled", []))
        require_fields(cls, known)
        return cls(
            **known,
            eigenvectors=None,
            outcome=Outcome[data["outcome"]],
            known=Spectrum.from_dict(data["known"]) if "known" in data else None,
            _density=Density.from_dict(data["density"]) if "density" in data else None,
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw the density on a logarithmic scale with the eigenvalues marked; returns the axes.

        Needs ``hessence[plot]``, and computes the density if that has not been done.
        """
        return self.density.plot(ax, eigenvalues=self.eigenvalues)

    def __repr__(self) -> str:
        lines, count = value_table(self.eigenvalues, self.errors), len(self)
        trace, spread = float(to_numpy(self.trace)), float(to_numpy(self.trace_stderr))
        way = "from the whole matrix" if self.method == "dense" else f"estimated: {self.method}"
        head = f"{count} of {self.size} eigenvalues, {way}, {self.products} products"
        tail = [] if self.known is None else [f"  known exactly: {_counted(self.known)}"]
        tail += [] if self.converged else [f"  ! {self.message}"]
        return "\n".join([head, *lines, f"  trace {trace:.6g} ± {spread:.1e}", *tail])


def _counted(known: Spectrum) -> str:
    """Return how many eigenvalues there are of each kind, as text."""
    found: Counter[str] = Counter()
    for space in known.spaces:
        found[space.label.partition("/")[0]] += space.multiplicity
    return ", ".join(f"{count} {kind}" for kind, count in found.items())
