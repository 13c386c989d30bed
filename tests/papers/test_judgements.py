"""One record for each statement: which evidence decides, and that differences are explained."""

import pytest

from hessence.papers.claims.ledger import all_claims
from hessence.papers.claims.protocol import Claim, Verdict
from hessence.papers.experiments import Finding
from hessence.papers.experiments.catalogue import all_experiments
from hessence.papers.items import all_items
from hessence.papers.judgements import (
    CHECK,
    Evidence,
    Judgement,
    findings_table,
    from_runs,
    judge_claim,
    ledger_table,
)
from hessence.papers.recorded import Run, as_text, merged, recorded_runs
from tests.papers.claims.test_claims import VERDICTS


def known_judgement(claim):
    """Return the judgement that the table of known verdicts and the recorded runs make."""
    pieces = from_runs(claim.id)
    if claim.check is not None:
        word = VERDICTS[claim.id]
        condition = word.removeprefix("holds if ") if word.startswith("holds if ") else None
        pieces = (Evidence(CHECK, word != "fails", "", "", condition), *pieces)
    return Judgement(claim, pieces)


def run_with(preset, *findings, experiment="relu-cells", seconds=1.0, changed=None):
    return Run(experiment, preset, changed or {}, "hessence", "", "", seconds, findings)


def finding(name, holds):
    return Finding(name, holds, "numbers")


@pytest.mark.parametrize(
    ("measured", "check", "quick", "paper", "word"),
    [
        # A counterexample of any size refutes a theorem.
        (False, True, True, True, "holds"),
        (False, False, True, True, "fails"),
        (False, True, False, True, "fails"),
        (False, True, True, None, "holds"),
        # What was measured is decided by the largest run; if that cannot tell, nothing does.
        (True, False, True, True, "holds"),
        (True, True, True, False, "fails"),
        (True, True, None, False, "fails"),
        (True, True, False, None, "cannot tell"),
        (True, True, None, None, "cannot tell"),
    ],
)
def test_what_decides(measured, check, quick, paper, word):
    claim = Claim("000-x", "000", "x", lambda: Verdict(check, None, "seen"), measured=measured)
    runs = [
        run_with("quick", finding("000-x", quick), finding("000-y", not quick)),
        run_with("paper", finding("000-y 000-x", paper)),
    ]
    judgement = judge_claim(claim, runs)
    assert judgement.word == word
    assert [piece.size for piece in judgement.evidence] == ["exact case", "quick", "paper"]


def test_nothing_decides_without_evidence():
    judgement = judge_claim(Claim("000-x", "000", "x", None, measured=True), [])
    assert judgement.word == "cannot tell"
    assert judgement.holds is None
    assert not judgement.disagree


def test_a_condition_counts_against_a_theorem_that_runs_do_not_meet():
    claim = Claim("000-x", "000", "x", lambda: Verdict(True, "m ≥ 2", "seen"))
    judgement = judge_claim(claim, [run_with("paper", finding("000-x", True))])
    assert judgement.word == "holds if m ≥ 2"


def test_a_condition_does_not_rule_out_a_failure_where_it_is_met():
    claim = Claim("000-x", "000", "x", lambda: Verdict(True, "m ≥ 2", "seen"))
    failing = Finding("000-x", False, "numbers", condition="m ≥ 2")
    assert judge_claim(claim, [run_with("paper", failing)]).word == "fails"


def test_of_two_runs_of_one_size_the_failing_one_decides():
    claim = Claim("000-x", "000", "x", None, measured=True)
    runs = [run_with("quick", finding("000-x", True)), run_with("quick", finding("000-x", False))]
    assert judge_claim(claim, runs).word == "fails"


def test_a_run_may_hold_on_a_condition_too():
    found = Finding("000-x", True, "numbers", condition="m ≥ 2")
    claim = Claim("000-x", "000", "x", None, measured=True)
    judgement = judge_claim(claim, [run_with("quick", found)])
    assert judgement.word == found.word == "holds if m ≥ 2"
    assert findings_table([found]).rows[0][2] == "holds if m ≥ 2"
    assert Finding("000-x", False, "numbers", condition="m ≥ 2").word == "fails"


