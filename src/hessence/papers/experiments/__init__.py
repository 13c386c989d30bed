'''Every figure of the papers by one command, and the frame that new experiments fit into.

::

    hessence reproduce --list
    hessence reproduce relu-cells
    hessence reproduce data-scale --preset paper --set widths=10,1000 --jobs 2
    hessence reproduce --all --cluster local:4 --out out
    hessence report out

Adding an experiment
--------------------
Add one file to ``experiments/figures/``; nothing else changes. The file holds a frozen dataclass
of settings, four functions, and an ``EXPERIMENT`` that ties them together::

    """The gap between the outliers, by width (000 Figure 99)."""

    @dataclass(frozen=True)
    class Settings:
        widths: tuple[int, ...] = (10, 100)     # int, float, bool, str, Literal["a", "b"],
        draws: int = 20                         # tuples of these, and X | None
        noise: Annotated[float, at_least(0)] = 0.1

        def __post_init__(self) -> None:        # optional: a ValueError is shown to the user
            if self.draws < len(self.widths):
                raise ValueError("draws must be at least as many as widths")

    def tasks(settings: Settings) -> Iterator[Task]:
        for width, draw in product(settings.widths, range(settings.draws)):
            yield {"width": width, "draw": draw}

    def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
        w, v = rng.normal(size=(2, task["width"]))
        ...
        return {"gap": gap}

    def draw(settings: Settings, records: list[Record], figure: Figure) -> None:
        figure.set_size_inches(11, 4.2)
        left, right = figure.subplots(1, 2)
        left.plot([r["width"] for r in records], [r["gap"] for r in records], "o")

    def findings(settings: Settings, records: list[Record]) -> list[Finding]:
        worst = max(r["gap"] for r in records)
        return [Finding("000-gap", worst < 1, f"largest gap {worst:.2f}", "a gap below 1")]

    EXPERIMENT = Experiment(id="outlier-gap", title=..., figures=("000 F99",), shows=..., presets={
        "tiny": Settings((3,), 2), "quick": Settings(), "paper": Settings(draws=100)}, tasks=tasks,
        run=run, draw=draw, findings=findings, minutes={"quick": 0.1, "paper": 2})

``figures/relu_cells.py`` is a complete example. The rules:

- **Settings.** ``tiny`` runs within a second or two and is for the tests; ``quick`` takes minutes
  at most; ``paper`` is the paper's own setting. Everything a researcher might want to change is a
  field: ``--set field=value`` changes it without touching the file. Whole numbers are at least 1,
  other numbers positive and tuples not empty, unless the annotation says otherwise
  (``settings``); conditions between fields go to ``__post_init__``.
- **A task** is a small dictionary in JSON's types, different from all other tasks. Tasks share
  nothing: they run in any order, in any process, perhaps on another machine, and each is kept as
  soon as it is finished. Some seconds to minutes for each is right; a task may be a whole batch of
  networks. Work that is much shorter is better done in one task.
- **run** takes all randomness from ``rng``, which depends on the seed, the experiment's id and the
  task, and nothing else; for PyTorch, ``torch.Generator().manual_seed(int(rng.integers(2**63)))``.
  Tasks that should draw the same numbers, such as one network at several scales of its data, differ
  only in fields named in ``Experiment(common=("scale",))``. It returns a dictionary of numbers,
  strings, lists and dictionaries of them; NumPy's kinds are converted, NaN and infinity are kept.
  Its fields must not repeat those of the task.
- **Records** come to ``draw`` and ``findings`` in the order of the tasks, each with the fields of
  its task and those that ``run`` returned. They have been through JSON: tuples and arrays are
  lists.
- **draw** gets an empty matplotlib figure with constrained layout and fills it. Colours are in
  :mod:`hessence.plotting.axes`. Where the same records make several figures, ``draw`` is a
  dictionary from file names to functions. The first line of a function's docstring is the picture's
  caption: a sentence that says what one sees.
- **findings** names every statement of the ledger that the figure stands for (or states one of your
  own), and tells whether the records show it (None where these settings cannot tell), the numbers
  that decide, the criterion, which is fixed before the run, and the settings that were searched for
  until the effect showed, if there were any.
- **Imports.** Listing experiments imports every file: heavy packages are imported inside ``run``
  and named in ``Experiment(packages=("torch",))``. Helpers shared by several experiments go to
  ``experiments/shared/``.
- **Data.** ``Experiment(data=lambda settings: (settings.data,))`` names data sets of
  :mod:`hessence.papers.experiments.datasets`; a missing one is told before anything runs.
- **Threads.** Linear algebra runs on one thread in each task, so that records do not depend on the
  number of workers; ``Experiment(threads=2)`` changes that for one experiment.

An edit of ``run``, of anything in the file that it calls, or of any file of the library makes
earlier records void, as new settings do; an edit of ``draw`` or ``findings`` does not. The same
file may live anywhere: ``hessence reproduce my/outlier_gap.py``.

How it runs
-----------
``catalogue`` finds experiments, ``settings`` parses and limits their settings, ``runner`` asks the
``store`` which ``records`` are missing and hands these tasks to an engine (``engines``,
``dask_engine``) as ``jobs``; ``fingerprints`` tells which code made a record. ``outputs`` writes
the folder, and ``results`` reads it again.
'''

from hessence.papers.experiments.protocol import Experiment, Finding, Record, Task

__all__ = ["Experiment", "Finding", "Record", "Task"]
