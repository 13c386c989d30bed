"""Run all benchmarks, or those named: ``python -m benchmarks [names]``."""

import sys

from benchmarks import (
    attention,
    brackets,
    dual,
    exact_models,
    few_samples,
    kernels,
    linear,
    memory,
    relu,
    scalar,
    torch_models,
)
from benchmarks.timing import print_table

ALL = {
    "scalar": scalar,
    "linear": linear,
    "relu": relu,
    "attention": attention,
    "exact_models": exact_models,
    "brackets": brackets,
    "few_samples": few_samples,
    "dual": dual,
    "torch_models": torch_models,
    "memory": memory,
    "kernels": kernels,
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(ALL)
    unknown = [name for name in names if name not in ALL]
    if unknown:
        sys.exit(f"benchmarks: unknown {', '.join(unknown)}; there are {', '.join(ALL)}.")
    print_table(row for name in names for row in ALL[name].comparisons())
