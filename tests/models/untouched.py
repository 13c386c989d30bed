"""What a user's model is like, to tell whether anything has touched it."""

import torch
from torch import nn

from tests.models.market import numbers


def state(model):
    """All that a user could see of a model."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return {
        "values": {name: t.detach().clone() for name, t in tensors.items()},
        "objects": {name: id(t) for name, t in tensors.items()},
        "versions": {name: t._version for name, t in tensors.items()},
        "flags": {name: t.requires_grad for name, t in tensors.items()},
        "gradients": {name: None if t.grad is None else t.grad.clone()
                      for name, t in tensors.items()},
        "modes": {name: m.training for name, m in model.named_modules()},
        "attributes": {name: {key: id(value) for key, value in vars(m).items()}
                       for name, m in model.named_modules()},
        "contents": {name: [len(value) for value in vars(m).values() if hasattr(value, "__len__")]
                     for name, m in model.named_modules()},
        "hooks": {name: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
                  for name, m in model.named_modules()},
        "random": torch.get_rng_state(),
        "recording": torch.is_grad_enabled(),
        "attention": torch.backends.cuda.flash_sdp_enabled(),
    }  # fmt: skip


def assert_untouched(model, before):
    after = state(model)
    assert before.keys() == after.keys()
    for key, value in before.items():
        _assert_equal(value, after[key], key)


def _assert_equal(a, b, where):
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            _assert_equal(a[key], b[key], f"{where}: {key}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b, where


def data():
    with torch.random.fork_rng():
        torch.manual_seed(9)
        return [(numbers(4, 3), numbers(4, 2)), (numbers(3, 3), numbers(3, 2))]


def each(model, batch):
    """A closure, so that batches are not merged: every product of two batches has two runs."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)
