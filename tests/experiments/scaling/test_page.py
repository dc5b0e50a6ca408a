"""The pages on scaling tests: their files work as they stand, the workflow asks for what there is."""

import re
import shlex
from pathlib import Path

from experiments.scaling.test_plugin import QUICK

from forktask.experiments.commands.main import make_parser

pytest_plugins = ["pytester"]

DOCS = Path(__file__).parents[3] / "docs"
GUIDE = (DOCS / "guide" / "scaling_tests.md").read_text()


def blocks(language):
    """Code blocks of a language in the guide."""
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_first_test_of_the_page(pytester, monkeypatch):
    """Check that the page's files, as they stand, write their baseline and then pass, but for what is not timed."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    for text in blocks("py"):
        (pytester.path / re.match(r"# (\w+\.py)\n", text)[1]).write_text(text)
    for name in ("solver_old", "solver_new"):
        (pytester.path / name).write_text("#!/bin/sh\n")
        (pytester.path / name).chmod(0o755)
    pytester.makeini("[pytest]\npythonpath = .\n")
    (commands,) = blocks("sh")
    update = shlex.split(commands.splitlines()[0])
    assert update[:3] == ["python", "-m", "pytest"] and "scaling_baseline.json" in commands
    pytester.inline_run(*QUICK, *update[3:])
    assert (pytester.path / "scaling_baseline.json").exists()
    result = pytester.runpytest_inprocess(*QUICK, "-m", "scaling", "--scaling-budget=0")
    result.assert_outcomes(passed=5)
    coarser = (pytester.path / "test_scaling.py").read_text().replace("grain=16", "grain=48")
    (pytester.path / "test_scaling.py").write_text(coarser)
    result = pytester.runpytest_inprocess(*QUICK, "-m", "scaling", "-k", "means")
    result.stdout.fnmatch_lines(["*has no entry for means(grain=48), only for means(grain=16): the arguments*"])


def test_options_in_the_workflow_exist(pytester):
    """Check that the steps of the workflows call pytest and the gate with options that they have."""
    folded = re.compile(r"run: >\n((?: {10}.*\n)+)")
    workflows = folded.sub(lambda lines: f"run: {' '.join(lines[1].split())}\n", "\n".join(blocks("yaml")))
    steps = re.findall(r"- run: (.*)", workflows)
    gates = [shlex.split(step)[1:] for step in steps if step.startswith("forktask ")]
    assert [make_parser().parse_args(words).command for words in gates] == ["gate", "gate"]
    test, of_program = (shlex.split(step)[3:] for step in steps if "pytest -m" in step)
    assert pytester.parseconfig(*QUICK, *test).getoption("scaling_jsonl") == "scaling.jsonl"
    assert pytester.parseconfig(*QUICK, *of_program).getoption("scaling_on_inconclusive") == "fail"


def test_options_on_the_page_exist(pytester):
    """Check each option of pytest that the guide names."""
    known = pytester.parseconfig(*QUICK).option
    for option in sorted(set(re.findall(r"`(--scaling-[a-z-]+)", GUIDE))):
        assert hasattr(known, option[2:].replace("-", "_")), option
