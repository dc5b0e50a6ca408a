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
from forktask.experiments.commands.plan import describe_input
from forktask.experiments.results.rows import KINDS
from forktask.experiments.subjects.models import MODELS
from forktask.experiments.sweep.configuration import Measure

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
    """All kinds of rows with their fields; fields of a base class come first."""
    sections = []
    for kind, record in KINDS.items():
        hints = typing.get_type_hints(record, include_extras=True)
        fields = [
            (f"`{field.name}`", next(m.description for m in hints[field.name].__metadata__ if m.description))
            for field in structs.fields(record)
        ]
        text = " ".join(inspect.getdoc(record).split())
        sections.append(f"## `{kind}`\n\n{text}\n\n{rows('| field | meaning |', fields)}")
    return "\n\n".join(sections)


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
    return rows(
        "| network | input | classes | layers | parameters |",
        (
            (
                f"`{name}`",
                describe_input(n.input_shape),
                str(n.num_classes),
                str(len(n.layers)),
                f"{n.num_parameters:,}",
            )
            for name in ft.network_names()
            for n in [ft.get_network(name)]
        ),
    )


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
            (f"`{name}`", "all" if len(names) == len(of_device) else ", ".join(names), values, text)
            for (name, values, text), names in models.items()
        ),
    )


# Page -> mark -> what stands there.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "plan_options.md": {"plan options": partial(options_of, ft.PlanOptions)},
    "measuring.md": {"options of measuring": partial(options_of, Measure)},
    "layers.md": {"layers": layer_signatures, "networks": networks},
    "models.md": {"options of models": partial(model_options, "cpu")},
    "samples.md": {"rows": rows_of_files},
    "gpu.md": {"options of models": partial(model_options, "gpu")},
}


def updated(page: str, text: str) -> str:
    """The text of a page with its tables written anew.

    Raises
    ------
    ValueError
        The page has not the marks of each of its tables once.
    """
    for mark, table in TABLES[page].items():
        marked = f"<!-- {mark} -->\n{table()}\n<!-- end of {mark} -->"
        text, found = re.subn(
            rf"<!-- {mark} -->.*<!-- end of {mark} -->", lambda _, marked=marked: marked, text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"{page} must have the marks of {mark!r} once, has them {found} times")
    return text


def main() -> None:
    """Write all tables."""
    for page in TABLES:
        path = REFERENCE / page
        path.write_text(updated(page, path.read_text()))


if __name__ == "__main__":
    main()
