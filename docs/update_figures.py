"""Publish results, and draw what README and docs/studies show of them:

    python -P docs/update_figures.py [NAME FOLDER]

`NAME FOLDER` takes the samples of a results folder of `forktask run NAME` into results/MACHINE/NAME, with the host's
name left out; see results/README.md, whose list is written here. Then, as without arguments, the figures in `FIGURES`
of all published results are drawn as `forktask report --figure` draws them, the tables of docs/studies are written, and
the README's table from `demonstration`. A test fails where one is not what the samples give; who
changes the form of rows converts them.
"""

import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from matplotlib.figure import Figure

from forktask.cython_src.errors import UsageError
from forktask.cython_src.typed_text import format_bytes
from forktask.experiments.analysis.accounting import WALL, accounting_table, layer_table, phase_table
from forktask.experiments.analysis.comparisons import interference_table
from forktask.experiments.analysis.costs import memory_table
from forktask.experiments.analysis.estimates import FASTER, NOT_USABLE, SLOWER
from forktask.experiments.analysis.factorial import FACTORS, WHOLE, effect_table
from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.names import GRANULARITY, INTERFERENCE, axis_label, model_label, value_text
from forktask.experiments.analysis.speeds import leading_plans, main_plan, on_most_threads, speed_table
from forktask.experiments.analysis.sweep import Point, Sweep
from forktask.experiments.metg.figure import draw as draw_metg
from forktask.experiments.metg.metg import table_of
from forktask.experiments.report import figures
from forktask.experiments.report.columns import EFFECT, LOSS
from forktask.experiments.report.columns import INTERFERENCE as INTERFERING
from forktask.experiments.report.figures import style, when
from forktask.experiments.report.figures.chart import Chart, Panel, reference_rows
from forktask.experiments.report.figures.chart import drawn as drawn_chart
from forktask.experiments.report.figures.layers import rows_of as losses_of
from forktask.experiments.report.files import GANTT
from forktask.experiments.report.gantt import draw_traces
from forktask.experiments.report.reproduced import findings
from forktask.experiments.results.folder import SAMPLES, read_results
from forktask.experiments.results.rows import RoundsRow, SampleRow, SessionRow, TraceRow
from forktask.experiments.studies.report import build, drawn_figure
from forktask.experiments.studies.running import StudyResults, results_of
from forktask.experiments.subjects.calls import label
from forktask.experiments.subjects.models import PERSISTENT, SERIAL, TASKITER, ModelSpec, parse_model
from forktask.experiments.survey.joined import MACHINES, machine_row
from forktask.experiments.survey.page import SURVEY
from forktask.experiments.tables import Column, Table, between_marks, markdown_table
from forktask.experiments.tables.numbers import JUDGED_AT, interval, percent, plural, time

