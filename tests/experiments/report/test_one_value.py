"""One number, one value: what a page says of one quantity in several places is the same number everywhere."""

import math
import re
from collections import Counter

import pytest
from experiments.synthetic_results import sweep_of, synthetic_rows, write_rows
from matplotlib.layout_engine import ConstrainedLayoutEngine

from forktask.experiments.analysis import factorial
from forktask.experiments.analysis.accounting import phases_of
from forktask.experiments.analysis.comparisons import PER
from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.names import GRANULARITY
from forktask.experiments.analysis.speeds import best_serial
from forktask.experiments.commands.main import main
from forktask.experiments.report import figures, files
from forktask.experiments.report.rendering import render_text
from forktask.experiments.report.sections import build
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import ProfileRow, SampleRow
from forktask.experiments.subjects.models import SERIAL, model_of_factors
from forktask.experiments.tables.numbers import format_time

ENDS = ("", "_low", "_high")
FACTORIAL_ENDS = factorial.ends_of(factorial.FACTORIALS[0])
# Figures whose panels show what no table has.
OWN_NUMBERS = ("bound", "losses", "simulated")


@pytest.fixture(autouse=True)
def no_layout(monkeypatch):
    """Leave the places of a figure's parts open: only its numbers are read here."""
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, figure: None)


class Numbers:
    """Numbers by quantity and subject; the same quantity of the same subject must have the same value."""

    def __init__(self):
        self.found = {}

    def add(self, quantity, subject, value, where):
        if value is None or not math.isfinite(value):
            return
        first, place = self.found.setdefault((quantity, subject), (value, where))
        assert value == pytest.approx(first, rel=1e-9, abs=1e-15), (
            f"{quantity} of {subject} is {first} in {place} and {value} in {where}"
        )

    def add_all(self, quantity, subject, row, key, where):
        """Add a value with the ends of its interval."""
        for end in ENDS:
            self.add(quantity + end, subject, row[key + end], where)

    def values(self, quantity):
        return [value for (name, _), (value, _) in self.found.items() if name == quantity]

    def __getitem__(self, key):
        return self.found[key][0]


def tables_of(report):
    """The rows of a report's tables, by the tables' names."""
    result = {report.answers.name: list(report.answers.rows)}
    for section in report.sections:
        for table in section.tables:
            result.setdefault(table.name, []).extend(table.rows)
    return result


