"""The two-layer ReLU network of one input and one output, of any width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, to_numpy
from hessence._common.messages import warn
from hessence.data.losses import PointwiseLoss
from hessence.data.moments import Moments
from hessence.data.objectives import Pointwise, Quadratic, scalar_objective
from hessence.networks.network import ScalarNetwork
from hessence.networks.scalar.anatomy import CellwiseAnatomy, dissect, phase_of
from hessence.networks.scalar.cellwise import CELLS, CellwiseHessian, unit_slopes
from hessence.networks.scalar.descent import ScalarDescent
from hessence.networks.scalar.products import Gram, gram


class KinkWarning(UserWarning):
    """A hidden unit sits at the kink of its ReLU, where the loss has no Hessian."""


class CellObjectives(NamedTuple):
    """The loss of each cell's samples, over the number of all samples."""

    plus: Quadratic | Pointwise
    minus: Quadratic | Pointwise
    populated: tuple[bool, bool]


@dataclass(frozen=True, eq=False, repr=False)
class ScalarReLU(ScalarNetwork):
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

    def gradient(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, in the order (v, w)."""
        xp = api.array_namespace(self.w)
        slopes = self._slopes(self._objective(self._data(x, y), loss))
        slope = unit_slopes(slopes, self._masks)
        return xp.concat([slope * self.w, slope * self.v], axis=-1)

    def hessian(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse"
    ) -> CellwiseHessian:
        """Return the Hessian of the loss as an operator."""
        xp = api.array_namespace(self.w)
        objectives = self._objective(self._data(x, y), loss)
        dead = int(xp.sum(xp.astype(self.v == 0, xp.int64)))
        if dead:
            warn(
                f"{dead} hidden unit(s) have v = 0, where a ReLU has no Hessian; "
                "they count as dead, as in autodiff, and their directions as flat.",
                KinkWarning,
            )
        inner = self._gram.inner
        curvature = [o.hessian(inner[..., c]) for c, o in enumerate(objectives[:2])]
        far = [
            o.far_gradient(inner[..., c])
            for c, o in enumerate(objectives[:2])
            if isinstance(o, Quadratic)
        ]
        return CellwiseHessian(
            *self._cell_weights,
            self._masks,
            self._slopes(objectives),
            xp.stack(curvature, axis=-1),
            self._gram,
            objectives.populated,
            far_slope=xp.stack(far, axis=-1) if far else None,
        )

    def anatomy(self, x: Array, y: Array = None) -> CellwiseAnatomy:
        """Take the sharpness of the mean-squared error apart, in each cell."""
        xp = api.array_namespace(self.w)
        w, v = self._cell_weights
        objectives = self._inhabited(self._data(x, y))
        cells = {
            name: dissect(w[..., c, :], v[..., c, :], self._gram.at(c), objective)
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
        data = self._data(x, y)
        inner = self._gram.inner
        objectives = self._inhabited(data)
        phases = [phase_of(inner[..., c], objective) for c, objective in enumerate(objectives)]
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
    def _masks(self) -> Array:
        return api.array_namespace(self.v).stack([self.v > 0, self.v < 0], axis=-2)

    @cached_property
    def _cell_weights(self) -> tuple[Array, Array]:
        xp = api.array_namespace(self.w)
        zero = xp.zeros_like(self.w)[..., None, :]
        w, v = (xp.where(self._masks, a[..., None, :], zero) for a in (self.w, self.v))
        return w, v

    @cached_property
    def _gram(self) -> Gram:
        return gram(*self._cell_weights)

    def _predict(self, inputs: Array) -> Array:
        xp = api.array_namespace(inputs)
        plus, minus = (self._gram.inner[..., c, None, None] for c in range(2))
        return xp.where(inputs > 0, plus * inputs, minus * inputs)

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> CellObjectives:
        plus, minus = (scalar_objective(cell, loss, n=data.n) for cell in data.cells)
        return CellObjectives(plus, minus, (data.cells.plus.n > 0, data.cells.minus.n > 0))

    def _objectives(self, data: Moments, loss: str | PointwiseLoss) -> tuple[Any, ...]:
        return tuple(self._objective(data, loss)[:2])

    def _inhabited(self, data: Moments) -> list[Any]:
        """Return the cells' mean-squared errors, constant where a cell has no units to learn it."""
        xp = api.array_namespace(self.w)
        units = xp.any(self._masks, axis=-1)
        plus, minus, _ = self._objective(data, "mse")
        objectives: tuple[Any, ...] = (plus, minus)
        return [
            replace(
                objective,
                covariance=xp.where(units[..., c], objective.covariance, 0 * objective.covariance),
            )
            for c, objective in enumerate(objectives)
        ]

    def _slopes(self, objectives: CellObjectives) -> Array:
        xp = api.array_namespace(self.w)
        inner = self._gram.inner
        return xp.stack([o.gradient(inner[..., c]) for c, o in enumerate(objectives[:2])], axis=-1)

    def _value(self, objective: CellObjectives) -> Array:
        inner = self._gram.inner
        return objective.plus.value(inner[..., 0]) + objective.minus.value(inner[..., 1])