ROOT = Path(__file__).resolve().parent.parent
RESULTS, LIST, IMAGES = ROOT / "results", ROOT / "results" / "README.md", ROOT / "docs" / "images"
STUDIES = sorted((ROOT / "docs" / "studies").glob("*.md"))
FINDINGS_PAGE, MACHINES_PAGE = ROOT / "docs" / "findings.md", ROOT / "docs" / "machines.md"
GALLERY_PAGE = ROOT / "docs" / "gallery.md"
POINTS = ROOT / "experiments" / "report" / "figures" / when.PUBLISHED.name
WHEN_PAGE = ROOT / "docs" / "when_do_tasks_pay.md"
NARROW = 0.10  # intervals of points of figure `when`, as part of the value, at most
README, README_RESULTS = ROOT / "README.md", "demonstration"
LADDERS = "order_ladder_"  # the names of results that share a table begin so
TASK_MODELS = ("taskiter", "taskgraph", "tasks")  # of the README's table
METG_RESULTS = RESULTS / "epyc_2_cores" / "metg"
RUNTIMES_RESULTS = RESULTS / "xeon_2_cores" / "metg_runtimes"
TRACED = (PERSISTENT, TASKITER)  # models of the picture of traces
# The figures of each study, whose table its page has, too: those of a network are drawn for each network, others for
# the plan with most samples.
FIGURES = {
    README_RESULTS: (),
    "when": ("when",),
    "blocks_of_images": ("handover", "turns"),
    "gpt2_ladder": (),
    "gpt2_batch_subsize": ("granularity",),
    "gpt2_shapes": ("bound", "roofline"),
    "gpt2_64_tokens": (),
    "gpt2_1024_tokens": (),
    "gpu_batch": (),
    "h200_batch": (),
    "h200_networks": (),
    "h200_transfers": (),
    "h200_peers": (),
    "calls": ("calls",),
    "runtimes": ("forest",),
    "sixteen_threads": (),
    "sixteen_threads_networks": (),
    "checkerboard": ("options",),
    "checkerboard_trace": (GANTT,),
    "conv_forms": ("options",),
    "layers": ("layer_times",),
    "metg_dnn": ("granularity",),
    "replay_ladder": (),
    "order_ladder_lenet5": ("factorial",),
    "interference": ("interference",),
    "batch_networks": (),
    "time_to_accuracy": ("accuracy_over_time",),
    "lenet5": ("accuracy_over_time",),
    "fashion_mnist": ("accuracy_over_time",),
    "fine_tuning": ("accuracy_over_time",),
    "loading": ("loading",),
    "big_images": ("loading",),
    "strong_scaling": ("speedup",),
    "batch_size": ("batch",),
    "task_granularity": ("granularity",),
    "outliers": (),
    "replay_sessions": ("factorial",),
    "block_sessions": ("forest",),
    "chain_sessions": (),
    "fork_join_forms": (),
    "fork_join_forms_gpt2": (),
    "ladder_runtimes": ("forest",),
}
# Models of a figure, where it has not all.
SHOWN = {
    "blocks_of_images": ("tasks", "taskiter"),
    "runtimes": (str(PERSISTENT), "tasks", "taskiter", "openmp_tasks", "tbb", "taskflow", "ompss2"),
    "ladder_runtimes": (str(PERSISTENT), "tasks", "taskgraph", "taskiter", "openmp_tasks", "tbb", "taskflow"),
}
# Columns of the report's tables that the pages leave out.
LEFT_OUT = ("least to most", "train loss", "valid loss", "valid error", "competing processes", "preemption")
MOST_COLUMNS = 8  # of models; more of them are rows
BEST = "`taskiter` / best other"
GRAINS = (0, 10, 30, 100, 300, 1000, 1e5)  # ends of the classes of G
LARGEST = 2_000_000  # bytes of published samples
# What large samples go without, in this order, where no figure shows it: digits of the durations of blocks, but one;
# profiles; and all loops of a plan, but one.
PARTS = ("blocks of models", "profiles of models", "profiles of serial", "loops")


def published(results: Path = RESULTS) -> dict[str, Path]:
    """Return the newest folder of each name in `FIGURES` that is there, in their order."""
    result = {name: [path.parent for path in results.glob(f"*/{name}/{SAMPLES}")] for name in FIGURES}
    return {
        name: max(paths, key=lambda path: read_results(path).run.created) for name, paths in result.items() if paths
    }


def publish(name: str, folder: Path, results: Path = RESULTS) -> Path:
    """Take the samples of a folder, smaller where need be, and return where they are; another machine's make way."""
    environment = read_results(folder).run.environment
    words = re.sub(r"\(.*?\)", "", environment["cpu"]["model"]).split()
    target = results / f"{words[1].lower()}_{environment['topology']['cores']}_cores" / name
    if name in (before := published(results)) and before[name] != target:
        shutil.rmtree(before[name])
    target.mkdir(parents=True, exist_ok=True)
    samples = (folder / SAMPLES).read_text()
    if host := environment.get("node", {}).get("host"):
        samples = samples.replace(f'"{host}"', '"host"')
    # Of preloaded libraries their names, and files of the project from its folder on: folders are this machine's own.
    samples = samples.replace(f"{ROOT}/", "")
    samples = re.sub(r'"LD_PRELOAD": ?"[^"]*"', lambda found: re.sub(r'/[^":]*/', "", found[0]), samples)
    (target / SAMPLES).write_text(made_smaller(name, folder, samples))
    if (folder / "machine.toml").exists():
        shutil.copy(folder / "machine.toml", target)
    for row in read_results(folder).of(TraceRow):
        (target / row.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / row.path, target / row.path)
    return target


