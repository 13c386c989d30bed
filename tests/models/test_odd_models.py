"""Models that keep their tensors, modes or passes in unusual ways: right, and left as they were."""

import copy
import threading
import warnings
from collections import Counter, OrderedDict, deque

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hessence as hs
from tests.models.market import numbers
from tests.models.oracle import assert_same, dense_hessian
from tests.models.untouched import assert_untouched, data, each, state


class Registered(nn.Module):
    """Has the same layers under several names, as is common."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4).eval()
        self.net = nn.Sequential(self.encoder, self.norm, nn.Tanh(), self.head)
        self.again = nn.ModuleList([self.norm] * 3)

    def forward(self, x):
        return self.net(x)


class Recurring(nn.Module):
    """Uses one layer twice."""

    def __init__(self):
        super().__init__()
        layer = nn.Linear(4, 4)
        self.net = nn.Sequential(nn.Linear(3, 4), layer, nn.Tanh(), layer, nn.Linear(4, 2))

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("make", [Registered, Recurring])
def test_layers_of_several_names(make):
    """The model must have its own parameters back, which an optimiser holds, and not copies."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = make().double()
    x, y = (torch.cat(parts) for parts in zip(*data(), strict=True))
    own = [(m, name, t) for m in model.modules() for name, t in m._parameters.items()]
    own += [(m, name, t) for m in model.modules() for name, t in m._buffers.items()]
    before = state(model)
    H = hs.hessian(model, data(), nn.MSELoss())
    assert H.check().passed
    for answer in (hs.spectrum, hs.layer_spectra):
        answer(model, (x, y), nn.MSELoss())
    hs.Monitor(model, (x, y), nn.MSELoss()).measure(0)
    assert all(getattr(module, name) is tensor for module, name, tensor in own)
    assert_untouched(model, before)
    expected = dense_hessian(lambda: nn.functional.mse_loss(model(x), y), model.parameters())
    assert_same(H.dense(), expected)


class Caching(nn.Module):
    """Makes buffers in its first forward pass, and takes one away in each."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("cache", None, persistent=False)
        self.register_buffer("spare", torch.ones(2))

    def forward(self, x):
        if self.cache is None:
            self.cache = 2 * torch.ones(2, dtype=x.dtype)
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(2, dtype=x.dtype))
        del self.spare
        return torch.tanh(self.layer(x)) * self.cache * self.mask


class Registering(nn.Module):
    """Has a parameter as a buffer of another module, too."""

    def __init__(self):
        super().__init__()
        self.first, self.layer = nn.Module(), nn.Linear(3, 2, dtype=torch.float64)
        self.first.register_buffer("weight", self.layer.weight)

    def forward(self, x):
        return torch.sin(self.layer(x)) + x @ self.first.weight.T


class Frozen(nn.Module):
    """Lets nobody change its attributes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.done = True

    def __setattr__(self, name, value):
        if getattr(self, "done", False):
            raise AttributeError(f"frozen: {name}")
        super().__setattr__(name, value)

    def forward(self, x):
        return torch.tanh(self.layer(x))


@pytest.mark.parametrize("make", [Caching, Registering, Frozen])
def test_odd_places_for_tensors(make):
    model = make().double()
    x, y = data()[0]
    before = state(model)
    H = hs.hessian(model, (x, y), nn.MSELoss())
    assert H.check().passed
    found = H.dense()
    assert_untouched(model, before)
    loss = nn.MSELoss()
    again = copy.deepcopy(model)

    def value():
        if isinstance(again, Caching):
            again.spare = torch.ones(2)
        return loss(again(x), y)

    assert_same(found, dense_hessian(value, again.parameters()))


class Remembering(nn.Module):
    """Has its weight in a list, which nobody can know of."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.weights = [self.layer.weight]

    def forward(self, x):
        return torch.tanh(x @ self.weights[0].T + self.layer.bias)


def test_parameters_that_are_held_in_a_list():
    model, x, y = Remembering().double(), numbers(5, 3), numbers(5, 2)
    H = hs.hessian(model, (x, y), nn.MSELoss())
    assert H.check().passed
    expected = dense_hessian(lambda: nn.functional.mse_loss(model(x), y), model.parameters())
    assert_same(H.dense(), expected)


class Storing(nn.Module):
    """Keeps what it has computed, with its graph."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 9, bias=False), nn.Linear(9, 2, bias=False)
        self.hidden, self.log = None, []

    def forward(self, x):
        self.hidden = self.first(x)
        self.log.append(self.hidden)
        return self.last(self.hidden)


