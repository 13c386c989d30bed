"""Batches of sequences of tokens, of one length or of many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as api

from hessence._common.arrays import Array, to_numpy


@dataclass(frozen=True)
class Sequences:
    """A batch of sequences (B, n) of tokens, of which `alive` tells which exist."""

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

    def average(self, values: Array) -> Array:
        """Average (..., B, n) over the tokens of each sequence, then over the sequences."""
        xp = api.array_namespace(self.x)
        alive = xp.astype(self.alive, self.x.dtype)
        kept = xp.where(self.alive, values, 0 * values)
        return xp.mean(xp.sum(kept, axis=-1) / xp.sum(alive, axis=-1), axis=-1)


def as_mask(mask: Any, x: Array, xp: Any) -> Array:
    """Return which tokens exist, (B, n), from a user's mask or None for all."""
    shape = tuple(x.shape) if x.ndim == 2 else (1, *tuple(x.shape))
    if mask is None:
        return xp.ones(shape, dtype=xp.bool, device=api.device(x))
    found = xp.asarray(to_numpy(mask)) if hasattr(mask, "shape") else xp.asarray(mask)
    if found.dtype != xp.bool:
        raise TypeError(f"mask must hold booleans, got type {found.dtype}.")
    if tuple(found.shape) != tuple(x.shape):
        raise ValueError(
            f"mask must have the shape of x, {tuple(x.shape)}, got {tuple(found.shape)}."
        )
    found = xp.reshape(found, shape)
    if not bool(xp.all(xp.any(found, axis=-1))):
        raise ValueError("mask must leave at least one token in every sequence.")
    return found
