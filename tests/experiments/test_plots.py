"""Figures: they are drawn, hold what the rows hold, and come out the same every time."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiments.synthetic_results import study_of, synthetic_rows
from matplotlib import colors
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.limits import bound_table
from forktask.experiments.analysis.speeds import axis_table, speed_table
from forktask.experiments.report import figures
from forktask.experiments.report.figures.bound_lines import bound_lines, draw_bound
from forktask.experiments.report.figures.style import FORMATS, model_styles, save
from forktask.experiments.tables.numbers import format_time


@pytest.fixture(scope="module")
def two():
    return study_of(synthetic_rows(threads=(1, 2)))


@pytest.fixture(scope="module")
def sweep():
    models = ("serial", "forkjoin", "taskiter")
    return study_of(synthetic_rows(models=models, batches=(16, 64), granularities=(4, 16), repeats=6))


def test_bounds_that_coincide_are_one_line_and_have_intervals():
    """Check names, values and bands: fork-join's bound lies apart, those of tasks are the area's."""
    ends = {"": 1.0, "_low": 0.9, "_high": 1.2}
    factors = {"area": 1.0, "forkjoin": 0.8, "taskgraph": 1.001, "taskiter": 1.0, "brent": 0.7}
    rows = [
        {"threads": n, **{f"{b}_speedup{e}": n * f * part for b, f in factors.items() for e, part in ends.items()}}
        for n in (2, 1)
    ]
    lines = bound_lines(pd.DataFrame(rows), ["forkjoin", "tasks", "taskiter", "gpu_forkjoin"])
    assert [line.names for line in lines] == [("area", "taskgraph", "taskiter"), ("forkjoin",), ("brent",)]
    assert lines[1].x.tolist() == [1, 2] and lines[1].low == pytest.approx([0.72, 1.44])
    assert [line.names for line in bound_lines(pd.DataFrame(rows), ["tasks:taskwait=loop"])] == [
        ("area",),
        ("forkjoin",),
    ]
    axis = Figure().subplots()
    for line in lines:
        draw_bound(axis, line)
    assert len(axis.lines) == len(axis.collections) == 3
    assert bound_lines(pd.DataFrame(), ()) == []


@pytest.fixture(scope="module")
def noisy():
    """Step times that vary tenfold, as on a machine that others use too."""
    rows = synthetic_rows(threads=(1, 2), repeats=6)
    rng = np.random.default_rng(5)
    for row in rows:
        if row["kind"] == "sample":
            row["step_time_s"] *= np.exp(0.8 * abs(rng.normal())) * (0.3 if row["model"] == "serial" else 1)
    return study_of(rows)


@pytest.mark.parametrize(("column", "width"), [("double", 7.0), ("single", 3.3)])
@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("two", "speedup"),
        ("two", "phases"),
        ("two", "layers"),
        ("two", "overhead"),
        ("noisy", "speedup"),
        ("overlaid", "overlay"),
    ],
)
def test_nothing_sticks_out_or_overlaps(request, case, name, column, width):
    """Check the width, that all text lies within the figure, and that no two tick labels of an axis meet."""
    figure = figures.draw(request.getfixturevalue(case), name, column=column)
    assert figure.get_figwidth() == width
    renderer = FigureCanvasAgg(figure).get_renderer()
    frame = figure.bbox.padded(2)
    figure.draw(renderer)
    for axis in figure.axes:
        box = axis.get_tightbbox(renderer)
        assert box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1
        for one, along in ((axis.xaxis, 0), (axis.yaxis, 1)):
            low, high = sorted(one.get_view_interval())
            boxes = [
                t.label1.get_window_extent(renderer)
                for t in one.get_major_ticks()
                if low <= t.get_loc() <= high and t.label1.get_text()
            ]
            ends = sorted((b.x0, b.x1) if along == 0 else (b.y0, b.y1) for b in boxes)
            assert len(ends) >= 2
            assert all(a[1] <= b[0] + 0.5 for a, b in itertools.pairwise(ends))
    legend, title = figure.legends[0].get_window_extent(renderer), figure._suptitle.get_window_extent(renderer)
    for box in (legend, title):
        assert box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1
    for axis in figure.axes:
        assert not axis.get_tightbbox(renderer).overlaps(legend)


@pytest.mark.parametrize("threads", [(1,), (2,), (1, 2, 3, 4, 6, 8), (1, 2, 4, 8, 16, 32, 64, 128)])
def test_any_number_of_thread_counts_can_be_drawn(threads):
    """Check the default figure with one and with many thread counts, and that the ticks are thread counts."""
    models = ("serial", "forkjoin", "taskiter")
    s = study_of(synthetic_rows(models=models, threads=threads, batches=(4096,), repeats=5))
    figure = figures.draw(s)
    ticks = figure.axes[0].xaxis.get_major_locator()()
    assert set(ticks) <= {1, *threads} and {1, max(threads)} <= set(ticks)


def test_available_figures_can_all_be_drawn(two, sweep):
    """Check that what is offered works and what is not offered is refused with a reason."""
    assert figures.available_figures(two, two.plan_ids()[0]) == [
        *("forest", "speedup", "phases", "layers", "roofline", "overhead")
    ]
    assert figures.available_figures(sweep, sweep.plan_ids()[0]) == [
        f
        for f in figures.FIGURES
        if f not in ("factorial", "gpu_batch", "interference", "losses", "options", "simulated")
    ]
    for name in ("batch", "granularity"):
        with pytest.raises(UsageError, match="at least"):
            figures.draw(two, name)
    with pytest.raises(UsageError, match="one of forest, speedup"):
        figures.draw(two, "pie")
    with pytest.raises(UsageError, match="one of double, single"):
        figures.draw(two, column="triple")


def test_speedup_without_serial_is_refused():
    """Check the sentence when the baseline is missing."""
    s = study_of(synthetic_rows(models=("forkjoin", "taskiter")))
    assert "speedup" not in figures.available_figures(s, s.plan_ids()[0])
    with pytest.raises(UsageError, match="needs serial runs"):
        figures.draw(s)


@pytest.mark.parametrize("kind", FORMATS)
def test_same_rows_give_the_same_bytes(two, tmp_path, kind):
    """Check that two drawings are equal byte for byte, and hold no date."""
    a = save(figures.draw(two), tmp_path / f"a.{kind}").read_bytes()
    b = save(figures.draw(two), tmp_path / f"b.{kind}").read_bytes()
    assert a == b
    assert not re.search(rb"20\d\d-\d\d-\d\d|CreationDate|Creation Time", a)


def test_pdf_embeds_its_fonts(two, tmp_path):
    """Check for TrueType fonts with their programs inside (no Type 3)."""
    data = save(figures.draw(two), tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in data and b"/Type3" not in data


def test_unknown_format_is_refused(two, tmp_path):
    """Check the sentence for another ending."""
    with pytest.raises(UsageError, match="one of pdf, svg, png; got 'jpg'"):
        save(figures.draw(two), tmp_path / "a.jpg")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.0, "1.00 s"),
        (0.00641, "6.41 ms"),
        (41.5e-6, "41.5 µs"),
        (123e-9, "123 ns"),
        (0.0, "0 ns"),
        (float("nan"), "n/a"),
        (-0.0021, "-2.10 ms"),
    ],
)
def test_times_have_three_digits(seconds, text):
    """Check units and digits."""
    assert format_time(seconds) == text


def test_models_keep_their_style():
    """Check that colour and marker of a model do not depend on which others there are, and that variants differ."""
    alone, together = model_styles(["taskiter"]), model_styles(["serial", "tasks", "taskiter"])
    assert alone["taskiter"] == together["taskiter"]
    forms = model_styles(["forkjoin", "forkjoin:region=persistent", "forkjoin:schedule=dynamic"])
    assert len({(str(s.color), s.marker) for s in forms.values()}) == 3
    unrolled = model_styles(["taskiter", "taskiter:unroll=2:slots=2", "taskiter:unroll=4:slots=4"])
    assert len({s.marker for s in unrolled.values()}) == 3
    # Bars have neither marker nor line: each variant has a colour of its own.
    loads = ["pageable:copies=synchronous", "pinned:copies=synchronous", "pinned:copies=prefetch"]
    for variants in (forms, unrolled, model_styles([f"gpu_hostload:memory={load}" for load in loads])):
        assert len({colors.to_hex(s.color) for s in variants.values()}) == 3


@pytest.fixture(scope="module")
def overlaid():
    models = ("serial", "forkjoin", "forkjoin:region=persistent", "tasks", "taskgraph", "taskiter")
    return study_of(synthetic_rows(models=models, threads=(1, 2, 4), granularities=(4, 16, 32), repeats=6))


def test_granularities_are_overlaid_over_threads(overlaid):
    """Check the models that are shown, and each curve against the times and the fastest serial run of all plans."""
    figure = figures.draw(overlaid, "overlay")
    titles = [axis.get_title(loc="left").split("$ ")[1] for axis in figure.axes]
    assert titles == ["forkjoin, persistent", "taskgraph", "taskiter"] * 2
    times = {key: overlaid.typical_time(key).value for key in overlaid.turns}
    fastest = min(time for (_, model, _), time in times.items() if model == "serial")
    plans = {overlaid.records[p]["granularity"]: p for p in overlaid.plan_ids()}
    models = ("forkjoin:region=persistent", "taskgraph", "taskiter")
    for number, axis in enumerate(figure.axes):
        curves = {line.get_label(): line for line in axis.lines if line.get_label() in plans}
        assert list(curves) == ["images=4", "images=16", "images=32"]
        for granularity, line in curves.items():
            speedups = [fastest / times[plans[granularity], models[number % 3], t] for t in (1, 2, 4)]
            expected = speedups if number < 3 else [s / t for s, t in zip(speedups, (1, 2, 4), strict=True)]
            assert line.get_ydata() == pytest.approx(expected)
    limits = bound_table(overlaid).set_index(["plan_id", "threads"])
    for number, (model, bound) in enumerate(zip(models, ("forkjoin", "taskgraph", "taskiter"), strict=True)):
        for plan in plans.values():
            seconds = [limits.loc[(plan, threads), f"{bound}_s"] for threads in (1, 2, 4)]
            lines = [line.get_ydata() for line in figure.axes[number].lines]
            assert any(np.allclose(line, [fastest / s for s in seconds]) for line in lines if len(line) == 3), model


def test_batches_are_overlaid_over_their_own_serial_runs():
    """Check that values which are different work start from one, and that a study with one plan is refused."""
    study = study_of(synthetic_rows(models=("serial", "taskiter"), batches=(16, 64), repeats=5))
    figure = figures.draw(study, "overlay")
    times = {key: study.typical_time(key).value for key in study.turns}
    plans = {str(study.records[p]["batch"]): p for p in study.plan_ids()}
    for value, plan in plans.items():
        (line,) = [line for line in figure.axes[0].lines if line.get_label() == value]
        speedups = [times[plan, "serial", 1] / times[plan, "taskiter", t] for t in (1, 2)]
        assert line.get_ydata() == pytest.approx(speedups)
    assert figure._suptitle.get_text().startswith("cifar10_cnn, train; along batch\n")
    with pytest.raises(UsageError, match="at least two values"):
        figures.draw(study_of(synthetic_rows()), "overlay")
    without = study_of(synthetic_rows(models=("forkjoin", "taskiter"), granularities=(4, 16)))
    with pytest.raises(UsageError, match="needs serial runs"):
        figures.draw(without, "overlay")


def test_networks_of_tokens_take_sequences():
    """Check the words where a plan loads tokens, and that times along the sequence are those of a token."""
    rows = synthetic_rows(
        models=("serial", "taskiter"),
        batches=(16, 64),
        options=({"sequence": 64}, {"sequence": 128}),
        repeats=5,
        slowdowns=(1, 2),
        data="synthetic",
    )
    for row in rows:
        if row["kind"] == "plan":
            row["loops"][0]["kernel"] = "tokens_load"
    study = study_of(rows)
    throughput = figures.draw(study, "batch").axes[0]
    assert throughput.get_xlabel() == "batch (sequences)" and throughput.get_ylabel() == "thousand tokens per second"
    (line,) = [line for line in throughput.lines if line.get_label() == "serial"]
    plans = study.siblings(study.plan_ids()[0], "batch")
    times = [study.typical_time((plan, "serial", 1)).value for plan in plans]
    assert line.get_ydata() == pytest.approx([16 * 64 / times[0] / 1e3, 64 * 64 / times[1] / 1e3])
    ratios = axis_table(study)
    assert ratios.loc[ratios["axis"] == "sequence", "ratio"].to_numpy() == pytest.approx(1, rel=0.05)


def test_each_network_has_its_figures_over_batches():
    """Check that a sweep of two networks shows a figure over batches for both, and one over all plans once."""
    networks = ({}, {"network": "lenet5"})
    study = study_of(synthetic_rows(batches=(16, 64), repeats=5, options=networks, slowdowns=(1.0, 1.0)))
    shown = [(study.records[p]["network"], f) for p in study.plan_ids() for f in figures.available_figures(study, p)]
    for name in ("batch", "overlay"):
        assert [network for network, figure in shown if figure == name] == ["cifar10_cnn", "lenet5"]
    assert [network for network, figure in shown if figure == "gain"] == ["cifar10_cnn"]


def test_a_new_figure_is_one_file(tmp_path, monkeypatch):
    """Check that a file with the functions of a figure is found, listed, drawn and captioned."""
    (tmp_path / "novelty.py").write_text(
        "from matplotlib.figure import Figure\n"
        "RANK, ONE_FOR = 9, 'plan'\n"
        "def missing(study, plan_id): return ''\n"
        "def draw(study, plan_id, column):\n"
        "    figure = Figure(layout='constrained')\n"
        "    figure.subplots()\n"
        "    return figure\n"
        "def caption(study, plan_id): return ['News.']\n"
    )
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    monkeypatch.setattr(figures, "FIGURES", figures.find_figures())
    study = study_of(synthetic_rows(repeats=5))
    assert figures.available_figures(study, study.plan_ids()[0])[-1] == "novelty"
    assert figures.draw(study, "novelty") and figures.caption(study, "novelty").startswith("News.")


def test_drawing_needs_no_pyplot_and_leaves_the_settings_alone():
    """Check that importing and drawing do not load pyplot's state machine or change global settings."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import matplotlib; before = dict(matplotlib.rcParams)\n"
        "from experiments.synthetic_results import study_of, synthetic_rows\n"
        "from forktask.experiments.report import figures\n"
        "figures.draw(study_of(synthetic_rows(repeats=5)))\n"
        "assert dict(matplotlib.rcParams) == before\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(Path(__file__).parents[1])], check=True, timeout=120)


