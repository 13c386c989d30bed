"""One of several processes with a monitor each: ``monitored_shares.py rank world folder``.

Each has its own folder for results; all name the same file for the history.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from hessence.models.monitor import Monitor


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    if world > 1:
        store = f"file://{folder.resolve()}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    x = torch.randn(50, 6).double()
    y = x[:, :3].argmax(dim=1)
    mine = (x, y) if world == 1 else (x[:32], y[:32]) if rank == 0 else (x[32:], y[32:])
    # A folder that only the first process can see has the file.
    path = folder / f"seen-by-{world}-{rank}"
    path.mkdir()
    for first, last in ((0, 4), (4, 8)):
        monitor = Monitor(
            model, mine, nn.CrossEntropyLoss(), k=2, trace=20, refresh=3, path=path / "run.json"
        )
        for step in range(first, last):
            monitor.measure(step)
            with torch.no_grad():
                for p in model.parameters():
                    p *= 1.01
    monitor.history.save(folder / f"history-{world}-{rank}.json")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
