"""Figures: they are drawn, hold what the rows hold, and come out the same every time."""

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from experiments.synthetic_results import LAYERS, sweep_of, synthetic_rows
from matplotlib.backends.backend_agg import FigureCanvasAgg

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.speeds import main_plan, speed_table
from forktask.experiments.report import figures
from forktask.experiments.report.exports import sample_frame
from forktask.experiments.report.figures.ratios import handover_rows
from forktask.experiments.report.figures.style import CROSSED, FORMATS, TALLEST_IN, in_style, new_figure, save
from forktask.experiments.report.rendering import render_answers
from forktask.experiments.report.sections import build
from forktask.experiments.report.verdicts import answers


@pytest.fixture(scope="module")
def two():
    return sweep_of(synthetic_rows(threads=(1, 2)))


@pytest.fixture(scope="module")
def swept():
    models = ("serial", "forkjoin", "taskiter")
    return sweep_of(synthetic_rows(models=models, batches=(16, 64), granularities=(4, 16), repeats=6))


@pytest.fixture(scope="module")
def batches():
    """Eight batches whose steps load and update so long that both are shown, on one and two threads."""
    longer = [
        (layer, phase, *rest, 30.0 if phase in ("load", "update") else cost) for layer, phase, *rest, cost in LAYERS
    ]
    models = ("serial", "forkjoin", "forkjoin:region=persistent", "taskgraph", "taskiter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.synthetic_results.LAYERS", longer)
        return sweep_of(synthetic_rows(models=models, batches=[2**n for n in range(3, 11)], repeats=2, profiles=1))


