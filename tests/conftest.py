"""Settings that all tests share: property tests draw the same examples on every machine."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("hessence", derandomize=True, max_examples=25, **COMMON)
# For a hunt: pytest --hypothesis-profile=hunt
settings.register_profile("hunt", max_examples=1000, **COMMON)
settings.load_profile("hessence")


@pytest.fixture(autouse=True, scope="session")
def _interrupts():
    """In the background signals to stop are ignored, and then by all that is started too."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng():
    return np.random.default_rng(20260)
