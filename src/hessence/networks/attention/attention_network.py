"""What layers of attention share: sequences of tokens, masks, and the attention sink."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, floating, require_shape, to_numpy
from hessence.data.losses import CrossEntropy, PointwiseLoss, as_loss, one_hot
from hessence.networks.descent import Descent, WeightDescent
from hessence.networks.network import Network
from hessence.spectra.hessian import Hessian


@dataclass(frozen=True)
class Sequences:
    """A batch of B sequences of n tokens.

    Attributes
    ----------
    x : array (B, n, ...)
        The tokens.
    y : array (B, n, ...), optional
        Their targets.
    alive : array of bool (B, n)
        Which tokens exist. What a mask hides may hold anything; here x is 0 there and y is 1.
    many : bool
        Whether the user gave a batch, and not a single sequence.
    """

    x: Array
    y: Array | None
    alive: Array
    many: bool

    @property
    def keys(self) -> Array:
        """Which tokens can be attended to, (B, 1, n)."""
        return self.alive[:, None, :]

    @cached_property
    def first(self) -> Array:
        """1 for the first token of each sequence as a key, (B, 1, n)."""
        xp = api.array_namespace(self.x)
        ahead = xp.cumulative_sum(xp.astype(self.alive, xp.int64), axis=-1)
        return xp.astype(xp.logical_and(self.alive, ahead == 1), self.x.dtype)[:, None, :]

    @cached_property
    def weights(self) -> Array:
        """What a token counts: each sequence is averaged over its own length, (B, n)."""
        xp = api.array_namespace(self.x)
        alive = xp.astype(self.alive, self.x.dtype)
        return alive / (xp.sum(alive, axis=-1, keepdims=True) * alive.shape[0])

    def average(self, values: Array) -> Array:
        """Average (..., B, n) over the tokens of each sequence, then over the sequences."""
        return api.array_namespace(self.x).sum(self.weights * values, axis=(-2, -1))


class AttentionNetwork(Network):
    """A layer of attention: a prediction for each token of a sequence.

    The loss is the mean over the tokens of a sequence of ½ ‖f − y‖², or of another loss, averaged
    over a batch of sequences.
    """

    takes_mask: ClassVar[bool] = True
    sink: Any
    """What is added to all scores of the first token; None for nothing."""

    @abstractmethod
    def _attention(self, batch: Sequences) -> Array:
        """Return the attention matrices, (..., B, n, n)."""

    @abstractmethod
    def _predict(self, batch: Sequences) -> Array:
        """Return the predictions, (..., B, n, ...)."""

    @abstractmethod
    def _hessian_of(self, batch: Sequences, loss: PointwiseLoss) -> Hessian:
        """Return the Hessian."""

    @property
    @abstractmethod
    def _sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of a token and of its target."""

    @abstractmethod
    def with_sink(self, strength: Array) -> Self:
        """Return the network whose scores for the first token are raised by `strength`."""

    def __call__(self, x: Array, *, mask: Array = None) -> Array:
        """Return the predictions, with the batch of networks in front."""
        batch = self._sequences(x, mask=mask)
        predictions = self._predict(batch)
        return predictions if batch.many else _only(predictions, 1 + len(self._sizes[0]))

    def attention(self, x: Array, *, mask: Array = None) -> Array:
        """Return the attention matrices, (..., n, n) or (..., sequences, n, n)."""
        batch = self._sequences(x, mask=mask)
        attention = self._attention(batch)
        return attention if batch.many else _only(attention, 2)

    def loss(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse", *, mask: Array = None
    ) -> Array:
        """Return the loss, averaged over the tokens of each sequence, then over the sequences."""
        batch, pointwise = self._with_targets(x, y, loss, mask)
        costs = pointwise.value(self._predict(batch), batch.y)
        for _ in self._sizes[0]:
            costs = api.array_namespace(costs).sum(costs, axis=-1)
        return batch.average(costs)

    def hessian(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse", *, mask: Array = None
    ) -> Hessian:
        """Return the Hessian of the loss as an operator.

        Parameters
        ----------
        x : array
            A sequence of tokens, (n,) or (n, d), or a batch of them.
        y : array
            Targets; class indices for each token will do for the cross-entropy.
        loss : str or object
            ``"mse"``, or what :mod:`hessence.data.losses` describes.
        mask : array of bool, (n,) or (sequences, n), optional
            True for the tokens that exist, where sequences differ in length: the others are not
            attended to and have no loss, and a sequence is averaged over its own length.
        """
        return self._hessian_of(*self._with_targets(x, y, loss, mask))

    def descent(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse", *, mask: Array = None
    ) -> Descent:
        """Return how gradient descent moves the layer, on sequences that are checked once."""
        batch, pointwise = self._with_targets(x, y, loss, mask)
        return WeightDescent(self, x=batch, loss=pointwise)

    def _with_targets(
        self, x: Any, y: Any, loss: str | PointwiseLoss, mask: Any
    ) -> tuple[Sequences, PointwiseLoss]:
        pointwise = as_loss(loss, coupled=bool(self._sizes[0]))
        if isinstance(x, Sequences):
            return x, pointwise
        if y is None:
            raise ValueError("y is missing: give the targets.")
        if isinstance(pointwise, CrossEntropy):
            (classes,) = self._sizes[1]
            y = one_hot(y, len(np.shape(x)) - 1, classes, self._reference[1])
        return self._sequences(x, y, mask), pointwise

    def _sequences(self, x: Any, y: Any = None, mask: Any = None) -> Sequences:
        token, target = self._sizes
        given = {"x": x} if y is None else {"x": x, "y": y}
        xp, *arrays = floating(self._reference, **given)
        x = arrays[0]
        many = x.ndim == 2 + len(token)
        if not many and x.ndim != 1 + len(token):
            shape, got = ", ".join(["n", *map(str, token)]), tuple(x.shape)
            raise ValueError(f"x must have shape ({shape}) or (sequences, {shape}), got {got}.")
        lead = tuple(x.shape[: x.ndim - len(token)])
        require_shape("x", x, (*lead, *token), batch=False)
        if y is not None and tuple(arrays[1].shape) != (*lead, *target):
            wanted = f"shape {(*lead, *target)}" if token else f"the shape of x, {lead}"
            raise ValueError(f"y must have {wanted}, got {tuple(arrays[1].shape)}.")
        alive = _as_mask(mask, lead, x)
        rows = []
        for array, hidden in zip(arrays, (0.0, 1.0), strict=False):
            rows_first = array if many else array[None, ...]
            seen = xp.reshape(alive, (*alive.shape, *(1,) * (rows_first.ndim - 2)))
            rows.append(xp.where(seen, rows_first, xp.zeros_like(rows_first) + hidden))
        return Sequences(rows[0], None if y is None else rows[1], alive, many)


def _only(values: Array, trailing: int) -> Array:
    """Drop the axis of the sequences, of which there is one."""
    return values[(..., 0, *(slice(None),) * trailing)]


def _as_mask(mask: Any, shape: tuple[int, ...], x: Array) -> Array:
    """Return which tokens exist, (B, n), from a user's mask or None for all."""
    xp = api.array_namespace(x)
    rows = shape if len(shape) == 2 else (1, *shape)
    if mask is None:
        return xp.ones(rows, dtype=xp.bool, device=api.device(x))
    found = np.asarray(to_numpy(mask) if hasattr(mask, "shape") else mask)
    if found.dtype != bool:
        raise TypeError(f"mask must hold booleans, got type {found.dtype}.")
    if found.shape != shape:
        raise ValueError(f"mask must have the shape of x, {shape}, got {found.shape}.")
    if not found.any(axis=-1).all():
        raise ValueError("mask must leave at least one token in every sequence.")
    return xp.asarray(found.reshape(rows), device=api.device(x))
