"""Random numbers by a seed, and a classifier with its matrices."""

import pytest
import torch
from torch import nn

from tests.models.market import numbers
from tests.models.oracle import dense_ggn, dense_hessian

SAMPLES = 32


@pytest.fixture
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        yield


@pytest.fixture(scope="module")
def case():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        x, y = numbers(SAMPLES, 3), torch.randint(3, (SAMPLES,))
    y[::7] = -100
    loss = nn.CrossEntropyLoss()
    H = dense_hessian(lambda: loss(model(x), y), model.parameters())
    G = dense_ggn(lambda: model(x), lambda f: loss(f, y), model.parameters())
    return model, x, y, loss, H, G


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.randn(60, 4, dtype=torch.float64), torch.randn(60, 2, dtype=torch.float64)


@pytest.fixture
def mlp():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


@pytest.fixture
def pair():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return numbers(10, 3), numbers(10, 2)
