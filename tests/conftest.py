"""Settings that all tests share: every run, in any order, on any worker, sees the same numbers."""

from __future__ import annotations

import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, is_hypothesis_test, register_random, settings
from hypothesis.internal.conjecture import providers
from threadpoolctl import threadpool_limits

COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
# The default: what is drawn depends on the source of the test and on nothing else.
settings.register_profile("hessence", derandomize=True, max_examples=25, **COMMON)
# `make hunt`: new examples in every run, some of them with constants found in our sources.
settings.register_profile("hunt", derandomize=False, max_examples=1000, print_blob=True, **COMMON)
settings.load_profile("hessence")


@pytest.hookimpl(trylast=True)  # Hypothesis loads the profile of the command line in its own hook.
def pytest_configure(config):
    """Keep constants from our sources out of derandomised examples.

    Hypothesis collects the constants of all local modules imported so far and draws some of its
    numbers from them. What is local depends on the folder's name, and what has been imported on the
    order of the tests and on the worker, so that derandomised examples would not be the same
    everywhere. Hypothesis has no setting for this: the name replaced here is a private one, and
    `tests/test_draws.py` fails if it has lost its effect.
    """
    if settings().derandomize:
        if not hasattr(providers, "is_local_module_file"):
            raise pytest.UsageError(
                "hypothesis no longer asks is_local_module_file which constants to draw from: "
                "find out how to keep them out of derandomised examples (tests/conftest.py)"
            )
        providers.is_local_module_file = lambda path: False


def pytest_collection_modifyitems(items):
    """Mark what `make hunt` runs: the tests that draw their examples."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("hunt")


class Generators:
    """The global random generators, as one generator that Hypothesis can seed for each example."""

    def seed(self, seed):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)

    def getstate(self):
        return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002

    def setstate(self, state):
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])  # noqa: NPY002
        random.setstate(state[2])


GENERATORS = Generators()
SEED = 20260
register_random(GENERATORS)


# A test that draws from a global generator must not depend on the tests that ran before it, nor on
# whether it is the one that sets up what its file shares.
def pytest_collectstart():
    GENERATORS.seed(SEED)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    GENERATORS.seed(SEED)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    if fixturedef.scope == "function":
        return (yield)
    before = GENERATORS.getstate()
    GENERATORS.seed(SEED)
    try:
        return (yield)
    finally:
        GENERATORS.setstate(before)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Sum in the same order whatever the number of cores; more threads would only wait here."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True, scope="session")
def _interrupts():
    """In the background signals to stop are ignored, and then by all that is started too."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng():
    return np.random.default_rng(20260)
