"""An experiment that takes its time, keeps a diary of every task it begins, and fails on demand."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hessence.papers.experiments import Experiment, Finding
from hessence.papers.experiments.settings import at_least, may_be_empty

OPEN = 4
"""So many tasks go through while there is a file ``closed`` in the diary."""

Draws = Annotated[tuple[Annotated[int, at_least(0)], ...], may_be_empty]


@dataclass(frozen=True)
class Settings:
    tasks: int = 12
    seconds: Annotated[float, at_least(0)] = 0.1
    scale: float = 1.0
    broken: Draws = ()
    deadly: Draws = ()
    diary: str = ""


def tasks(settings):
    return [{"draw": i} for i in range(settings.tasks)]


def run(settings, task, rng):
    if settings.diary:
        Path(settings.diary, f"{task['draw']}-{os.getpid()}-{time.time_ns()}").touch()
    time.sleep(settings.seconds)
    while task["draw"] >= OPEN and Path(settings.diary or "nowhere", "closed").exists():
        time.sleep(0.02)
    if task["draw"] in settings.broken:
        raise ArithmeticError("this one never works")
    if task["draw"] in settings.deadly:
        # Once, if there is a diary to show whether it has happened before.
        grave = Path(settings.diary or "nowhere", f"grave-{task['draw']}")
        if not grave.exists():
            if settings.diary:
                grave.touch()
            os.kill(os.getpid(), 9)
    values = settings.scale * rng.normal(size=3)
    return {
        "values": values,
        "norm": (values @ values) ** 0.5,
        "sign": "+" if values[0] > 0 else "-",
    }


def draw(settings, records, figure):
    figure.subplots().plot([record["norm"] for record in records], "o")


def findings(settings, records):
    return [Finding("norms are positive", all(r["norm"] > 0 for r in records), "looked")]


EXPERIMENT = Experiment(
    id="sleeper",
    title="Sleeping",
    figures=("000 F0",),
    shows="nothing in particular",
    presets={"tiny": Settings(2, 0.0), "quick": Settings(), "paper": Settings(100)},
    tasks=tasks,
    run=run,
    draw=draw,
    findings=findings,
    minutes={"quick": 0.02, "paper": 0.2},
)
