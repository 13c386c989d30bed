"""A small classifier and data that are cut into unequal batches."""

import torch
from torch import nn

from tests.models.market import numbers

SAMPLES, OUTPUTS = 13, 3
CUTS = (5, 1, 7)
"""Batches of unequal sizes, one of them a single sample."""


def mlp(outputs=OUTPUTS, *tail):
    layers = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs), *tail)
    return layers.double()


def batches(x, y):
    return list(zip(x.split(CUTS), y.split(CUTS), strict=True))


def classes():
    return torch.randint(OUTPUTS, (SAMPLES,))


def partly_ignored():
    """The middle batch, a single sample, is ignored altogether."""
    y = classes()
    y[[1, 5, 6, 9]] = -100
    return y


def real():
    return numbers(SAMPLES, OUTPUTS)