def made_smaller(name: str, folder: Path, samples: str) -> str:
    """Return samples of at most `LARGEST` bytes: as they are, else without what the figures do not need, else with
    numbers of five digits, else with one profile of each model. Raises `ValueError`: they stay larger."""
    if len(samples) <= LARGEST:
        return samples
    whole = drawn_bytes(name, folder, samples)
    tried = [without(samples, PARTS[:count]) for count in range(1, len(PARTS) + 1)]
    same = [samples, *(text for text in tried if drawn_bytes(name, folder, text) == whole)]
    once = without(samples, (PARTS[0], "repeated profiles"))
    for text in (*same, *(short_numbers(text) for text in (*same, once))):
        if len(text) <= LARGEST:
            return text
    raise ValueError(f"samples of {name} must fit into {LARGEST} bytes, got {len(samples)}; measure fewer plans")


def without(samples: str, parts: Sequence[str]) -> str:
    """Return samples without some of `PARTS`."""
    kept = []
    for line in samples.splitlines():
        row = json.loads(line)
        own = "serial" if row.get("model") == "serial" else "models"
        again = own == "models" and row.get("repetition") and "repeated profiles" in parts
        if row["kind"] == "profile" and (again or f"profiles of {own}" in parts):
            continue
        if row["kind"] == "profile" and f"blocks of {own}" in parts:
            rough = {name: [float(f"{time:.1g}") for time in times] for name, times in row["block_time_s"].items()}
            line = json.dumps({**row, "block_time_s": rough}, separators=(",", ":"))
        if row["kind"] == "plan" and "loops" in parts:
            line = json.dumps({**row, "loops": row["loops"][:1]}, separators=(",", ":"))
        kept.append(line + "\n")
    return "".join(kept)


def short_numbers(samples: str) -> str:
    """Return samples whose numbers have at most five digits, but for times of day."""
    return re.sub(r"(?<!\"started\":)\b\d+\.\d{5,}(e[-+]?\d+)?\b", lambda result: f"{float(result[0]):.5g}", samples)


def drawn_bytes(name: str, folder: Path, samples: str) -> dict[str, bytes]:
    """Return the figures that samples give, by file name."""
    with TemporaryDirectory() as place:
        (Path(place) / SAMPLES).write_text(samples)
        if (folder / "machine.toml").exists():
            shutil.copy(folder / "machine.toml", place)
        try:
            return {path.name: path.read_bytes() for path in draw(name, Path(place), Path(place))}
        except UsageError:
            return {}  # a figure lacks something


def draw(name: str, folder: Path, images: Path) -> list[Path]:
    """Draw the figures of a study from its samples as IMAGES/NAME-FIGURE.svg, and return their paths."""
    return [style.save(figure, images / f"{name}-{stem}.svg") for stem, figure in drawn(name, folder)]


def draw_all(images: Path) -> Iterator[Path]:
    """Draw the figures of all published results, and the curves of METG, and yield their paths."""
    for name, folder in published().items():
        yield from draw(name, folder, images)
    entries = [entry for entry in table_of(METG_RESULTS)["results"] if entry["repeats"]]
    yield style.save(draw_metg(entries, "double"), images / "metg-efficiency.svg")
    yield style.save(draw_runtimes(), images / "metg-runtimes.svg")
    with style.in_style():
        points = pd.read_csv(StringIO(gains_text()))
        yield style.save(drawn_chart(when.gains_chart(points)), images / "when-gains.svg")


