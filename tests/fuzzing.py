"""Damaged files of every format that the library reads, loaded in a process with little memory.

As a program, ``python -m tests.fuzzing FOLDER COUNT SEED``, it loads `COUNT` damaged files one
after the other and prints what ended in anything but a sentence. The file at hand is in the folder,
should the process die.
"""

from __future__ import annotations

import copy
import faulthandler
import gzip
import json
import pickle
import resource
import signal
import struct
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

import hessence as hs
from hessence.models.history import History
from hessence.models.monitor import Monitor
from hessence.papers.experiments.datasets import MissingDataError, load_images
from hessence.papers.experiments.results import NothingToReportError, read_results
from hessence.papers.experiments.shared.byte_pairs import load_byte_pairs
from hessence.papers.experiments.shared.gpt2 import load_gpt2
from hessence.papers.experiments.shared.llama import LlamaShape
from hessence.papers.experiments.shared.llama2c import load_checkpoint, load_tokenizer
from hessence.papers.experiments.store import CorruptStoreError, Key, Row, open_store
from hessence.papers.recorded import merged, recorded_runs, run_of
from hessence.papers.results_page import results_page
from tests.papers.experiments.shared.gpt2_files import (
    random_weights,
    write_tensors,
    write_vocabulary,
)
from tests.papers.experiments.shared.llama2c_files import write_checkpoint, write_tokenizer

EXTRA = 2**30
"""How many bytes may be taken beyond what the process has when it is ready."""

LONGEST = 20
"""Seconds that one file may take."""

NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31), 2**62, 10**400, -0.0, 1e308, float("nan"), float("inf")]
OTHERS = [None, True, "", "a", "\ud800", "S999999999", "O", [], {}, [[]], [0.0], [1, [2]],
          {"number": "inf"},
          {"format": "hessence.trace/1"}, {"dtype": "S999999999", "shape": [1], "entries": [""]},
          {"dtype": "float64", "shape": [2**40], "entries": []}]  # fmt: skip