def test_activations_that_a_model_keeps():
    model, x, y = Storing().double(), numbers(7, 3), numbers(7, 2)
    H = hs.hessian(model, (x, y), nn.MSELoss())
    assert H.check().passed
    assert hs.spectrum(model, (x, y), nn.MSELoss()).exact
    assert model.hidden is None
    assert model.log == []


class Locked(nn.Module):
    """Has something that cannot be copied, deep inside."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.first.guard = threading.Lock()

    def forward(self, x):
        with self.first.guard:
            return self.last(torch.tanh(self.first(x)))


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_a_model_that_cannot_be_copied(operator):
    model, (x, y) = Locked().double(), data()[0]
    with pytest.raises(ValueError, match=r"'guard' \(lock\) of layer 'first'.*copy=False"):
        operator(model, (x, y), nn.MSELoss())
    before = state(model)
    G = operator(model, (x, y), nn.MSELoss(), copy=False)
    found = G.dense()
    assert G.check().passed
    assert_untouched(model, before)
    plain = nn.Sequential(model.first, nn.Tanh(), model.last)
    del model.first.guard
    assert_same(found, operator(plain, (x, y), nn.MSELoss()).dense())


def test_weights_that_a_hook_computes():
    """The old weight norm keeps a tensor with a history, which PyTorch does not copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        layer = nn.utils.weight_norm(nn.Linear(3, 4))
    model, (x, y) = nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 2)).double(), data()[0]
    model(x)
    before = state(model)
    H = hs.hessian(model, (x, y), nn.MSELoss())
    assert H.check().passed
    H.dense()
    assert_untouched(model, before)


def test_a_patched_forward_that_holds_the_model():
    model, (x, y) = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), data()[0]
    expected = hs.hessian(model, (x, y), nn.MSELoss()).dense()
    own = model[0].forward
    model[0].forward = lambda x: own(x)
    with pytest.raises(ValueError, match=r"still uses '0\.weight', '0\.bias' of the model"):
        hs.hessian(model, (x, y), nn.MSELoss()).dense()
    assert_same(hs.hessian(model, (x, y), nn.MSELoss(), copy=False).dense(), expected)


def test_parts_that_are_compiled_run_as_they_are_written():
    """What PyTorch compiles has no second derivative."""
    with torch.random.fork_rng():
        torch.manual_seed(6)
        part = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
        model = nn.Sequential(torch.compile(part, backend="aot_eager"), nn.Linear(4, 2).double())
    x, y = numbers(6, 3), numbers(6, 2)
    model(x)
    plain = nn.Sequential(part, model[1])
    expected = dense_hessian(lambda: nn.functional.mse_loss(plain(x), y), plain.parameters())
    assert_same(hs.hessian(model, (x, y), nn.MSELoss()).dense(), expected)


def test_a_model_made_in_inference_mode():
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        x, y = numbers(5, 2), numbers(5, 1)
    H = hs.hessian(model, (x, y), nn.MSELoss(), params="*")
    assert H.check().passed


def test_the_loss_does_not_drift_with_a_buffer():
    """A model that looks at its own count: the snapshot's count is what it was."""

    class Drifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 1)
            self.register_buffer("count", torch.ones(()).double())

        def forward(self, x):
            self.count += 1
            return torch.tanh(self.inner(x)) * self.count

    model, loss = Drifting().double(), nn.MSELoss()
    batches = [(numbers(4, 2), numbers(4, 1)) for _ in range(3)]
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    expected = dense_hessian(lambda: loss(2 * torch.tanh(model.inner(x)), y), model.parameters())

    def closure(model, batch):
        return loss(model(batch[0]), batch[1])

    for options in ({}, {"memory": 0}):
        for how in (loss, closure):
            own = how is closure
            H = hs.hessian(model, batches, how, closure=own, reduction="mean", **options)
            assert_same(H.dense(), expected)
            assert_same(H.dense(), expected)
            assert H.check().passed
    assert model.count == 1