def draw_runtimes() -> Figure:
    """Draw METG(50 %) of every runtime on two threads: a dot for each pattern."""
    values: dict[str, dict[str, float]] = {}
    for entry in table_of(RUNTIMES_RESULTS)["results"]:
        if entry["metg_s"]:
            values.setdefault(entry["model"], {})[entry["graph"]["pattern"]] = entry["metg_s"]["median"] * 1e9
    patterns = list(dict.fromkeys(pattern for own in values.values() for pattern in own))
    order = sorted(values, key=lambda model: min(values[model].values()))
    rows = [
        (pattern, model_label(model), values[model].get(pattern, math.nan)) for model in order for pattern in patterns
    ]
    label = "METG(50 %) in ns; tasks ten times as long lose less than 5 %"
    looks = {name: style.ModelStyle(style.COLORS[i], "oD^s"[i], "none") for i, name in enumerate(patterns)}
    chart = Chart(
        [Panel(reference_rows(*zip(*rows, strict=True)), label)],
        ["Smallest task that is worth its cost, on two threads"],
        looks,
        dodged=False,
        hollow_unknown=False,
    )
    with style.in_style():
        return drawn_chart(chart)


@lru_cache
def gains_text() -> str:
    """Return the points of figure `when` as they come with the package: those on two threads of all published plans
    whose intervals are narrow, by E."""
    tables = []
    for path in sorted(RESULTS.glob(f"*/*/{SAMPLES}")):
        if path.parent.parent.name not in when.MACHINES or read_results(path.parent).run.holds != "samples":
            continue
        if len(table := when.points(load(path.parent), 2)):
            tables.append(table.assign(machine=path.parent.parent.name, name=path.parent.name))
    table = pd.concat(tables, ignore_index=True)
    wide = [(table[f"{what}_high"] - table[f"{what}_low"]) / table[what] for what in ("busy", "ratio")]
    table = table[(wide[0] <= NARROW) & (wide[1] <= NARROW)].sort_values("busy", kind="stable")
    ends = [f"{what}{end}" for what in ("busy", "ratio") for end in ("", "_low", "_high")]
    return table[["machine", "name", "network", *ends, "recovered"]].to_csv(index=False, float_format="%.6g")


def drawn(name: str, folder: Path) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of a study, with their names."""
    if read_results(folder).is_study:
        results = results_of(folder)
        for figure in FIGURES[name]:
            yield figure, drawn_figure(results, figure, "double")[0]
        return
    sweep = load(folder)
    for figure in FIGURES[name]:
        if figure == GANTT:
            traced = figures.chosen(sweep, dict.fromkeys(TRACED, ""))
            yield figure, draw_traces(traced, folder, [main_plan(sweep)], "double")[0]
            continue
        for plan_id, network in plans_of(sweep, figure).items():
            yield figure + network, figures.draw(sweep, figure, plan_id, models=dict.fromkeys(SHOWN.get(name, ()), ""))


def plans_of(sweep: Sweep, figure: str) -> dict[str, str]:
    """Return the plans of which a figure is drawn, each with the end of its name."""
    leading = leading_plans(sweep)
    if figure == GANTT or figures.FIGURES[figure].one_for != "network" or len(leading) == 1:
        return {main_plan(sweep): ""}
    return {plan_id: f"-{sweep.records[plan_id]['network']}" for plan_id in leading}


def gallery() -> str:
    """Return every published figure with the command that draws it in a clone, for docs/gallery.md."""
    lines = []
    for name, folder in published().items():
        place, results = folder.relative_to(ROOT), read_results(folder)
        lines += [f"## {name}", ""] if FIGURES[name] else []
        for figure in FIGURES[name]:
            command = f"forktask report {place} --figure {figure}"
            if models := TRACED if figure == GANTT else SHOWN.get(name):
                command += f" --models {','.join(map(str, models))}"
            sweep = None if results.is_study else load(folder)
            for plan_id, network in ({"": ""} if sweep is None else plans_of(sweep, figure)).items():
                chosen = f" --plan {plan_id}" if network else ""
                image = f"![{figure} of {name}{network}](images/{name}-{figure}{network}.svg)"
                lines += [f"    {command}{chosen}", "", image, ""]
    command = re.sub(r" --out[ =]\S+", "", read_results(METG_RESULTS).run.command)
    lines += ["## metg", "", f"    {command}", "", "![METG of four patterns](images/metg-efficiency.svg)", ""]
    images = ("![METG of all runtimes](images/metg-runtimes.svg)", "![taskiter over fork-join](images/when-gains.svg)")
    lines += ["## all results on two threads", "", "    python -P docs/update_figures.py", ""]
    lines += [line for image in images for line in (image, "")]
    return "\n".join(lines)


def listed(results: Path = RESULTS) -> str:
    """Return the table of all published results, for results/README.md."""
    lines = ["| folder | machine, date | commit | measured with |", "|---|---|---|---|"]
    for path in sorted(results.glob(f"*/*/{SAMPLES}")):
        run, place = read_results(path.parent).run, path.parent.relative_to(results)
        build, cpu = run.environment["build"]["commit"].partition("-"), run.environment["cpu"]["model"]
        command = re.sub(r" --out[ =]\S+", "", run.command)
        commit = build[0][:12] + ", with changes" * bool(build[1])
        lines.append(f"| [`{place}`]({place}/{SAMPLES}) | {cpu}, {run.created[:10]} | {commit} | `{command}` |")
    return "".join(f"{line}\n" for line in lines)


def repeated(results: Path = RESULTS) -> str:
    """Return the table of findings that can be repeated, for docs/findings.md: how long a session of each takes where
    nothing else runs, with a minute for the machine's limits and the report, and how large all are."""
    lines = ["| command | minutes | disk |", "|---|--:|--:|"]
    for number, finding in findings(results / "findings.toml").items():
        rows, size = read_results(finding.folder), (finding.folder / SAMPLES).stat().st_size
        first = min((row.generations for row in rows.of(SessionRow)), default=math.inf)  # one session
        begun = [row.started for row in rows.of(SampleRow) if row.repetition < first]
        turns_s = sum(sum(row.wall_s) for row in rows.of(RoundsRow) if row.repetition < first)
        took = 1 + max(max(begun) - min(begun), turns_s, rows.run.config["budget_s"]) / 60
        lines.append(f"| `make reproduce FINDING={number}` | {took:.0f} | {format_bytes(size)} |")
    return "".join(f"{line}\n" for line in lines)


