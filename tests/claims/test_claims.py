import json
from difflib import ndiff

import numpy as np
import pytest

from hessence.claims.checking import Attention, dense_hessian, smooth_hessian
from hessence.claims.ledger import all_claims, ledger_sections
from hessence.claims.protocol import judge
from hessence.cli import main

# What came out. A verdict that changes is either a mistake of ours or news.
VERDICTS = {
    "000-T3.1": "holds",
    "000-eq2": "holds",
    "000-T3.2": "holds if w ≠ ±v",
    "000-T3.3": "holds if δx > 0",
    "000-C3.1": "holds",
    "000-T3.4": "holds if both cells have neurons",
    "000-T3.5-eigenvalues": "holds",
    "000-T3.5-bounds": "fails",
    "000-R3.1": "fails",
    "000-RB.1": "holds",
    "000-TB.1": "holds",
    "000-CB.1": "holds",
    "000-CB.2": "holds",
    "000-CB.3": "holds",
    "000-RB.2": "holds",
    "000-RB.3": "holds",
    "000-RB.4": "fails",
    "000-least": "holds",
    "000-phases": "holds if E[yx] > 0",
    "000-solution": "holds",
    "000-scaling": "holds if the targets are scaled with the inputs",
    "000-relu-top": "holds",
    "000-norms-below": "holds",
    "000-activation": "holds",
    "001-T1": "holds",
    "001-sharpness": "holds",
    "001-phases": "holds if E[yx] > 0",
    "001-T2": "holds if w ≠ ±v",
    "001-T3": "holds if δx > 0",
    "001-T4": "holds",
    "001-C5": "holds if both cells have neurons",
    "001-R2": "holds",
    "001-T6": "holds",
    "001-triple": "holds",
    "001-trend": "holds if V has orthogonal columns of one length",
    "002-eq6": "holds",
    "002-eq7": "holds",
    "002-eq9a": "holds",
    "002-eq9b": "holds if d0 = dL = min(d0, …, dL)",
    "002-counts": "holds if d0 = dL = min(d0, …, dL)",
    "002-eq10": "holds",
    "002-eq11": "holds",
    "002-eq12": "holds",
    "002-eq13": "holds",
    "002-labels": "holds",
    "002-eq14": "holds",
    "002-eq15": "holds if d1 ≥ d0 and d1 ≥ d2",
    "002-eq16": "holds",
    "003-outliers": "holds if σ² = 1",
    "003-vectors": "holds if w ≠ ±v",
    "003-relu": "holds if both cells have neurons",
    "003-convergence": "holds",
    "004-L3.4": "holds",
    "004-L3.4-rest": "holds if the inputs have the target's rank",
    "004-LA.3": "holds if the inputs have full rank",
    "004-LA.6": "holds",
    "004-LA.7": "holds",
    "004-T3.5": "holds",
    "004-C3.6": "holds",
    "E-003-outliers": "fails",
    "E-000-bulk-sign": "fails",
    "E-000-relu-vectors": "fails",
    "E-000-xi": "fails",
    "E-000-bias-norm": "fails",
    "E-000-smallest": "fails",
    "E-000-eq10": "fails",
    "E-002-counts": "fails",
    "E-002-pairs": "fails",
    "E-000-larger-norm": "fails",
    "E-000-cubic-constant": "fails",
}


@pytest.mark.parametrize("name", all_claims())
def test_a_verdict_is_as_known(name):
    assert all_claims()[name].check().word == VERDICTS[name]


def test_the_table_has_no_claim_too_many():
    assert list(VERDICTS) == list(all_claims()), "\n".join(ndiff([*VERDICTS], [*all_claims()]))


def test_mistakes_fail():
    for name in all_claims():
        if name.startswith("E-"):
            assert VERDICTS[name] == "fails"


def test_claims_are_told(capsys):
    assert main(["claims", "000-T3.3", "000-T3.1"]) == 0
    shown = capsys.readouterr().out
    assert "000-T3.3  holds if δx > 0" in shown
    assert shown.endswith("2 claims: 1 hold, 1 on a condition, 0 fail.\n")
    assert max(map(len, shown.splitlines())) <= 100


def test_claims_as_json(capsys):
    assert main(["claims", "000-T3.3", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["id"] == "000-T3.3"
    assert entry["verdict"] == "holds if δx > 0"
    assert entry["holds"] is True
    assert entry["condition"] == "δx > 0"


def test_an_unknown_claim_is_one_sentence(capsys):
    assert main(["claims", "000-T3.l"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("hessence: there is no claim 000-T3.l; near it: 000-T3.")
    assert told.count("\n") == 1


def test_tables_for_a_page():
    chosen = [all_claims()[name] for name in ("000-T3.1", "000-eq2", "E-000-smallest")]
    sections = ledger_sections([(claim, claim.check()) for claim in chosen])
    assert [heading for heading, _ in sections] == [
        "What paper 000 says",
        "Mistakes in the papers",
    ]
    assert sections[0][1].rows[0][:2] == ("000-T3.1", "000 Theorem 3.1, eq 1")


@pytest.mark.parametrize("gap", [0.5, np.nan, np.inf])
def test_a_gap_decides(gap):
    assert judge([0.0, gap], "").word == "fails"
    assert judge([0.0, gap], "", "a", [True, False]).word == "holds if a"
    assert judge([0.0, gap], "", "a", [True, True]).word == "fails"
    assert judge([gap, 0.0], "", "a", [True, True]).word == "fails"
    assert judge([0.0, gap], "", "a", [False, False]).word == "fails"


def test_both_ways_to_a_hessian_agree():
    def loss(points):
        return (points[:, 0] * points[:, 1] * points[:, 2] - 0.3) ** 2

    point = np.array([0.3, -0.7, 1.1])
    assert np.allclose(dense_hessian(loss, point), smooth_hessian(loss, point), atol=1e-12)
    assert np.allclose(dense_hessian(loss, point, 0.1), smooth_hessian(loss, point), atol=1e-12)


def test_attention_scores_are_softmax():
    net = Attention(2.0, np.zeros(3), np.zeros(3), np.array([1.0, 3.0]), np.zeros(2))
    assert net.loss(net.point[None, :]) == pytest.approx(8.0)


def test_every_claim_says_a_sentence_of_its_own():
    for claim in all_claims().values():
        assert claim.where.startswith(("000", "001", "002", "003", "004"))
        assert claim.says[-1] != "."
        assert claim.check().evidence
