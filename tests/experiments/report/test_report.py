"""The report: one self-contained page whose numbers come from the rows, and its commands."""

import csv
import html.parser
import json
import re
from dataclasses import replace

import pytest
from experiments.synthetic_results import OTHERS, report_rows, report_text, sweep_of, synthetic_rows, write_rows

from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks.own import FUNCTION
from forktask.experiments.analysis.accounting import summary_table
from forktask.experiments.analysis.comparisons import axis_table, own_best_table
from forktask.experiments.analysis.estimates import Estimate
from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.names import model_label
from forktask.experiments.analysis.speeds import speed_table, verdict_columns
from forktask.experiments.commands.main import main
from forktask.experiments.report import figures, files, sections
from forktask.experiments.report.columns import VERDICT
from forktask.experiments.report.rendering import render_answers, render_text
from forktask.experiments.report.verdicts import answers
from forktask.experiments.report.words import axes_text
from forktask.experiments.subjects.models import parse_model


class Page(html.parser.HTMLParser):
    """Collects tags, links and ids; complains about tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.references, self.tags, self.open = [], [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.references += [v for k, v in attributes if k in ("src", "href", "xlink:href", "srcset", "data")]
        if tag not in ("meta", "br", "path", "use", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in ("path", "use", "rect"):
            return
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = write_rows(tmp_path_factory.mktemp("results"), synthetic_rows(failures=True), partial='{"kind":')
    files.write_report(path, ["pdf", "png"])
    return path


@pytest.fixture
def few_figures(monkeypatch):
    """Leave out all figures but two, for tests of their names."""
    available = figures.available_figures
    few = {"speedup", "batch"}
    monkeypatch.setattr(figures, "available_figures", lambda *of: [name for name in available(*of) if name in few])


@pytest.fixture(scope="module")
def page(folder):
    return (folder / files.REPORT).read_text(encoding="utf-8")


def test_report_leaves_all_files(folder):
    """Check the page, the table, and each figure in the formats that were asked for, with its caption."""
    assert (folder / "report.html").stat().st_size < 2_000_000
    for name in ("speedup", "run_time", "layers"):
        for ending in ("pdf", "svg", "png", "txt"):
            assert (folder / "figures" / f"{name}.{ending}").stat().st_size > 100
        text = (folder / "figures" / f"{name}.txt").read_text(encoding="utf-8")
        assert text == figures.caption_file(load(folder), name)


def test_page_is_self_contained(page):
    """Check that nothing is loaded from anywhere, that every reference is met within the page, and ids are unique."""
    parsed = Page(page)
    assert page.count("<script") == page.count("<script>") == 1  # the one that sorts, in the page itself
    assert not {"link", "iframe", "img", "object", "embed"} & set(parsed.tags)
    assert all(r.startswith("#") for r in parsed.references)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {r[1:] for r in parsed.references} <= set(parsed.ids)
    assert parsed.tags.count("svg") == parsed.tags.count("figcaption") == 6
    assert "@import" not in page and "url(http" not in page and "<metadata" not in page


def test_report_again_gives_the_same_files(tmp_path):
    """Check that drawing again from the samples changes no byte."""
    folder = write_rows(tmp_path, synthetic_rows(models=("serial", "forkjoin"), repeats=5))
    files.write_report(folder)
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    before = {p: p.read_bytes() for p in paths}
    files.write_report(folder)
    assert {p: p.read_bytes() for p in paths} == before


def test_summary_json_is_json(folder):
    """Check that the answer has no NaN and holds the same points."""
    answer = report_rows(folder)
    again = json.loads(json.dumps(answer, allow_nan=False))
    assert len(again["speed"]) == 13 and again["smoke_test"] and len(again["failures"]) == 1
    assert set(again) >= {"layers", "costs", "bounds", "accounting", "floors", "own_best"}


def test_hostile_text_stays_text(tmp_path):
    """Check that names and messages from the rows cannot become markup."""
    rows = synthetic_rows(failures=True, models=("serial", "forkjoin"), repeats=5)
    rows[-1]["message"] = "<script>alert(1)</script>"
    rows[0]["environment"]["note"] = "<img src=x>"
    files.write_report(write_rows(tmp_path, rows))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "<img" not in page and "&lt;script&gt;" in page


def test_report_of_failures_only(tmp_path):
    """Check that a run in which everything failed still gets a page that says so."""
    rows = [r for r in synthetic_rows(failures=True) if r["kind"] in ("run", "plan", "machine", "failure")]
    page = files.write_report(write_rows(tmp_path, rows)).read_text(encoding="utf-8")
    assert "No sample was measured" in page and "no answer within 60 s" in page
    assert "No sample was measured" in report_text(tmp_path)
    assert report_rows(tmp_path)["failures"]


@pytest.mark.parametrize("unknown", ["tasks", "forkjoin", "serial"])
def test_a_report_without_the_step_of_one_model(tmp_path, unknown):
    """Check that a model whose step noise hid in each turn, but which was profiled, gets no time and no verdict."""
    rows = synthetic_rows(models=("serial", "forkjoin", "tasks"), threads=(1,), repeats=1, profiles=1)
    for row in rows:
        if row["kind"] == "sample" and row["model"] == unknown:
            row["step_time_s"] = -1e-6
    folder = write_rows(tmp_path, rows)
    files.write_report(folder)
    assert unknown not in {row["model"] for row in answers(load(folder))}


def test_refused_results_leave_the_old_report_alone(tmp_path):
    """Check that rows that must not be compared raise before any file changes."""
    rows = synthetic_rows(models=("serial", "forkjoin"), repeats=5)
    rows[-1]["weights_hash"] = "other"
    (tmp_path / "report.html").write_text("old")
    with pytest.raises(UsageError, match="same weights"):
        files.write_report(write_rows(tmp_path, rows))
    assert (tmp_path / "report.html").read_text() == "old" and not (tmp_path / "figures").exists()


def test_a_swept_option_is_named_everywhere(tmp_path, few_figures):
    """Check title, headings, captions, file names, columns and figure of a sweep over an option, in all three forms."""
    rows = synthetic_rows(
        models=("serial", "forkjoin", "taskiter"),
        options=({"weight_gradients": "partial"}, {"weight_gradients": "chain"}),
        slowdowns=(1.0, 1.25),
        repeats=6,
    )
    files.write_report(write_rows(tmp_path, rows))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = report_text(tmp_path)
    for written in (page, text):
        assert "train, weight gradients partial;" in written and "train, weight gradients chain;" in written
        assert "Along weight gradients: time with one value over that with another" in written
    names = {p.name for p in (tmp_path / "figures").glob("speedup*.svg")}
    assert names == {"speedup.svg", "speedup-cifar10_cnn-batch64-train-images_16-weight_gradients_chain.svg"}
    with open(tmp_path / "summary.csv", newline="") as file:
        assert {row["weight_gradients"] for row in csv.DictReader(file)} == {"partial", "chain"}
    answer = report_rows(tmp_path)
    assert answer["swept"] == ["weight_gradients"]
    assert {row["value"] for row in answer["axes"]} == {"chain"}
    assert all(1.2 < row["ratio"] < 1.3 for row in answer["axes"])


@pytest.mark.parametrize("second", ["yours", "mine"])
def test_networks_of_ones_own_go_by_the_names_that_they_were_given(second):
    """Check titles, axes and file names of two networks that were written as programs, also where they share a name."""
    programs = [f"out/mine-0123abcd.py:{FUNCTION}", f"out/{second}-4567cdef.py:{FUNCTION}"]
    shown = ["mine", "yours"] if second == "yours" else programs
    chosen = {"models": ("serial", "forkjoin"), "repeats": 2, "slowdowns": (1, 1)}
    sweep = sweep_of(synthetic_rows(options=[{"network": program} for program in programs], **chosen))
    plans = sweep.plan_ids()
    assert [sweep.problem_name(plan).partition(", ")[0] for plan in plans] == shown
    assert [axes_text(sweep, plan) for plan in plans] == [f"network {name}" for name in shown]
    named = "yours" if second == "yours" else f"out_mine-4567cdef.py_{FUNCTION}"
    assert files.figure_stem(sweep, plans[1], "speedup") == f"speedup-{named}-batch64-train-images_16"


def test_answers_are_those_of_the_tables():
    """Check contestants, switches, ratios and verdicts, that few generations answer nothing, and one thread neither."""
    models = ("serial", "forkjoin", "forkjoin:again=1", "tasks", "taskgraph", "taskiter")
    sweep = sweep_of(synthetic_rows(models=models, repeats=9))
    (plan_id,) = sweep.plan_ids()
    result = answers(sweep)
    expected = [*((m, "forkjoin") for m in models[3:]), ("forkjoin:again=1", "forkjoin")]
    expected += [("taskgraph", "tasks"), ("taskiter", "taskgraph"), ("forkjoin", "serial")]
    assert [(row["model"], row["reference"]) for row in result] == expected
    assert [row["against"] for row in result] == ["forkjoin"] * 4 + [""] * 3
    again = "forkjoin, again (A/A)"  # the same words in the forest plot and in all legends and tables
    assert result[3]["label"] == model_label(parse_model("forkjoin:again=1")) == again
    assert again in [text.get_text() for text in figures.draw(sweep, "forest").axes[0].get_yticklabels()]
    for row in result:
        theirs = 1 if row["reference"] == "serial" else 2
        times = [sweep.times.time((plan_id, row["model"], 2)), sweep.times.time((plan_id, row["reference"], theirs))]
        assert row["threads"] == 2 and row["ratio"] == pytest.approx(times[0].value / times[1].value)
        assert row["ratio_low"] < row["ratio"] < row["ratio_high"] and (row["generations"], row["rounds"]) == (9, 18)
    few = sweep_of(synthetic_rows(repeats=3))
    assert {row["verdict"] for row in answers(few)} == {"undecided"}
    assert {row["amount"] for row in answers(few)} == {"3 of 6 generations"}
    one = sweep_of(synthetic_rows(models=("serial",), threads=(1,), repeats=3))
    assert answers(one) == []


def test_tables_say_what_an_undecided_ratio_lacks():
    """Check that no table has a bare ratio and "undecided": of few generations and of few undisturbed rounds it says
    how many, and what is not decided for its interval lacks nothing; and that the table of answers has rounds."""
    forms = {"options": ({}, {"weight_gradients": "chain"}), "slowdowns": (1.0, 1.0)}
    few = sweep_of(synthetic_rows(models=("serial", "forkjoin", "taskiter"), repeats=3, **forms))
    for table in (speed_table(few), axis_table(few)):
        assert {*table["lacks"][table["verdict"] != ""]} == {"3 of 6 generations"}
        assert {VERDICT.text(row) for row in table.to_dict("records")} <= {"", "undecided (3 of 6 generations)"}
    text = render_text(sections.build(few))
    assert not re.search(r"undecided(?! \(3 of 6 generations\)| +\d)", text.partition("One-time costs")[0])
    assert "rounds, gen., sess." in (shown := render_answers(sections.build(few))) and "6, 3, 1" in shown
    point = (few.plan_ids()[0], parse_model("taskiter"), 2)
    wide, loud = Estimate(1.0, 0.9, 1.1, 9, 18, 12), Estimate(0.8, 0.7, 0.9, 9, 8, 12)
    lacks = [verdict_columns(few, ratio, point)["lacks"] for ratio in (wide, loud)]
    assert lacks == ["", "8 of 12 undisturbed rounds"]


@pytest.mark.parametrize("model", ["taskiter", "forkjoin"])
def test_what_is_not_usable_has_no_verdict(model):
    """Check each table of verdicts: none says faster or slower of a point that is not usable, nor of one that is
    compared with it; and that CSV, text, LaTeX and answers do not either."""
    models, forms = ("serial", "forkjoin", "taskiter"), ({}, {"weight_gradients": "chain"})
    chosen = {"granularities": (4, 16), "options": forms, "slowdowns": (1.0, 1.2)}
    whole = sweep_of(synthetic_rows(models=models, threads=(1, 2), repeats=7, **chosen))
    sweep = replace(whole, disturbed_points={(plan_id, model, 2) for plan_id in whole.plan_ids()})

    def verdicts(sweep):
        speeds, own_best, axes = (
            table[(table["threads"] == 2) & (table["verdict"] != "") & table["model"].isin(named)]
            for table, named in (
                (summary_table(sweep), ["taskiter"]),
                (own_best_table(sweep), ["taskiter"]),
                (axis_table(sweep), [model]),
            )
        )
        return [*speeds["verdict"], *own_best["verdict"], *axes["verdict"]]

    assert {"faster", "slower"} & {*verdicts(whole)} and len(verdicts(whole)) == len(verdicts(sweep)) == 10
    assert {*verdicts(sweep)} == {"not usable"}
    for row in answers(sweep):
        assert row["usable"] or (row["verdict"], row["amount"]) == ("not usable", "")
    text = render_text(sections.build(sweep))  # in which taskiter is also compared with itself, along an axis
    rows = [line for line in text.splitlines() if re.search(r"taskiter +2 ", line)] if model == "taskiter" else []
    assert not any(re.search("  (faster|slower)", row) for row in rows)
    assert model != "taskiter" or any("not usable" in row for row in rows)


def test_the_text_of_a_comparison_fits_a_terminal():
    """Check that it has at most 40 lines of 132 characters, however much there is to say, and the first answers."""
    models = ("serial", "forkjoin", "forkjoin:region=persistent", "tasks", "taskgraph", "taskiter")
    rows = synthetic_rows(models=models, batches=(8, 16, 32, 64), failures=True)
    report = sections.build(sweep_of(rows, '{"kind":'))
    text = render_answers(report)
    assert len(text.splitlines()) <= 40 and max(map(len, text.splitlines()[2:25])) <= 132
    for row in report.answers.rows[:20]:
        assert row["question"] in text and row["amount"] in text


def test_a_report_prints_the_answers_and_the_rest_where_it_is_asked_for(tmp_path, capsys):
    """Check that `report` prints the table of answers, `--all` every table, and `--figure` its own; and that names of
    figures' files hold neither "=" nor ","."""
    folder = write_rows(tmp_path, synthetic_rows(models=("serial", "forkjoin", "taskiter"), repeats=5))
    assert main(["report", str(folder)]) == 0
    answers = capsys.readouterr().out
    assert len(answers.splitlines()) < 40 and "forktask report DIR --all" in answers
    assert main(["report", str(folder), "--all"]) == 0
    assert "Every model and number of threads" in capsys.readouterr().out and "Every model" not in answers
    assert main(["report", str(folder), "--figure", "run_time"]) == 0
    path, _, text = capsys.readouterr().out.partition("\n")
    assert path.endswith("run_time.pdf") and "Phases of a step" in text and "Every model" not in text
    assert not [path.name for path in (folder / "figures").iterdir() if set("=,") & set(path.name)]