def blocks_of(sweep: Sweep) -> dict[str, tuple[str, str]]:
    """Return the plans of the README from large to small blocks: id, and its option and blocks in words. When they
    were measured, "auto" was for eight threads."""
    plans = sorted(sweep.plan_ids(), key=lambda plan_id: sweep.plans[plan_id].num_tasks)
    texts = [
        f"(`{sweep.named[plan_id]['granularity'].replace('auto', 'threads=8')}`) {sweep.plans[plan_id].num_tasks}, "
        f"{time(sweep.times.time(Point(plan_id, SERIAL, 1)).value)}"
        for plan_id in plans
    ]
    return dict(zip(("large", "medium", "small"), zip(plans, texts, strict=True), strict=True))


def measured(sweep: Sweep) -> str:
    """Return the README's table of the task models on most threads, with machine, commit, date and conditions."""
    table, threads = on_most_threads(speed_table(sweep))
    points = {(row["plan_id"], row["model"]): row for row in table.to_dict("records")}
    blocks = blocks_of(sweep)
    columns = [Column("model", lambda row: f"`{row['model']}`")]
    columns += [
        Column(f"{name} blocks", lambda row, plan_id=plan_id: ratio_text(points[plan_id, row["model"]]))
        for name, (plan_id, _) in blocks.items()
    ]
    first = blocks["medium"][0]
    rows = [points[first, model] for model in map(parse_model, TASK_MODELS)]
    environment, folder = sweep.environment, sweep.folder
    texts = "; ".join(f"{name} {text}" for name, (_, text) in blocks.items())
    about = (
        f"Blocks per step, serial time: {texts}. {machine_of(environment)}, {threads} threads, "
        f"{sweep.run.created[:10]}, commit {environment['build']['commit'][:12]}. "
        f"[Samples]({folder.relative_to(ROOT)}/{SAMPLES})."
    )
    return "\n".join([*markdown_table(columns, rows), "", textwrap.fill(about, 120, break_on_hyphens=False), ""])


def machine_of(environment: dict) -> str:
    """Return the processor of a run, and whether it is a virtual machine's."""
    return environment["cpu"]["model"] + ", virtual machine" * environment["cpu"]["virtual_machine"]


