"""The user's model is as it was: after products, after errors, after an interrupt, in any mode."""

import copy
import gc
import signal
import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hessence as hs
from tests.curvature.market import numbers, problem
from tests.curvature.oracle import assert_same, dense_hessian


class Counter(nn.Module):
    """Counts its calls, in place, by a new tensor, or both, and raises when told."""

    def __init__(self):
        super().__init__()
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("reassigned", torch.zeros(()))
        self.calls, self.fail_at, self.error = 0, None, RuntimeError

    def forward(self, x):
        self.calls += 1
        self.in_place += 1
        self.reassigned = self.reassigned + 1
        if self.calls == self.fail_at:
            raise self.error("as told")
        return x


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(8)
        layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), Counter(), nn.Tanh(), nn.Linear(4, 2)]
        made = nn.Sequential(*layers, nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))).double()
    # A mixture of modes, and of parameters with and without gradients.
    made.train()
    made[1].eval()
    made[5][0].eval()
    made[0].bias.requires_grad_(False)
    made[4].weight.grad = torch.ones_like(made[4].weight)
    made[0].register_forward_hook(lambda *_: None)
    made[0].weight.register_hook(lambda g: g)
    return made


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
        "attributes": {name: sorted(m.__dict__) for name, m in model.named_modules()},
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


def use(operator, model, **options):
    H = operator(model, data(), nn.MSELoss(), **options)
    v = torch.ones(H.shape[0], dtype=torch.float64)
    H @ v
    H @ torch.stack([v, 2 * v], dim=1)
    H.loss(), H.gradient(), H.check(), H.block("0") @ v[: H.block("0").shape[0]]
    return H


@pytest.mark.parametrize("options", [{}, {"memory": 0}, {"eval_mode": True}, {"mode": "blocks"},
                                     {"params": "0"}], ids=str)  # fmt: skip
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_success(model, operator, options):
    before = state(model)
    use(operator, model, **options)
    assert_untouched(model, before)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("eval_mode", [False, True])
def test_an_error_in_the_middle_of_a_product(model, error, eval_mode):
    H = hs.hessian(model, data(), each, memory=0, eval_mode=eval_mode)
    v = torch.ones(H.shape[0], dtype=torch.float64)
    expected = H @ v
    before = state(model)
    model[2].fail_at, model[2].error = model[2].calls + 2, error
    with pytest.raises(error, match="as told"):
        H @ v
    assert_untouched(model, before)
    assert torch.equal(H @ v, expected)
    model[2].fail_at = model[2].calls + 1
    for ask in (H.loss, H.gradient, H.check, lambda: hs.ggn(model, data()) @ v):
        model[2].fail_at = model[2].calls + 1
        # PyTorch raises RuntimeErrors for data that do not fit, and that is a ValueError.
        with pytest.raises((error, ValueError), match="as told"):
            ask()
        assert_untouched(model, before)


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


def test_parameters_that_are_held_elsewhere_are_told_of():
    check = hs.hessian(Remembering(), (torch.randn(5, 3), torch.randn(5, 2))).check()
    assert not check.passed
    assert check.message.endswith("a second time, where products do not see them: layer.weight.")


def test_an_operator_keeps_the_modes_that_the_model_had(model):
    model.eval()
    H = hs.hessian(model, data(), nn.MSELoss(), memory=0)
    before = H.dense()
    model.train()
    assert torch.equal(H.dense(), before)
    assert model.training
    assert model[5][0].training


def test_a_model_that_has_grown_is_refused(model):
    model.eval()
    H = hs.hessian(model, data(), nn.MSELoss(), memory=0)
    model.append(nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="model has other layers or parameters than when"):
        H.dense()


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


INTERRUPTED = """
import os, signal, sys, threading, time
import torch
from torch import nn
import hessence as hs

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(50, 400), nn.Dropout(0.5), nn.Tanh(), nn.Linear(400, 400),
                      nn.Tanh(), nn.Linear(400, 1))
x, y = torch.randn(4000, 50), torch.randn(4000, 1)
before = {name: t.clone() for name, t in model.state_dict().items()}
H = hs.hessian(model, (x, y), memory=0, eval_mode=True)
v = torch.ones(H.shape[0])
H @ v  # PyTorch loads parts of itself on first use
print("ready", flush=True)
try:
    while True:
        H @ v
except KeyboardInterrupt:
    pass
assert all(m.training for m in model.modules())
assert all(p.grad is None and p.requires_grad for p in model.parameters())
assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
assert (H @ v).isfinite().all()
print("untouched")
"""


