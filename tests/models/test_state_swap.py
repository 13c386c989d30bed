"""A model that holds other tensors for a while, and is exactly as it was afterwards."""

from threading import Thread

import numpy as np
import pytest
import torch
from torch import nn

from hessence.models.state_swap import StateSwap
from tests.models.untouched import assert_untouched, state

X = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)


class Model(nn.Module):
    """One layer under two names, another with its weight, and a forward pass that does as told."""

    def __init__(self, meanwhile=lambda _: None, error=None):
        super().__init__()
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.again = self.first
        self.tied = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.tied.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros(()))
        self.meanwhile, self.error = meanwhile, error
        self.last, self.log, self.known = None, [1], {"old": 1}
        self.large, self.small = torch.zeros(2**20 + 1), torch.zeros(2)
        self.nested = {"deep": [[]], "tensors": [torch.zeros(2)], "arrays": [np.zeros(2)]}

    def forward(self, x):
        out = self.scale * self.tied(self.again(self.first(x)))
        self.meanwhile(self)
        if self.error is not None:
            raise self.error("as told")
        return out


def others(model):
    """Return other tensors for all names of a model."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: t.detach() + i + 1 for i, (name, t) in enumerate(named)}


def tensors(model):
    """Return what a model holds in each place, in order, tied and shared ones under all names."""
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def test_all_names_of_a_tensor_are_swapped():
    model = Model()
    given = others(model)
    W, b, scale = given["first.weight"], given["first.bias"], given["scale"]
    with StateSwap(model).hold(given):
        assert model.first.weight is model.again.weight is model.tied.weight is W
        assert model.calls is given["calls"]
        found = model(X)
    hidden = (X @ W.T + b) @ W.T + b
    torch.testing.assert_close(found, scale * (hidden @ W.T))


def put_out_a_parameter(model):
    del model.scale


def write_to_a_parameter(model):
    model.first.weight.zero_()


def count_in_place(model):
    model.calls += 1


CHANGES = {
    "nothing": lambda model: None,
    "an attribute more": lambda model: setattr(model, "cache", torch.ones(2)),
    "an attribute more of a layer": lambda model: setattr(model.again, "cache", X),
    "another attribute": lambda model: setattr(model, "last", X),
    "an attribute less": lambda model: delattr(model, "last"),
    "a longer list": lambda model: model.log.append(X),
    "another list": lambda model: setattr(model, "log", [1]),
    "a longer dictionary": lambda model: model.known.update(new=X),
    "another entry": lambda model: model.known.update(old=2),
    "a longer list in a dictionary": lambda model: model.nested["deep"][0].append(X),
    "a tensor in a list written to": lambda model: model.nested["tensors"][0].add_(1),
    "an array in a list written to": lambda model: model.nested["arrays"][0].fill(7),
    "a parameter more": lambda model: setattr(model, "more", nn.Parameter(torch.ones(1))),
    "a parameter less": put_out_a_parameter,
    "another parameter": lambda model: setattr(model, "scale", nn.Parameter(torch.ones(3))),
    "a parameter written to": write_to_a_parameter,
    "a buffer more": lambda model: model.register_buffer("more", torch.ones(1)),
    "another buffer": lambda model: setattr(model, "calls", model.calls + 1),
    "a buffer written to": count_in_place,
}


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("name", CHANGES)
def test_what_a_forward_pass_does_is_undone(name, error):
    model = Model(CHANGES[name], error)
    before, own = state(model), tensors(model)
    swap = StateSwap(model)
    for _ in range(2):
        if error is None:
            with swap.hold(others(model)):
                model(X)
        else:
            with pytest.raises(error, match="as told"), swap.hold(others(model)):
                model(X)
        assert_untouched(model, before)
        assert (model.log, model.known) == ([1], {"old": 1})
        assert model.nested["deep"] == [[]]
        assert not model.nested["tensors"][0].any()
        assert not model.nested["arrays"][0].any()
        for (key, tensor), (other, mine) in zip(tensors(model), own, strict=True):
            assert key == other
            assert tensor is mine


def test_a_tensor_too_few():
    model = Model()
    before, given = state(model), others(model)
    del given["calls"]
    with pytest.raises(KeyError, match="calls"), StateSwap(model).hold(given):
        pass
    assert_untouched(model, before)


def test_other_threads_go_on_after_an_error():
    model, seen = Model(error=RuntimeError), []
    swap = StateSwap(model)
    with pytest.raises(RuntimeError, match="as told"), swap.hold(others(model)):
        model(X)

    def look():
        with swap.hold(others(model)):
            seen.append(model.scale)

    thread = Thread(target=look, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert len(seen) == 1


def test_a_model_with_other_parameters_is_refused():
    model = Model()
    swap = StateSwap(model)
    model.more = nn.Parameter(torch.ones(1))
    before = state(model)
    with (
        pytest.raises(ValueError, match="other layers or parameters than when this was made"),
        swap.hold(others(model)),
    ):
        pass
    assert_untouched(model, before)