def test_lines_end_where_nothing_was_measured():
    """Check that an unfinished sweep's lines over the batch and over threads do not join the neighbours of a gap."""
    models = ("serial", "forkjoin", "taskiter")
    rows = synthetic_rows(models=models, threads=(1, 2, 4), batches=(16, 32, 64), repeats=3)
    batch = {row["plan_id"]: row["options"]["batch"] for row in rows if row["kind"] == "plan"}

    def lost(row):
        """taskiter at batch 32, and at batch 64 on two threads."""
        if row["kind"] != "sample" or row["model"] != "taskiter":
            return False
        return batch[row["plan_id"]] == 32 or (batch[row["plan_id"]] == 64 and row["threads"] == 2)

    study = study_of([row for row in rows if not lost(row)])
    widest = next(p for p in study.plan_ids() if study.records[p]["batch"] == 64)
    for figure, plan_id, gap in (("batch", None, 32), ("speedup", widest, 2)):
        for axis in figures.draw(study, figure, plan_id).axes:
            lines = {line.get_label(): line for line in axis.lines}
            for model in models[1:]:
                line = lines.get(model)
                if line is None:
                    continue  # fork-join is what the ratios are over
                place = np.argmin(np.abs(np.log2(line.get_xdata() / gap)))
                known = np.isfinite(line.get_ydata())
                assert len(known) == 3 and known.sum() == (2 if model == "taskiter" else 3)
                assert known[place] == (model != "taskiter")