def study_pages(texts: dict[Path, str]) -> dict[Path, str]:
    """Return pages of docs/studies with the table of each result written anew between the marks of its name."""
    contents = {name: partial(study_results, folder) for name, folder in published().items()}
    contents |= {"grain": grain_text, "large": large_text, "ladders": ladders_text}
    for name, content in contents.items():
        for page, text in texts.items():
            if f"<!-- {name} -->" in text:
                texts[page] = between_marks(text, name, content())
    return texts


def grains() -> Iterator[dict]:
    """Yield, for each profiled point of a task model on several threads, of all published samples: G, the mean time of
    a block over the cost of a task, and the excess of a step over its floor."""
    for folder in published().values():
        run = json.loads((folder / SAMPLES).open().readline())
        sweep = load(folder) if run.get("holds", "samples") == "samples" else None
        for row in accounting_table(sweep).to_dict("records") if sweep and sweep.profiles else ():
            point = Point(*(row[name] for name in Point._fields))
            layers = layer_table(sweep, *point)
            if point.threads > 1 and not point.model.model.joins_loops and not layers["grain"].isna().any():
                blocks = layers["blocks"] / layers["blocks"].sum()
                yield {"folder": folder.name, "grain": (layers["grain"] * blocks).sum(), "excess": row["excess"]}


def grain_text() -> str:
    """Return the table of the excess over the floor by G."""
    table = pd.DataFrame(grains())
    table["class"] = pd.cut(table["grain"], GRAINS)
    rows = [
        {"class": each, "points": len(own), "folders": own["folder"].nunique(), "excess": own["excess"]}
        for each, own in table.groupby("class", observed=True)
    ]
    columns = (
        Column("G", lambda r: f"{r['class'].left:g} to {r['class'].right:g}"),
        Column("points, studies", lambda r: f"{r['points']}, {r['folders']}", True),
        Column("median excess over the floor", lambda r: percent(r["excess"].median()), True),
        Column("quartiles", lambda r: " to ".join(percent(r["excess"].quantile(q)) for q in (0.25, 0.75)), True),
    )
    return "\n".join([*markdown_table(columns, rows), ""])


def large_text() -> str:
    """Return the table of sessions in which large networks were measured: by network, then by time."""
    rows = []
    for path in RESULTS.glob(f"*/large_*/{SAMPLES}"):
        sweep = load(path.parent)
        points = {row["model"]: row for row in speed_table(sweep).to_dict("records")}
        taskiter = points[TASKITER]
        step_s = points[taskiter["reference"]]["time_s"]
        place, run = path.relative_to(ROOT), sweep.run
        rows.append({**taskiter, "count": len(points), "step_s": step_s, "run": run, "place": place})
    shortest = pd.DataFrame(rows).groupby("network")["step_s"].min()
    rows.sort(key=lambda row: (shortest[row["network"]], row["run"].created))
    columns = (
        Column("network", lambda row: f"`{row['network']}`"),
        Column("session", lambda row: f"[{row['run'].created[:16].replace('T', ' ')}](../../{row['place']})"),
        Column("contestants", lambda row: str(row["count"]), True),
        Column("fork-join", lambda row: time(row["step_s"]), True),
        Column("`taskiter` / fork-join", ratio_text),
        Column("rounds, generations", lambda row: f"{row['rounds']}, {row['generations']}", True),
    )
    return "\n".join([*markdown_table(columns, rows), ""])


def ladders_text() -> str:
    """Return the table of what the switches of replay ladders bring, and of `taskiter` over the fastest of the others,
    but for programs in another order: a row for each plan, a number for each session, bold where it is decided."""
    plans: dict[str, dict[str, list[str]]] = {}
    for sweep in sorted((load(path) for path in RESULTS.glob(f"*/{LADDERS}*")), key=lambda s: s.run.created):
        for plan_id, effects in effect_table(sweep).groupby("plan_id", sort=False):
            record = sweep.records[plan_id]
            cut = "" if record["granularity"] == "auto" else f", `{record['granularity']}`"
            own = plans.setdefault(f"`{record['network']}` {record['batch']}{cut}", {})
            for row in effects.to_dict("records"):
                text, decided = f"{row['ratio']:.3f}", row["verdict"].startswith((FASTER, SLOWER))
                own.setdefault(row["effect"], []).append(f"**{text}**" if decided else text)
            points = [point for point in sweep.points() if point.plan_id == plan_id and point.threads > 1]
            points = [point for point in points if "priority" not in point.model.chosen]
            taskiter = next(point for point in points if point.model == TASKITER)
            ratio = sweep.times.ratio_to_fastest(taskiter, [p for p in points if p != taskiter])
            own.setdefault(BEST, []).append(f"{ratio.value:.3f} {interval(ratio.low, ratio.high, 3, JUDGED_AT)}")
    columns = (
        Column("network, batch", lambda row: row["plan"]),
        *(Column(name, lambda row, name=name: ", ".join(row[name])) for name in (*FACTORS, WHOLE, BEST)),
    )
    return "\n".join([*markdown_table(columns, [{"plan": plan, **own} for plan, own in plans.items()]), ""])


