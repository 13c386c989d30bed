"""Half precision that a training loop may have around it, left where numbers are to be right."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

DEVICES = ("cpu", "cuda")


def reduced() -> list[str]:
    """Return the kinds of devices on which PyTorch, if it is there, works in half precision."""
    torch = sys.modules.get("torch")
    return [] if torch is None else [d for d in DEVICES if torch.is_autocast_enabled(d)]


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable autocast inside the block."""
    with ExitStack() as stack:
        for device in reduced():
            stack.enter_context(sys.modules["torch"].autocast(device, enabled=False))
        yield
