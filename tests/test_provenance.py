"""Where figures come from: the commit of the installed sources, and the folders below results/ they are drawn from."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from experiments.synthetic_results import completed, synthetic_rows, write_rows

from forktask.experiments.machine.build_info import BUILD
from forktask.experiments.machine.environment import collect, version_text
from forktask.experiments.results.folder import read_results, short_id
from forktask.experiments.results.rows import PlanRow, SampleRow
from forktask.experiments.results.training_rows import TrainingRow
from forktask.experiments.studies.configuration import study_of

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "experiments" / "machine" / "source_commit.sh"
NOBODY = {f"GIT_{who}_{what}": "nobody@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
# Lets git take every clone for one of another owner, whoever runs the tests.
FOREIGN = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder, *words):
    """What git prints in a folder."""
    environment = {**os.environ, **NOBODY}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def source_commit(folder):
    """What the build is told of the sources in a folder."""
    done = subprocess.run(["sh", SCRIPT, folder], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path):
    """A repository with one source, one page, and the files that archives of this one have."""
    folder = tmp_path / "clone"
    (folder / "tasking").mkdir(parents=True)
    (folder / "tasking" / "replay.h").write_text("1\n")
    (folder / "README.md").write_text("a page\n")
    for name in (".gitattributes", ".git_archival.txt"):
        shutil.copy(ROOT / name, folder)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_the_commit_is_that_of_the_sources(clone):
    """Check that a page changes no commit of the sources, that a new source shows, and that a commit names it."""
    first = git(clone, "rev-parse", "HEAD").strip()
    assert source_commit(clone) == first
    (clone / "README.md").write_text("another page\n")
    git(clone, "commit", "-qam", "a page")
    assert source_commit(clone) == first
    (clone / "tasking" / "deque.h").write_text("new\n")
    assert source_commit(clone) == f"{first}-dirty"
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "a source")
    assert source_commit(clone) == git(clone, "rev-parse", "HEAD").strip() != first


def test_an_archive_names_its_commit(clone, tmp_path):
    """Check that sources without git have the commit of their archive, and are "unknown" without one."""
    archive, unpacked = tmp_path / "archive.tar", tmp_path / "unpacked"
    git(clone, "archive", "--output", str(archive), "HEAD")
    shutil.unpack_archive(archive, unpacked)
    assert source_commit(unpacked) == git(clone, "rev-parse", "HEAD").strip()
    shutil.copy(ROOT / ".git_archival.txt", unpacked)
    assert source_commit(unpacked) == "unknown"


def test_git_says_why_the_commit_of_another_owner_is_unknown(clone, monkeypatch):
    """Check that git's reason and remedy reach whoever builds a clone that somebody else owns."""
    for name, value in FOREIGN.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(["sh", SCRIPT, clone], capture_output=True, text=True, check=True)
    assert done.stdout == "unknown\n" and "dubious ownership" in done.stderr and "safe.directory" in done.stderr


def test_every_run_row_has_the_commit():
    """Check that the environment, which each run row keeps, has the commit, and that captions say it in words."""
    environment = collect()
    commit = environment["build"]["commit"]
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", commit) and commit == BUILD["commit"]
    assert commit.partition("-")[0][:12] in environment["forktask"]
    assert version_text({"version": "1", "commit": "a" * 40 + "-dirty"}) == f"1 (commit {'a' * 12}, with changes)"


def module_of_docs(name):
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_published_identities_are_those_of_today():
    """Check that plans, configurations and trainings of published samples have the identities that their options give:
    samples are converted when an option is added."""
    identities = 0
    for folder in sorted(path.parent for path in ROOT.glob("results/*/*/samples.jsonl")):
        results = read_results(folder)
        plans = {row.plan_id: row.options for row in results.of(PlanRow)}
        assert all(short_id(options) == plan_id for plan_id, options in plans.items()), folder
        for row in {row.config_id: row for row in results.of(SampleRow)}.values():
            identity = {"model": str(row.model), "threads": row.threads, "plan": plans[row.plan_id]}
            beside = {"interference": row.interference} if row.interference else {}
            assert short_id({**identity, **beside}) == row.config_id, folder
            identities += 1
        if trained := {row.run_id for row in results.of(TrainingRow)}:
            assert trained <= {run.run_id for run in study_of(results.run).trainings()}, folder
            identities += len(trained)
    assert identities > 500


@pytest.fixture
def update_figures():
    """The module docs/update_figures.py."""
    return module_of_docs("update_figures")