def test_the_first_screen(tmp_path, few_figures, capsys):
    """Check that a page names the machine, begins with the task models, has no section without content, folds the
    chapters of further plans, and describes how each plan was measured; and that a figure without a table of its own
    comes with that of all models."""
    models = ("serial", "forkjoin", "forkjoin:region=persistent", "forkjoin:region=persistent:again=1", "taskiter")
    rows = synthetic_rows(models=models, granularities=(4, 16), repeats=6)
    for row in rows:
        if row["kind"] == "run":
            row["environment"] = {**OTHERS["run"]["environment"], "cpu": {"model": "Mill 9000"}}
    folder = write_rows(tmp_path, rows)
    assert main(["report", str(folder)]) == 0
    capsys.readouterr()
    page = (folder / "report.html").read_text(encoding="utf-8")
    report = sections.build(load(folder))
    assert page.index("Mill 9000") < page.index("<table")
    names = [row["model"].name for row in report.answers.rows if row["against"] == "forkjoin"]
    assert names == ["taskiter", "forkjoin", "forkjoin"] * 2
    assert "Hardware counters" not in page and "Events in blocks" not in page
    folded = re.findall(r"<details><summary>\s*<h2[^>]*>(.*?)</h2>\s*</summary>", page, re.DOTALL)
    plans = [s.title for s in report.sections if s.level == 2 and s.plan_id and not s.empty]
    assert folded == plans[1:] and page.count("<details>") == page.count("</details>")
    (measured,) = (section for section in report.sections if section.title == "How it was measured")
    assert sum(text.startswith("Work: ") for text in measured.sentences) == len(plans)
    assert main(["report", str(folder), "--figure", "speedup"]) == 0
    assert "time / fork-join" in capsys.readouterr().out
