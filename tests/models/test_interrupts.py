"""Interrupts at any moment, and threads that infer or train meanwhile: nobody is worse off."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import hessence as hs
from hessence.models.history import History
from tests.models.market import numbers
from tests.models.oracle import assert_same
from tests.models.untouched import assert_untouched, state


class Everything(nn.Module):
    """Attention of both kinds, checkpoints of both kinds, and a count that every run moves."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.inward, self.outward = nn.Linear(3, 4), nn.Linear(4, 1)
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.register_buffer("count", torch.ones(()))
        self.calls = 0
        self.double()

    def forward(self, x):
        z = self.inward(x)
        for reentrant in (False, True):
            z = checkpoint(self._middle, z, use_reentrant=reentrant)
        z = z + F.scaled_dot_product_attention(z, z, z, is_causal=True)
        if self.training:
            self.count += 1
        return self.outward(self.layer(z)) * self.count

    def _middle(self, z):
        self.calls += 1
        return torch.tanh(z)


def settings():
    """All that PyTorch is set to, for the process and for this thread."""
    cuda = torch.backends.cuda
    return (
        cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(),
        torch.utils.checkpoint.CheckpointFunction, torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        # PyTorch may put a mode back on late, which does nothing then.
        [mode for mode in _get_current_function_mode_stack() if getattr(mode, "active", True)],
        torch.is_autocast_enabled("cpu"), torch._dynamo.eval_frame._stance.stance,
    )  # fmt: skip


@pytest.fixture(scope="module")
def case():
    model = Everything()
    data = [(numbers(2, 3, 3), numbers(2, 3, 1)) for _ in range(2)]
    H = hs.hessian(model, data, nn.MSELoss(), memory=0)
    v = torch.ones(H.shape[0], dtype=torch.float64)
    return model, data, H, v, H @ v


WORK = {
    "product": lambda model, data, H, v: H @ v,
    "operator": lambda model, data, H, v: hs.hessian(model, data, nn.MSELoss()).ggn @ v,
    "check": lambda model, data, H, v: H.check(),
    "monitor": lambda model, data, H, v: hs.Monitor(model, data, nn.MSELoss(), tol=0.5).measure(0),
}


# Python swallows an interrupt that comes while an object is cleared away, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@given(st.sampled_from(sorted(WORK)), st.floats(1e-5, 0.03), st.sampled_from([True, False]))
def test_interrupts_at_any_moment(case, name, delay, recording):
    model, data, H, v, expected = case
    before, unswitched = state(model), settings()
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with torch.set_grad_enabled(recording):
            signal.setitimer(signal.ITIMER_REAL, delay)
            WORK[name](model, data, H, v)
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    found = settings()
    torch.set_grad_enabled(True)
    assert found == unswitched
    assert_untouched(model, before)
    assert torch.equal(H @ v, expected)


def test_another_thread_infers_and_trains_meanwhile(case):
    """It gets the same bits as if it were alone, and its checkpoints run things twice."""
    model, data, H, v, expected = case
    (x, y), done = data[0], threading.Event()
    model.eval()
    output, twin = model(x).detach(), Everything()
    nn.functional.mse_loss(twin(x), y).backward()

    def infer_and_train():
        rounds = wrong = 0
        while not done.is_set():
            wrong += not torch.equal(model(x), output)
            mine = Everything()
            nn.functional.mse_loss(mine(x), y).backward()
            wrong += mine.calls != 4
            wrong += not torch.equal(mine.inward.weight.grad, twin.inward.weight.grad)
            rounds += 1
        return rounds, wrong

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(infer_and_train)
        try:
            for _ in range(20):
                assert_same(H @ v, expected)
                hs.ggn(model, data, nn.MSELoss()) @ v
        finally:
            done.set()
        rounds, wrong = other.result()
    model.train()
    assert rounds > 5
    assert wrong == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    data = numbers(20, 3), numbers(20, 1)
    H = hs.hessian(model, data, nn.MSELoss()).dense()
    path = tmp_path_factory.mktemp("killed") / "run.json"
    return model, data, path, float(torch.linalg.eigvalsh(H)[-1])


@given(st.floats(0, 0.02))
def test_kills_while_a_monitor_writes_its_files(trained, delay):
    """What is in the files is whole, and the next run goes on with it."""
    model, data, path, sharpness = trained
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of the test's own may run in the child, whatever happens there.
        try:
            monitor = hs.Monitor(model, data, nn.MSELoss(), path=path)
            start = int(monitor.history.steps[-1]) + 1 if len(monitor.history) else 0
            for step in range(start, start + 10_000):
                monitor.measure(step)
                if step == start:
                    os.write(told, b"!")
        finally:
            os._exit(1)
    try:
        os.close(told)
        assert os.read(ready, 1) == b"!"
        time.sleep(delay)
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    left = History.load(path)
    assert list(left.steps) == list(range(len(left)))
    monitor = hs.Monitor(model, data, nn.MSELoss(), path=path)
    assert monitor.history == left
    record = monitor.measure(len(left))
    assert record.sharpness == pytest.approx(sharpness, abs=float(record.errors[0]) + 1e-12)
    assert History.load(path) == monitor.history
    # The next process sweeps what a killed one was writing.
    assert len(os.listdir(path.parent)) <= 4
    if len(left) > 300:
        path.unlink()
