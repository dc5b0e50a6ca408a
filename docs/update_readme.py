"""Write the measured and the simulated results into the README:  python -P docs/update_readme.py [FOLDER]

They stand as numbers in PUBLISHED, so that they outlive the form of samples; tests/test_provenance.py fails where the
README or its figure is not what these numbers give. FOLDER, a results folder of `forktask run demonstration`, renews
them: its samples are kept beside the numbers, and `conditions.txt` there says what was special about the measurement.
"""

import json
import re
import shutil
import sys
import textwrap
from pathlib import Path

import matplotlib
import pandas as pd

from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.names import is_again, measured_again
from forktask.experiments.analysis.speeds import on_most_threads, speed_table
from forktask.experiments.report.figures import style
from forktask.experiments.report.figures.axes import x_axis
from forktask.experiments.simulate.predict import prediction_table, thread_counts
from forktask.experiments.tables import Column, markdown_table
from forktask.experiments.tables.numbers import interval, plural, time

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "results" / "epyc_2_cores" / "demonstration"
FIGURE, README = ROOT / "docs" / "images" / "demonstration.svg", ROOT / "README.md"
MODELS = {
    "forkjoin:region=persistent": "fork-join: a barrier after each loop",
    "taskiter": "tasks: replayed, no barriers",
}
NUMBERS = ("median_s", "speedup", "speedup_low", "speedup_high", "ratio", "ratio_low", "ratio_high")


def publish(folder: str) -> None:
    """Take numbers and samples from a results folder into PUBLISHED."""
    sweep = load(folder)
    plans = sorted(sweep.plan_ids(), key=lambda plan_id: -sweep.plans[plan_id].num_tasks)
    threads, speeds = thread_counts(sweep, plans[0]), speed_table(sweep)
    cpu = sweep.environment["cpu"]
    found = {
        "machine": cpu["model"] + (", virtual machine" if cpu["virtual_machine"] else ""),
        "date": sweep.run.created[:10],
        "commit": sweep.environment["build"]["commit"],
        "threads": on_most_threads(speeds)[1],
        "blocks": {},
        "measured": [],
        "simulated": [],
    }
    for plan_id, name in zip(plans, ("fine", "coarse"), strict=True):
        images = sweep.records[plan_id]["granularity"].removeprefix("images=")
        text = f"{plural(int(images), 'image')} each, {sweep.plans[plan_id].num_tasks} a step"
        found["blocks"][name] = text
        for row in speeds[speeds["plan_id"] == plan_id].to_dict("records"):
            numbers = {key: None if pd.isna(row[key]) else float(f"{row[key]:.6g}") for key in NUMBERS}
            about = {key: row[key] for key in ("model", "threads", "verdict")}
            found["measured"].append({"blocks": name, **about, **numbers})
        for row in prediction_table(sweep, plan_id, threads, None, list(MODELS)).to_dict("records"):
            curve = {"model": row["model"], "threads": row["threads"], "speedup": float(f"{row['speedup']:.6g}")}
            found["simulated"].append({"blocks": name, **curve})
    seen = prediction_table(sweep, plans[0], threads)
    found["error"] = float(f"{seen.loc[seen['threads'] > 1, 'error'].abs().median():.6g}")
    for name in ("samples.jsonl", "machine.toml"):
        shutil.copy(Path(folder) / name, PUBLISHED)
    (PUBLISHED / "published.json").write_text(json.dumps(found, indent=1) + "\n")


def measured(found: dict) -> str:
    """Return the table of all models on most threads, with machine, commit, date and conditions."""
    points = {(row["blocks"], row["model"]): row for row in found["measured"] if row["threads"] == found["threads"]}
    columns = [
        Column("model", lambda r: f"`{measured_again(r['model'])}`{' again (A/A)' if is_again(r['model']) else ''}")
    ]
    for name in found["blocks"]:
        columns += [
            Column(f"{name}: a step", lambda row, name=name: time(points[name, row["model"]]["median_s"]), True),
            Column("time / fork-join", lambda row, name=name: ratio_text(points[name, row["model"]])),
        ]
    first = next(iter(found["blocks"]))
    rows = sorted((row for key, row in points.items() if key[0] == first), key=lambda row: row["median_s"])
    blocks = "; ".join(f"{name}: {text}" for name, text in found["blocks"].items())
    folder = PUBLISHED.relative_to(ROOT)
    about = (
        f"Blocks, {blocks}. {found['machine']}, {found['threads']} threads, {found['date']}, commit "
        f"{found['commit'][:12]}. {(PUBLISHED / 'conditions.txt').read_text().strip()} Measured with "
        f"`forktask run demonstration`; [the samples]({folder}/samples.jsonl)."
    )
    return "\n".join([*markdown_table(columns, rows), "", textwrap.fill(about, 120, break_on_hyphens=False)])


