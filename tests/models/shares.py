"""One of several processes, each with its share of the data: ``shares.py rank world folder``.

Every process writes what it was answered into the folder; a world of one has all data.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hessence as hs

SHARES = (20, 13)


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    if world > 1:
        store = f"file://{folder.resolve()}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    x, classes = torch.randn(33, 4).double(), torch.randint(3, (33,))
    # All of the second share's targets but four are ignored.
    classes[24:] = -100
    if world > 1:
        x, classes = x.split(SHARES)[rank], classes.split(SHARES)[rank]
    wrapped = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    answers = dict(ask(model, wrapped, x, classes))
    torch.save(answers, folder / f"answers-{world}-{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


def ask(model, wrapped, x, classes):
    """Yield names and answers."""
    real = torch.stack([x[:, 0] * x[:, 1], x[:, 2], x[:, 3].sin()], dim=1)

    def weighted(model, batch):
        counted = (batch[1] != -100).sum()
        return F.cross_entropy(model(batch[0]), batch[1]), counted

    # A sum whose value is zero on all of the first share.
    both = x.new_tensor([1e3] * SHARES[0] + [0.1] * SHARES[1])[:, None].expand(-1, 3)
    margins = both[: len(x)] if len(x) > SHARES[1] else both[SHARES[0] :]

    def hinge(f, y):
        return torch.relu(1 - y * (f * f + 0.1)).pow(2).sum()

    def fourth_powers(f, y):
        return (f - y).pow(4).mean()

    loader = DataLoader(TensorDataset(x, classes), batch_size=7, shuffle=True)
    operators = {
        "hessian": hs.hessian(model, (x, classes), nn.CrossEntropyLoss()),
        "ggn": hs.ggn(model, (x, classes), nn.CrossEntropyLoss()),
        "sum": hs.hessian(model, (x, real), nn.MSELoss(reduction="sum")),
        "default": hs.hessian(model, (x, real)),
        "own mean": hs.hessian(
            model, (x, real), lambda f, y: (f - y).pow(4).mean(), reduction="mean"
        ),
        "own sum": hs.hessian(model, (x, real), lambda f, y: (f - y).pow(4).sum(), reduction="sum"),
        "own hinge": hs.hessian(model, (x, margins), hinge, reduction="sum"),
        "closure hinge": hs.hessian(
            model,
            (x, margins),
            lambda model, b: hinge(model(b[0]), b[1]),
            reduction="sum",
            closure=True,
        ),
        "closure": hs.hessian(model, (x, classes), weighted, closure=True),
        "loader": hs.hessian(model, loader, nn.CrossEntropyLoss(), memory=0),
        "wrapped": hs.hessian(wrapped, (x, classes), nn.CrossEntropyLoss()),
        "wrapped ggn": hs.ggn(wrapped, (x, classes), nn.CrossEntropyLoss(), params="2"),
    }
    for name, H in operators.items():
        v = torch.linspace(-1, 1, H.shape[0], dtype=torch.float64)
        yield f"{name}: product", H @ v
        yield f"{name}: dense", H.dense()
        yield f"{name}: loss", torch.tensor(H.loss())
        yield f"{name}: gradient", H.gradient()
        yield f"{name}: check", torch.tensor(float(H.check().passed))
    H = hs.hessian(model, (x, classes), nn.CrossEntropyLoss())
    yield "gradient before any product", H.gradient()
    yield "loss before any product", torch.tensor(H.ggn.loss())
    for name in ("hessian", "ggn"):
        pairs = hs.eigenpairs(operators[name], k=3, tol=1e-10)
        assert pairs.method == "Lanczos"
        yield f"{name}: eigenvalues", pairs.eigenvalues
        yield f"{name}: eigenvectors", pairs.eigenvectors.abs()
    yield "density", torch.as_tensor(hs.density(operators["hessian"], probes=3, steps=10).values)
    linear = nn.Sequential(nn.Linear(4, 150, bias=False), nn.Linear(150, 3, bias=False)).double()
    found = hs.spectrum(linear, (x, real))
    yield "exact", torch.tensor(float(found.exact))
    yield "exact eigenvalues", found.eigenvalues
    # The last batch has another shape, so that only the process that has it cannot join its own.
    first, last = (x[:-1], real[:-1]), (x[-1:], real[-1:])
    odd = [(x, real)] if len(x) == SHARES[0] else [first, tuple(part[:, None] for part in last)]
    found = hs.spectrum(linear, odd)
    yield "exact without joining", torch.tensor(float(found.exact))
    yield "their eigenvalues", found.eigenvalues
    # Without memory a single batch is kept and several are not: only one process can look into it.
    batches = [(x, real)] if len(x) == SHARES[0] else [first, last]
    estimated = hs.spectrum(linear, batches, tol=1e-10, memory=0)
    assert estimated.method == "Lanczos"
    yield "not exact", torch.tensor(float(estimated.exact))
    yield "estimated eigenvalues", estimated.eigenvalues
    # NaN in the second share alone; all processes must stop.
    spoilt = x.clone()
    if len(x) != SHARES[0]:
        spoilt[-SHARES[1]] = torch.nan
    try:
        hs.spectrum(model, (spoilt, real))
    except ValueError as error:
        yield "refused", torch.tensor(float("data holds NaN" in str(error)))
    yield "trace", torch.as_tensor(hs.trace(operators["hessian"], products=20).value)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
