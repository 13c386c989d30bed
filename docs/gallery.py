"""Make the gallery, the table of all items and the record of runs from folders of results.

::

    hessence reproduce --all --jobs 2 --out out
    python docs/gallery.py out

Several folders may be named, such as one with runs of the preset ``paper`` beside it. Runs that
were recorded before and are not in a folder stay in the record, and their pictures in the gallery;
without any folder, the pages are made from the record alone.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence, Set
from pathlib import Path

from hessence.papers import PAPERS
from hessence.papers.claims.ledger import all_claims, one_thread
from hessence.papers.experiments.catalogue import all_experiments
from hessence.papers.experiments.protocol import PRESETS
from hessence.papers.experiments.results import read_results
from hessence.papers.items import QUICK_ONLY, Item, all_items
from hessence.papers.judgements import Judgement, judge_claim, numbers, sentence
from hessence.papers.recorded import FILE, Run, as_text, duration, merged, recorded_runs, run_of

HOME = Path(__file__).parent
SCALE = 2 / 3
"""Pictures have 150 pixels an inch. The page has 100, so that letters are of one size in all."""

GALLERY = """# Gallery

The figures of the papers, drawn again, and what came out. Runs of the preset `quick` take minutes;
runs of `paper` have the papers' own sizes. `hessence reproduce --all --jobs 2 --out out` and
`python docs/gallery.py out` make this page. [Another page](papers.md) lists every item of the
papers with its verdict. These are the papers, with the numbers by which `hessence claims` names
them:

{papers}

The figures:

{links}
"""
TABLE = """# The papers, item by item

{count} theorems, formulas, sentences and figures of five documents, each with its verdict and the
evidence for it. `python docs/gallery.py` makes this page from the ledger (`hessence claims`) and
from the recorded runs of the experiments (`hessence reproduce`); `hessence claims ID` shows the
numbers. One counterexample of any size refutes a theorem or a formula, unless a condition rules it
out: then it holds on that condition. The largest run decides what a paper measured; if that run
cannot tell, nothing smaller does.

{summary}