def on_a_large_node(**config):
    """Nine points to 256 threads: two sockets of 64 cores with SMT, four nodes each, a cache for eight cores."""
    models = ("serial", "forkjoin", "forkjoin:region=persistent", "taskiter")
    rows = synthetic_rows(models=models, threads=[2**n for n in range(9)], repeats=6, profiles=1)
    environment = next(row["environment"] for row in rows if row["kind"] == "run")
    cpus = [
        {"cpu": c, "core": c % 128, "socket": c % 128 // 64, "node": c % 128 // 16, "llc": c % 128 // 8 * 8, "kind": 0}
        for c in range(256)
    ]
    environment |= {"topology": {"cores": 128, "cpus": cpus}, "affinity": [*range(256)]}
    next(row["config"] for row in rows if row["kind"] == "run").update(config)
    return sweep_of(rows)


@pytest.fixture(scope="module")
def node():
    return on_a_large_node()


def marks(axis):
    return sorted(
        line.get_xdata()[0] for line in axis.lines if line.get_color() == "0.8" and len(line.get_xdata()) == 2
    )


def test_the_axis_of_threads_shows_where_the_machine_changes(node, two):
    """Check lines and names where a cache, node, socket and siblings begin, the placement's name, and a small machine
    without any."""
    for name in ("speedup", "run_time"):
        axes = figures.draw(node, name).axes
        assert all(marks(axis) == pytest.approx([n * 2**0.25 for n in (8, 16, 64, 128)]) for axis in axes)
        named = [text.get_text() for text in axes[0].texts if text.get_rotation() == 90]
        assert named == ["next socket", "next NUMA node", "next cache", "siblings"]
        labels = {axis.get_xlabel() for axis in axes} - {""}
        assert labels == {"threads (cores, close)"}
    spread = figures.draw(on_a_large_node(places="threads", bind="spread"), "speedup").axes
    assert marks(spread[0]) == pytest.approx([2**0.25, 128 * 2**0.25])
    assert spread[-1].get_xlabel() == "threads (threads, spread)"
    free = figures.draw(on_a_large_node(bind="none"), "speedup").axes
    assert marks(free[0]) == [] and free[-1].get_xlabel() == "threads (not pinned)"
    small = figures.draw(two, "speedup").axes
    assert marks(small[0]) == [] and small[-1].get_xlabel() == "threads"


@pytest.fixture
def measured_as_drawn():
    """Texts are measured outside of `draw` as they are in it."""
    with in_style():
        yield


@pytest.mark.usefixtures("measured_as_drawn")
@pytest.mark.parametrize(("column", "width"), [("double", 7.0), ("single", 3.3)])
@pytest.mark.parametrize(
    ("case", "name"),
    [
        *(("two", "speedup"), ("two", "layers"), ("swept", "granularity")),
        *(("two", "forest"), ("batches", "forest")),
        *(("two", "run_time"), ("batches", "run_time")),
        *(("node", "speedup"), ("node", "run_time")),
    ],
)
def test_nothing_sticks_out_or_overlaps(request, case, name, column, width):
    """Check the width, that all text lies within the figure, and that no two texts of it meet."""
    shown = request.getfixturevalue(case)
    figure = figures.draw(shown, name, column=column)
    assert figure.get_figwidth() == width and (column == "double" or figure.get_figheight() <= TALLEST_IN)
    renderer = FigureCanvasAgg(figure).get_renderer()
    frame = figure.bbox.padded(2)
    figure.draw(renderer)
    texts = [*figure.legends, *filter(None, [figure._suptitle])]
    boxes_of_ticks = []
    for axis in figure.axes:
        box = axis.get_tightbbox(renderer)
        assert box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1
        named = (axis._left_title, axis.xaxis.label, axis.yaxis.label)
        texts += [text for text in named if text.get_visible() and text.get_text()]
        texts += [text for text in axis.texts if not text.get_in_layout()]  # titles of rows
        for one, along in ((axis.xaxis, 0), (axis.yaxis, 1)):
            low, high = sorted(one.get_view_interval())
            boxes = [
                t.label1.get_window_extent(renderer)
                for t in one.get_major_ticks()
                if low <= t.get_loc() <= high and t.label1.get_text() and t.label1.get_visible()
            ]
            ends = sorted((b.x0, b.x1) if along == 0 else (b.y0, b.y1) for b in boxes)
            shared = not one.get_tick_params().get("labelbottom" if along == 0 else "labelleft", True)  # with another
            assert len(ends) >= 2 or shared
            boxes_of_ticks += boxes if not shared else []
    boxes = [text.get_window_extent(renderer) for text in texts]
    for box in boxes:
        assert box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1
    pairs = itertools.combinations([box.padded(-0.5) for box in (*boxes, *boxes_of_ticks)], 2)
    assert not [(one, other) for one, other in pairs if one.overlaps(other)]


@pytest.mark.usefixtures("measured_as_drawn")
@pytest.mark.parametrize("case", ["two", "swept", "batches"])
def test_every_figure_fits_a_column(request, case):
    """Check width, height, share of the legend, that axes and legend lie within the figure and apart, and that captions
    have sixty words."""
    sweep = request.getfixturevalue(case)
    for name in figures.available_figures(sweep, main_plan(sweep)):
        figure = figures.draw(sweep, name, column="single")
        renderer, frame = FigureCanvasAgg(figure).get_renderer(), figure.bbox.padded(2)
        figure.draw(renderer)
        assert figure.get_figwidth() == 3.3 and figure.get_figheight() <= TALLEST_IN, name
        boxes = [axis.get_tightbbox(renderer) for axis in figure.axes]
        for legend in figure.legends:
            box = legend.get_window_extent(renderer)
            assert box.width * box.height < frame.width * frame.height / 3, name
            assert not any(one.overlaps(box) for one in boxes), name
            boxes.append(box)
        for box in boxes:
            assert box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1, name
        caption, method = figures.caption_file(sweep, name).split("\n\n")
        assert len(caption.split()) <= 60 and "Every model runs the same blocks" in method, name
        of_several = figures.FIGURES[name].one_for != "plan" and len(sweep.plan_ids()) > 1
        assert ("are those of one of" in method) == of_several, name


def test_answers_are_in_the_order_of_the_sweep(swept):
    """Check that the plan with most generations, one whose question stayed open, does not come first for that."""
    plans = swept.plan_ids()
    others = swept.samples[swept.samples["plan_id"] != plans[-1]]
    uneven = replace(swept, samples=swept.samples.drop(others.drop_duplicates("plan_id").index))
    assert main_plan(uneven) == plans[-1] != plans[0]
    rows = [row["plan_id"] for row in answers(uneven)]
    assert rows == sorted(rows, key=plans.index) and {plans[0], plans[-1]} <= set(rows)


def test_a_report_of_many_plans_draws_one_of_each_network(swept, monkeypatch):
    """Check that others have no figures of their own, and that the report says how to draw them."""
    leading, other = swept.plan_ids()[0], swept.plan_ids()[-1]
    all_of_leading = figures.available_figures(swept, leading)
    assert "run_time" in figures.available_figures(swept, other) and "--plan ID" not in render_answers(build(swept))
    monkeypatch.setattr(figures, "MOST_PLANS", len(swept.plan_ids()) - 1)
    assert figures.available_figures(swept, leading) == all_of_leading
    assert figures.available_figures(swept, other) == [] and "--plan ID" in render_answers(build(swept))


def test_available_figures_can_all_be_drawn(two, swept):
    """Check that what is offered works and what is not offered is refused with a reason."""
    assert figures.available_figures(two, two.plan_ids()[0]) == [
        *("forest", "speedup", "run_time", "layers", "roofline", "turns")
    ]
    others = {"calls", "factorial", "handover", "interference", "ladder", "layer_times", "losses", "options"}
    others |= {"simulated"}
    assert figures.available_figures(swept, swept.plan_ids()[0]) == [f for f in figures.FIGURES if f not in others]
    for name in ("batch", "granularity"):
        with pytest.raises(UsageError, match="at least"):
            figures.draw(two, name)
    with pytest.raises(UsageError, match="one of forest, speedup"):
        figures.draw(two, "pie")
    with pytest.raises(UsageError, match="one of double, single"):
        figures.draw(two, column="triple")


def test_letters_choose_panels(two):
    """Check the panels that are drawn, and that a letter which no panel has is refused."""
    drawn = figures.draw(two, "speedup", column="single", panels=["a", "b"]).axes
    assert [axis.get_ylabel() for axis in drawn] == ["speedup", "efficiency"]
    with pytest.raises(UsageError, match="panel must be one of a, b, c; got 'd'"):
        figures.draw(two, "speedup", panels=["d"])


def test_same_rows_give_the_same_bytes(two, tmp_path):
    """Check that two drawings are equal byte for byte in each format, and hold no date."""
    first, second = figures.draw(two), figures.draw(two)
    for kind in FORMATS:
        a = save(first, tmp_path / f"a.{kind}").read_bytes()
        assert a == save(second, tmp_path / f"b.{kind}").read_bytes()
        assert not re.search(rb"20\d\d-\d\d-\d\d|CreationDate|Creation Time", a)


def test_a_new_figure_is_one_file(tmp_path, monkeypatch):
    """Check that a file with the function of a figure is found, listed, drawn and captioned."""
    (tmp_path / "novelty.py").write_text(
        "import pandas as pd\n"
        "from forktask.experiments.report.figures.chart import Chart, Panel, figure, reference_rows\n"
        "from forktask.experiments.report.figures.style import ModelStyle\n"
        "@figure(9)\n"
        "def novelty(sweep, plan_id):\n"
        "    rows = reference_rows('news', ['today', 'tomorrow'], [1.0, 2.0])\n"
        "    styles = {'news': ModelStyle('red', 'o', '-')}\n"
        "    return Chart([Panel(rows, 'value')], ['facts'], styles, caption=['News.'])\n"
    )
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    monkeypatch.setattr(figures, "FIGURES", figures.find_figures())
    sweep = sweep_of(synthetic_rows(repeats=5))
    assert figures.available_figures(sweep, sweep.plan_ids()[0])[-1] == "novelty"
    assert figures.draw(sweep, "novelty") and figures.caption(sweep, "novelty").startswith("News.")


def test_a_figure_of_one_panel_goes_into_axes_of_the_user(two):
    """Check that axes get what a figure of its own has, that several panels are refused, and the data behind both."""
    figure, (first, _) = new_figure("double", 2)
    assert figures.draw(two, "forest", ax=first) is figure
    alone = figures.draw(two, "forest").axes[0]
    assert [t.get_text() for t in first.get_yticklabels()] == [t.get_text() for t in alone.get_yticklabels()]
    assert len(first.lines) == len(alone.lines)
    data = figures.figure_data(two, "speedup")
    assert {"panel", "quantity", "model", "x", "value", "low", "high", "usable"} <= {*data}
    table = speed_table(two).query("threads == 2").set_index("model")["speedup"]
    shown = data[(data["panel"] == "over best serial") & (data["x"] == 2)].set_index("model")["value"]
    assert all(shown[str(model)] == value for model, value in table.items())
    with pytest.raises(UsageError, match="one of 3"):
        figures.draw(two, "speedup", ax=first)


def test_drawing_needs_no_pyplot_and_leaves_the_settings_alone():
    """Check that importing and drawing do not load pyplot's state machine or change global settings."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import matplotlib; before = dict(matplotlib.rcParams)\n"
        "from experiments.synthetic_results import sweep_of, synthetic_rows\n"
        "from forktask.experiments.report import figures\n"
        "figures.draw(sweep_of(synthetic_rows(repeats=5)))\n"
        "assert dict(matplotlib.rcParams) == before\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(Path(__file__).parents[2])], check=True, timeout=120)


def test_models_are_chosen_ordered_and_named(node):
    """Check the legend, that ratios keep their reference, and that a model that was not measured is refused."""
    whole = speed_table(node).set_index(["model", "threads"])
    chosen = {"taskiter": "replayed, overlapping", "forkjoin": "one barrier a loop"}
    figure = figures.draw(node, models=chosen, title=False)
    assert not figure.get_suptitle()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == [*chosen.values()] and not any("tasks" in label for label in labels)
    color = figure.legends[0].legend_handles[0].get_color()
    ratio = [line for line in figure.axes[2].lines if line.get_color() == color]
    last = next(line.get_ydata()[-1] for line in ratio if len(line.get_ydata()))
    assert last == pytest.approx(whole.loc[("taskiter", 256), "ratio"])
    assert "taskiter" in [text.get_text() for text in figures.draw(node).legends[0].get_texts()]
    with pytest.raises(UsageError, match="a model of the figure must be one of"):
        figures.draw(node, models={"pthreads": "threads"})


@pytest.mark.parametrize(("name", "count"), [("speedup", 3), ("options", 2)])
def test_an_impossible_point_is_crossed_out(name, count):
    """Check column, marker, legend and caption of a point that is too fast for two threads, and of no other; its phases
    are not drawn, since its logged runs took another time."""
    forms = {"speedup": {}, "options": {"options": ({}, {"weight_gradients": "chain"}), "slowdowns": (1.0, 1.2)}}
    rows = synthetic_rows(models=("serial", "forkjoin", "taskiter"), threads=(1, 2), repeats=2, **forms[name])
    last = [row["plan_id"] for row in rows if row["kind"] == "plan"][-1]
    for row in rows:
        if row.get("plan_id") != last:
            continue
        if row["kind"] == "sample" and (row["model"], row["threads"]) == ("taskiter", 2):
            factor = 0.3 + 0.5 * row["repetition"]  # as wide an interval as disturbed samples have
            for kind in ("short_times_s", "long_times_s"):
                row[kind] = [time * factor for time in row[kind]]
            row["step_time_s"] *= factor
    sweep = sweep_of(rows)
    table = speed_table(sweep)
    assert table.loc[~table["usable"], ["model", "threads"]].to_numpy().tolist() == [["taskiter", 2]]
    figure = figures.draw(sweep, name)
    crosses = [line for axis in figure.axes for line in axis.lines if line.get_gid() == CROSSED]
    assert len(crosses) == count and all(len(line.get_xdata()) == 1 for line in crosses)
    assert CROSSED in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "Crossed out" in figures.caption(sweep, name)
    rows = sample_frame(sweep)
    assert set(rows.loc[~rows["usable"], "model"]) == {"taskiter"}


def test_ratios_over_hand_overs_show_near_and_far_cpus():
    """Check a machine that had the CPUs far apart in three of nine generations, in which one model was slower: a marker
    for each generation and model, hollow where it is left out, both medians; and no figure without such a state."""
    rows = synthetic_rows(models=("serial", "forkjoin", "tasks", "taskiter"), noise=1e-3)
    ids = {row["config_id"]: row for row in rows if row["kind"] == "sample"}
    plan_id = next(row["plan_id"] for row in rows if row["kind"] == "plan")
    near = [
        {"kind": "rounds", "plan_id": plan_id, "repetition": k, "contestants": [*ids], "handover_s": [7e-8]}
        for k in range(9)
    ]
    assert "near and with far CPUs" in figures.missing(sweep_of([*rows, *near]), "handover", plan_id)
    far = [{**row, "handover_s": [2e-7]} if row["repetition"] < 3 else row for row in near]
    for row in rows:
        if row["kind"] == "sample" and row["model"] == "tasks" and row["repetition"] < 3:
            row |= {name: [1.5 * s for s in row[name]] for name in ("short_times_s", "long_times_s")}
            row["step_time_s"] *= 1.5
    sweep = sweep_of([*rows, *far])
    result = handover_rows(sweep, plan_id)
    assert len(result) == 2 * 9 and {row["left_out"] for row in result if row["handover_s"] > 1e-7} == {True}
    (axis,) = figures.draw(sweep, "handover").axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["near CPUs: 70 to 70 ns", "far CPUs: 200 to 200 ns"]
    hollow = [line for line in axis.lines if line.get_linestyle() == "None" and line.get_markerfacecolor() == "white"]
    assert len(hollow) == 2 * 3 and {round(float(line.get_ydata()[0])) for line in hollow} == {1}
    near_and_far = re.search(r"far \(from 200 ns on\): tasks (\S+), (\S+);", figures.caption(sweep, "handover"))
    assert float(near_and_far[2]) == pytest.approx(1.5 * float(near_and_far[1]), abs=0.02)


def test_figures_do_not_depend_on_the_style_of_the_user(two, tmp_path):
    """Check the bytes under a style that asks for LaTeX and a font that is not there."""
    style = {"font.family": "No Such Font", "text.usetex": True}
    with matplotlib.rc_context(style):
        strange = save(figures.draw(two), tmp_path / "a.svg").read_bytes()
    assert strange == save(figures.draw(two), tmp_path / "b.svg").read_bytes()