def collect(sweep):
    """All numbers of a report's tables that have a name in more than one of them, or follow from others."""
    tables, numbers = tables_of(build(sweep)), Numbers()

    def ratio(numerator, denominator, row, where, work=1.0):
        numbers.add_all("ratio", (numerator, denominator, work), row, "ratio", where)
        times = [numbers["step time", point] for point in (numerator, denominator)]
        numbers.add("ratio", (numerator, denominator, work), times[0] / times[1] / work, "quotient of step times")

    for row in tables.get("speed", ()):
        point = (row["plan_id"], row["model"], row["threads"])
        numbers.add("step time", point, row["time_s"], "speed")
        numbers.add_all("speedup", point, row, "speedup", "speed")
        numbers.add_all("efficiency", point, row, "efficiency", "speed")
    for row in tables.get("speed", ()):
        point = (row["plan_id"], row["model"], row["threads"])
        if serial := best_serial(sweep, row["plan_id"]):
            numbers.add("speedup", point, numbers["step time", serial] / row["time_s"], "quotient of step times")
        numbers.add("efficiency", point, row["speedup"] / row["threads"], "speedup / threads")
        if row["reference"] == row["model"].repeated:
            ratio(point, (row["plan_id"], row["reference"], row["threads"]), row, "speed, A/A")
        elif row["reference"]:
            reference = (row["plan_id"], row["reference"], row["threads"])
            numbers.add("time / fork-join", point, row["ratio"], "speed")
            # which is cross-fitted: no form's own time where several are as good, but one for all rows
            reference_s = row["time_s"] / row["ratio"]
            numbers.add("reference", reference[::2], reference_s, f"row of {row['model']}")
            assert reference_s == pytest.approx(numbers["step time", reference], rel=0.02)
    for row in tables.get("in_short", ()):
        point = (row["plan_id"], row["model"], row["threads"])
        other = (row["plan_id"], row["reference"], row["threads"])
        if row["reference"] == "serial":
            other = best_serial(sweep, row["plan_id"])
        if row["reference"] == "serial" or row["model"].repeated == row["reference"]:
            ratio(point, other, row, "in short")
            continue
        if row["against"] == "forkjoin":
            numbers.add("time / fork-join", point, row["ratio"], "in short")
        quotient = numbers["step time", point] / numbers["step time", other]
        assert row["ratio"] == pytest.approx(quotient, rel=0.02)  # cross-fitted
    for row in tables.get("floors", ()):
        if serial := best_serial(sweep, row["plan_id"]):
            numbers.add("step time", serial, row["t1_s"], "floors")
        numbers.add("step time", (row["plan_id"], "serial", 1), row["serial_s"], "floors")
    for row in tables.get("costs", ()):
        numbers.add("step time", (row["plan_id"], row["model"], row["threads"]), row["step_s"], "costs")
    for row in tables.get("accounting", ()):
        point = (row["plan_id"], row["model"], row["threads"])
        numbers.add("step time", point, row["measured_s"], "accounting")
        numbers.add("step time", point, row["floor_s"] * (1 + row["excess"]), "floor and excess")
        numbers.add("step time", point, row["floor_s"] + row["excess_s"], "floor and excess")
    for row in tables.get("phases", ()):
        point = (row["plan_id"], row["model"], row["threads"])
        for phase in phases_of(sweep, row["plan_id"]):
            numbers.add(f"time of {phase}", point, row[f"{phase}_s"], "phases")
            numbers.add(f"speedup of {phase}", point, row[f"{phase}_speedup"], "phases")
            numbers.add(f"efficiency of {phase}", point, row[f"{phase}_efficiency"], "phases")
        total = sum(row[f"{phase}_s"] for phase in phases_of(sweep, row["plan_id"]))
        if row["timed"] == "wall":
            numbers.add("step time", point, total, "sum of phases")
        elif (row["plan_id"], "serial", 1) in sweep.turns:
            inflation = [r["inflation"] for r in tables["accounting"] if same_point(r, point)]
            serial = numbers["step time", (row["plan_id"], "serial", 1)]
            numbers.add("inflation", point, total * row["threads"] / serial, "sum of phases")
            numbers.add("inflation", point, inflation[0] if inflation else math.nan, "accounting")
    for plan_id in {row["plan_id"] for row in tables.get("layers", ())}:
        layers, serial = [r for r in tables["layers"] if r["plan_id"] == plan_id], (plan_id, "serial", 1)
        numbers.add("step time", serial, sum(r["time_s"] for r in layers), "sum of layers")
        for phase in phases_of(sweep, plan_id):
            total = sum(r["time_s"] for r in layers if r["phase"] == phase)
            numbers.add(f"time of {phase}", serial, total, "sum of layers")
    for row in tables.get("bounds", ()):
        for name in ("area", "forkjoin", "taskgraph", "taskiter"):
            subject = (row["plan_id"], row["threads"])
            numbers.add(f"bound {name}", subject, row[f"{name}_s"], "bounds")
            if serial := best_serial(sweep, row["plan_id"]):
                at_best = numbers["step time", serial] / row[f"{name}_speedup"]
                numbers.add(f"bound {name}", subject, at_best, "its speedup")
    for row in tables.get("axes", ()):
        point = (row["plan_id"], row["model"], row["threads"])
        numbers.add("step time", point, row["time_s"], "axes")
        values = [sweep.records[p][row["axis"]] for p in (row["plan_id"], row["baseline_plan_id"])]
        work = values[0] / values[1] if row["axis"] in PER else 1.0
        ratio(point, (row["baseline_plan_id"], *point[1:]), row, f"axes, {row['axis']}", work)
    for row in tables.get("own_best", ()):
        point = (row["plan_id"], row["model"], row["threads"])
        numbers.add("step time", point, row["time_s"], "own best")
        numbers.add("speedup", point, row["speedup"], "own best")
        if row["reference"]:
            (plan_id,) = (
                p
                for p in sweep.siblings(row["plan_id"], GRANULARITY)
                if sweep.records[p][GRANULARITY] == row["reference_granularity"]
            )
            ratio(point, (plan_id, row["reference"], row["threads"]), row, "own best")
    for row in tables.get("factorial", ()):
        point = (row["plan_id"], row["model"], row["threads"])
        first = (row["plan_id"], model_of_factors(*FACTORIAL_ENDS[0][:3]), row["threads"])
        numbers.add("step time", point, row["time_s"], "factorial")
        ratio(point, first, row, "factorial")
    for row in tables.get("effects", ()):
        if row["effect"] == factorial.WHOLE:
            cells = [model_of_factors(*cell[:3]) for cell in reversed(FACTORIAL_ENDS)]
            subject = (*((row["plan_id"], model, row["threads"]) for model in cells), 1.0)
            for end, key in zip(ENDS, ("ratio", "low", "high"), strict=True):
                numbers.add("ratio" + end, subject, row[key], "effects")
    return tables, numbers