Criteria were fixed before the runs, except for {revised} that were [changed after numbers were
seen](#criteria-changed-after-numbers-were-seen). [The last section](#the-runs) lists the runs. The
papers:

{papers}
"""

CHANGED = (
    "All other criteria came before the numbers, as far as the history of the code tells. Where a "
    "setting was searched for until the effect showed, the run names it under *searched for*."
)

TIMES = (
    "Computing times are those of all tasks together. Many were taken by the clock while the "
    "machine had other work, and are too long for that: `hessence reproduce --all --jobs 2`, which "
    "is all of the quick runs, took 17 minutes on two cores."
)


def main(folders: Sequence[Path], home: Path = HOME, record: Path = FILE) -> None:
    """Write the record of runs, both pages and the pictures."""
    results = [result for folder in folders for result in read_results(folder)]
    results = [result for result in results if result.stated["experiment"] in all_experiments()]
    runs = merged(map(run_of, results), recorded_runs())
    record.write_text(as_text(runs), encoding="utf-8")
    pictures = home / "gallery"
    pictures.mkdir(exist_ok=True)
    for result in results:
        run = run_of(result)
        for name, content in result.pictures.items():
            (pictures / file_name(run, name)).write_bytes(small(content))
    shown = {
        file_name(run, name) for run in runs if not outdone(run, runs) for name in captions(run)
    }
    for path in pictures.iterdir():
        if path.name not in shown:
            path.unlink()
    drop_copies(pictures)
    with one_thread():
        judged = {name: judge_claim(claim, runs) for name, claim in all_claims().items()}
    files = {path.name for path in pictures.iterdir()}
    for name, parts in (("gallery", gallery(runs, judged, files)), ("papers", table(runs, judged))):
        (home / f"{name}.md").write_text(joined(parts), encoding="utf-8")


def drop_copies(pictures: Path) -> None:
    """Keep one of all pictures that are the same: that of the larger run, by its longer name."""
    seen = set()
    for path in sorted(pictures.iterdir(), key=lambda path: len(path.name), reverse=True):
        content = path.read_bytes()
        if content in seen:
            path.unlink()
        seen.add(content)


def gallery(runs: Sequence[Run], judged: dict[str, Judgement], files: Set[str]) -> list[str]:
    """Return the page of figures in parts; `files` are the pictures that there are."""
    experiments = {run.experiment: all_experiments()[run.experiment] for run in runs}
    links = "\n".join(f"- [{e.title}](#{anchor(e.title)})" for e in experiments.values())
    parts = [GALLERY.format(papers=papers(), links=links)]
    for name, experiment in experiments.items():
        shows = experiment.shows[:1].upper() + experiment.shows[1:]
        parts += [f"## {experiment.title}", f"{shows} ({', '.join(experiment.figures)})."]
        for run in runs:
            parts += shown_run(run, runs, judged, files) if run.experiment == name else []
    return [*parts, mistakes(judged)]


def captions(run: Run) -> dict[str, str]:
    """Return what one sees in each of a run's pictures, by its name."""
    return all_experiments()[run.experiment].captions


def outdone(run: Run, runs: Sequence[Run]) -> bool:
    """Whether a larger run on the same data draws the same pictures, if with other numbers."""
    presets = all_experiments()[run.experiment].presets
    data = {name: getattr(settings, "data", None) for name, settings in presets.items()}
    return any(
        other.experiment == run.experiment
        and PRESETS.index(other.preset) > PRESETS.index(run.preset)
        and not run.changed
        and not any(isinstance(value, str) for value in other.changed.values())
        and data[other.preset] == data[run.preset]
        for other in runs
    )


def shown_run(
    run: Run, runs: Sequence[Run], judged: dict[str, Judgement], files: Set[str]
) -> list[str]:
    """Return one run's pictures, and what it says about the papers' statements."""
    words = [finding.word for finding in run.findings]
    partly = sum(word.startswith("holds if") for word in words)
    conditional = f", and {partly} more on a condition" * bool(partly)
    rows = []
    for finding in run.findings:
        says, where = sentence(finding)
        overall = "; ".join(f"`{name}` {judged[name].word}" for name in finding.ids)
        rows.append((says, where, finding.word, numbers(finding), overall))
    heads = ("what the papers say", "where", "this run", "what came out", "overall verdict")
    shown = [(caption, file_name(run, name)) for name, caption in captions(run).items()]
    pictures = [
        f"![{caption}](gallery/{file})\n\n*{caption}*" for caption, file in shown if file in files
    ]
    return [
        f"```sh\n{run.command}\n```",
        *(["The larger run below has the pictures."] if outdone(run, runs) else pictures),
        f"In this run {words.count('holds')} of {len(rows)} statement{'s' * (len(rows) != 1)} hold"
        f"{'s' * (len(rows) == 1)}{conditional} ({run.preset}; {duration(run.seconds)} on "
        f"{run.machine}, {run.date}).",
        f"<details><summary>What the papers say, and what came out</summary>\n\n"
        f"{markdown(heads, rows)}\n\n</details>",
    ]


def mistakes(judged: dict[str, Judgement]) -> str:
    """Return the part of the page on what is wrong in the papers."""
    wrong = [j.claim for name, j in judged.items() if name.startswith("E-")]
    rows = [(f"`{c.id}`", c.where, c.says) for c in wrong]
    return (
        f"<details><summary>What is wrong in the papers: {len(wrong)} statements</summary>\n\n"
        "`hessence claims` with one of these names shows the counterexample, and what is right.\n\n"
        f"{markdown(('claim', 'where', 'as printed, and false'), rows)}\n\n</details>"
    )


def table(runs: Sequence[Run], judged: dict[str, Judgement]) -> list[str]:
    """Return the page of all items in parts."""
    partial = sum(bool(incomplete(item, runs)) for item in all_items())
    words = [verdict(item, judged) for item in all_items()]
    summary = (
        f"{words.count('holds')} hold, {words.count('on a condition')} hold on a condition, and "
        f"{words.count('in part')} hold in part; {words.count('fails')} fail, and "
        f"{words.count('cannot tell')} cannot be decided. "
        f"{partial or 'None'} of the items {'is' if partial == 1 else 'are'} incomplete"
        + ("; each says why." if partial else ".")
    )
    revised = sum(bool(j.claim.revised) for j in judged.values())
    parts = [
        TABLE.format(count=len(all_items()), summary=summary, papers=papers(), revised=revised)
    ]
    for number in PAPERS:
        rows = [
            (item.name, verdict(item, judged), basis(item, runs, judged))
            for item in all_items()
            if item.paper == number
        ]
        parts += [f"## Paper {number}", markdown(("item", "verdict", "evidence"), rows)]
    for mark, heading in (("E-", "Mistakes"), ("A-", "Answers to what the papers leave open")):
        rows = [
            (f"`{j.claim.id}`", j.claim.where, j.claim.says, j.word)
            for j in judged.values()
            if j.claim.id.startswith(mark)
        ]
        parts += [f"## {heading}", markdown(("entry", "where", "statement", "verdict"), rows)]
    rows = [
        (f"`{j.claim.id}`", j.claim.says, j.word, j.claim.revised)
        for j in judged.values()
        if j.claim.revised
    ]
    heads = ("entry", "statement", "verdict", "what was asked for at first, and why not now")
    parts += ["## Criteria changed after numbers were seen", CHANGED, markdown(heads, rows)]
    return [*parts, "## The runs", TIMES, made(runs)]


def verdict(item: Item, judged: dict[str, Judgement]) -> str:
    """Return what came out for an item, from the entries that judge it.

    Entries of mistakes state what is printed and false; the item is right or wrong without them.
    """
    names = [name for name in item.judged.split() if not name.startswith("E-")]
    entries = [judged[name] for name in names or item.judged.split()]
    if all(entry.holds for entry in entries):
        return "on a condition" if any(entry.condition for entry in entries) else "holds"
    if any(entry.holds for entry in entries):
        return "in part"
    return "fails" if any(entry.holds is False for entry in entries) else "cannot tell"


def basis(item: Item, runs: Sequence[Run], judged: dict[str, Judgement]) -> str:
    """Return the evidence for an item's verdict."""
    told = []
    for name in item.judged.split():
        deciding = judged[name].deciding
        size = "undecided" if deciding is None else deciding.size
        run = " run" * (size in PRESETS)
        changed = "; criterion changed" * bool(judged[name].claim.revised)
        told.append(f"`{name}` {judged[name].word} ({size}{run}{changed})")
    if item.figure:
        sizes = [run.preset for run in runs if run.experiment == item.figure]
        drawn = " and ".join(dict.fromkeys(sizes)) or "not yet"
        told.append(f"drawn by `hessence reproduce {item.figure}`: {drawn}")
    told += [f"incomplete: {reason}" for reason in [incomplete(item, runs)] if reason]
    return "; ".join(told)


def incomplete(item: Item, runs: Sequence[Run]) -> str:
    """Return why an item is not complete, if it is not; a run of the preset paper may mend it."""
    if not item.reason.startswith(QUICK_ONLY):
        return item.reason
    done = any((run.experiment, run.preset) == (item.figure, "paper") for run in runs)
    lacking = item.reason.removeprefix(QUICK_ONLY)
    return "" if done else f"{lacking}; the preset paper was not run"


def made(runs: Sequence[Run]) -> str:
    """Return which runs were made, and what those that were not would take."""
    rows = [
        (f"`{run.command}`", duration(run.seconds), run.machine, run.date)
        for run in runs
        if run.experiment in all_experiments()
    ]
    done = {run.experiment for run in runs if run.preset == "paper"}
    for name, experiment in all_experiments().items():
        if name not in done:
            needs = duration(60 * experiment.minutes["paper"]) + (
                " on a GPU" if "paper" in experiment.gpu else " on one core"
            )
            data = ", ".join(experiment.data(experiment.presets["paper"]))
            also = f", with {data}" if data else ""
            command = f"`hessence reproduce {name} --preset paper`"
            rows.append((command, f"not made: needs {needs}{also}", "", ""))
    return markdown(("run", "computing time", "machine", "date"), rows)


def papers() -> str:
    """Return which paper has which number."""
    return "\n".join(f"- {number}: {title}" for number, title in PAPERS.items())


def file_name(run: Run, picture: str) -> str:
    """Return the name that a run's picture has in the gallery."""
    changed = "-".join(f"{name}-{value}" for name, value in run.changed.items())
    parts = (run.experiment, run.preset * (run.preset != "quick"), changed, picture)
    return re.sub(r"[^a-z0-9]+", "-", "-".join(filter(None, parts)).lower()).strip("-") + ".webp"


def small(content: bytes) -> bytes:
    """Return a picture at the scale of the page, with all its colours."""
    from PIL import Image

    whole = Image.open(io.BytesIO(content)).convert("RGB")
    size = (round(whole.width * SCALE), round(whole.height * SCALE))
    buffer = io.BytesIO()
    whole.resize(size, Image.Resampling.LANCZOS).save(
        buffer, "WEBP", lossless=True, quality=100, method=4
    )
    return buffer.getvalue()


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def cell(text: str) -> str:
    """Return text that does not break a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading.

    Examples
    --------
    >>> anchor("ReLU: one spectrum for each cell")
    'relu-one-spectrum-for-each-cell'
    """
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def joined(parts: Sequence[str]) -> str:
    """Return a page from its parts."""
    return "\n\n".join(part.strip() for part in parts) + "\n"


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
