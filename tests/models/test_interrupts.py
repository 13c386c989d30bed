"""Ctrl-C at any moment leaves the user's model as it was."""

import signal
import threading

import pytest
import torch
from torch import nn

import hessence as hs
from hessence.models.interrupts import HeldBack


class Counting(nn.Module):
    """A small model with something of everything that is put back."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)
        self.norm = nn.BatchNorm1d(4)
        self.calls, self.log = torch.zeros(1), []

    def forward(self, x):
        self.calls += 1
        self.log.append(1)
        return self.last(self.drop(self.norm(torch.tanh(self.first(x)))))


def test_an_interrupt_at_any_moment():
    torch.manual_seed(0)
    model, x, y = Counting(), torch.randn(6, 3), torch.randn(6, 1)
    own = dict(model.named_parameters())
    H = hs.hessian(model, (x, y), eval_mode=True)
    H.loss()

    def interrupt(*_):
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, interrupt)
    users = signal.getsignal(signal.SIGINT)
    seen = 0
    try:
        for i in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + 1e-5 * (i % 100))
                for _ in range(10_000):
                    H.loss()
            except KeyboardInterrupt:
                seen += 1
            assert all(p is own[name] for name, p in model.named_parameters())
            assert all(module.training for module in model.modules())
            assert (float(model.calls), model.log) == (0.0, [])
            assert signal.getsignal(signal.SIGINT) is users
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # Python itself swallows one that comes while it clears something away.
    assert seen > 290


def before_the_end(interrupts, steps):
    signal.raise_signal(signal.SIGINT)
    steps.append("held back")


def before_it_is_let_through(interrupts, steps):
    before_the_end(interrupts, steps)
    interrupts.interruptible(lambda: steps.append("too late"))


def after_it_was_let_through(interrupts, steps):
    interrupts.interruptible(lambda: None)
    before_the_end(interrupts, steps)


def inside(interrupts, steps):
    def work():
        steps.append("held back")  # until here
        signal.raise_signal(signal.SIGINT)
        steps.append("too late")

    interrupts.interruptible(work)


@pytest.mark.parametrize(
    "work", [before_the_end, before_it_is_let_through, after_it_was_let_through, inside]
)
def test_an_interrupt_waits_and_comes(work):
    steps = []
    with pytest.raises(KeyboardInterrupt), HeldBack() as interrupts:
        work(interrupts, steps)
    assert steps == ["held back"]


def test_other_threads_and_other_handlers_are_left_alone():
    users = signal.getsignal(signal.SIGINT)
    found = []

    def work():
        with HeldBack():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [users]
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with HeldBack():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, users)
