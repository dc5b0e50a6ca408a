"""Write the tables of docs/reference that follow from the code:  python -P docs/update_reference.py

Each table stands between `<!-- NAME -->` and `<!-- end of NAME -->`; tests/test_docs.py fails where a page differs from
what this file would write.
"""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from msgspec import structs

import forktask as ft
from forktask.cython_src.networks import layers
from forktask.cython_src.records import Field, fields
from forktask.experiments.results.rows import KINDS
from forktask.experiments.results.training_rows import EpochRow
from forktask.experiments.subjects.models import MODELS
from forktask.experiments.subjects.plan_text import describe_input
from forktask.experiments.sweep.configuration import Measure
from forktask.experiments.tables import between_marks

REFERENCE = Path(__file__).resolve().parent / "reference"


def rows(header: str, body: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; a bar within a cell is escaped."""
    lines = [header, re.sub(r"[^|]+", "---", header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in body]
    return "\n".join(lines)


def values_of(field: Field) -> str:
    """Which values a field of a record takes."""
    if field.choices:
        return ", ".join(f"`{choice}`" for choice in field.choices)
    return {bool: "`true`, `false`", str: "text", tuple: "numbers" if field.default else "texts"}.get(
        field.kind, field.rule(math.inf).removeprefix("must be ").removeprefix("a ")
    )


def options_of(record: type) -> str:
    """All fields of a record."""
    return rows(
        "| option | default | values | meaning |",
        ((f"`{f.name}`", f"`{f.default!r}`", values_of(f), f.text) for f in fields(record)),
    )


def rows_of_files() -> str:
    """All kinds of rows with their fields, after those that several kinds have."""
    sections: dict[str, str] = {}
    for kind, record in KINDS.items():
        shared = [base for base in record.__mro__[1:] if "What all" in (base.__doc__ or "")][::-1]
        also = []
        for base in shared:
            heading = inspect.getdoc(base).partition(":")[0].rstrip(".")
            sections.setdefault(heading, _fields(heading, "", base))
            short = heading.removeprefix("What all ").removesuffix(" have").removesuffix(" say of themselves")
            also.append(f"[{short}](#{heading.lower().replace(' ', '-').replace('`', '')})")
        text = " ".join(inspect.getdoc(record).split())
        text += f" Also fields of {', '.join(also)}." if also else ""
        sections[kind] = _fields(f"`{kind}`", f"{text}\n\n", record)
    return _without_repetition(
        "\n\n".join(sorted(sections.values(), key=lambda section: not section.startswith("## What all")))
    )


def _without_repetition(page: str) -> str:
    """A page in which a field that an earlier section describes in the same many words refers to it."""
    seen: set[str] = set()
    lines = []
    for line in page.splitlines():
        field = line.startswith("| `") and len(line.split()) > 9
        lines.append(line[: line.index("|", 2)] + "| as above |" if field and line in seen else line)
        seen.add(line)
    return "\n".join(lines)


def _fields(heading: str, text: str, record: type) -> str:
    """A section with the fields that a kind of rows declares itself."""
    hints = typing.get_type_hints(record, include_extras=True)
    own = {name for base in record.__mro__[1:] if "What all" in (base.__doc__ or "") for name in base.__annotations__}
    fields = [
        (f"`{field.name}`", next(m.description for m in hints[field.name].__metadata__ if m.description))
        for field in structs.fields(record)
        if field.name not in own
    ]
    return f"## {heading}\n\n{text}{rows('| field | meaning |', fields)}"


def layer_signatures() -> str:
    """All layers with their arguments."""
    return rows(
        "| layer | meaning |",
        (
            (f"`{layer.__name__}{_arguments(layer)}`", " ".join(inspect.getdoc(layer).split()))
            for layer in (getattr(ft, name) for name in layers.__all__)
            if issubclass(layer, ft.Layer) and layer is not ft.Layer
        ),
    )


def _arguments(layer: type) -> str:
    parameters = inspect.signature(layer).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters])).replace("'", '"')


def networks() -> str:
    """All networks that a name stands for."""
    body = []
    for name in ft.network_names():
        n = ft.get_network(name)
        numbers = str(n.num_classes), str(len(n.layers)), f"{n.num_parameters:,}"
        body.append((f"`{name}`", describe_input(n.input_shape), *numbers))
    return rows("| network | input | classes | layers | parameters |", body)


def model_options(device: str) -> str:
    """The options of all models of a device."""
    of_device = [model for model in MODELS.values() if model.device == device]
    models: dict[tuple[str, str, str], list[str]] = {}
    for model in of_device:
        for f in model.fields.values():
            values = ", ".join(f"`{choice}`" for choice in sorted(f.choices, key=lambda choice: choice != f.default))
            values = values or f"{f.default}; {values_of(f)}"
            models.setdefault((f.name, values, f.text), []).append(f"`{model.name}`")
    return rows(
        "| option | models | values, default first | meaning |",
        (
            (f"`{name}`", _models_of(names, [f"`{model.name}`" for model in of_device]), values, text)
            for (name, values, text), names in models.items()
        ),
    )


def _models_of(names: list[str], models: list[str]) -> str:
    """The models that have an option: all, all but one, or their names."""
    others = [model for model in models if model not in names]
    return "all" + f" but {others[0]}" * len(others) if len(others) < 2 < len(models) else ", ".join(names)


POINT = {
    "network": "the network, or graph",
    "plan_id": "hash of the plan: network and all options",
    "model": "execution model with its options",
    "threads": "threads that execute blocks",
    "usable": "False: competing processes disturbed it, or no machine can reach it",
}
TRAINED = {
    "(an axis)": "what the study's file varies: `model`, `load`, `start`, ...",
    "label": "values of all axes",
    "load_s`, `forward_s`, `backward_s`, `update_s": "of these phases, per epoch",
}
# Columns of the CSV files that reports leave; of a column `NAME`, `NAME_low` and `NAME_high` are its 95 % interval.
COLUMNS = {
    "summary.csv": {
        **POINT,
        "batch": "samples per step",
        "sessions`, `generations`, `rounds": "sessions, generations and undisturbed rounds behind the row",
        "time_s": "typical time of a step: geometric mean over generations, wild ones clipped; `low_s`, `high_s`: "
        "its interval",
        "fill_s": "time of the first iteration, with a cold pipeline, median; none of steps of 50 ms and more",
        "speedup": "serial time over this time",
        "efficiency": "speedup per thread",
        "reference": "the quickest fork-join model of the same plan and threads",
        "ratio": "time over that of the reference",
        "verdict": "faster, slower, same or undecided",
        "lacks": "what a verdict would take, where generations or undisturbed rounds are too few",
        "peak_bytes": "most memory that was resident in the process",
        "planned_bytes": "bytes of all buffers of the plan",
        "timed": "how phases are timed: wall, or busy (in blocks, mean over threads)",
        "PHASE_s": "time of a phase (`load`, `forward`, `backward`, `update`) per step",
        "PHASE_speedup`, `PHASE_efficiency": "of the phase, as of the step",
        "update_beside_backward": "part of the update's time while a block of the backward phase ran",
        "interference": "competing processes on the same CPUs",
    },
    "layers.csv": {
        **POINT,
        "batch": "samples per step",
        "(an option)": "where the sweep varies it",
        "layer": "of the network",
        "phase": "load, forward, backward or update",
        "loops`, `blocks": "loops and blocks of the layer in this phase, per step",
        "flops": "floating-point operations of the layer, per step",
        "share": "part of the step's busy time",
        "profiles": "logged runs behind the row",
        "time_s": "busy time per step, sum over threads",
        "gflops": "rate, 10^9 operations per second",
        "peak_fraction": "rate over one thread's peak",
        "grain": "G: mean time of a block over the cost of a task in the same graph with empty kernels, on all threads",
    },
    "runs.csv": {
        **TRAINED,
        "seeds`, `epochs": "trainings behind the row, and epochs of each",
        "epoch_time_s": "median over undisturbed epochs; `epoch_time_min_s`, `epoch_time_max_s`: over all",
        "usable": "at least half of the epochs were undisturbed",
        "disturbed_epochs": "epochs that were disturbed",
        "samples_per_s": "training samples per second",
        "joules_per_epoch": "energy of the machine, where it is measured",
        "gpu_memory_bytes`, `gpu_utilisation": "of a GPU, medians over epochs",
        "train_loss`, `valid_loss`, `valid_error": "of the last epoch, median over seeds",
        "test_accuracy": "median over seeds; `test_accuracy_min` and `test_accuracy_max` are the range",
        "peak_bytes`, `loader_bytes`, `libraries_bytes": "most resident memory; of the data; of libraries",
        "phases_timed": "wall, or busy (in blocks, mean over threads)",
        "rest_s": "of an epoch, outside of its phases",
        "time_to_ACCURACY": "training time until this validation accuracy; empty: not reached",
    },
    "epochs.csv": {
        **{name: text for name, text in TRAINED.items() if not name.startswith("load_s")},
        "stage": "of the training, from 1 on",
        "epoch_time_s": "of this epoch alone",
        "usable": "whether competing processes left it undisturbed",
    },
}


def columns_of_files() -> str:
    """All columns of the CSV files of reports."""
    epoch = typing.get_type_hints(EpochRow, include_extras=True)
    of_rows = {name: epoch[name].__metadata__[-1].description for name in EpochRow.__struct_fields__}
    del of_rows["disturbance"]
    options = ", ".join(f"`{f.name}`" for f in fields(ft.PlanOptions))
    sections = []
    for name, columns in COLUMNS.items():
        columns = {**columns, **(of_rows if name == "epochs.csv" else {})}
        if name == "summary.csv":
            columns["(an option)"] = f"of the plan: {options}"
        body = ((text if text.startswith("(") else f"`{text}`", meaning) for text, meaning in columns.items())
        sections.append(f"## `{name}`\n\n{rows('| column | meaning |', body)}")
    return "\n\n".join(sections)


# Page -> mark -> what stands there.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "plan_options.md": {"plan options": partial(options_of, ft.PlanOptions)},
    "measuring.md": {"options of measuring": partial(options_of, Measure)},
    "layers.md": {"layers": layer_signatures, "networks": networks},
    "models.md": {"options of models": partial(model_options, "cpu")},
    "samples.md": {"rows": rows_of_files},
    "tables.md": {"columns": columns_of_files},
    "gpu.md": {"options of models": partial(model_options, "gpu")},
}


def updated(page: str, text: str) -> str:
    """Return the text of a page with its tables written anew. Raises `ValueError`: as `between_marks`."""
    for mark, table in TABLES[page].items():
        text = between_marks(text, mark, f"{table()}\n")
    return text


def main() -> None:
    """Write all tables."""
    for page in TABLES:
        path = REFERENCE / page
        path.write_text(updated(page, path.read_text()))


if __name__ == "__main__":
    main()
