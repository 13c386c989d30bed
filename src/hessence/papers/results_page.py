"""One page of figures, findings and claims that stands alone."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import Any

from hessence.papers import PAPERS
from hessence.papers.experiments.results import Result
from hessence.papers.judgements import findings_table
from hessence.papers.page import STYLE, Table
from hessence.papers.recorded import duration

TITLE = "Hessence: the papers, run again"
VERDICT = "verdict"
"""Heading of the column whose cells are verdicts."""

LOOK = """
body { max-width: 76rem; }
h2 { border-top: 2px solid #0b6e99; padding-top: .9rem; margin-top: 3.2rem; font-size: 1.35rem; }
h3 { font-size: 1rem; margin: 1.8rem 0 .4rem; }
h2 small { display: block; color: #777; font-size: .8rem; font-weight: normal; }
h2 code { color: #0b6e99; }
a { color: #0b6e99; text-decoration: none; } a:hover { text-decoration: underline; }
td { vertical-align: top; } th { background: #f4f7f8; vertical-align: bottom; }
tbody tr:hover { background: #fafbfc; }
table.findings td:nth-child(1) { width: 34%; } table.findings td:nth-child(2) { width: 12%; }
table.ledger td:nth-child(5) { white-space: pre-line; } table.ledger td:nth-child(4) { width: 9%; }
table.ledger td:nth-child(1) { white-space: nowrap; } table.ledger td:nth-child(3) { width: 26%; }
.verdict { border-radius: .7rem; padding: .05rem .55rem; display: inline-block; line-height: 1.4; }
.good { background: #dff0e3; color: #1c5b31; } .bad { background: #f9dfe2; color: #8c1f30; }
.partly { background: #fcefd2; color: #6f4a00; } .open { background: #e9e9ec; color: #444; }
figure { background: #fff; border: 1px solid #e4e4e4; border-radius: .4rem; padding: .8rem; }
figcaption { border-top: 1px solid #eee; padding-top: .5rem; margin-top: .5rem; }
ul.papers { list-style: none; padding-left: 0; font-size: .92rem; }
details { color: #555; font-size: .88rem; } summary { cursor: pointer; }
@media print { h2 { break-before: page; } figure, tr { break-inside: avoid; } }
"""


def results_page(results: Sequence[Result], claims: Sequence[tuple[str, Table]] = ()) -> str:
    """Return one self-contained HTML page.

    Parameters
    ----------
    results : sequence of Result
        What to show.
    claims : sequence of (heading, table)
        The papers' claims, as :func:`hessence.papers.judgements.ledger_sections` lays them out;
        they follow the experiments.
    """
    parts = ["<h2>Overview</h2>", _contents(results, claims), _papers()]
    for result in results:
        parts += _experiment(result)
    for place, (heading, table) in enumerate(claims):
        parts.append(f'<h2 id="claims-{place}">{html.escape(heading)}</h2>')
        parts.append(_table(table, "ledger"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(TITLE)}</title><style>{STYLE}{LOOK}</style></head><body>"
        f'<h1>{html.escape(TITLE)}</h1><p class="lead">{html.escape(_lead(results, claims))}</p>'
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _lead(results: Sequence[Result], claims: Sequence[tuple[str, Table]]) -> str:
    found = [_kind(finding.word) for result in results for finding in result.findings]
    lead = (
        f"{len(results)} experiment{'s' * (len(results) != 1)}, {len(found)} statements about "
        f"figures: {found.count('good')} hold, {found.count('partly')} hold on a condition, "
        f"{found.count('bad')} fail, {found.count('open')} cannot be told from these settings."
    )
    words = [word for _, table in claims for word in _verdicts(table)]
    if words:
        partly = sum(_kind(word) == "partly" for word in words)
        lead += (
            f" {len(words)} statements of the papers' mathematics, judged by computation: "
            f"{words.count('holds')} hold, {partly} hold on a condition, "
            f"{words.count('fails')} fail."
        )
        untold = sum(_kind(word) == "open" for word in words)
        lead += f" {untold} could not be judged here." if untold else ""
    return lead


def _contents(results: Sequence[Result], claims: Sequence[tuple[str, Table]]) -> str:
    """Lay out links to everything on the page, and how many statements came out which way."""
    rows = []
    for result in results:
        words = [finding.word for finding in result.findings]
        name, title = html.escape(result.folder.name), html.escape(result.stated["title"])
        title += _changes(result)
        figures = html.escape(", ".join(result.stated["figures"]))
        rows.append((f'<a href="#{name}">{title}</a>', figures, _counted(words)))
    for place, (heading, table) in enumerate(claims):
        link = f'<a href="#claims-{place}">{html.escape(heading)}</a>'
        rows.append((link, f"{len(table.rows)} statements", _counted(_verdicts(table))))
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    head = "<tr><th>what</th><th>of the papers</th><th>what came out</th></tr>"
    return (
        f'<div class="scroll"><table><thead>{head}</thead><tbody>\n{body}\n</tbody></table></div>'
    )


def _papers() -> str:
    """Return which paper has which number."""
    items = "\n".join(
        f"<li><b>{number}</b> {html.escape(title)}</li>" for number, title in PAPERS.items()
    )
    return f'<p>The papers:</p><ul class="papers">\n{items}\n</ul>'


def _counted(words: Sequence[str]) -> str:
    """Return how many verdicts there are of each kind, as marks."""
    told = {"good": "hold", "partly": "on a condition", "bad": "fail", "open": "cannot tell"}
    counts = {kind: sum(_kind(word) == kind for word in words) for kind in told}
    return " ".join(
        f'<span class="verdict {kind}">{count} {told[kind]}</span>'
        for kind, count in counts.items()
        if count
    )


def _experiment(result: Result) -> list[str]:
    stated, described = result.stated, result.described
    name, figures = html.escape(result.folder.name), html.escape(", ".join(stated["figures"]))
    command = html.escape(described["command"])
    shows = stated["shows"][:1].upper() + stated["shows"][1:]
    parts = [
        f'<h2 id="{name}">{html.escape(stated["title"])}{_changes(result)}'
        f"<small><code>{command}</code> · {figures}</small></h2>",
        f"<p>{html.escape(shows)}.</p>",
    ]
    for caption, content in zip(stated["captions"], result.pictures.values(), strict=True):
        told = html.escape(caption)
        source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        parts.append(
            f'<figure><img alt="{told}" src="{source}"><figcaption>{told}</figcaption></figure>'
        )
    settings = ", ".join(f"{key} = {_short(value)}" for key, value in described["settings"].items())
    made = (
        f"Preset {described['preset']}, seed {described['seed']}, {described['tasks']} tasks, "
        f"{duration(described['seconds'])} on {described['machine']}, {described['date']}"
    )
    return [
        *parts,
        _table(findings_table(result.findings), "findings"),
        f"<details><summary>{html.escape(made)}</summary>{html.escape(settings)}</details>",
    ]


def _changes(result: Result) -> str:
    """Return which settings were changed, if any were."""
    changed = result.described.get("changed")
    if not isinstance(changed, dict) or not changed:
        return ""
    return html.escape(f" with {', '.join(f'{key} = {_short(v)}' for key, v in changed.items())}")


def _table(table: Table, name: str) -> str:
    """Return a table in which verdicts are marked by colour."""
    places = [i for i, heading in enumerate(table.headings) if heading == VERDICT]

    def cell(place: int, text: str) -> str:
        mark = f'<span class="verdict {_kind(text)}">{html.escape(text)}</span>'
        return f"<td>{mark if place in places else html.escape(text)}</td>"

    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in table.headings)
    body = "\n".join(
        f"<tr>{''.join(cell(i, text) for i, text in enumerate(row))}</tr>" for row in table.rows
    )
    return (
        f'<div class="scroll"><table class="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _verdicts(table: Table) -> list[str]:
    places = [i for i, heading in enumerate(table.headings) if heading == VERDICT]
    return [row[place] for row in table.rows for place in places]


def _kind(word: str) -> str:
    """Return what a verdict comes to.

    Examples
    --------
    >>> [_kind(word) for word in ("holds", "holds if m ≥ 2", "fails", "cannot tell")]
    ['good', 'partly', 'bad', 'open']
    """
    if word.startswith("holds if"):
        return "partly"
    return {"holds": "good", "fails": "bad"}.get(word, "open")


def _short(value: Any) -> str:
    if isinstance(value, list):
        text = ", ".join(map(str, value[:4])) + (", …" if len(value) > 4 else "")
        return f"({text})"
    return str(value)
