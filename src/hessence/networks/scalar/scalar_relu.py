"""The two-layer ReLU network of one input and one output, of any width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial, partialmethod
from typing import Any, ClassVar

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, to_numpy
from hessence._common.messages import warn
from hessence.data.losses import PointwiseLoss
from hessence.data.moments import Moments
from hessence.data.objectives import Quadratic, scalar_objective
from hessence.networks.scalar._rounding import of_cells
from hessence.networks.scalar.anatomy import CellwiseAnatomy, dissect, phase_of
from hessence.networks.scalar.cells import CELLS, CellProducts, Cells
from hessence.networks.scalar.descent import ScalarDescent
from hessence.networks.scalar.gram import Gram
from hessence.networks.scalar.network import ProductNetwork, ScalarNetwork


class KinkWarning(UserWarning):
    """A hidden unit sits at the kink of its ReLU, where the loss has no Hessian."""


@dataclass(frozen=True)
class CellObjectives:
    """The loss of each cell's samples, over the number of all samples, at numbers (..., 2)."""

    cells: tuple[Any, ...]
    populated: tuple[bool, ...]

    def _each(self, name: str, inner: Array) -> Array:
        values = [getattr(cell, name)(inner[..., c]) for c, cell in enumerate(self.cells)]
        return api.array_namespace(inner).stack(values, axis=-1)

    value = partialmethod(_each, "value")
    gradient = partialmethod(_each, "gradient")
    hessian = partialmethod(_each, "hessian")
    far_gradient = partialmethod(_each, "far_gradient")


@dataclass(frozen=True, eq=False, repr=False)
class ScalarReLU(ScalarNetwork, ProductNetwork):
    r"""f(x) = ⟨w, max(v x, 0)⟩, with parameters ordered (v, w).

    Units with v_j > 0 see the samples x > 0, units with v_j < 0 the samples x ≤ 0, and the Hessian
    is the direct sum of two scalar linear networks, one in each of these cells, weighted by their
    shares of the samples (Singh & Hofmann, Theorem 4 and Corollary 5). Labels end in ``/+cell`` or
    ``/-cell``. A cell without samples leaves its units' directions flat.

    At v_j = 0 the loss has a kink and no Hessian. Such a unit is taken to be dead, as PyTorch's
    autodiff takes it: its two directions are flat, labelled ``flat/kink``, and ``hessian`` warns.

    Parameters
    ----------
    w, v : array (..., m)
        Weights of the second and of the first layer.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.ScalarReLU(w=[1.0, 2.0, -1.0], v=[0.5, 0.25, -1.0])
    >>> x, y = np.asarray([1.0, -1.0, 2.0]), np.asarray([1.0, -1.5, 1.75])
    >>> net.hessian(x, y).spectrum()
    6 eigenvalues, closed form
      label              value  multiplicity
      outlier/+cell     8.9196             1
      outlier/-cell        0.5             1
      bulk/+cell       0.16667             1
      outlier/-cell    0.16667             1
      outlier/+cell  -0.065399             1
      bulk/+cell      -0.16667             1
    >>> net.anatomy(x, y).dictating
    '+'
    """

    w: Array
    v: Array

    order: ClassVar[tuple[str, ...]] = ("v", "w")

    def hessian(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> CellProducts:
        xp = api.array_namespace(self.w)
        dead = int(xp.sum(xp.astype(self.v == 0, xp.int64)))
        if dead:
            warn(
                f"{dead} hidden unit(s) have v = 0, where a ReLU has no Hessian; "
                "they count as dead, as in autodiff, and their directions as flat.",
                KinkWarning,
            )
        data, g = self._data(x, y), self._coefficients
        objective = self._objective(data, loss)
        squared = isinstance(objective.cells[0], Quadratic)
        return self._cells.hessian(
            objective.gradient(g),
            objective.hessian(g),
            objective.populated,
            objective.far_gradient(g) if squared else None,
            partial(of_cells, data.cells, loss, g),
        )

    def anatomy(self, x: Array, y: Array = None) -> CellwiseAnatomy:
        """Take the sharpness of the mean-squared error apart, in each cell."""
        xp = api.array_namespace(self.w)
        w, v = self._cells.weights
        objectives = self._inhabited(self._data(x, y))
        cells = {
            name: dissect(w[..., c, :], v[..., c, :], self._cells.gram.at(c), objective)
            for c, (name, objective) in enumerate(zip(CELLS, objectives, strict=True))
        }
        larger = to_numpy(cells["+"].sharpness) >= to_numpy(cells["-"].sharpness)
        dictating = np.where(larger, *CELLS)
        sharpness = xp.maximum(cells["+"].sharpness, cells["-"].sharpness)
        return CellwiseAnatomy(
            cells, dictating.item() if dictating.ndim == 0 else dictating, sharpness
        )

    def phase(self, x: Array, y: Array = None, *, cell: str | None = None) -> Any:
        """Return the phase of learning of a cell, by default of the one that dictates sharpness.

        ``"early"``, ``"late"``, ``"divergent"``, or None, as for :class:`ScalarLinear`; None also
        for a cell without units.
        """
        if cell not in (None, *CELLS):
            raise ValueError(f"cell must be '+' or '-', got {cell!r}.")
        data, inner = self._data(x, y), self._coefficients
        phases = [phase_of(inner[..., c], o) for c, o in enumerate(self._inhabited(data))]
        if cell is not None:
            return phases[CELLS.index(cell)]
        dictating = self.anatomy(data).dictating
        chosen = np.where(np.asarray(dictating) == "+", *(np.asarray(p, object) for p in phases))
        return chosen.item() if chosen.ndim == 0 else chosen

    def descent(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse"
    ) -> ScalarDescent:
        """Return how gradient descent moves the network: in each cell, along w + v and w − v."""
        if self.batch_shape:
            raise ValueError(
                "net must be a single ReLU network, whose units may change cell on their own; "
                "train the networks of a batch one by one, as net[0]."
            )
        return ScalarDescent(self, self._data(x, y), loss, cells=True)

    @cached_property
    def _cells(self) -> Cells:
        return Cells(self.w, self.v)

    @property
    def _rows(self) -> tuple[Array, Array]:
        return self._cells.weights

    @property
    def _gram(self) -> Gram:
        return self._cells.gram

    def _by_parameter(self, rows: Array) -> Array:
        return api.array_namespace(rows).sum(rows, axis=-2)

    def _predict(self, inputs: Array) -> Array:
        xp = api.array_namespace(inputs)
        plus, minus = (self._coefficients[..., c, None, None] for c in range(2))
        return xp.where(inputs > 0, plus * inputs, minus * inputs)

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> CellObjectives:
        cells = tuple(scalar_objective(cell, loss, n=data.n) for cell in data.cells)
        return CellObjectives(cells, tuple(cell.n > 0 for cell in data.cells))

    def _inhabited(self, data: Moments) -> list[Any]:
        """Return the cells' mean-squared errors, constant where a cell has no units to learn it."""
        xp = api.array_namespace(self.w)
        units = xp.any(self._cells.masks, axis=-1)
        return [
            replace(
                objective,
                covariance=xp.where(units[..., c], objective.covariance, 0 * objective.covariance),
            )
            for c, objective in enumerate(self._objective(data, "mse").cells)
        ]
