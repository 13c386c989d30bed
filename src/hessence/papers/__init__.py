"""The papers: their figures and claims, computed again, and the demo.

Claims and figures name the papers by their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PAPERS = {
    "000": "Cracking the Hessian: closed-form Hessian spectra for fundamental neural networks "
    "(anonymous authors; under double-blind review)",
    "001": "Sidak Pal Singh and Thomas Hofmann (ETH Zürich), Closed form of the Hessian spectrum "
    "for some neural networks",
    "002": "How the Hessian-spectrum of linear networks depends on data (names withheld; under "
    "review for the Workshop on High-dimensional Learning Dynamics, 2026)",
    "003": "Sidak Pal Singh and Thomas Hofmann (ETH Zürich), Closed form of the Hessian spectrum "
    "for some neural networks, the poster",
    "004": "Depth, not data: an analysis of Hessian spectral bifurcation (the document names no "
    "authors)",
}
"""Who wrote what, and where it is to be found, as far as the documents tell."""


def papers_named(places: Iterable[str]) -> dict[str, str]:
    """Return the numbers and titles of the papers that the places refer to, in order.

    Examples
    --------
    >>> list(papers_named(["002 §3 and App B", "000 and 001, proof of the bias theorem"]))
    ['000', '001', '002']
    """
    numbers = {number for place in places for number in re.findall(r"\b\d{3}\b", place)}
    return {number: title for number, title in PAPERS.items() if number in numbers}
