"""The generators of random numbers that a user has: PyTorch's, NumPy's and Python's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_states(device: torch.device, own: tuple[torch.Generator, ...] = ()) -> list[Any]:
    """Return the states of all of them, and of further ones of PyTorch's."""
    states: list[Any] = [g.get_state() for g in (*_torch_generators(device), *own)]
    return [*states, np.random.get_state(), random.getstate()]  # noqa: NPY002


def set_random_states(
    states: list[Any], device: torch.device, own: tuple[torch.Generator, ...] = ()
) -> bool:
    """Put them back where they have moved; return whether any had."""
    *torchs, numpys, pythons = states
    moved = False
    for generator, state in zip((*_torch_generators(device), *own), torchs, strict=True):
        if not torch.equal(generator.get_state(), state):
            generator.set_state(state)
            moved = True
    if not _same_numpy(np.random.get_state(), numpys):  # noqa: NPY002
        np.random.set_state(numpys)  # noqa: NPY002
        moved = True
    if random.getstate() != pythons:
        random.setstate(pythons)
        moved = True
    return moved


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let all generators start from a seed, and put them back afterwards."""
    users = random_states(device)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        set_random_states(users, device)


def _torch_generators(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]


def _same_numpy(a: Any, b: Any) -> bool:
    pairs = zip(a, b, strict=True)
    return all(np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y for x, y in pairs)