def check_verdicts(tables):
    """Check that a comparison has one verdict, whichever tables show it; return in how many tables each is."""
    verdicts, places = {}, Counter()
    for name, rows in tables.items():
        rungs = {}
        for row in rows:
            elsewhere = row.get("reference_plan_id", row.get("plan_id")) != row.get("plan_id")  # of another plan
            shown = [(row["reference"], row)] if "lacks" in row and row.get("reference") and not elsewhere else []
            if name == "ladder" and row["above_verdict"]:
                shown = [(rungs[row["plan_id"]], {"verdict": row["above_verdict"]})]
            rungs[row.get("plan_id")] = row.get("model")
            for reference, judged in shown:
                state = (row["place"],) if "place" in row else ()  # of the host: another comparison
                comparison = (row["plan_id"], row["model"], row["threads"], reference, *state)
                places[comparison] += 1
                first, where = verdicts.setdefault(comparison, (judged["verdict"], name))
                assert judged["verdict"] == first, f"{comparison}: {first} in {where}, {judged['verdict']} in {name}"
    return places


def same_point(row, point):
    return (row["plan_id"], row["model"], row["threads"]) == point


def allowed(sweep, tables, numbers, figure, panel, quantity):
    """The numbers of the tables that a panel may show."""
    if figure == "run_time":
        return [1e3 * time for time in numbers.values("step time" if panel == "step" else f"time of {panel}")]
    if quantity in ("speedup", "efficiency"):
        return numbers.values(quantity)
    if quantity == "time / better fork-join":
        return numbers.values("time / fork-join")
    if quantity in ("time per step (ms)", "step time (ms)"):
        return [1e3 * time for time in numbers.values("step time")]
    if quantity == "thousand images per second":
        return [sweep.plans[p].batch / t / 1e3 for (q, (p, *_)), (t, _) in numbers.found.items() if q == "step time"]
    if quantity.startswith(("time / that with ", "time per")):
        return [row["ratio"] for row in tables["axes"]]
    assert quantity == "time after / before", f"no quantity is known for {quantity!r} of figure {figure}"
    return [row["ratio"] for row in tables["effects"]]


def is_reference(chart, model):
    """Whether a row is of an ideal or of a bound, which no table of models has."""
    return chart.styles[model].marker in ("", "|")


def check_figures(sweep, tables, numbers):
    """Check every number that is drawn against the tables, and T1 in titles and captions; return the figures' names."""
    names = set()
    for plan_id in sweep.plan_ids():
        serial = best_serial(sweep, plan_id)
        for name in figures.available_figures(sweep, plan_id):
            names.add(name)
            if name in ("forest", "turns"):
                continue  # their points are those of a table, or single turns (test_plots)
            figure = figures.draw(sweep, name, plan_id)
            for text in (figure._suptitle.get_text(), figures.caption(sweep, name, plan_id)):
                for t1 in re.findall(r"T_?1\$? = (\d+(?:\.\d+)? \S?s)", text):
                    assert t1 == format_time(numbers["step time", serial]), f"figure {name}: T1 = {t1}"
            if name == "layers":
                if serial is None:
                    continue
                rows = figures.FIGURES[name].chart(sweep, plan_id).data()
                step = rows[(rows["model"] == SERIAL) & (rows["x"] == "all")]["value"].item()
                total = numbers["step time", (plan_id, "serial", 1)] * 1e3
                assert step == pytest.approx(total), "the serial step of figure layers"
            elif name == "roofline":
                # A bar for each kernel, and its floor before it.
                bars = {}
                for bar in figure.axes[1].patches:
                    bars.setdefault(round(bar.get_y(), 2), bar.get_width())
                total = numbers["step time", (plan_id, "serial", 1)] * 1e3
                assert sum(bars.values()) == pytest.approx(total), "the bars of figure roofline"
            elif name not in OWN_NUMBERS:
                chart = figures.FIGURES[name].chart(sweep, plan_id)
                for row in chart.data().to_dict("records"):
                    if is_reference(chart, row["model"]):
                        continue
                    known = allowed(sweep, tables, numbers, name, row["panel"], row["quantity"])
                    assert any(row["value"] == pytest.approx(k, rel=1e-9) for k in known), f"{name}: {row}"
    return names