def ratio_text(row: dict) -> str:
    """Return a ratio with its interval and verdict; empty for the model that others are compared with."""
    if not row["verdict"]:
        return ""
    limits = "" if row["ratio_low"] is None else interval(row["ratio_low"], row["ratio_high"], 3) + " "
    return f"{row['ratio']:.3f} {limits}{row['verdict']}"


def simulated(found: dict) -> str:
    """Return what the simulated curve shows, and how far it can be checked."""
    first, most = next(iter(found["blocks"])), max(row["threads"] for row in found["simulated"])
    ends = {(row["blocks"], row["model"]): row["speedup"] for row in found["simulated"] if row["threads"] == most}
    joined, replayed = (ends[first, model] for model in MODELS)
    text = (
        f"From the serial durations of the fine blocks the simulation gives {most} threads a speedup of "
        f"{joined:.0f} with barriers and {replayed:.0f} without. It assumes that the cost of a barrier grows linearly "
        "beyond the measured threads, and that bandwidth and cores do so too. The batch of 16 images leaves most of "
        f"{most} threads without a block in loops over images. At the points that were measured here it errs by "
        f"{found['error']:.1%} (median); **its error on more than two threads was never measured.**"
    )
    path = FIGURE.relative_to(ROOT)
    return f"{textwrap.fill(text, 120)}\n\n![Speedup over threads, fork-join and tasks, fine and coarse blocks]({path})"


def draw(found: dict, path: Path) -> None:
    """Draw measured and simulated speedups with fine and with coarse blocks."""
    rows = {kind: pd.DataFrame(found[kind]) for kind in ("measured", "simulated")}
    with matplotlib.rc_context(style.style_parameters()):
        figure, axes = style.new_figure("double", 2, panel_height=2.3)
        for axis, (name, text) in zip(axes, found["blocks"].items(), strict=True):
            draw_blocks(axis, *(table[table["blocks"] == name] for table in rows.values()))
            style.panel_title(axis, f"{name} blocks: {text}")
            axis.set_ylim(0, rows["simulated"]["speedup"].max() * 1.15)
        axes[0].set_ylabel("speedup over one thread")
        style.add_legend(figure, "double", axes[0].get_legend_handles_labels()[0])
        style.save(figure, path)


def draw_blocks(axis, points: pd.DataFrame, curves: pd.DataFrame) -> None:
    """Draw the two models of MODELS: simulated lines, and measured markers with intervals."""
    styles = style.model_styles(list(MODELS))
    widest, last = points["threads"].max(), curves["threads"].max()
    axis.axvspan(widest * 1.1, last * 1.3, facecolor="0.95", zorder=0)
    axis.text(widest * 1.3, 0.4, "simulated only", color=style.GREY)
    for model, label in MODELS.items():
        look, own, seen = styles[model], curves[curves["model"] == model], points[points["model"] == model]
        axis.plot(own["threads"], own["speedup"], color=look.color, linestyle=look.line)
        end = (last, own["speedup"].iloc[-1])
        above = 4 if model == "taskiter" else -10
        axis.annotate(f"{end[1]:.3g}", end, (0, above), textcoords="offset points", ha="center", color=look.color)
        ends = [seen["speedup"] - seen["speedup_low"], seen["speedup_high"] - seen["speedup"]]
        errors = [end.fillna(0).clip(lower=0) for end in ends]
        shown = {**style.marker_look(look), "color": look.color, "linestyle": "none", "elinewidth": 0.8}
        axis.errorbar(seen["threads"], seen["speedup"], yerr=errors, label=label, **shown)
    x_axis(axis, sorted(curves["threads"].unique()), "threads")


def readme_of(found: dict, text: str) -> str:
    """Return the text of the README with both results written anew.

    Raises
    ------
    ValueError
        The marks of a result are not there once.
    """
    for mark, content in (("measured", measured(found)), ("simulated", simulated(found))):
        marked = f"<!-- {mark} -->\n{content}\n<!-- end of {mark} -->"
        text, num_marks = re.subn(f"<!-- {mark} -->.*<!-- end of {mark} -->", lambda _, m=marked: m, text, flags=re.S)
        if num_marks != 1:
            raise ValueError(f"README.md must have the marks of {mark!r} once, has them {num_marks} times")
    return text


def main() -> None:
    """Write the README's results and its figure."""
    for folder in sys.argv[1:]:
        publish(folder)
    found = json.loads((PUBLISHED / "published.json").read_text())
    README.write_text(readme_of(found, README.read_text()))
    draw(found, FIGURE)


if __name__ == "__main__":
    main()