def study_results(folder: Path) -> str:
    """Return what was measured where, and its table: that of `training_runs` or of `sweep_table`."""
    results = read_results(folder)
    environment = results.run.environment
    links = {"samples": SAMPLES, "its file": "sweep.toml"}
    result = [
        f"[{text}](../../{folder.relative_to(ROOT)}/{name})" for text, name in links.items() if (folder / name).exists()
    ]
    commit = environment["build"]["commit"][:12]
    about = f"{machine_of(environment)}, {results.run.created[:10]}, commit {commit}: {', '.join(result)}."
    conditions = folder / "conditions.txt"  # what was special about the measurement
    text = f"{about} {conditions.read_text()}".strip() if conditions.exists() else about
    lines = training_runs(results_of(folder)) if results.is_study else sweep_table(load(folder))
    return "\n".join([*lines, "", text, ""])


def training_runs(results: StudyResults) -> list[str]:
    """Return the tables of runs and of loading that the report has, in Markdown."""
    lines: list[str] = []
    for table in (table for section in build(results).sections for table in section.tables):
        if table.name in ("runs", "loading") and table.rows:
            lines += [*[""] * bool(lines), *shown(table)]
    return lines


def shown(table: Table) -> list[str]:
    """Return a table in Markdown, without columns that are empty or in `LEFT_OUT`."""
    return markdown_table([column for column in table.cells()[0] if column.heading not in LEFT_OUT], table.rows)


def sweep_table(sweep: Sweep) -> list[str]:
    """Return what a sweep is about as a table in Markdown: losses of traced steps, what each switch of the task models
    brings, what a process beside takes, else `speeds`, where memory is published with phases and peaks."""
    axes = [
        Column(axis_label(axis), lambda row, axis=axis: value_text(sweep.records[row["plan_id"]][axis]))
        for axis in sweep.axes
        if axis != INTERFERENCE
    ]
    losses = [{"plan_id": plan_id, **row} for plan_id in sweep.plan_ids() for row in losses_of(sweep, plan_id)]
    effects = effect_table(sweep).to_dict("records")
    beside = [row for row in interference_table(sweep).to_dict("records") if row["hogs"] == 1]
    for columns, rows in ((LOSS, losses), (EFFECT, effects), (INTERFERING, beside)):
        if rows:
            return shown(Table("", [*axes, *columns], rows))
    if GRANULARITY in sweep.axes:
        axes.append(Column("tasks", lambda row: f"{sweep.plans[row['plan_id']].num_tasks:,}", True))
    return speeds(sweep, axes, phases_and_peaks(sweep) if sweep.folder.name == "batch_networks" else [])


def phases_and_peaks(sweep: Sweep) -> list[Column]:
    """Return columns of a plan: wall times of its phases under fork-join, and the largest peak of memory."""
    phases, peaks = phase_table(sweep), memory_table(sweep).groupby("plan_id")["peak_bytes"].max()
    walls = phases[phases["timed"] == WALL].set_index("plan_id")
    return [
        *(
            Column(phase, lambda row, phase=phase: time(walls[f"{phase}_s"].get(row["plan_id"], math.nan)), True)
            for phase in ("forward", "backward", "update")
        ),
        Column("peak", lambda row: format_bytes(peaks[row["plan_id"]]), True),
    ]