def test_spectral_norm_while_training():
    """Every call moves its vectors; those of the snapshot stay."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
        model = nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 1)).double()
        batches = [(numbers(4, 3), numbers(4, 1)) for _ in range(3)]
    before = state(model)
    H = hs.hessian(model, batches, each, reduction="mean", closure=True)
    v = torch.ones(H.shape[0], dtype=torch.float64)
    first = H @ v
    assert torch.equal(H @ v, first)
    H.release()
    assert torch.equal(H @ v, first)
    assert_untouched(model, before)


class Checkpointed(nn.Module):
    """Forgets what is in the middle, and computes it again during a backward pass."""

    def __init__(self, layers, reentrant):
        super().__init__()
        self.first, self.middle, self.last = layers
        self.reentrant = reentrant

    def forward(self, x):
        z = checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant)
        return self.last(z)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_activation_checkpoints(operator, reentrant):
    """What is computed again must be so with the snapshot's parameters, and gradients stay away."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        middle = nn.Sequential(nn.Tanh(), nn.Linear(3, 3), nn.Tanh())
        layers = [nn.Linear(2, 3), middle, nn.Linear(3, 1)]
        plain = nn.Sequential(*layers).double()
        x, y = numbers(6, 2), numbers(6, 1)
    model = Checkpointed(layers, reentrant)
    expected = operator(plain, (x, y), nn.MSELoss()).dense()
    before = state(model)
    H = operator(model, (x, y), nn.MSELoss(), memory=0)
    kept = operator(model, (x, y), nn.MSELoss())
    assert_same(kept.dense(), expected)
    assert H.check().passed
    assert_untouched(model, before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    for found in (H, kept):
        assert_same(found.dense(), expected)
    # The user's own runs have their checkpoints as before.
    nn.functional.mse_loss(model(x), y).backward()
    assert checkpoint_counts(model, x) == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_exceptions_in_activation_checkpoints_are_the_models_own(reentrant):
    def refuse(z):
        raise ArithmeticError("no such sample")

    model = Checkpointed([nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)], reentrant).double()
    model.middle.forward = refuse
    with pytest.raises(ArithmeticError, match="no such sample"):
        hs.hessian(model, (numbers(6, 2), numbers(6, 1))) @ torch.ones(13, dtype=torch.float64)


def checkpoint_counts(model, x):
    """How often a forward and a backward pass run the middle: twice, with a checkpoint."""
    calls = []
    hook = model.middle.register_forward_pre_hook(lambda *_: calls.append(1))
    model(x).sum().backward()
    hook.remove()
    return len(calls)


class ReadOnly(OrderedDict):
    """The settings of a model, which nobody may change."""

    def _refuse(self, *_, **__):
        raise TypeError("read only")

    update = clear = pop = _refuse


class Settled(nn.Module):
    """Has settings of many kinds, and notes what it has seen in some of them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()
        self.settings, self.tasks = ReadOnly(act="tanh"), OrderedDict(a=1, b=2, c=3)
        self.table, self.log = {i: i for i in range(20_000)}, [0] * 20_000
        self.seen, self.last, self.counts = [0], deque([1, 2], maxlen=2), Counter(calls=0)

    def forward(self, x):
        self.seen.append(x)
        self.last.append(x)
        self.log.append(x)
        self.counts["calls"] += 1
        return torch.tanh(self.layer(x))


def test_containers_in_a_model():
    model, (x, y) = Settled(), data()[0]
    before = state(model)
    found = []
    for name in model.tasks:  # which must stay as it is, also between runs
        found.append(name)
        hs.hessian(model, (x, y), nn.MSELoss()).dense()
    assert found == ["a", "b", "c"]
    assert_untouched(model, before)
    assert (model.seen, list(model.last), model.counts["calls"]) == ([0], [1, 2], 0)
    assert model.settings == {"act": "tanh"}
