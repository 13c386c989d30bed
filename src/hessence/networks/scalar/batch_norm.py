r"""A hidden layer with batch normalisation, of one input and one output.

Over the samples, :math:`v_j x` normalised is :math:`\mathrm{sgn}(v_j)\,\hat x` with
:math:`\hat x = (x - E[x])/\sqrt{\mathrm{Var}[x]}`: the first layer is flat, exactly, and
the rest is a scalar network in (w, γ), or with a shift in (w, γ, β), on normalised data. So batch
normalisation acts on all of the spectrum, not on its outliers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import array_api_compat as api

from hessence._common.arrays import Array, floating, stack_rows, zero_rows
from hessence.data.losses import PointwiseLoss
from hessence.data.moments import Moments, samples_of
from hessence.networks.scalar.network import ScalarNetwork
from hessence.networks.scalar.scalar_affine import ScalarAffine
from hessence.networks.scalar.scalar_linear import ScalarLinear
from hessence.spectra.operators import Hessian, Part
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Columns, Subspaces


@dataclass(frozen=True, eq=False, repr=False)
class ScalarBatchNorm(ScalarNetwork):
    r"""f(x) = ⟨w, γ ⊙ BN(v x) + β⟩, with parameters ordered (v, γ, β, w).

    BN subtracts the mean over all samples and divides by the standard deviation, as PyTorch's
    ``BatchNorm1d`` does in training mode on one batch, but for the ``eps`` that it adds to the
    variance: with it the first layer is flat only up to eps/(v² Var[x]). Without `beta` there is no
    shift.

    Parameters
    ----------
    w : array (..., m)
        Weights of the second layer.
    gamma : array (..., m)
        The scales of the normalised units.
    v : array (..., m)
        Weights of the first layer, none of them zero.
    beta : array (..., m), optional
        The shifts of the normalised units.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.ScalarBatchNorm(w=[1.0, 2.0], gamma=[1.0, 0.5], v=[3.0, -0.1])
    >>> x, y = np.asarray([1.0, 2.0, 6.0]), np.asarray([-1.0, -1.0, 2.0])
    >>> net.hessian(x, y).spectrum()
    6 eigenvalues, closed form
      label         value  multiplicity
      outlier      6.5447             1
      bulk         1.3887             1
      flat/norm         0             2
      outlier    -0.29468             1
      bulk        -1.3887             1
    """

    w: Array
    gamma: Array
    v: Array
    beta: Array = None

    order: ClassVar[tuple[str, ...]] = ("v", "gamma", "beta", "w")

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(api.array_namespace(self.v).any(self.v == 0)):
            raise ValueError("v must not be zero: nothing can be normalised there.")

    def gradient(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, in the order (v, γ, β, w)."""
        xp = api.array_namespace(self.w)
        core = self._core.gradient(self._data(x, y), loss=loss)
        m = int(self.w.shape[-1])
        return xp.concat([0 * self.v, self._signs * core[..., :m], core[..., m:]], axis=-1)

    def hessian(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse"
    ) -> BatchNormHessian:
        return BatchNormHessian(self._core.hessian(self._data(x, y), loss=loss), self._signs)

    @cached_property
    def _signs(self) -> Array:
        return api.array_namespace(self.v).sign(self.v)

    @cached_property
    def _core(self) -> Any:
        """The scalar network on normalised data."""
        slope = self._signs * self.gamma
        if self.beta is None:
            return ScalarLinear(self.w, slope)
        return ScalarAffine(self.w, slope, self.beta)

    @property
    def _coefficients(self) -> Array:
        return self._core._coefficients

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        return self._core._objective(data, loss)

    def _predict(self, inputs: Array) -> Array:
        return self._core._predict(inputs)

    def __call__(self, x: Array) -> Array:
        """Return the predictions, (..., n), normalised over the n samples."""
        _, x = floating(self._reference, x=x)
        return super().__call__(_normalised(x))

    def _data(self, x: Any, y: Any) -> Moments:
        """Return the moments of the normalised data."""
        if isinstance(x, NormalisedMoments):
            return x
        inputs, targets = samples_of(super()._data(x, y))
        return NormalisedMoments(_normalised(inputs[:, 0])[:, None], targets, like=self._reference)


class NormalisedMoments(Moments):
    """Moments of data that have been normalised."""


@dataclass(frozen=True, eq=False, repr=False)
class BatchNormHessian(Hessian):
    """The Hessian of the scalar network on normalised data, beside a first layer that is flat.

    Attributes
    ----------
    core : Hessian
        That of the scalar network, with parameters (sgn(v) γ, …, w).
    signs : array (..., m)
        The signs of v.
    part : str
        Which of the Hessian and its two parts this is.
    """

    core: Any
    signs: Array
    part: Part = "hessian"

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, size, _ = self.core.shape
        whole = size + int(self.signs.shape[-1])
        return (*batch, whole, whole)

    @property
    def reference(self) -> Array:
        return self.signs

    @property
    def ggn(self) -> BatchNormHessian:
        return BatchNormHessian(self.core.ggn, self.signs, "ggn")

    @property
    def functional(self) -> BatchNormHessian:
        return BatchNormHessian(self.core.functional, self.signs, "functional")

    def trace(self) -> Array:
        return self.core.trace()

    def squared_norm(self) -> Array:
        return self.core.squared_norm()

    def times(self, columns: Array) -> Array:
        m = int(self.signs.shape[-1])
        turned = columns[..., m : 2 * m, :] * self.signs[..., None]
        return self._place(self.core.times(stack_rows(turned, columns[..., 2 * m :, :])))

    def spectrum(self) -> Spectrum:
        found, m = self.core.spectrum(), int(self.signs.shape[-1])

        def flat(copies: Array) -> Array:
            return stack_rows(copies, zero_rows(int(self.core.shape[-1]), copies))

        zero = 0 * self.signs[..., :1]
        families = [*found.mapped(self._place, 1.0).families]
        families += [Subspaces(("flat/norm",), lambda _: Columns(flat), m, values=zero)]
        return Spectrum(families, found.method)

    def _place(self, vectors: Array) -> Array:
        """Put vectors of the scalar network among all parameters."""
        m = int(self.signs.shape[-1])
        turned = vectors[..., :m, :] * self.signs[..., None]
        return stack_rows(zero_rows(m, vectors), turned, vectors[..., m:, :])


def _normalised(x: Array) -> Array:
    """Return (x − E[x])/√Var[x]."""
    xp = api.array_namespace(x)
    gap = x - xp.mean(x)
    gap = gap - xp.mean(gap)
    size = xp.max(xp.abs(gap))
    if not bool(size > 0):
        raise ValueError("x must not be constant: batch normalisation divides by its spread.")
    gap = gap / size
    return gap / xp.sqrt(xp.mean(gap * gap))
