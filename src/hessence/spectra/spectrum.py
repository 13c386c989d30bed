"""Spectra as users hold them: all eigenspaces, and what is computed from their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, dtype_name, integers, like, to_numpy
from hessence._common.device import available
from hessence._common.files import decoded, encoded
from hessence._common.messages import SHOWN, range_text, table_lines
from hessence._common.schema import LARGEST, as_dtype, as_numbers
from hessence._common.summation import compensated_sum
from hessence.krylov.density_result import Density, known_density
from hessence.krylov.request import Outcome
from hessence.spectra.certificate import Certificate, certify
from hessence.spectra.differences import GradientDifferences
from hessence.spectra.result import SpectralResult, expanded, largest_magnitude, repeated
from hessence.spectra.small_eigen import require_no_overflow
from hessence.spectra.subspaces import Eigenspace, Subspaces


class Spectrum(SpectralResult, kind="spectrum"):
    """Every eigenvalue of a Hessian, with multiplicities, labels and eigenvectors on demand.

    Networks make spectra; users read them. For a batch of networks every quantity has the batch
    dimensions in front, and ``spaces`` keeps one order for all of them while ``values`` and
    ``eigenvalues`` are sorted for each network.

    Parameters
    ----------
    families : sequence of Subspaces
        The invariant subspaces, which together are the whole space.
    method : str
        How the spectrum was found, such as ``"closed form"``.
    operator : Operator, optional
        The Hessian, whose products form the blocks that a family does not supply.
    exact : bool
        Whether the only error is rounding.
    defect : float
        The spectral norm of what the families neglect of the operator; goes into ``errors``.

    Attributes
    ----------
    reason : str
        For a PyTorch model, which network it was found to be and by which theorem.
    outcome, message, converged, products
        As an ``Estimate`` has them: all eigenvalues are known, True, and none.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.ScalarLinear(np.asarray([1.0, 2.0, 0.5]), np.asarray([0.5, 1.0, 1.0]))
    >>> s = net.hessian(np.asarray([1.0, -1.0]), np.asarray([2.0, -1.0])).spectrum()
    >>> s
    6 eigenvalues, closed form
      label      value  multiplicity
      outlier   8.7812             1
      bulk         1.5             2
      outlier  -1.2812             1
      bulk        -1.5             2
    >>> s.eigenvalues.round(4)
    array([ 8.7812,  1.5   ,  1.5   , -1.2812, -1.5   , -1.5   ])
    >>> s["outlier"][0].vectors().shape
    (6, 1)
    """

    reason = ""
    outcome = Outcome.ALL_KNOWN
    message = outcome.say()
    converged = True
    products = 0

    def __init__(
        self,
        families: Sequence[Subspaces],
        method: str,
        *,
        operator: Any = None,
        exact: bool = True,
        defect: float = 0.0,
    ) -> None:
        self.method = method
        self.exact = exact
        self.families = tuple(family.of(operator, defect) for family in families if family.size)
        columns = [family.eigenvalues for family in self.families]
        self._xp = xp = api.array_namespace(*columns)
        values = xp.concat(columns, axis=-1) + 0.0  # no negative zeros
        sizes = [int(column.shape[-1]) for column in columns]
        self._ends = np.cumsum(sizes)
        lead = tuple(values.shape[:-1])
        each = [np.broadcast_to(to_numpy(f.multiplicity), lead) for f in self.families]
        counts = np.repeat(np.stack(each, axis=-1), sizes, axis=-1)
        self._arrange(values, integers(counts, values))

    def _arrange(self, values: Array, counts: Array) -> None:
        """Keep the groups; those of a single network without the empty ones, and sorted."""
        if values.ndim > 1:
            order = np.arange(int(values.shape[-1]))
        else:
            require_no_overflow(values)
            order, present = np.argsort(-to_numpy(values), stable=True), to_numpy(counts)
            if not 0 < present.min() == present.max():
                order = order[present[order] > 0]
                counts = integers(present[order], values)
            values = self._xp.take(values, integers(order, values), axis=0)
        self._values, self._counts, self._origins = values, counts, order

    def space(self, index: int) -> Eigenspace:
        """Return one of ``spaces`` without making the others."""
        batched = self._values.ndim > 1
        g = range(self._groups)[index]
        return Eigenspace(
            self._values[..., g] if batched else self._values[g],
            self._uniform_count(g) if batched else int(self._counts[g]),
            self._label(g),
            *self._place(g),
        )

    @property
    def values(self) -> Array:
        """One value for each eigenspace, largest first."""
        return self._sorted[0]

    @property
    def multiplicities(self) -> Array:
        """The multiplicity of each entry of ``values``."""
        return self._sorted[1]

    @property
    def eigenvalues(self) -> Array:
        """All eigenvalues, largest first, each as often as its multiplicity says.

        Multiplicities are expanded here only, anew on each call.
        """
        xp, values = self._xp, self.values
        if values.ndim == 1:
            return xp.repeat(values, self.multiplicities)
        groups = integers(repeated(to_numpy(self.multiplicities)), values)
        return xp.take_along_axis(values, groups, axis=-1)

    def __len__(self) -> int:
        """Return the number of eigenvalues."""
        return int(to_numpy(self._counts).sum(axis=-1).flat[0])

    @property
    def size(self) -> int:
        """The number of all eigenvalues, as an ``Estimate`` tells it."""
        return len(self)

    @cached_property
    def errors(self) -> Array:
        """A bound for the error of each of ``eigenvalues``, for the route that was taken.

        It covers the rounding of the derivatives of the loss, of products, of blocks and of their
        eigenvalues, and what a theorem neglects. The bounds grow where large terms cancel, such as
        predictions and targets near a perfect fit. Closed forms have small relative errors. The
        rounding inside of a PyTorch model, where its products were needed, is measured and not
        proved: three products are repeated with other roundings, and 8 times the largest difference
        counts.
        """
        # If each value is within e of its own eigenvalue, the i-th largest eigenvalue lies between
        # the i-th largest of all value − e and of all value + e.
        values, counts = to_numpy(self._values), to_numpy(self._counts)
        ends = values, values - self._bounds, values + self._bounds
        here, low, high = (expanded(each, counts) for each in ends)
        return like(np.maximum(high - here, here - low), self._values)

    @cached_property
    def _bounds(self) -> Numbers:
        """A bound for the error of the value of each group, in the groups' order."""
        found = np.concatenate([family.bounds(self.norm) for family in self.families], axis=-1)
        return found if found.ndim > 1 else found[self._origins]

    @property
    def trace_stderr(self) -> Array:
        """A bound for the error of the trace: the sum of all ``errors``."""
        counts = to_numpy(self._counts)
        return like((self._bounds * counts).sum(axis=-1), self._values)

    @property
    def eigenvectors(self) -> Array:
        """All eigenvectors as columns (p, p), in the order of ``eigenvalues``.

        ``spaces`` have them eigenspace by eigenspace, which is the way for large networks.

        Examples
        --------
        >>> import numpy as np, hessence as hs
        >>> H = hs.ScalarLinear([1.0, 2.0, 0.5], [0.5, 1.0, 1.0]).hessian([1.0, -1.0], [2.0, -1.0])
        >>> s = H.spectrum()
        >>> z = s.eigenvectors
        >>> bool(np.allclose(z * s.eigenvalues @ z.T, H.dense()))
        True
        """
        if self._values.ndim > 1:
            raise ValueError("eigenvectors belong to one network; pick one of the batch first.")
        bits = self._xp.finfo(self._values.dtype).bits
        needed = 2 * len(self) ** 2 * bits / 8
        if needed > available(self._values):
            raise ValueError(
                f"all {len(self)} eigenvectors would take {needed / 1e9:.0f} GB: take those of one "
                "of the spaces, such as spaces[0].vectors()."
            )
        return self._xp.concat([space.vectors() for space in self.spaces], axis=-1)

    @property
    def sharpness(self) -> Array:
        """The largest eigenvalue."""
        values = self._values
        present = self._xp.where(self._counts > 0, values, self._xp.ones_like(values) * -np.inf)
        return self._xp.max(present, axis=-1)

    @property
    def trace(self) -> Array:
        """The sum of all eigenvalues."""
        return compensated_sum(self._values * self._xp.astype(self._counts, self._values.dtype))

    @property
    def norm(self) -> Array:
        """The largest magnitude of an eigenvalue: the spectral norm."""
        return largest_magnitude(self._values, self._counts)

    def mapped(self, place: Callable[[Array], Array], factor: float) -> Spectrum:
        """Return the spectrum of `factor` times the operator, with vectors (p, n) mapped."""
        families = [family.mapped(place, factor, self.norm) for family in self.families]
        return Spectrum(families, self.method, exact=self.exact)

    def verify(
        self, H: Any, *data: Any, samples: int = 8, rng: Any = 0, **options: Any
    ) -> Certificate:
        """Check the spectrum against an operator, or against a network's loss, by a certificate.

        ``s.verify(H)`` multiplies eigenvectors by H. ``s.verify(net, x, y)`` compares with the loss
        of the network on these data instead: with differences of its gradient, in extended
        precision. That also finds what is wrong in the operator.

        Parameters
        ----------
        H : operator or array, or a network of this library
            Anything with ``@``: a network's Hessian, a dense matrix.
        *data : arrays
            The data x, y of a network; its ``loss`` is an option.
        samples : int
            How many eigenvectors to test in each eigenspace, drawn at random from it where it has
            more. At most 64 eigenspaces are tested, from both ends of the spectrum.
        rng : int or numpy.random.Generator
            The source of those draws.

        Returns
        -------
        Certificate
            The worst relative residual ‖Hz − λz‖/‖H‖, the largest overlap of two eigenvectors, and
            how far the trace and the squared Frobenius norm are from the operator's own. Prints as
            one line.

        Examples
        --------
        >>> import numpy as np, hessence as hs
        >>> net, x, y = hs.ScalarLinear([1.0, 2.0], [0.5, 1.0]), [1.0, -1.0], [2.0, -1.0]
        >>> s = net.hessian(x, y).spectrum()
        >>> s.verify(net.hessian(x, y)).worst < 1e-14, s.verify(net, x, y).worst < 1e-10
        (True, True)
        """
        if hasattr(H, "with_parameters"):
            if not data:
                raise ValueError("a network is verified with its data: s.verify(net, x, y).")
            H = GradientDifferences(H, *data, **options)
        elif data or options:
            raise ValueError(
                "data come with a network of this library, s.verify(net, x, y), not with an "
                "operator; a PyTorch model is given by its own, s.verify(hs.hessian(model, data))."
            )
        return certify(self, H, samples=samples, rng=rng)

    def to_dict(self) -> dict[str, Any]:
        """Return values, multiplicities, labels and method as plain data, exactly."""
        return {
            "format": self.format,
            "method": self.method,
            "exact": self.exact,
            **({"reason": self.reason} if self.reason else {}),
            "dtype": dtype_name(self._values),
            "labels": [self._label(g) for g in range(self._groups)],
            "values": to_numpy(self._values).tolist(),
            "multiplicities": to_numpy(self._counts).tolist(),
            "errors": encoded(self._bounds.tolist()),
        }

    @classmethod
    def _rebuilt(cls, data: dict[str, Any]) -> Self:
        values = as_numbers(data["values"], as_dtype(data["dtype"]))
        counts = as_numbers(data["multiplicities"], np.dtype(np.int64))
        labels = np.asarray(data["labels"], dtype=object)
        errors = as_numbers(decoded(data["errors"]), np.dtype(np.float64))
        method, exact, reason = data["method"], data["exact"], data.get("reason", "")
        shapes = {values.shape, counts.shape, errors.shape}
        if len(shapes) > 1 or values.shape[-1:] != labels.shape:
            raise ValueError("its lists differ in length")
        if values.dtype.kind != "f" or not np.isfinite(values).all() or not (errors >= 0).all():
            raise ValueError("it needs finite values, and errors that are not negative")
        total = counts.sum(axis=-1, dtype=float)
        empty = (counts < 1).any() if values.ndim == 1 else (counts < 0).any()
        if empty or not 1 <= total.min() == total.max() <= LARGEST:
            raise ValueError("its multiplicities are no counts")
        if not all(isinstance(label, str) for label in labels):
            raise ValueError("its labels are no texts")
        if not (isinstance(method, str) and isinstance(exact, bool) and isinstance(reason, str)):
            raise ValueError("method, exact or reason is not what it should be")
        self = cls.__new__(cls)
        self.method, self.exact, self.reason, self.families = method, exact, reason, ()
        self._xp = api.array_namespace(values)
        self._arrange(values, counts)
        self._origins = labels[self._origins]
        self._bounds = errors
        return self

    @property
    def density(self) -> Density:
        """The density of all eigenvalues, smoothed, as ``hs.density`` estimates it."""
        if self.values.ndim > 1:
            raise ValueError("a density belongs to one network; pick one of the batch first.")
        values, counts = to_numpy(self.values), to_numpy(self.multiplicities)
        return known_density(values, counts, error=float(self._bounds.max()))

    def plot(self, ax: Any = None) -> Any:
        """Draw all eigenvalues, coloured by label; needs ``hessence[plot]``. Returns the axes."""
        from hessence.plotting.spectra import draw_spectrum

        return draw_spectrum(self, ax)

    def __reduce__(self) -> tuple[Any, ...]:
        # Eigenvectors are functions of the network; a copy in another process goes without them.
        return Spectrum.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        rows = [
            (
                space.label,
                range_text(space.value, ".5g", ".3g"),
                range_text(space.multiplicity, "d"),
            )
            for space in self.ends(SHOWN)
        ]
        lines = table_lines(("label", "value", "multiplicity"), rows, self._groups, left=1)
        batch = tuple(self._values.shape[:-1])
        of = f" of each of {batch} networks" if batch else ""
        kind = "" if self.exact else ", estimated"
        return "\n".join([f"{len(self)} eigenvalues{of}, {self.method}{kind}", *lines])

    def _all(self, wanted: str) -> tuple[Array, Array, Array]:
        return self._values, self._counts, like(self._bounds, self._values)

    @property
    def _groups(self) -> int:
        return int(self._values.shape[-1])

    def _label(self, g: int) -> str:
        place = self._place(g)
        return place[0].label(*place[1:]) if place else str(self._origins[g])

    def _place(self, g: int) -> tuple[Any, ...]:
        """Return the family, its member and the index in the block that group g comes from."""
        if not self.families:
            return ()
        origin = int(self._origins[g])
        which = int(np.searchsorted(self._ends, origin, side="right"))
        family = self.families[which]
        inside = origin - (int(self._ends[which - 1]) if which else 0)
        return family, *divmod(inside, family.size)

    def _uniform_count(self, g: int) -> Any:
        counts = to_numpy(self._counts)[..., g]
        return int(counts.flat[0]) if (counts == counts.flat[0]).all() else self._counts[..., g]

    @cached_property
    def _sorted(self) -> tuple[Array, Array]:
        xp = self._xp
        if self._values.ndim == 1:
            return self._values, self._counts
        order = xp.argsort(self._values, axis=-1, descending=True, stable=True)
        return (
            xp.take_along_axis(self._values, order, axis=-1),
            xp.take_along_axis(self._counts, order, axis=-1),
        )
