"""Small tensors, for which several threads would mostly wait; and random numbers by a seed."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        yield
