"""Data-parallel runs: every process has a share, and all get the answer of the whole."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.models import shares
from tests.models.oracle import assert_same

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each of two processes was answered, and one that has all data."""
    folder = tmp_path_factory.mktemp("ranks")
    runs = [(0, 2), (1, 2), (0, 1)]
    with ExitStack() as stack:
        started = []
        for rank, world in runs:
            log = stack.enter_context((folder / f"log-{world}-{rank}").open("w+"))
            command = [sys.executable, "-m", shares.__name__, str(rank), str(world), str(folder)]
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append((process, log))
        for process, log in started:
            code = process.wait(timeout=300)
            log.seek(0)
            assert code == 0, log.read()
    return [torch.load(folder / f"answers-{world}-{rank}.pt") for rank, world in runs]


def test_all_processes_get_the_same_bit_by_bit(answers):
    first, second, _ = answers
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different


def test_it_is_the_answer_for_all_data(answers):
    first, _, alone = answers
    assert first.keys() == alone.keys()
    assert len(first) > 50
    for name, answer in first.items():
        # Eigenvectors carry the solver's tolerance, and the density that of its starting vectors.
        loose = "eigenvectors" in name or name == "density"
        assert_same(answer, alone[name], 1e-8 if loose else 1e-12)


def test_what_is_exact_for_all_data_is_exact_for_shares(answers):
    for found in answers:
        assert found["exact"] == 1
        assert found["exact without joining"] == 1
        assert found["not exact"] == 0
        assert len(found["exact eigenvalues"]) == 1050


def test_the_checks_pass(answers):
    for found in answers:
        assert all(value == 1 for name, value in found.items() if "check" in name)


def test_what_one_process_refuses_all_refuse(answers):
    assert all(float(answer["refused"]) == 1 for answer in answers)