def model():
    """Return a small model with data and loss."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    return torch.nn.Sequential(*layers), (torch.ones(2, 3), torch.ones(2, 1)), torch.nn.MSELoss()


class Formats:
    """For each format: a whole file, and what reads it from a path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        H = hs.ScalarLinear([1.0, 2.0], [0.5, 1.0]).hessian([1.0, 2.0], [0.0, 1.0])
        net, x = hs.ScalarReLU([1.0, -2.0], [0.5, 1.0]), np.asarray([1.0, -1.0])
        monitor = Monitor(*model(), k=1, path=folder / "run.json")
        monitor.measure(0)
        results = [
            H.spectrum(), H.spectrum().verify(H), hs.eigenpairs(np.diag(np.arange(9.0)), 2),
            hs.density(np.diag(np.arange(99.0)), probes=2, steps=5), hs.trace(np.eye(99), 9),
            hs.gradient_descent(net, x, 2 * x, lr=0.1, steps=3), monitor.history,
            hs.spectrum(*model(), k=2), hs.layer_spectra(*model()), hs.hessian(*model()).check(),
        ]  # fmt: skip
        self.files = [
            (f"{i}.json", json.dumps(result.to_dict()).encode(), lambda p: _use(hs.load(p)))
            for i, result in enumerate(results)
        ]
        write_checkpoint(folder / "model.bin", LlamaShape(4, 6, 2, 2, 1, 7, 5))
        tokens = write_tokenizer(folder / "tokenizer.bin", [b"ab", b"abc"])
        write_tensors(folder / "gpt2", random_weights(3, 2, 64, layers=1))
        whole = folder / "whole"
        whole.mkdir()
        pairs = write_vocabulary(whole, (("a", "b"), ("ab", "c")))
        vocabulary, merges = whole / "vocab.json", whole / "merges.txt"
        images = struct.pack(">I3I", 0x803, 2, 3, 3) + bytes(range(18))
        batch = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [3]}
        self._results()
        with open_store(folder) as store:
            store.write(Key("a", "b", "c", 0), "{}", Row("{}", 0.5))
        self.files += [
            ("model.bin", (folder / "model.bin").read_bytes(), load_checkpoint),
            ("tokenizer.bin", (folder / "tokenizer.bin").read_bytes(),
             lambda p: load_tokenizer(p, tokens)),
            ("gpt2", (folder / "gpt2").read_bytes(), load_gpt2),
            ("vocab.json", vocabulary.read_bytes(), lambda p: load_byte_pairs(p, merges, pairs)),
            ("merges.txt", merges.read_bytes(), lambda p: load_byte_pairs(vocabulary, p, pairs)),
            ("mnist/train-images-idx3-ubyte", images, self._mnist),
            ("mnist/train-images-idx3-ubyte.gz", gzip.compress(images), self._mnist),
            ("cifar-10-batches-py/test_batch", pickle.dumps(batch, protocol=2), self._cifar),
            ("run.json", (folder / "run.json").read_bytes(), History.load),
            ("run.npz", (folder / "run.npz").read_bytes(), self._monitor),
            ("out/a/findings.json", (folder / "out/a/findings.json").read_bytes(), self._report),
            ("out/a/settings.json", (folder / "out/a/settings.json").read_bytes(), self._report),
            ("records.sqlite", (folder / "records.sqlite").read_bytes(), self._store),
        ]  # fmt: skip

    def _results(self):
        folder = self.folder / "out" / "a"
        folder.mkdir(parents=True)
        (folder / "figure.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        finding = {"id": "000-a", "holds": True, "evidence": "e", "criterion": "k", "searched": ""}
        stated = {"experiment": "a", "title": "t", "figures": ["000 F1"], "shows": "s",
                  "pictures": ["figure"], "captions": ["c"], "findings": [finding]}  # fmt: skip
        described = {"preset": "quick", "seed": 0, "tasks": 1, "seconds": 1.0, "changed": {},
                     "settings": {"a": 1}, "command": "hessence reproduce a",
                     "date": "2026-01-31", "machine": "m"}  # fmt: skip
        (folder / "findings.json").write_text(json.dumps(stated))
        (folder / "settings.json").write_text(json.dumps(described))

    def _mnist(self, path):
        labels = path.parent / "train-labels-idx1-ubyte"
        labels.write_bytes(struct.pack(">II", 0x801, 2) + b"\0\1")
        return load_images("mnist", folder=self.folder)

    def _cifar(self, path):
        return load_images("cifar10", "test", folder=self.folder)

    def _monitor(self, path):
        (self.folder / "run.json").write_bytes({n: c for n, c, _ in self.files}["run.json"])
        return Monitor(*model(), k=1, path=self.folder / "run.json").measure(1)

    def _report(self, path):
        results = read_results(self.folder / "out")
        told = [run.told for run in merged(map(run_of, results), recorded_runs())]
        return results_page(results).encode(), "".join(told).encode()

    def _store(self, path):
        with open_store(self.folder) as store:
            return store.read(Key("a", "b", "c", 0))


def _use(result):
    """Print a result, and see whether it can be saved and read again."""
    repr(result).encode()
    text = json.dumps(result.to_dict(), allow_nan=False)
    assert type(result).from_dict(json.loads(text)) == result


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with bytes changed, cut, repeated or, of JSON, parts replaced."""
    if content[:1] == b"{" and rng.random() < 0.6:
        data = json.loads(content)
        for _ in range(rng.integers(1, 4)):
            _replace(data, rng)
        return json.dumps(data).encode()
    changed = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 2, 4, 16]))):
        at = int(rng.integers(len(changed) + 1))
        match int(rng.integers(5)):
            case 0:
                changed[at : at + 1] = rng.bytes(1)
            case 1:
                del changed[at : at + int(rng.integers(1, 64))]
            case 2:
                changed[at:at] = changed[max(0, at - 32) : at] * int(rng.integers(1, 50))
            case 3:
                changed[at : at + 4] = struct.pack(
                    "<I", int(rng.choice([0, 1, 2**31 - 1, 2**32 - 1]))
                )
            case _:
                changed[at : at + 4] = struct.pack(">I", int(rng.choice([2**31 - 1, 2**30, 65536])))
    if rng.random() < 0.02:
        changed = bytearray(b"[" * 10**5)
    return bytes(changed)


def _replace(data, rng):
    """Replace one part, somewhere in lists and dictionaries."""
    while isinstance(data, (dict, list)) and data:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(data[key], (dict, list)) or not data[key] or rng.random() < 0.3:
            pool = NUMBERS if rng.random() < 0.5 else OTHERS
            data[key] = copy.deepcopy(pool[int(rng.integers(len(pool)))])
            return
        data = data[key]


def main(folder: Path, count: int, seed: int) -> int:
    """Load damaged files; return how many ended in anything but a sentence."""
    faulthandler.enable()
    rng, formats, faults = np.random.default_rng(seed), Formats(folder), 0
    whole = {name: content for name, content, _ in formats.files}
    for name, content, read in formats.files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        read(folder / name)
        if name.startswith("mnist"):
            (folder / name).unlink()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA, used + EXTRA))
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("too long")))
    warnings.simplefilter("ignore")
    refused = 0
    for i in range(count):
        name, content, read = formats.files[int(rng.integers(len(formats.files)))]
        path = folder / name
        path.write_bytes(damaged(content, rng))
        signal.alarm(LONGEST)
        try:
            read(path)
        except (ValueError, MissingDataError, NothingToReportError, CorruptStoreError) as error:
            refused += 1
            if "\n" in str(error) or len(str(error)) > 600:
                faults += 1
                print(f"{name} {i}: not one sentence: {str(error)[:200]!r}", flush=True)
        except BaseException as error:
            faults += 1
            print(f"{name} {i}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        finally:
            signal.alarm(0)
        path.unlink(missing_ok=True)
        if not name.startswith("mnist"):
            path.write_bytes(whole[name])
    print(f"{count} files, {refused} refused, {faults} faults", flush=True)
    return faults


if __name__ == "__main__":
    found = main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.exit(1 if found else 0)
