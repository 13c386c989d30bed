"""What an experiment is made of."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from hessence.papers.experiments.settings import require_limits
from hessence.papers.outcomes import word

Settings = TypeVar("Settings")
Task = Mapping[str, Any]
Record = dict[str, Any]

PRESETS = ("tiny", "quick", "paper")


@dataclass(frozen=True)
class Finding:
    """Whether the records of an experiment show what a paper says.

    Parameters
    ----------
    id : str
        The statement of the ledger that this is evidence for; several are separated by spaces. An
        experiment of your own may have a sentence here.
    holds : bool or None
        None if these settings cannot tell.
    evidence : str
        The numbers that decide it.
    criterion : str
        What is asked for, fixed before the run: ``"less than 10 % in the median"``.
    searched : str
        Which setting was searched for until the effect showed, if any.
    condition : str or None
        On what it is judged, if without that it fails or is left open: ``"D > 1"``.
    """

    id: str
    holds: bool | None
    evidence: str
    criterion: str = ""
    searched: str = ""
    condition: str | None = None

    def __post_init__(self) -> None:
        # Comparisons of NumPy numbers are not Python's bool, which JSON insists on.
        object.__setattr__(self, "holds", None if self.holds is None else bool(self.holds))

    @property
    def word(self) -> str:
        """What came out, in a word or a few."""
        return word(self.holds, self.condition)

    @property
    def ids(self) -> list[str]:
        """The statements of the ledger that it is evidence for."""
        return self.id.split()


def no_data(settings: Any) -> Sequence[str]:
    """Return no data sets: the experiment draws all its data itself."""
    return ()


@dataclass(frozen=True)
class Experiment(Generic[Settings]):
    """One experiment: its settings, its independent tasks, its picture and its findings.

    The package's docstring tells authors what each part has to do.

    Parameters
    ----------
    id : str
        Lower-case words joined by hyphens; also the name of the output folder.
    title, shows : str
        A heading, and one sentence without a full stop: what the figure shows.
    figures : tuple of str
        The papers' figures, such as ``("000 F1", "001 F2")``.
    presets : mapping of str to settings
        Instances of one frozen dataclass under ``tiny``, ``quick`` and ``paper``.
    tasks, run, draw, findings : callable
        The four functions. `draw` may also be a mapping from names to functions, where the same
        records make several figures. A function's docstring is the figure's caption.
    minutes : mapping of str to float
        Rough time for ``quick`` and ``paper``: on one core, or on one GPU where `gpu` says so.
    common : tuple of str
        Fields of a task that its random numbers do not depend on: tasks that differ only in these
        draw the same numbers.
    data : callable
        Settings → names of data sets (see :mod:`hessence.papers.experiments.datasets`).
    packages : tuple of str
        Modules beyond the library's own needs, such as ``("torch",)``.
    threads : int
        Threads of linear algebra within a task, the same whatever the number of workers.
    gpu : tuple of str
        Presets that ask for a GPU: without one they run too, but for too long to wait for.
    source : str
        The file, for experiments that are not part of the library.
    """

    id: str
    title: str
    figures: tuple[str, ...]
    shows: str
    presets: Mapping[str, Settings]
    tasks: Callable[[Settings], Iterable[Task]]
    run: Callable[[Settings, Task, np.random.Generator], Record]
    draw: (
        Callable[[Settings, list[Record], Any], None]
        | Mapping[str, Callable[[Settings, list[Record], Any], None]]
    )
    findings: Callable[[Settings, list[Record]], Sequence[Finding]]
    minutes: Mapping[str, float]
    common: tuple[str, ...] = ()
    data: Callable[[Settings], Sequence[str]] = no_data
    packages: tuple[str, ...] = ()
    threads: int = 1
    gpu: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.id):
            raise ValueError(f"id must be lower-case words joined by hyphens, got {self.id!r}.")
        if missing := [name for name in PRESETS if name not in self.presets]:
            raise ValueError(f"{self.id}: presets must hold {', '.join(missing)}.")
        for settings in self.presets.values():
            require_limits(settings)
        if len({type(settings) for settings in self.presets.values()}) != 1:
            raise ValueError(f"{self.id}: all presets must be of one class.")
        settings = self.presets["quick"]
        if not dataclasses.is_dataclass(settings) or not type(settings).__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise ValueError(f"{self.id}: settings must be a frozen dataclass.")
        if missing := [name for name in ("quick", "paper") if name not in self.minutes]:
            raise ValueError(f"{self.id}: minutes must hold {', '.join(missing)}.")
        if unknown := [name for name in self.gpu if name not in self.presets]:
            raise ValueError(f"{self.id}: gpu must name presets, got {', '.join(unknown)}.")

    @property
    def pictures(self) -> Mapping[str, Callable[[Settings, list[Record], Any], None]]:
        """The drawing functions by the names of their files."""
        return self.draw if isinstance(self.draw, Mapping) else {"figure": self.draw}

    @property
    def captions(self) -> dict[str, str]:
        """What one sees in each picture: its function's docstring."""
        return {
            name: " ".join((inspect.getdoc(draw) or "").split())
            for name, draw in self.pictures.items()
        }