def test_plans_without_arithmetic_have_no_empty_panels():
    """Check that a graph that is no network and computes nothing has no roofs and no rates, and words of its own."""
    rows = synthetic_rows(models=("serial", "forkjoin"), repeats=3)
    for row in rows:
        if row["kind"] == "plan":
            row["num_parameters"] = 0
            row["loops"] = [{**loop, "flops": 0.0} for loop in row["loops"]]
    study = study_of(rows)
    for name in ("layers", "roofline"):
        assert len(figures.draw(study, name).axes) == 1


@pytest.mark.parametrize("column", ["single", "double"])
def test_long_headers_stay_on_the_figure(column):
    """Check that the header of a plan with many changed options ends before the figure does."""
    options = {
        "optimizer": "adamw",
        "decay": "matrices",
        "memory": "shared",
        "weight_gradients": "tree",
        "frozen": "conv1",
    }
    study = study_of(synthetic_rows(models=("serial", "forkjoin"), options=(options,), repeats=2, profiles=0))
    figure = figures.draw(study, "speedup", None, column)
    FigureCanvasAgg(figure).draw()
    box = figure._suptitle.get_window_extent()
    assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    assert figure._suptitle.get_text().count("\n") >= 2


def test_captions_have_at_most_sixty_words(two, sweep, overlaid):
    """Check every figure of three studies, in one line without NaN."""
    for study in (two, sweep, overlaid):
        for plan_id in study.plan_ids():
            for name in figures.available_figures(study, plan_id):
                text = figures.caption(study, name, plan_id)
                assert 5 <= len(text.split()) <= 60, (name, text)
                assert "\n" not in text and "nan" not in text


def test_a_forest_has_the_ratios_of_all_contestants(two):
    """Check each drawn ratio and interval against the table of speeds, far ones being written."""
    table = speed_table(two)
    table = table[(table["threads"] == 2) & (table["reference"] != "")]
    axis = figures.draw(two, "forest").axes[0]
    drawn = {float(line.get_xdata()[0]) for line in axis.lines if len(line.get_xdata()) == 1}
    bars = {tuple(line.get_xdata()) for line in axis.lines if len(line.get_xdata()) == 2 and line.get_linewidth() > 1}
    written = {text.get_text() for text in axis.texts}
    assert len(table) == 5
    for row in table.to_dict("records"):
        assert row["ratio"] in drawn or f"{row['ratio']:.2f}" in written
        assert (row["ratio_low"], row["ratio_high"]) in bars or f"{row['ratio']:.2f}" in written