def test_figures_are_drawn_again_from_results(update_figures, tmp_path):
    """Check that each figure and table is what its samples give and stands on a page, and that samples and list go
    together."""
    pages = [*(page for kind in ("studies", "notes") for page in (ROOT / "docs" / kind).glob("*.md"))]
    pages += [update_figures.README, update_figures.WHEN_PAGE]
    shown = "".join(path.read_text() for path in pages)
    published = update_figures.published()
    assert published and len(published) == len({*published.values()})
    drawn = {path.name for path in update_figures.draw_all(tmp_path)}
    for name in drawn:
        assert (tmp_path / name).read_bytes() == (update_figures.IMAGES / name).read_bytes(), name
        assert f"images/{name})" in shown, name
    assert drawn == {path.name for path in update_figures.IMAGES.iterdir()}  # no other is kept
    text = update_figures.LIST.read_text()
    assert update_figures.between_marks(text, "folders", update_figures.listed()) == text
    text = update_figures.MACHINES_PAGE.read_text()
    assert update_figures.between_marks(text, "surveys", update_figures.machines()) == text
    assert update_figures.POINTS.read_text() == update_figures.gains_text()
    text = update_figures.GALLERY_PAGE.read_text()
    assert update_figures.between_marks(text, "figures", update_figures.gallery()) == text
    assert all(text.count(f"images/{path.name})") == 1 for path in update_figures.IMAGES.glob("*.svg"))
    tables = {page: page.read_text() for page in update_figures.STUDIES}
    assert update_figures.study_pages(dict(tables)) == tables
    in_other_tables = update_figures.README_RESULTS, update_figures.LADDERS
    assert all(f"<!-- {name} -->" in shown for name in published if not name.startswith(in_other_tables))


def test_samples_are_published_without_what_no_figure_needs(update_figures, tmp_path, monkeypatch):
    """Check that large samples lose profiles, draw the same and name no host and no folder of a preloaded
    library, and that too large ones are refused."""
    rows = [completed(row) for row in synthetic_rows(models=("serial", "taskiter"))]
    rows[0]["environment"] |= {"cpu": {"model": "AMD EPYC(R) 9"}, "topology": {"cores": 4}}
    next(row for row in rows if row["kind"] == "sample")["variables"] = {"LD_PRELOAD": "/own/lib/a.so.1:/own/b.so"}
    write_rows(tmp_path / "out", rows)
    monkeypatch.setitem(update_figures.FIGURES, "lenet5", ("speedup",))
    whole = update_figures.publish("lenet5", tmp_path / "out", tmp_path / "results") / "samples.jsonl"
    assert whole.parent == tmp_path / "results" / "epyc_4_cores" / "lenet5"
    assert rows[0]["environment"]["node"]["host"] == "n0" and '"n0"' not in whole.read_text()
    assert "a.so.1:b.so" in whole.read_text() and "/own" not in whole.read_text()
    assert len(whole.read_text().splitlines()) == len(rows)
    drawn = update_figures.drawn_bytes("lenet5", tmp_path, whole.read_text())
    monkeypatch.setattr(update_figures, "LARGEST", whole.stat().st_size - 1)
    smaller = update_figures.publish("lenet5", tmp_path / "out", tmp_path / "results") / "samples.jsonl"
    assert smaller.stat().st_size <= update_figures.LARGEST
    assert update_figures.drawn_bytes("lenet5", tmp_path, smaller.read_text()) == drawn
    monkeypatch.setattr(update_figures, "LARGEST", 1000)
    with pytest.raises(ValueError, match="must fit into 1000 bytes"):
        update_figures.publish("lenet5", tmp_path / "out", tmp_path / "results")


def test_the_readme_says_what_its_samples_give(update_figures):
    """Check that the README's table and sentences are what the newest samples give, and that they name the commit."""
    study = update_figures.load(update_figures.published()[update_figures.README_RESULTS])
    readme = update_figures.README.read_text()
    assert update_figures.between_marks(readme, "measured", update_figures.measured(study)) == readme
    commit = study.environment["build"]["commit"]
    assert re.fullmatch("[0-9a-f]{40}(-dirty)?", commit) and commit[:12] in readme
    assert len(readme.splitlines()) <= 120


def test_results_are_small_and_listed():
    """Check that each folder of results stands in their list, below its machine, and is at most 2 MiB."""
    listed = (ROOT / "results" / "README.md").read_text()
    for rows in (ROOT / "results").glob("*/*/samples.jsonl"):
        assert f"`{rows.parent.relative_to(ROOT / 'results')}`" in listed
        assert sum(path.stat().st_size for path in rows.parent.glob("*.*")) < 2**21


@pytest.mark.parametrize(
    ("changed", "installs"),
    [("tasking/replay.h", True), ("pyproject.toml", True), ("README.md", False), ("tasking/README.md", False)],
)
def test_pages_install_nothing(changed, installs, tmp_path):
    """Check that make installs again when a source has changed, and not when a page has."""
    (tmp_path / ".installed").touch()
    done = subprocess.run(
        ["make", "--question", f"--what-if={changed}", "install", f"VENV={tmp_path}"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == installs, done.stderr