def test_a_real_interrupt():
    program = textwrap.dedent(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("untouched\n", 0), err


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_under_the_users_modes(mode, operator):
    case = problem("gpt")
    expected = operator(case.model, case.data, case.loss).dense()
    before = operator(case.model, case.data, case.loss)
    with mode():
        data = [(case.x[:4].clone(), case.y[:4].clone()), (case.x[4:].clone(), case.y[4:].clone())]
        H = operator(case.model, data, case.loss)
        v = torch.ones(H.shape[0], dtype=torch.float64)
        products = H @ v, before @ v
        for found in (H, before):
            assert_same(found.dense(), expected)
            assert found.check().passed
            found.loss(), found.gradient()
        assert not torch.is_grad_enabled()
    # Outside again, with what was made and kept inside.
    for product in (*products, H @ v, before @ v, operator(case.model, data, case.loss) @ v):
        assert_same(product, expected @ torch.ones_like(expected[0]))


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
            H = hs.hessian(model, batches, how, **options)
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
    H = hs.hessian(model, batches, each)
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


def checkpoint_counts(model, x):
    """How often a forward and a backward pass run the middle: twice, with a checkpoint."""
    calls = []
    hook = model.middle.register_forward_pre_hook(lambda *_: calls.append(1))
    model(x).sum().backward()
    hook.remove()
    return len(calls)


@pytest.mark.parametrize("memory", [None, 0])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_an_operator_stays_while_training_goes_on(operator, memory):
    case = problem("batch_norm")
    options = {"memory": memory, "mode": "vectors"}
    H = operator(case.model, case.data, case.loss, **options)
    early = H.dense() if memory is None else None
    expected = operator(case.model, case.data, case.loss, **options).dense()
    case.model.train()
    optimiser = torch.optim.SGD(case.model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        case.value().backward()
        optimiser.step()
    case.model.eval()
    assert torch.equal(H.dense(), expected)
    assert early is None or torch.equal(early, expected)
    assert (operator(case.model, case.data, case.loss).dense() - expected).abs().max() > 1e-3
    assert all(p.grad is not None for p in case.model.parameters())


def test_training_is_not_disturbed():
    """The same steps with and without an operator in use."""
    ends = []
    for watched in (False, True):
        case = problem("tanh_mlp")
        optimiser = torch.optim.Adam(case.model.parameters())
        for _ in range(3):
            optimiser.zero_grad()
            value = case.value()
            if watched:
                H = hs.hessian(case.model, case.data, case.loss)
                H @ torch.ones(H.shape[0], dtype=torch.float64)
            value.backward()
            if watched:
                hs.ggn(case.model, case.data, case.loss).dense()
            optimiser.step()
        ends.append(torch.cat([p.detach().reshape(-1) for p in case.model.parameters()]))
    assert torch.equal(*ends)


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_nothing_is_left_behind(operator):
    """Graphs go with their operator at once, without the help of the garbage collector."""
    case = problem("gpt")
    gc.collect()
    gc.disable()
    try:
        H = operator(case.model, case.data, case.loss)
        H @ torch.ones(H.shape[0], dtype=torch.float64)
        H.check(), H.gradient(), H.block("blocks") @ torch.ones(H.block("blocks").shape[0]).double()
        leaf = weakref.ref(H.parameters.leaves[0])
        graph = weakref.ref(next(iter(H._terms)))
        del H
        assert graph() is None
        assert leaf() is None
    finally:
        gc.enable()


GROWTH = """
import resource, torch
from torch import nn
import hessence as hs

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 1))
x, y = torch.randn(256, 64), torch.randn(256, 1)

def use():
    for operator in (hs.hessian, hs.ggn):
        H = operator(model, (x, y), nn.MSELoss())
        H @ torch.ones(H.shape[0])
        H.ggn @ torch.ones(H.shape[0]) if operator is hs.hessian else H.check()

for _ in range(5):
    use()
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(50):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)
"""


def test_memory_does_not_grow_with_the_number_of_operators():
    """Each has graphs of some 5 MB; in 50 of them there may be 20 MB of noise."""
    run = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 20_000