def test_a_fresh_run_takes_the_place_of_the_recorded_one():
    old, new = run_with("quick", seconds=1.0), run_with("quick", seconds=2.0)
    other = run_with("paper")
    assert merged([new], [other, old]) == (new, other)


def test_a_whole_run_takes_the_place_of_those_with_other_settings():
    part, whole = run_with("paper", changed={"data": ["mnist"]}), run_with("paper")
    quick = run_with("quick", changed={"data": ["mnist"]})
    assert merged([whole], [part, quick]) == (quick, whole)
    assert merged([part], [whole]) == (part, whole)
    smaller = run_with("paper", changed={"data": ["mnist"], "steps": 10})
    other = run_with("paper", changed={"data": ["cifar10"]})
    assert merged([part], [smaller, other]) == (other, part)


def test_the_record_is_read_as_it_was_written(tmp_path, monkeypatch):
    run = run_with("quick", finding("000-x", None))
    monkeypatch.setattr("hessence.papers.recorded.FILE", tmp_path / "recorded.json")
    (tmp_path / "recorded.json").write_text(as_text([run]), encoding="utf-8")
    assert recorded_runs.__wrapped__() == (run,)


def test_recorded_runs_are_of_the_library_and_name_its_statements():
    runs = recorded_runs()
    assert {run.experiment for run in runs if run.preset == "quick"} == set(all_experiments())
    named = {name for run in runs for found in run.findings for name in found.ids}
    assert named <= set(all_claims())
    assert all(found.criterion for run in runs for found in run.findings)


def test_captions_are_sentences():
    for experiment in all_experiments().values():
        for caption in experiment.captions.values():
            assert caption.endswith(".")
            assert " " in caption
            assert "\n" not in caption


def test_a_condition_explains_runs_that_fail():
    claim = Claim("000-x", "000", "x", lambda: Verdict(True, "m ≥ 2", "seen"))
    judgement = judge_claim(claim, [run_with("paper", finding("000-x", False))])
    assert judgement.word == "holds if m ≥ 2"
    assert not judgement.disagree


@pytest.mark.parametrize("name", all_claims())
def test_differences_are_explained_and_nothing_else(name):
    claim = all_claims()[name]
    judgement = known_judgement(claim)
    assert judgement.evidence
    assert claim.differs or not judgement.disagree
    assert not claim.differs or len({piece.word for piece in judgement.evidence}) > 1


def test_a_changed_criterion_is_shown_with_every_verdict_that_goes_by_it():
    changed = [claim for claim in all_claims().values() if claim.revised]
    shown = {name: [] for name in all_claims()}
    for run in recorded_runs():
        for found, row in zip(run.findings, findings_table(run.findings).rows, strict=True):
            for name in found.ids:
                shown[name].append(row[-1])
    for claim in changed:
        judgement = known_judgement(claim)
        assert any(claim.revised in text for text in judgement.told)
        assert claim.revised in ledger_table([judgement]).rows[0][-1]
        assert all(claim.revised in text for text in shown[claim.id])
    assert {"A-000-depth", "000-steady-bulk", "002-raw-share"} <= {claim.id for claim in changed}


def test_every_item_is_judged_by_entries_that_exist():
    items = all_items()
    assert len(items) == 216
    assert len({(item.paper, item.name) for item in items}) == 216
    for item in items:
        assert item.judged, item.name
        assert set(item.judged.split()) <= set(all_claims()), item.name
        assert not item.figure or item.figure in all_experiments()


def test_every_statement_and_experiment_belongs_to_an_item():
    judged = {name for item in all_items() for name in item.judged.split()}
    stated = {name for name in all_claims() if not name.startswith(("E-", "A-"))}
    assert stated <= judged
    assert {item.figure for item in all_items() if item.figure} == set(all_experiments())
