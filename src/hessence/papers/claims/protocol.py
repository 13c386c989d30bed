"""What a claim is, and what judging it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hessence.papers.outcomes import word

DENSE = "against eigvalsh of the dense Hessian"


@dataclass(frozen=True)
class Verdict:
    """What a check found: whether the statement holds, on which condition, and the numbers.

    The criterion is what was asked for, before anything was computed.
    """

    holds: bool
    condition: str | None
    evidence: str
    criterion: str = ""

    @property
    def word(self) -> str:
        """The verdict in a word or a few."""
        return word(self.holds, self.condition)


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and a check that compares it with something independent of it.

    Parameters
    ----------
    id, where, says : str
        The name, the place in the paper, and the sentence.
    check : callable or None
        The check on small networks; None if only experiments judge it.
    measured : bool
        What a paper measured is decided by the largest run. Any other statement is a theorem, which
        one counterexample of any size refutes.
    differs : str
        Why runs of different sizes come out differently, if they do, with the numbers that say so.
    revised : str
        What was asked for at first, if the criterion was changed after numbers had been seen.
    """

    id: str
    where: str
    says: str
    check: Callable[[], Verdict] | None
    measured: bool = False
    differs: str = ""
    revised: str = ""

    @property
    def code(self) -> str:
        """The name of the function that judges it."""
        if self.check is None:
            return ""
        function = getattr(self.check, "func", self.check)
        return f"{function.__module__}.{function.__qualname__}"


def judge(
    gaps: Sequence[float],
    evidence: str,
    condition: str | None = None,
    inside: Sequence[bool] | None = None,
    tolerance: float = 1e-9,
) -> Verdict:
    """Turn the gaps between a statement and the truth, one for each case, into a verdict.

    A gap is a difference or, for an inequality, what is missing to it: negative where it holds.
    The statement holds if no case has a gap above the tolerance; it holds on the condition if only
    cases outside of it have; otherwise it fails.

    Examples
    --------
    >>> judge([1e-16, 0.5], "two draws", "σ = 1", [True, False]).word
    'holds if σ = 1'
    >>> judge([1e-16, 0.5], "two draws").evidence
    'two draws; largest gap 5e-01 in 2 cases, 1 of them too large'
    >>> judge([-0.2, -0.3], "two draws").evidence
    'two draws; met with 2e-01 to spare in 2 cases'
    """
    wrong = [not gap <= tolerance for gap in gaps]
    asked = f"no case misses it by more than {tolerance:g}"
    # What is no number counts as too large, and is shown.
    largest = max(gaps, key=lambda gap: (gap != gap, gap))
    told = f"{evidence}; {_missing(largest)} in {len(gaps)} cases"
    if len(gaps) == 1:
        told = evidence
    elif any(wrong):
        told += f", {sum(wrong)} of them too large"
    if not any(wrong):
        return Verdict(True, None, told, asked)
    if condition is None or inside is None:
        return Verdict(False, None, told, asked)
    kept = [gap for gap, is_inside in zip(gaps, inside, strict=True) if is_inside]
    if not kept or not all(gap <= tolerance for gap in kept):
        return Verdict(False, None, told, asked)
    cases = "1 case" if len(kept) == 1 else f"{len(kept)} cases"
    told = f"{evidence}; {_missing(max(kept))} in {cases} where {condition}, "
    return Verdict(True, condition, f"{told}missed by up to {largest:.0e} elsewhere", asked)


def _missing(gap: float) -> str:
    return f"met with {-gap:.0e} to spare" if gap < 0 else f"largest gap {gap:.0e}"
