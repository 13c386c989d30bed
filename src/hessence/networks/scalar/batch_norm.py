r"""A hidden layer with batch normalisation, of one input and one output.

Over the samples, :math:`v_j x` normalised is :math:`\mathrm{sgn}(v_j)\,\hat x` with
:math:`\hat x = (x - E[x])/\sqrt{\mathrm{Var}[x]}`: the first layer is flat, exactly, and
the rest is a scalar network in (w, γ), or with a shift in (w, γ, β), on normalised data. So batch
normalisation acts on all of the spectrum, not on its outliers alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    Numbers,
    epsilon,
    floating,
    stack_rows,
    to_double,
    to_numpy,
    zero_rows,
)
from hessence.data.losses import PointwiseLoss, as_loss
from hessence.data.moments import Moments, samples_of
from hessence.data.rounding import moved_derivatives, terms
from hessence.networks.scalar.network import ScalarNetwork
from hessence.networks.scalar.scalar_affine import ScalarAffine
from hessence.networks.scalar.scalar_linear import ScalarLinear
from hessence.spectra.hessian import Hessian, Part
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
        data = self._data(x, y)
        core = self._core.hessian(data, loss=loss)
        return BatchNormHessian(core, self._signs, moved=self._moved(data, loss))

    def _moved(self, data: Any, loss: str | PointwiseLoss) -> tuple[Numbers, Numbers]:
        """Return what errors of the normalised inputs do to the two parts of the Hessian, (...,).

        With inputs z = x̂, or (x̂, 1) with a shift, the gradient in ⟨w, γ⟩, or (⟨w, γ⟩, ⟨w, β⟩), is
        E[φ′ z] and the second derivative E[φ″ z zᵀ], which the Hessian has between gradients of
        squared length at most ‖w‖² + ‖γ‖² + ‖β‖².
        """
        inputs, targets = samples_of(data)
        off, x = data.errors, np.abs(to_double(inputs[:, 0]))
        shift = self.beta is not None
        reach = np.abs(to_double(self._coefficients[..., :1])) * off
        predictions = self._core._predict(inputs)[..., 0]
        (first, off_first), (second, off_second) = moved_derivatives(
            as_loss(loss), predictions, targets[:, 0], reach
        )
        length = np.sqrt(x * x + shift)
        gradient = np.mean(first * off + off_first * (length + off), axis=-1)
        spread = np.mean(second * (2 * length + off) * off + off_second * (length + off) ** 2, -1)
        weights = (to_double(a) for a in list(self._weights.values())[1:])
        return gradient, spread * sum(np.sum(a * a, axis=-1) for a in weights)

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
        return super().__call__(_normalised(x)[0])

    def _data(self, x: Any, y: Any) -> Moments:
        """Return the moments of the normalised data."""
        if isinstance(x, NormalisedMoments):
            return x
        inputs, targets = samples_of(super()._data(x, y))
        normalised, errors = _normalised(inputs[:, 0])
        found = NormalisedMoments(normalised[:, None], targets, like=self._reference)
        found.errors = errors
        return found


class NormalisedMoments(Moments):
    """Moments of data that have been normalised; ``errors`` bound those of the inputs, (n,)."""

    errors: Numbers


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
    moved : pair of array (...,)
        How far errors of the normalised inputs move the functional and the Gauss–Newton part.
    """

    core: Any
    signs: Array
    part: Part = "hessian"
    moved: tuple[Any, Any] = (0.0, 0.0)

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, size, _ = self.core.shape
        whole = size + int(self.signs.shape[-1])
        return (*batch, whole, whole)

    @property
    def reference(self) -> Array:
        return self.signs

    def _only(self, part: Part, without: str) -> Self:
        return replace(self, core=getattr(self.core, part), part=part)

    def trace(self) -> Array:
        return self.core.trace()

    def squared_norm(self) -> Array:
        return self.core.squared_norm()

    def times(self, columns: Array) -> Array:
        m = int(self.signs.shape[-1])
        turned = columns[..., m : 2 * m, :] * self.signs[..., None]
        return self._place(self.core.times(stack_rows(turned, columns[..., 2 * m :, :])))

    def rounding(self) -> Any:
        """Return what rounding does to the scalar network, and to the data that it sees."""
        return self.core.rounding() + self._of_data

    @property
    def _of_data(self) -> Any:
        functional, ggn = self.moved
        return {"functional": functional, "ggn": ggn}.get(self.part, functional + ggn)

    def exact_spectrum(self) -> Spectrum:
        found, m = self.core.spectrum(), int(self.signs.shape[-1])

        def flat(copies: Array) -> Array:
            return stack_rows(copies, zero_rows(int(self.core.shape[-1]), copies))

        zero = 0 * self.signs[..., :1]
        families = [f.of(None, self._of_data) for f in found.mapped(self._place, 1.0).families]
        first = Subspaces(
            ("flat/norm",), lambda _: Columns(flat), m, values=zero, errors=lambda: to_numpy(zero)
        )
        return Spectrum([*families, first], found.method)

    def _place(self, vectors: Array) -> Array:
        """Put vectors of the scalar network among all parameters."""
        m = int(self.signs.shape[-1])
        turned = vectors[..., :m, :] * self.signs[..., None]
        return stack_rows(zero_rows(m, vectors), turned, vectors[..., m:, :])


def _normalised(x: Array) -> tuple[Array, Numbers]:
    """Return (x − E[x])/√Var[x], and a bound for the error of each, (n,).

    The mean is taken off twice: what the first leaves is exact but for a rounding of its own size,
    and has a mean that the second sees to full accuracy.
    """
    xp = api.array_namespace(x)
    once = x - xp.mean(x)
    gap = once - xp.mean(once)
    size = xp.max(xp.abs(gap))
    if not bool(size > 0):
        raise ValueError("x must not be constant: batch normalisation divides by its spread.")
    gap = gap / size
    found = gap / xp.sqrt(xp.mean(gap * gap))
    spacing, share = epsilon(x), terms(int(x.shape[0]))
    first, second, values = (np.abs(to_double(a)) for a in (once / size, gap, found))
    off = spacing * (first + second + (share + 1) * np.mean(first))
    deviation = float(np.sqrt(np.mean(second * second)))
    of_size = np.sqrt(np.mean(off * off)) / deviation + spacing * (share + 8)
    return found, 2 * (off / deviation + values * of_size)
