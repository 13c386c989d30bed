"""Make the gallery from an output folder: small pictures, and the page that shows them.

::

    hessence reproduce --all --jobs 2 --out out
    python docs/gallery.py out
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from hessence.papers import PAPERS
from hessence.papers.claims.ledger import all_claims
from hessence.papers.experiments.outputs import Result, read_results, verdict

HOME = Path(__file__).parent
MOST_BYTES = 60_000
WIDTHS = (1100, 950, 800, 700)
COLOURS = (128, 64, 32)
HEAD = """# Gallery

Every figure of the papers that an experiment stands for, at the preset {presets}, and what came
out; `--preset paper` takes the papers' own sizes. This page is made by
`hessence reproduce --all --jobs 2 --out out` and `python docs/gallery.py out`. The papers, with the
numbers that `hessence claims` gives them:

{papers}
"""


def main(out: Path, home: Path = HOME) -> None:
    """Write ``gallery.md`` and the pictures, and remove pictures of experiments that are gone."""
    results = read_results(out)
    pictures = home / "gallery"
    pictures.mkdir(exist_ok=True)
    kept = {
        f"{result.folder.name}-{name}.png": small(result.folder / f"{name}.png")
        for result in results
        for name in result.stated["pictures"]
    }
    for path in pictures.glob("*.png"):
        if path.name not in kept:
            path.unlink()
    for name, content in kept.items():
        (pictures / name).write_bytes(content)
    links = [f"- [{r.stated['title']}](#{anchor(r.stated['title'])})" for r in results]
    presets = sorted({f"`{result.described['preset']}`" for result in results})
    papers = "\n".join(f"- {number}: {title}" for number, title in PAPERS.items())
    head = HEAD.format(presets=" or ".join(presets), papers=papers)
    parts = [head, "The figures:", "\n".join(links), *map(section, results), mistakes()]
    (home / "gallery.md").write_text("\n\n".join(p.strip() for p in parts) + "\n", encoding="utf-8")


def mistakes() -> str:
    """Return the part of the page on what is wrong in the papers."""
    wrong = [claim for name, claim in all_claims().items() if name.startswith("E-")]
    rows = "\n".join(f"| `{c.id}` | {cell(c.where)} | {cell(c.says)} |" for c in wrong)
    return f"""<details><summary>What is wrong in the papers: {len(wrong)} statements</summary>

`hessence claims` with one of these names shows the counterexample, and what is right.

| claim | where | as printed, and false |
|---|---|---|
{rows}

</details>"""


def small(path: Path) -> bytes:
    """Return a picture in few enough colours and pixels to be small."""
    from PIL import Image

    whole = Image.open(path).convert("RGB")
    for width in WIDTHS:
        size = (min(width, whole.width), round(whole.height * min(1, width / whole.width)))
        shrunk = whole.resize(size, Image.Resampling.BICUBIC)
        for colours in COLOURS:
            buffer = io.BytesIO()
            shrunk.quantize(colours, kmeans=2, dither=Image.Dither.NONE).save(
                buffer, "PNG", optimize=True
            )
            if buffer.tell() <= MOST_BYTES:
                return buffer.getvalue()
    return buffer.getvalue()


def section(result: Result) -> str:
    """Return one experiment's part of the page."""
    stated, name = result.stated, result.stated["experiment"]
    pictures = "\n\n".join(
        f"![{stated['title']}: {picture}](gallery/{name}-{picture}.png)"
        for picture in stated["pictures"]
    )
    held = [finding for finding in result.findings if finding.holds]
    rows = "\n".join(
        f"| {cell(f.claim)} | {cell(f.where)} | {verdict(f)} | {cell(f.evidence)} |"
        for f in result.findings
    )
    shows = stated["shows"][:1].upper() + stated["shows"][1:]
    return f"""## {stated["title"]}

{shows} ({", ".join(stated["figures"])}).

```sh
hessence reproduce {name}
```

{pictures}

{len(held)} of {len(result.findings)} statements came out as the papers have them.

<details><summary>What the papers say, and what came out</summary>

| what the papers say | where | holds | what came out |
|---|---|---|---|
{rows}

</details>"""


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


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/gallery.py OUT")
    main(Path(sys.argv[1]))
