"""Settings that all tests share: property tests draw the same examples on every machine."""

from __future__ import annotations

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


@pytest.fixture
def rng():
    return np.random.default_rng(20260)
