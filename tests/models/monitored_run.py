"""A training script with a monitor and checkpoints: ``monitored_run.py folder [pause]``.

Started again, it goes on from its last checkpoint. It says each step it has measured and, with
``pause``, waits for a line after it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

from hessence.models.monitor import Monitor

STEPS = 30
CHECKPOINT = 7


def main(folder: Path, pause: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)).double()
    x = torch.randn(80, 6).double()
    y = x[:, :3].argmax(dim=1)
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    first = 0
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt")
        model.load_state_dict(saved["model"])
        first = saved["step"]
    monitor = Monitor(model, (x, y), loss, k=2, lr=0.3, path=folder / "run.json")
    for step in range(first, STEPS):
        if step % CHECKPOINT == 0:
            torch.save({"model": model.state_dict(), "step": step}, folder / "new.pt")
            os.replace(folder / "new.pt", folder / "checkpoint.pt")
        monitor.measure(step)
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
        if pause:
            sys.stdin.readline()
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), pause="pause" in sys.argv)
