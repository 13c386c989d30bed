"""Plain stacks of layers, and their Hessians by automatic differentiation."""

import itertools

from torch import nn

from tests.models.oracle import dense_hessian


def dense(model, loss):
    return dense_hessian(loss, model.parameters())


def mlp(*sizes, activation=nn.Tanh):
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1]).double()


def linear(*sizes):
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*(nn.Linear(i, o, bias=False) for i, o in pairs)).double()
