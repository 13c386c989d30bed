"""ReLU networks of any input, hidden and output size, and of any depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Self

import array_api_compat as api
import numpy as np

from hessence._common.arguments import as_number
from hessence._common.arrays import Array, floating, require_shape, to_numpy
from hessence._common.messages import warn
from hessence.data.linear_objective import AnyLoss
from hessence.networks.hidden_layers import cells_of
from hessence.networks.network import Network
from hessence.networks.relu._objective import Objective, prediction_loss
from hessence.networks.relu.hessian import ReLUHessian, forward
from hessence.networks.relu.independent import IndependentCells, independent_cells
from hessence.networks.scalar.scalar_relu import KinkWarning


class ReLU(Network):
    r"""f(x) = W_L φ(W_{L−1} ⋯ φ(W_1 x + b_1) ⋯ + b_{L−1}) + b_L, with φ(z) = max(z, 0).

    Hidden units of one layer that are on for the same samples form a *cell*, and a cell needs no
    more units than it has inputs and outputs: the Hessian of any loss is that of a narrow network,
    beside a bulk ±σ_i(∂ℓ/∂M_c) for every cell and zeros (:mod:`hessence.networks.cells`). Labels:
    ``twin``, ``bulk/layer i/cell c``, ``flat/dead`` for units that are off for all samples, and
    ``flat/twin`` and ``flat/unused``. With one input and output this is :class:`ScalarReLU`, in
    closed form there.

    Where what goes into a ReLU is zero, the loss has a kink and no Hessian. Its slope is then that
    for negative numbers, as in PyTorch, and ``hessian`` warns.

    Parameters
    ----------
    weights : sequence of array (d_ℓ, d_{ℓ−1})
        The layers W_1, …, W_L, two at least, in the order in which they act.
    biases : sequence of array (d_ℓ,) or None, optional
        One for each layer, None for a layer without; by default there are none.
    slope : float
        The slope of φ for negative numbers: 0 for ReLU, −1 for the absolute value, anything else
        for leaky ReLU.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> net = hs.ReLU([rng.normal(size=(200, 2)), rng.normal(size=(3, 200))])
    >>> x, y = rng.normal(size=(10, 2)), rng.integers(3, size=10)
    >>> H = net.hessian(x, y, loss="cross-entropy")
    >>> s = H.spectrum()
    >>> len(s), s.method, len(net.cells(x)[0])
    (1000, 'cells', 18)
    >>> bool(s.verify(H).worst < 1e-13)
    True
    """

    rank: ClassVar[int] = 2

    def __init__(
        self,
        weights: Sequence[Array],
        biases: Sequence[Array | None] | None = None,
        slope: float = 0.0,
    ) -> None:
        layers = _as_list("weights", weights)
        if len(layers) < 2:
            raise ValueError(f"weights must be two matrices or more, got {len(layers)}.")
        shifts = [None] * len(layers) if biases is None else _as_list("biases", biases)
        if len(shifts) != len(layers):
            raise ValueError(
                f"biases must be as many as weights, {len(layers)}, None for a layer without; got "
                f"{len(shifts)}."
            )
        named = {}
        for i, (weight, bias) in enumerate(zip(layers, shifts, strict=True), start=1):
            named[f"W{i}"] = weight
            if bias is not None:
                named[f"b{i}"] = bias
        _, *arrays = floating(**named)
        self._named = dict(zip(named, arrays, strict=True))
        below: int | str = "d_in"
        for name, array in self._named.items():
            if name[0] == "W":
                require_shape(name, array, ("d_out", below), batch=False)
                below = int(array.shape[0])
            else:
                require_shape(name, array, (below,), batch=False)
        self.slope = as_number("slope", slope, "a finite number", math.isfinite)

    @property
    def weights(self) -> tuple[Array, ...]:
        """The layers W_1, …, W_L."""
        return tuple(array for name, array in self._named.items() if name[0] == "W")

    @property
    def biases(self) -> tuple[Array | None, ...]:
        """Their biases, None for a layer without."""
        return tuple(self._named.get(f"b{i + 1}") for i in range(len(self.weights)))

    @property
    def dims(self) -> tuple[int, ...]:
        """The widths (d_0, …, d_L)."""
        return (int(self.weights[0].shape[1]), *(int(w.shape[0]) for w in self.weights))

    def __call__(self, x: Array) -> Array:
        """Return the predictions (n, d_L) for inputs (n, d_0)."""
        return self._forward(x)[0][-1]

    def loss(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> Array:
        """Return the loss: the mean over samples of the loss of the predictions.

        The default is ½ E‖f(x) − y‖². ``"cross-entropy"`` takes class indices (n,) or one-hot
        rows; a function of PyTorch's (prediction, target) is called as it is.
        """
        f = self(x)
        return self._objective(f, y, loss).value(f)

    def gradient(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, in the order W_1, b_1, W_2, …, row by row."""
        found = self._hessian(x, y, loss).parameter_gradient()
        xp = api.array_namespace(self.weights[0])
        return xp.concat([xp.reshape(part, (-1,)) for part in found.values()])

    def hessian(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> ReLUHessian:
        """Return the Hessian of the loss as an operator; it warns of kinks."""
        H = self._hessian(x, y, loss)
        kinks = sum(self._kinks(H))
        if kinks:
            warn(
                f"{kinks} hidden unit(s) sit at the kink of their ReLU for a sample, where there "
                "is no Hessian; their slope there counts as that of negative numbers, as in "
                "autodiff.",
                KinkWarning,
            )
        return H

    def cells(self, x: Array) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the units of every cell, by hidden layer; the largest cell comes first.

        Labels such as ``bulk/layer 1/cell 0`` count both as they are counted here.
        """
        found = []
        for slopes in self._forward(x)[1]:
            cells, members = cells_of(to_numpy(slopes))
            each = (np.flatnonzero(cells == c).tolist() for c in range(len(members)))
            found.append(tuple(map(tuple, each)))
        return tuple(found)

    def independent_cells(
        self, x: Array, y: Array = None, loss: AnyLoss = "mse", layer: int = 1
    ) -> IndependentCells:
        """Return the spectrum of independent cells, and how far that Hessian is from this one.

        How well independent cells approximate the Hessian is an open question of the paper on
        scalar networks; this answers it with a number, for the cells of one hidden `layer`.
        """
        return independent_cells(self.hessian(x, y, loss), layer)

    def _hessian(self, x: Any, y: Any, loss: AnyLoss) -> ReLUHessian:
        signals, slopes = self._forward(x)
        f = signals[-1]
        objective = self._objective(f, y, loss)
        return ReLUHessian(
            self._named, tuple(slopes), signals[0], objective.gradient(f), objective.hessian(f),
            errors=partial(objective.errors, f),
        )  # fmt: skip

    def _forward(self, x: Any) -> tuple[list[Array], list[Array]]:
        xp, x = floating(self._reference, x=x)
        require_shape("x", x, ("n", self.dims[0]), batch=False)

        def slopes(z: Array) -> Array:
            return xp.where(z > 0, xp.ones_like(z), xp.full_like(z, self.slope))

        return forward(self._named, x, slopes)

    def _objective(self, f: Array, y: Any, loss: AnyLoss) -> Objective:
        return prediction_loss(y, loss, tuple(f.shape), self._reference)

    def _kinks(self, H: ReLUHessian) -> list[int]:
        """Return how many units of each hidden layer sit at a kink for a sample that moves them."""
        counts: list[int] = []
        if self.slope == 1:
            return counts
        xp = api.array_namespace(H.x)
        for i in range(1, H.depth):
            signal = H.signals[i - 1]
            z = xp.matmul(signal, xp.matrix_transpose(self._named[f"W{i}"]))
            moves = xp.any(signal != 0, axis=1)[:, None]
            if f"b{i}" in self._named:
                z, moves = z + self._named[f"b{i}"], xp.ones_like(moves)
            at = xp.any(xp.logical_and(z == 0, moves), axis=0)
            counts.append(int(xp.sum(xp.astype(at, xp.int64))))
        return counts

    @property
    def _weights(self) -> dict[str, Array]:
        return self._named

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """(): there is one network."""
        return ()

    def _rebuild(self, weights: dict[str, Array]) -> Self:
        layers = [w for name, w in weights.items() if name[0] == "W"]
        shifts = [weights.get(f"b{i + 1}") for i in range(len(layers))]
        return type(self)(layers, shifts, self.slope)

    def __repr__(self) -> str:
        shape = "-".join(map(str, self.dims))
        biased = "" if all(b is None for b in self.biases) else ", biases"
        slope = "" if self.slope == 0 else f", slope={self.slope:g}"
        return f"{type(self).__name__}({shape}{biased}{slope})"


class TwoLayerReLU(ReLU):
    """f(x) = W2 max(W1 x, 0), with parameters ordered (W1, W2), each row by row.

    It is :class:`ReLU` with two layers and no biases.

    Parameters
    ----------
    W1 : array (m, D)
        First layer.
    W2 : array (K, m)
        Second layer.
    slope : float
        The slope for negative numbers, as in :class:`ReLU`.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> net = hs.TwoLayerReLU(rng.normal(size=(1000, 2)), rng.normal(size=(2, 1000)))
    >>> x, y = rng.normal(size=(20, 2)), rng.normal(size=(20, 2))
    >>> s = net.hessian(x, y).spectrum()
    >>> len(s), s.method, s["bulk/layer 1/cell 0"][0].multiplicity
    (4000, 'cells', 73)
    """

    def __init__(self, W1: Array, W2: Array, slope: float = 0.0) -> None:
        super().__init__([W1, W2], slope=slope)

    @property
    def W1(self) -> Array:
        """The first layer."""
        return self._named["W1"]

    @property
    def W2(self) -> Array:
        """The second layer."""
        return self._named["W2"]

    def _rebuild(self, weights: dict[str, Array]) -> Self:
        return type(self)(**weights, slope=self.slope)


def _as_list(name: str, given: Any) -> list[Any]:
    if api.is_array_api_obj(given) or not isinstance(given, Sequence):
        raise TypeError(f"{name} must be a sequence with one entry for each layer.")
    return list(given)