def check_sentences(sweep, tables, numbers):
    """Check the numbers in sentences: T1, speedups and bounds."""
    text = render_text(build(sweep))
    known = {
        format_time(numbers["step time", best_serial(sweep, p)]) for p in sweep.plan_ids() if best_serial(sweep, p)
    }
    assert set(re.findall(r"T1 = (\d+(?:\.\d+)? \S?s)", text)) <= known
    speedups = {f"{value:.2f}" for value in numbers.values("speedup")}
    bounds = {f"{value:.2f}" for row in tables.get("bounds", ()) for key, value in row.items() if "_speedup" in key}
    for speedup, bound in re.findall(r"\(speedup (\d+(?:\.\d+)?), bound (\d+(?:\.\d+)?)\)", text):
        assert speedup in speedups and bound in bounds
    for shown in re.findall(r"Shares of the serial run of this plan, (\d+(?:\.\d+)? \S?s)", text):
        assert shown in {format_time(t) for (q, (_, model, _)), (t, _) in times(numbers) if model == "serial"}
    whole = report_text(sweep)
    for row in tables.get("bounds", ()):
        spinning = re.search(rf"\b{row['threads']} spinning threads do the work of (\d+(?:\.\d+)?)", whole)
        assert spinning is None or spinning[1] == f"{row['capacity']:.2f}"


def times(numbers):
    return [item for item in numbers.found.items() if item[0][0] == "step time"]


def report_text(sweep):
    """All sentences of the page, also those that the terminal does not show."""
    return " ".join(text for section in build(sweep).sections for text in (*section.sentences, *section.answers))


