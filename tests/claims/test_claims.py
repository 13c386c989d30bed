import json
from difflib import ndiff

import numpy as np
import pytest

from hessence.claims.checking import Attention, dense_hessian, smooth_hessian
from hessence.claims.ledger import all_claims, ledger_table
from hessence.cli import main

# What came out. A verdict that changes is either a mistake of ours or news.
VERDICTS = {
    "000-T3.1": "holds",
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


def test_a_table_for_a_page():
    claim = all_claims()["000-T3.1"]
    table = ledger_table([(claim, claim.check())])
    assert table.rows[0][:2] == ("000-T3.1", "000 Theorem 3.1, eq 1")


def test_both_ways_to_a_hessian_agree():
    def loss(points):
        return (points[:, 0] * points[:, 1] * points[:, 2] - 0.3) ** 2

    point = np.array([0.3, -0.7, 1.1])
    assert np.allclose(dense_hessian(loss, point), smooth_hessian(loss, point), atol=1e-12)
    assert np.allclose(dense_hessian(loss, point, 0.1), smooth_hessian(loss, point), atol=1e-12)


def test_attention_scores_are_softmax():
    net = Attention(2.0, np.zeros(3), np.zeros(3), np.array([1.0, 3.0]), np.zeros(2))
    assert net.loss(net.point[None, :]) == pytest.approx(8.0)
