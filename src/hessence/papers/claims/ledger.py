"""Collecting the claims, and laying out their verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from hessence.papers.claims.protocol import Claim
from hessence.papers.experiments.jobs import limited_threads
from hessence.papers.experiments.settings import nearest

MODULES = (
    "paper_000_linear",
    "paper_000_vectors",
    "paper_000_relu",
    "paper_000_bias",
    "paper_000_extensions",
    "paper_000_attention",
    "paper_000_attention_sweeps",
    "paper_000_attention_sinks",
    "paper_000_attention_edge",
    "paper_000_pairs",
    "paper_000_norms",
    "paper_000_relu_norms",
    "paper_000_blocks",
    "paper_000_gauss_newton",
    "paper_000_transformers",
    "paper_001",
    "paper_001_training",
    "paper_001_batch_norm",
    "paper_002_kernel",
    "paper_002_balanced",
    "paper_002_balancing",
    "paper_002_shallow",
    "paper_002_data",
    "paper_002_ablations",
    "paper_003",
    "paper_004",
    "paper_004_lemmas",
    "errata_vectors",
    "errata_matrices",
    "errata_settings",
    "answers_descent",
    "answers",
)
"""Where the claims are, in the papers' order."""

HEADINGS = {"E": "Mistakes in the papers", "A": "Answers to what the papers leave open"}


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold linear algebra to one thread, if that can be done.

    On small matrices more of them wait for each other, and cost three times as much.
    """
    if find_spec("threadpoolctl") is None:
        yield
        return
    with limited_threads(1):
        yield


class UnknownClaimError(LookupError):
    """No claim of that name; the text is one sentence for the user."""


@cache
def all_claims() -> dict[str, Claim]:
    """Return the claims by their ids, paper by paper, in the papers' order."""
    found: dict[str, Claim] = {}
    for name in MODULES:
        for claim in import_module(f"hessence.papers.claims.{name}").CLAIMS:
            if claim.id in found:
                raise ValueError(f"two claims have the id {claim.id}.")
            found[claim.id] = claim
    return found


def find_claim(name: str) -> Claim:
    """Return a claim by its id.

    Examples
    --------
    >>> find_claim("000-T3.1").where
    '000 Theorem 3.1, eq 1'
    >>> find_claim("000-T31")
    Traceback (most recent call last):
        ...
    hessence.papers.claims.ledger.UnknownClaimError: there is no claim 000-T31; near it: ...
    """
    known = all_claims()
    if not name.strip():
        raise UnknownClaimError("an ID must not be empty; without any, all claims are judged.")
    if name not in known:
        raise UnknownClaimError(f"there is no claim {name}; near it: {nearest(name, known)}.")
    return known[name]