def speeds(sweep: Sweep, axes: list[Column], further: list[Column]) -> list[str]:
    """Return a table in Markdown: a row for each plan, a column for each model on most threads, or a row for each model
    of one plan or of many models; the step time of `serial` and the better fork-join form, and ratios to the latter.
    A table of many models leaves out plans of too few generations where others have intervals."""
    table = speed_table(sweep)
    widest, threads = on_most_threads(table)
    points = {
        (row["plan_id"], row["model"]): row
        for part in (table[table["model"] == SERIAL], widest)
        for row in part.to_dict("records")
    }
    models = sorted({model for _, model in points})

    def cell(plan_id: str, model: ModelSpec) -> str:
        row = points.get((plan_id, model))
        if row is None:
            return ""
        ratio = "" if model.is_serial else ratio_text(row)
        return ratio or time(row["time_s"]) + f" {NOT_USABLE}" * (not row["usable"])

    texts = {model: label(model) if model.model.is_call else f"`{model}`" for model in models}
    headings = {m: f"{texts[m]}, {plural(1 if m.is_serial else threads, 'thread')}" for m in models}
    plans = sweep.plan_ids()
    if len(plans) == 1 or len(models) > MOST_COLUMNS:
        one = f" (`serial`: {plural(1, 'thread')})" if threads > 1 and any(model.is_serial for model in models) else ""
        columns = [Column(f"model, {plural(threads, 'thread')}{one}", lambda row: f"`{row['model']}`")]
        known = {plan_id for (plan_id, _), row in points.items() if math.isfinite(row["ratio_low"])}
        for plan_id in [plan_id for plan_id in plans if plan_id in known] or plans:
            text = ", ".join(axis.text({"plan_id": plan_id}) for axis in axes) or "a step, or time / fork-join"
            columns.append(Column(text, lambda row, plan_id=plan_id: cell(plan_id, row["model"])))
        return markdown_table(columns, [{"model": model} for model in models])
    columns = [Column(headings[model], lambda row, model=model: cell(row["plan_id"], model)) for model in models]
    return markdown_table([*axes, *columns, *further], [{"plan_id": plan_id} for plan_id in plans])


def ratio_text(row: dict) -> str:
    """Return a ratio with its interval and verdict, or with what a verdict lacks, "11/12 rounds"; empty for the model
    that others are compared with."""
    if not row["verdict"]:
        return ""
    limits = interval(row["ratio_low"], row["ratio_high"], 3, JUDGED_AT)
    lacks = re.sub(r"(\d+) of (\d+) (?:undisturbed )?", r"\1/\2 ", row["lacks"])
    text = f"({lacks})" if lacks else row["verdict"]
    return " ".join(filter(None, [f"{row['ratio']:.3f}", limits, text]))


def machines(results: Path = RESULTS) -> str:
    """Return a table in Markdown of all surveys."""
    paths = sorted(results.glob(f"*/survey/{SURVEY}"))
    rows = [machine_row(path.parent) for path in paths]
    linked = [
        {**row, "machine": f"[{row['machine']}](../{path.relative_to(ROOT)})"}
        for path, row in zip(paths, rows, strict=True)
    ]
    return "\n".join(markdown_table(MACHINES, linked)) + "\n"


def main() -> None:
    """Publish what was asked for, and draw all."""
    if sys.argv[1:]:
        publish(sys.argv[1], Path(sys.argv[2]))
    LIST.write_text(between_marks(LIST.read_text(), "folders", listed()))
    POINTS.write_text(gains_text())
    print(*draw_all(IMAGES), sep="\n")
    README.write_text(between_marks(README.read_text(), "measured", measured(load(published()[README_RESULTS]))))
    FINDINGS_PAGE.write_text(between_marks(FINDINGS_PAGE.read_text(), "repeated", repeated()))
    GALLERY_PAGE.write_text(between_marks(GALLERY_PAGE.read_text(), "figures", gallery()))
    MACHINES_PAGE.write_text(between_marks(MACHINES_PAGE.read_text(), "surveys", machines()))
    for page, text in study_pages({page: page.read_text() for page in STUDIES}).items():
        page.write_text(text)


if __name__ == "__main__":
    main()
