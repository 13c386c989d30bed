"""The words for what came out: of a check, of a run, and of both together."""

from __future__ import annotations


def word(holds: bool | None, condition: str | None = None) -> str:
    """Return a verdict in a word or a few.

    Parameters
    ----------
    holds : bool or None
        Whether the statement came out; None if nothing can tell.
    condition : str or None
        On what it depends, if it holds on a condition.

    Examples
    --------
    >>> word(True), word(True, "m ≥ 2"), word(False), word(None)
    ('holds', 'holds if m ≥ 2', 'fails', 'cannot tell')
    """
    if holds is None:
        return "cannot tell"
    if not holds:
        return "fails"
    return "holds" if condition is None else f"holds if {condition}"
