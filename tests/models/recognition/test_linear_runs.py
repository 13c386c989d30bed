"""Which layers are seen to act one right after the other, and which are not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hessence.models.recognition.linear_runs import linear_runs
from tests.models.recognition.custom import Custom, torch_double


def _unseen(x):
    """Call PyTorch in a way that cannot be watched, as scripted functions do."""
    with torch._C.DisableTorchFunction():
        return 1e-9 * x.sum()


OTHER_USES = {
    "returned": lambda m, x, h: (m.net[1](h), h),
    "in a dictionary": lambda m, x, h: {"out": m.net[1](h), "more": [h]},
    "in an object": lambda m, x, h: SimpleNamespace(out=m.net[1](h), more=h),
    "unseen": lambda m, x, h: m.net[1](h) + _unseen(h),
    "detached": lambda m, x, h: m.net[1](h) + 1e-9 * h.detach().sum(),
    "of many": lambda m, x, h: m.net[1](h) + 1e-9 * h.sum() if len(x) > 9 else m.net[1](h),
}


@pytest.mark.parametrize("name", OTHER_USES)
def test_what_a_layer_makes_has_other_uses(name):
    torch.manual_seed(0)
    model = Custom(lambda m, x: OTHER_USES[name](m, x, m.net[0](x)))
    assert linear_runs(model, torch.randn(100, 2, **torch_double)) == []


def test_a_model_may_return_more_than_one_tensor():
    model = Custom(lambda m, x: (m.net[1](m.net[0](x)), x, None, 3.0))
    (run,) = linear_runs(model, torch.randn(100, 2, **torch_double))
    assert [layer.name for layer in run] == ["net.0", "net.1"]


def test_a_model_is_watched_with_few_samples():
    seen = []
    model = Custom(lambda m, x: (seen.append(len(x)), torch.tanh(m.net[1](m.net[0](x))))[1])
    (run,) = linear_runs(model, torch.randn(1000, 2, **torch_double))
    assert [layer.name for layer in run] == ["net.0", "net.1"]
    assert seen == [64]
