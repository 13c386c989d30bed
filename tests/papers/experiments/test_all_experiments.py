"""Every experiment of the library, from end to end at its smallest preset."""

import csv
import json

import pytest

from hessence.cli.main import main
from hessence.papers.experiments.catalogue import all_experiments

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(params=all_experiments())
def experiment(request):
    return all_experiments()[request.param]


def test_it_runs_and_leaves_a_whole_folder(experiment, tmp_path, capsys):
    arguments = ["reproduce", experiment.id, "--preset", "tiny", "--out", str(tmp_path)]
    assert main(arguments) == 0
    folder = tmp_path / experiment.id
    for name in experiment.pictures:
        assert (folder / f"{name}.png").read_bytes().startswith(PNG)
        assert "<svg" in (folder / f"{name}.svg").read_text(encoding="utf-8")
    with (folder / "records.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    assert len(rows) == settings["tasks"] == len(list(experiment.tasks(experiment.presets["tiny"])))
    assert settings["versions"]["numpy"]
    stated = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
    assert stated["findings"], "an experiment states what the paper claims"
    printed = capsys.readouterr().out
    assert all(finding["evidence"] in printed for finding in stated["findings"])
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(arguments) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_it_describes_itself(experiment):
    assert experiment.figures
    assert not experiment.shows.endswith(".")
    for preset in ("quick", "paper"):
        assert experiment.minutes[preset] > 0