LADDER = ("serial", *factorial.cells_of(factorial.FACTORIALS[0]).values(), "forkjoin", "forkjoin:region=persistent")
SWEEPS = {  # half of them as noisy as a shared machine
    "models": ({"threads": (1, 2, 4), "noise": 0.01}, {"speedup", "run_time", "layers"}),
    "plans": (
        {"models": ("serial", "forkjoin", "taskiter"), "batches": (16, 64), "granularities": (4, 16), "noise": 0.2},
        {"batch", "granularity"},
    ),
    "options": (
        {
            "models": ("serial", "forkjoin", "taskiter"),
            "options": ({"weight_gradients": "partial"}, {"weight_gradients": "chain"}),
            "slowdowns": (1.0, 1.25),
            "noise": 0.2,
        },
        {"options"},
    ),
    "ladder": ({"models": LADDER, "noise": 0.01}, {"factorial"}),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_equal_names_have_equal_values(name):
    """Check all tables, sentences and figures of synthetic results."""
    settings, wanted = SWEEPS[name]
    sweep = sweep_of(synthetic_rows(**settings, repeats=7, seed=3))
    tables, numbers = collect(sweep)
    assert len(times(numbers)) == len(sweep.turns)
    check_sentences(sweep, tables, numbers)
    assert wanted <= check_figures(sweep, tables, numbers)


def test_one_comparison_has_one_verdict():
    """Check that a model that is measured once more is compared with itself in all tables, where the interval of the
    ratio to the fastest form would be a wider one."""
    forms = ("forkjoin", "forkjoin:region=persistent", "forkjoin:region=persistent:again=1")
    models = ("serial", *forms, "tasks", "taskgraph", "taskiter")
    rows = synthetic_rows(models=models, threads=(2,), granularities=(1, 8), repeats=12, noise=0.012, seed=4)
    sweep = sweep_of(rows)
    tables, _ = collect(sweep)
    places = check_verdicts(tables)
    again = {key: count for key, count in places.items() if key[1].again}
    assert len(again) == 2 and {key[3] for key in again} == {"forkjoin:region=persistent"}
    assert set(again.values()) == {2} and sum(count > 1 for count in places.values()) > 6
    form = [row for row in tables["speed"] if row["model"] == forms[2]]
    points = [(form[0]["plan_id"], model, 2) for model in forms]
    assert (
        sweep.times.ratio_to_fastest(points[2], points[:2]).half_width
        > 1.01 * sweep.times.ratio(*points[:0:-1]).half_width
    )
    assert not any(row["model"].again for row in tables.get("own_best", ()))


def test_a_measured_capacity_above_the_threads_is_the_threads():
    """Check that sentence and table of a machine on which two threads did more than twice the work say the same."""
    rows = synthetic_rows(models=("serial", "forkjoin"), repeats=5)
    next(row for row in rows if row["kind"] == "machine")["capacity"]["2"] = 2.06
    sweep = sweep_of(rows)
    tables, numbers = collect(sweep)
    assert [row["capacity"] for row in tables["bounds"]] == [1.0, 2.0]
    check_sentences(sweep, tables, numbers)
    assert "2 spinning threads do the work of 2.00" in report_text(sweep)


def test_equal_names_have_equal_values_in_a_real_sweep(tmp_path, capsys):
    """Check the same on what this machine measures, and that the page on disk says what the tables say; it is the whole
    way once: real processes and kernels, equal weights, table, figures and report."""
    out = tmp_path / "out"
    words = "compare --network lenet5 --batch 32 --models serial,forkjoin,tasks,taskiter --threads 1 --quick --trace"
    assert main([*words.split(), "--out", str(out)]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 40
    results = read_results(out)
    result = Counter(type(row).__struct_config__.tag for row in results.rows)
    once, each = ("run", "machine", "plan", "rounds"), ("sample", "profile", "trace")
    assert result == {"session": 1} | dict.fromkeys(once, 1) | dict.fromkeys(each, 4)
    assert len({row.weights_hash for row in results.of(SampleRow)}) == 1
    processes = [{(row.model, row.pid) for row in results.of(kind)} for kind in (SampleRow, ProfileRow)]
    assert processes[0] == processes[1]
    for row in results.of(ProfileRow):
        assert row.bounds.cycle_mean_s <= row.bounds.work_s * (1 + 1e-9)
        # No pass is faster than its own blocks allow.
        assert row.floors.area <= row.pass_time_s
        assert row.model != "forkjoin" or row.floors.forkjoin <= row.pass_time_s
    sweep = load(out)
    tables, numbers = collect(sweep)
    check_sentences(sweep, tables, numbers)
    drawn = check_figures(sweep, tables, numbers)  # phases are shown where logged runs took as long as timed ones
    assert {"speedup", "layers"} <= drawn
    (plan_id,) = sweep.plan_ids()
    t1 = format_time(numbers["step time", (plan_id, "serial", 1)])
    page = (out / files.REPORT).read_text(encoding="utf-8")
    assert set(re.findall(r"T1 = (\d+(?:\.\d+)? \S?s)", page)) == {t1} and (out / "summary.csv").exists()


def test_a_second_value_is_found(tmp_path):
    """Check that this file's check fails where two places disagree, and names both."""
    numbers = Numbers()
    numbers.add("step time", "serial", 8.24, "layers")
    numbers.add("step time", "serial", 8.24, "title")
    with pytest.raises(AssertionError, match=r"step time of serial is 8.24 in layers and 10.8 in costs"):
        numbers.add("step time", "serial", 10.8, "costs")
    folder = write_rows(tmp_path, synthetic_rows(models=("serial", "forkjoin"), repeats=5))
    sweep = load(folder)
    tables, numbers = collect(sweep)
    tables["speed"][0]["time_s"] *= 1.001
    numbers.found["step time", (tables["speed"][0]["plan_id"], "serial", 1)] = (tables["speed"][0]["time_s"], "test")
    with pytest.raises(AssertionError):
        check_figures(sweep, tables, numbers)
