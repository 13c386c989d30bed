"""What ``hs.density`` returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hessence._common.arguments import as_level, as_number, as_positive
from hessence._common.arrays import Numbers, floating, to_double
from hessence._common.files import Saved
from hessence.krylov._counting import share_bounds
from hessence.krylov._smoothing import Rules
from hessence.krylov.request import Outcome

FINEST = 256
"""The smallest default width is the spectrum's extent divided by this."""

MOST_NODES = 2**12
"""More eigenvalues than this are first collected in bins, BINS to a width."""

BINS = 64

MARGIN = 5
"""How many widths the grid extends beyond the ends."""

POINTS, MOST_POINTS = 1024, 2**16
"""The least and the largest number of points of the grid."""


@dataclass(frozen=True, eq=False, repr=False)
class Density(Saved, kind="density"):
    r"""The density of an operator's eigenvalues, smoothed, with a band for its error.

    All arrays are NumPy's, in float64.

    Attributes
    ----------
    grid : array (points,)
        Where the density is given, ascending; it covers all of the spectrum, with a margin.
    values : array (points,)
        The density :math:`\frac1n \sum_k g_\sigma(x - \lambda_k)`, of integral 1, where
        :math:`g_\sigma` is the normal density of standard deviation ``width``.
    band : array (points,)
        At every point, the true smoothed density lies within this distance with a probability of
        95 %, see ``hs.density``.
    products : int
        How many vectors were multiplied by the operator.
    ends : tuple of float
        The lowest and the highest node of all: the ends of the spectrum, as far as it was seen.
        Neither is outside of the spectrum, up to rounding.
    ends_errors : tuple of float
        An eigenvalue lies within this distance of each: the residual of its Ritz vector.
    width : float
        The standard deviation σ of the Gaussian.
    outcome : Outcome
        How it went.
    message : str
        The outcome in a sentence and, where the band is wider than it needs to be, what to do.
    size : int
        The order n of the operator.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> found = hs.density(np.diag(np.linspace(-1, 1, 300)), probes=4, steps=20)
    >>> found.nodes.shape, found.products
    ((4, 20), 80)
    >>> round(float(np.trapezoid(found.values, found.grid)), 3)
    1.0
    """

    grid: Numbers
    values: Numbers
    band: Numbers
    products: int
    ends: tuple[float, float]
    ends_errors: tuple[float, float]
    width: float
    outcome: Outcome
    message: str
    size: int
    _rules: Rules

    shapes: ClassVar[dict[str, str]] = {"grid": "m", "values": "m", "band": "m"}

    def at(self, points: Any, width: float | None = None) -> tuple[Numbers, Numbers]:
        """Return values and band at other points, or for another width, without a product.

        Examples
        --------
        >>> import numpy as np, hessence as hs
        >>> density = hs.density(np.diag([0.0] * 99 + [5.0]))
        >>> values, band = density.at([0.0, 5.0], width=0.1)
        >>> np.round(values[0], 1), bool(abs(values[1] - 0.01 * 3.989) <= band[1])
        (np.float64(3.9), True)
        """
        _, points = floating(points=points)
        places = to_double(points)
        sigma = self.width if width is None else as_positive("width", width)
        values, band = self._rules.density(places.ravel(), sigma)
        return values.reshape(places.shape), band.reshape(places.shape)

    def average(self, function: Callable[[Numbers], Numbers]) -> tuple[float, float]:
        """Return tr f(H) / n, the mean of f over all eigenvalues, and its standard error.

        The function maps an array of eigenvalues to one of the same shape.

        Examples
        --------
        >>> import numpy as np, hessence as hs
        >>> density = hs.density(np.diag(np.linspace(0.0, 1.0, 200)))
        >>> value, stderr = density.average(np.exp)
        >>> bool(abs(value - (np.e - 1)) < 4 * stderr)
        True
        """
        images = np.asarray(function(self.nodes), dtype=np.float64)
        peak = np.abs(images).max() or 1.0
        shares, images = self.weights / len(images), images / peak
        mean = (shares * images).sum()
        error = self._rules.standard_error((shares * (images - mean) ** 2).sum())
        return float(mean * peak), float(error * peak)

    def share(self, x: Any, *, level: float = 0.95) -> tuple[Any, Any]:
        """Return proved bounds on the share of eigenvalues that are at most x.

        They hold for all x at once with probability `level`, and for certain where all eigenvalues
        are known. Unlike ``band`` they are about the eigenvalues, not a smoothed density. They
        narrow with 1/√probes, and with more steps as far as these resolve x; a large operator needs
        few probes.

        Here x is a number or an array, possibly infinite; both bounds have its shape.

        Examples
        --------
        >>> import numpy as np, hessence as hs
        >>> density = hs.density(np.diag(np.linspace(-1.0, 3.0, 2000)))
        >>> lower, upper = density.share(0.0)
        >>> lower <= 0.25 <= upper, upper - lower < 0.2
        (True, True)
        """
        try:
            places = np.asarray(x, dtype=np.float64)
        except (TypeError, ValueError) as error:
            wanted = "x must be a number or an array of numbers"
            raise TypeError(f"{wanted}, got {type(x).__name__}.") from error
        if np.isnan(places).any():
            raise ValueError("x contains NaN.")
        lower, upper = share_bounds(self._rules, places.ravel(), as_level(level))
        if not places.ndim:
            return float(lower[0]), float(upper[0])
        return lower.reshape(places.shape), upper.reshape(places.shape)

    def count(self, a: float, b: float, *, level: float = 0.95) -> tuple[int, int]:
        """Return the fewest and the most eigenvalues that can be in (a, b], see ``share``.

        Examples
        --------
        >>> import numpy as np, hessence as hs
        >>> density = hs.density(np.diag([-2.0] * 30 + [0.0] * 300 + [5.0] * 70))
        >>> fewest, most = density.count(-np.inf, -1.0)
        >>> fewest <= 30 <= most
        True
        """
        low, high = as_number("a", a), as_number("b", b)
        if not low < high:
            raise ValueError(f"a must be less than b, got a = {a!r} and b = {b!r}.")
        lower, upper = self.share([low, high], level=level)
        # Whole numbers, with an allowance for the rounding of their shares.
        slack = 1e-9 * self.size + 1e-6
        least, most = np.ceil(self.size * lower - slack), np.floor(self.size * upper + slack)
        return max(0, int(least[1] - most[0])), min(self.size, int(most[1] - least[0]))

    @property
    def nodes(self) -> Numbers:
        """Of every probe, the nodes of its quadrature rule (probes, steps), ascending.

        A probe that had found all it could before its last step repeats its last node.
        """
        return self._rules.nodes

    @property
    def weights(self) -> Numbers:
        """The weights of the nodes (probes, steps), of sum 1 for each probe."""
        return self._rules.weights

    @property
    def complete(self) -> bool:
        """Whether all eigenvalues are known, so that the band is no wider than rounding."""
        return bool(np.isinf(self._rules.size))

    @property
    def mean(self) -> float:
        """The mean of all eigenvalues; ``size`` times that is the trace."""
        return self.average(lambda nodes: nodes)[0]

    @property
    def mean_stderr(self) -> float:
        """The standard error of ``mean``."""
        return self.average(lambda nodes: nodes)[1]

    def plot(
        self, ax: Any = None, *, eigenvalues: Any = None, label: str | None = None,
        color: Any = None,
    ) -> Any:  # fmt: skip
        """Draw density and band on a logarithmic scale; needs ``hessence[plot]``. Returns the axes.

        Known `eigenvalues`, as from ``hs.eigenpairs``, are marked along the bottom. The legend says
        `label`, by default the width; the default `color` is a new one. Several densities fit on
        the same axes `ax`, by default new ones; compare their heights only if they have the same
        ``width``.
        """
        from hessence.plotting.density import draw_density

        return draw_density(self, ax, eigenvalues=eigenvalues, label=label, color=color)

    def __repr__(self) -> str:
        probes, steps = self.nodes.shape
        (low, high), (low_error, high_error) = self.ends, self.ends_errors
        how = f"{probes} probe{'s' * (probes != 1)} of up to {steps} step{'s' * (steps != 1)}"
        how = "all known" if self.complete else f"{how}, {self.products} products"
        lines = [
            f"density of {self.size} eigenvalues: {how}",
            f"  lowest   {low:.6g} ± {low_error:.1e}",
            f"  highest  {high:.6g} ± {high_error:.1e}",
            f"  mean     {self.mean:.6g} ± {self.mean_stderr:.1e}",
            f"  width    {self.width:.3g}",
        ]
        return "\n".join([*lines, *([f"  ! {self.message}"] if self.outcome.remedy else [])])


