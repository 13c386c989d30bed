"""Run all benchmarks: ``python -m benchmarks``."""

from benchmarks import scalar
from benchmarks.timing import print_table

if __name__ == "__main__":
    print_table(scalar.comparisons())
