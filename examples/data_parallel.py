"""One spectrum from data that are spread over processes.

Run with

    torchrun --nproc-per-node 2 examples/data_parallel.py

or, without torchrun, as a single process that has all data. Every process makes the same model and
holds its own share of the samples; nothing else changes. With one GPU for each process, the backend
is "nccl" and the model goes to the process' device.
"""

import os

import torch
import torch.distributed as dist
from torch import nn

import hessence as hs

parallel = "RANK" in os.environ
if parallel:
    dist.init_process_group("gloo")
rank, world = (dist.get_rank(), dist.get_world_size()) if parallel else (0, 1)

# The same seed everywhere: all processes must hold the same weights.
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 80), nn.Tanh(), nn.Linear(80, 3)).double()
x, y = torch.randn(101, 10).double(), torch.randint(3, (101,))
loss = nn.CrossEntropyLoss()

# Shares may differ in size, but no sample may be in two of them: a DistributedSampler would repeat
# some to make the shares even.
share = x[rank::world], y[rank::world]
spectrum = hs.spectrum(model, share, loss, k=5)

if rank == 0:
    print(spectrum)

if parallel:
    dist.destroy_process_group()

# The answer is that of all data in one place.
alone = hs.spectrum(model, (x, y), loss, k=5)
assert float((spectrum.eigenvalues - alone.eigenvalues).abs().max()) < 1e-9
