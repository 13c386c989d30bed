"""Warnings name the line that called the library, whatever lies between."""

import inspect
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import hessence as hs


class Dubious(nn.Module):
    """Its gradient is not that of its values."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2).double()

    def forward(self, x):
        return self.layer(x) * self.layer.weight.detach().norm()


DATA = (torch.eye(2).double(), torch.eye(2).double())

CALLS = {
    "solver": lambda: hs.eigenpairs(np.diag(np.arange(900.0)), k=3, max_products=9),
    "check": lambda: hs.spectrum(Dubious(), DATA),
    "layers": lambda: hs.layer_spectra(Dubious(), DATA),
    "monitor": lambda: hs.Monitor(Dubious(), DATA).measure(0),
    "kink": lambda: hs.ScalarReLU([1.0, 1.0], [0.0, 1.0]).hessian([1.0], [1.0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_callers_line_is_named(name):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        CALLS[name]()
    assert seen
    _, line = inspect.getsourcelines(CALLS[name])
    assert {(w.filename, w.lineno) for w in seen} == {(__file__, line)}
