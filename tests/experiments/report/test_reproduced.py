"""Published findings that are measured again: which of them are confirmed, and what is said of them."""

import json
import math
import re
from pathlib import Path

import pytest

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.estimates import Estimate
from forktask.experiments.commands.main import main
from forktask.experiments.report import reproduced
from forktask.experiments.report.reproduced import finding_named, findings, judgement

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _in_the_clone(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("published", "here", "verdicts", "said"),
    [
        ((0.95, 0.97), (0.96, 0.98), ("faster", "faster"), "confirmed"),
        ((0.985, 0.995), (0.99, 1.005), ("faster, by less than 2 %", "same"), "confirmed"),
        ((0.95, 0.97), (0.975, 0.99), ("faster", "faster"), "differs"),
        ((0.95, 0.97), (0.96, 1.05), ("faster", "undecided"), "not decided"),
        ((0.95, 0.97), (0.98, 1.05), ("faster", "undecided"), "differs"),
        ((0.95, 0.97), (math.nan, math.nan), ("faster", "undecided"), "not decided"),
        ((0.95, 0.97), (0.95, 0.97), ("faster", "not usable"), "not decided"),
    ],
)
def test_a_value_is_confirmed_where_intervals_overlap(published, here, verdicts, said):
    """Check the three words, where one of both has no interval or no verdict too."""
    values = (Estimate(1.0, low, high, 9) for low, high in (published, here))
    assert judgement(*values, *verdicts) == said


@pytest.mark.parametrize("number", findings(ROOT / "results" / "findings.toml"))
def test_each_published_finding_confirms_itself(number):
    """Check that each finding names a file and values that its samples give, and that the same samples again differ in
    none."""
    finding = finding_named(f"finding{number}")
    rows = reproduced.reproduced(finding, finding.folder)
    assert len(rows) >= max(1, len(finding.ratios), len(finding.effects)) and Path(finding.file).is_file()
    for row in rows:
        assert row["here"] == row["published"] or math.isnan(row["published"].low)
        assert row["judgement"] in ("confirmed", "not decided")
    if number in (1, 2):
        assert {row["judgement"] for row in rows} == {"confirmed"}


def test_another_machine_differs_and_says_both_intervals(tmp_path):
    """Check the samples of finding 1 with one model slower by a tenth, and with another network."""
    finding = finding_named("finding1")
    slower = []
    for line in (finding.folder / "samples.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "sample" and row["model"] == "taskiter":
            row |= {name: [1.1 * s for s in row[name]] for name in ("short_times_s", "long_times_s")}
            row["step_time_s"] *= 1.1
        slower.append(json.dumps(row))
    (tmp_path / "samples.jsonl").write_text("\n".join(slower) + "\n")
    text = reproduced.reproduced_text(finding, tmp_path)
    assert (
        "differs: taskiter / forkjoin:region=persistent: published 0.958 [0.945, 0.971], here 1.05" in text
        and "over 5 sessions" in text
    )
    other = findings()[6].folder
    assert {row["judgement"] for row in reproduced.reproduced(finding, other)} == {"not decided"}
    assert "not measured" in reproduced.reproduced_text(finding, other)


def test_the_page_of_findings_says_what_the_samples_give():
    """Check that each value and interval of a finding of several sessions stands in its section, and that each folder
    and command is named there."""
    page = (ROOT / "docs" / "findings.md").read_text()
    sections = dict(re.findall(r"^## Finding (\d+)$(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL))
    assert list(map(int, sections)) == [1, 2, 3, 4, 5, 6]
    for number in sections.keys() & set(map(str, findings())):
        section, finding = sections[number], finding_named(f"finding{number}")
        assert f"make reproduce FINDING={number}`" in section
        for value in re.findall(r"published (\S+ \[.*?\]), here", reproduced.reproduced_text(finding, finding.folder)):
            assert value in section, (number, value)


def test_an_unknown_finding_is_refused(tmp_path, monkeypatch, capsys):
    """Check a number that is no ratio, a name that is none, a folder that is no clone, and what would be measured."""
    assert finding_named("strong_scaling") is None and finding_named("finding") is None
    with pytest.raises(UsageError, match="findings whose ratios can be compared are 1, 2, 3, 4.*got 5"):
        finding_named("finding5")
    assert main(["run", "finding6", "--dry-run"]) == 0
    assert "cifar10_cnn" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="in a clone of forktask"):
        finding_named("finding1")
