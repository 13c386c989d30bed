"""Trajectories too long to keep: some states are stored, the others are stepped to again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

State = TypeVar("State")

BUDGET = 256 * 2**20
"""How many bytes of states a trajectory keeps."""


class Replay(Generic[State]):
    """The states of a deterministic iteration, every `stride`-th of them stored.

    Parameters
    ----------
    start : State
        The first state.
    advance : callable
        Returns the state after a given one.
    steps : int
        How many times to advance.
    size : int
        The bytes of one state, which decide the stride.
    """

    def __init__(
        self, start: State, advance: Callable[[State], State], steps: int, size: int
    ) -> None:
        self._advance = advance
        self._steps = steps
        self._stride = max(1, -(-size * (steps + 1) // BUDGET))
        self._kept = [start]

    def run(self) -> Iterator[State]:
        """Yield all states for the first time, and keep some."""
        state = self._kept[0]
        yield state
        for step in range(1, self._steps + 1):
            state = self._advance(state)
            if step % self._stride == 0 and step // self._stride == len(self._kept):
                self._kept.append(state)
            yield state

    def __getitem__(self, step: int) -> State:
        state = self._kept[step // self._stride]
        for _ in range(step % self._stride):
            state = self._advance(state)
        return state