def known_density(values: Any, multiplicities: Any = None, *, error: float = 0.0) -> Density:
    """Return the smoothed density of eigenvalues, each as often as its multiplicity says.

    The error is how well they are known, up to rounding; it is small beside the width.

    Examples
    --------
    >>> density = known_density([5.0, 0.0], [1, 99])
    >>> density.size, float(density.mean), float(density.band.max())
    (100, 0.05, 0.0)
    """
    nodes = to_double(values)
    counts = np.ones(len(nodes)) if multiplicities is None else np.asarray(multiplicities, float)
    order = np.argsort(nodes)
    nodes, counts = nodes[order], counts[order]
    ends = (float(nodes[0]), float(nodes[-1]))
    extent = ends[1] - ends[0]
    width = (extent if extent > 0 else abs(ends[0]) or 1.0) / FINEST
    rounding = 0.0
    if len(nodes) > MOST_NODES:
        nodes, counts = _binned(nodes, counts, width / BINS)
        rounding = width / BINS / 2
    weights = counts / counts.sum()
    # With infinitely many directions a random vector would have no spread at all.
    rules = Rules(nodes[None], weights[None], nodes[None], weights[None], math.inf, rounding)
    grid = default_grid(ends, width)
    density, band = rules.density(grid, width)
    return Density(
        grid=grid,
        values=density,
        band=band,
        products=0,
        ends=ends,
        ends_errors=(error, error),
        width=width,
        outcome=Outcome.ALL_KNOWN,
        message=Outcome.ALL_KNOWN.say(),
        size=int(counts.sum()),
        _rules=rules,
    )


def default_grid(ends: tuple[float, float], sigma: float) -> Numbers:
    """Return points that cover the spectrum and a margin, evenly spaced, some four a width."""
    low, high = ends[0] - MARGIN * sigma, ends[1] + MARGIN * sigma
    count = int(np.clip(4 * (high - low) / sigma, POINTS, MOST_POINTS))
    return np.linspace(low, high, count)


def _binned(nodes: Numbers, counts: Numbers, width: float) -> tuple[Numbers, Numbers]:
    bins = np.floor((nodes - nodes[0]) / width).astype(np.int64)
    _, index = np.unique(bins, return_inverse=True)
    sums = np.bincount(index, weights=counts)
    return np.bincount(index, weights=counts * nodes) / sums, sums
