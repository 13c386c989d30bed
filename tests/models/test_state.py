"""The user's model is as it was: after products, after errors, after an interrupt, in any mode."""

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import hessence as hs
from tests.models.market import problem
from tests.models.oracle import assert_same
from tests.models.untouched import assert_untouched, data, each, state


class Tally(SimpleNamespace):
    """What all copies of a model share."""

    def __deepcopy__(self, memo):
        return self


class Counter(nn.Module):
    """Counts its calls, in place, by a new tensor, or both, and raises when told."""

    def __init__(self):
        super().__init__()
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("reassigned", torch.zeros(()))
        self.tally = Tally(calls=0, fail_at=None, error=RuntimeError)
        self.log, self.known, self.last = [], {}, None

    def forward(self, x):
        self.tally.calls += 1
        self.in_place += 1
        self.reassigned = self.reassigned + 1
        self.last = x
        self.log.append(x)
        self.known[len(self.known)] = x
        self.lately = x
        if self.tally.calls == self.tally.fail_at:
            raise self.tally.error("as told")
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


def use(operator, model, **options):
    H = operator(model, data(), nn.MSELoss(), **options)
    v = torch.ones(H.shape[0], dtype=torch.float64)
    H @ v
    H @ torch.stack([v, 2 * v], dim=1)
    H.loss(), H.gradient(), H.check(), H.restrict("0") @ v[: H.restrict("0").shape[0]]
    return H


@pytest.mark.parametrize(
    "options", [{}, {"memory": 0}, {"eval_mode": True}, {"params": "0"}], ids=str
)
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_success(model, operator, options):
    before = state(model)
    use(operator, model, **options)
    assert_untouched(model, before)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("eval_mode", [False, True])
def test_an_error_in_the_middle_of_a_product(model, error, eval_mode):
    H = hs.hessian(
        model, data(), each, reduction="mean", closure=True, memory=0, eval_mode=eval_mode
    )
    v = torch.ones(H.shape[0], dtype=torch.float64)
    expected = H @ v
    before = state(model)
    tally = model[2].tally
    tally.fail_at, tally.error = tally.calls + 2, error
    with pytest.raises(error, match="as told"):
        H @ v
    assert_untouched(model, before)
    assert torch.equal(H @ v, expected)
    for ask in (H.loss, H.gradient, H.check, lambda: hs.ggn(model, data()) @ v):
        tally.fail_at = tally.calls + 1
        # PyTorch raises RuntimeErrors for data that do not fit, and that is a ValueError.
        with pytest.raises((error, ValueError), match="as told"):
            ask()
        assert_untouched(model, before)


def test_an_operator_keeps_the_modes_that_the_model_had(model):
    model.eval()
    H = hs.hessian(model, data(), nn.MSELoss(), memory=0)
    before = H.dense()
    model.train()
    assert torch.equal(H.dense(), before)
    assert model.training
    assert model[5][0].training


def test_several_threads_may_use_one_operator(model):
    before = state(model)
    H = hs.hessian(model, data(), nn.MSELoss(), memory=0, eval_mode=True)
    vectors = torch.randn(60, H.shape[0], dtype=torch.float64)
    alone = [H @ v for v in vectors]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda v: H @ v, vectors))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    del before["random"]
    after = state(model)
    assert before["modes"] == after["modes"]
    assert before["objects"] == after["objects"]


def test_a_model_that_has_grown_leaves_its_operator_as_it_was(model):
    model.eval()
    H = hs.hessian(model, data(), nn.MSELoss(), memory=0)
    before = H.dense()
    model.append(nn.Linear(2, 2).double())
    assert torch.equal(H.dense(), before)


INFERENCES = 5000
"""So many calls of the model must come while it is measured."""


def test_another_thread_infers_with_the_model_meanwhile():
    """Its outputs are the same to the last bit at every moment, whatever is measured."""
    case = problem("gpt")
    model, x = case.model.train(), case.x
    with torch.no_grad():
        expected = model(x)
    calls, done = [], threading.Event()

    def infer():
        with torch.no_grad():
            while not done.is_set():
                calls.append(torch.equal(model(x), expected) and model.training)

    monitor = hs.Monitor(model, case.data, case.loss, eval_mode=True)
    step = 0
    with ThreadPoolExecutor(1) as pool:
        inferring = pool.submit(infer)
        try:
            while len(calls) < INFERENCES:
                for memory in (None, 0):
                    H = hs.hessian(model, case.data, case.loss, eval_mode=True, memory=memory)
                    H.dense(), H.check(), H.ggn @ torch.ones(H.shape[0], dtype=torch.float64)
                hs.spectrum(model, case.data, case.loss, eval_mode=True)
                monitor.measure(step := step + 1)
        finally:
            done.set()
        inferring.result()
    assert all(calls)


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
        out, err = process.communicate(timeout=300)
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


@pytest.mark.parametrize("memory", [None, 0])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_an_operator_stays_while_training_goes_on(operator, memory):
    case = problem("batch_norm")
    options = {"memory": memory}
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
        part = H.restrict("blocks")
        H.check(), H.gradient(), part @ torch.ones(part.shape[0], dtype=torch.float64)
        leaf = weakref.ref(H.parameters.leaves[0])
        graph = weakref.ref(next(iter(H._graphs)))
        del H, part
        assert graph() is None
        assert leaf() is None
    finally:
        gc.enable()


GROWTH = """
import torch
from torch import nn
import hessence as hs

def peak():  # unlike ru_maxrss, this owes nothing to the process that started this one
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

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
start = peak()
for _ in range(50):
    use()
print(peak() - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_does_not_grow_with_the_number_of_operators():
    """Each has graphs of some 5 MB; in 50 of them there may be 20 MB of noise."""
    run = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 20_000


class Busy(nn.Module):
    """Changes all that a forward pass can change of a module."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.seen, self.mean = torch.zeros(1), torch.zeros(3)
        self.wide = self.mean.expand(4, 3)
        self.register_buffer("average", torch.zeros(3))
        self.numbers = np.zeros(3)

    def forward(self, x):
        self.seen += len(x)
        self.mean.lerp_(x.detach().mean(0).float(), 0.1)
        self.numbers[0] += 1
        self.seen.data.add_(1)
        self.average.data.add_(1)
        self.eval()
        self.more = nn.ReLU()
        self.register_forward_hook(lambda *_: None)
        return self.inner(x)


def test_whatever_a_forward_pass_changes_is_undone():
    model = Busy().double()
    before = state(model)
    H = hs.hessian(model, data(), each, reduction="mean", closure=True, memory=0)
    v = torch.ones(H.shape[0], dtype=torch.float64)
    assert torch.equal(H @ v, H @ v)
    assert_untouched(model, before)
    assert float(model.seen) == 0
    assert not model.mean.any()
    assert not model.numbers.any()
