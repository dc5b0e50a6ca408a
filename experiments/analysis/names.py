"""Names of models, problems and plans, as tables, titles and captions write them.

Words: a *plan* is a network lowered with a record of options; a *problem* is a plan but for its granularity; a *point*
is a model on a number of threads, running a plan. Each point has one sample per repetition block. An *axis* is a field
of the record that takes several values in a sweep.

Nothing here names an option: fields, defaults and their order come from `PlanOptions`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...cython_src.lowering import options
from ...cython_src.networks.own import short_name, split_call
from ...cython_src.records import fields
from ..results.rows import PlanRow
from ..subjects.calls import CALLS, label
from ..subjects.models import ModelSpec
from ..tables.numbers import plural

if TYPE_CHECKING:
    import pandas as pd

GRANULARITY = "granularity"
# Fields of a record beside those of `PlanOptions`.
NETWORK, INTERFERENCE = "network", "interference"
# These stand in every title, in words of their own.
ALWAYS_NAMED = (NETWORK, "batch", "phase", GRANULARITY, INTERFERENCE)

LONGEST_NAME = 100  # of a folder
AGAIN_LABEL = "again (A/A)"  # of a model's second contestant


def model_label(model: ModelSpec) -> str:
    """Return a short readable form of a model: `forkjoin:region=persistent` gives "forkjoin, persistent", with
    `again=1` "forkjoin, persistent, again (A/A)"."""
    if model.model.is_call:
        return ", ".join([label(model), *([AGAIN_LABEL] if model.again else [])])
    words = [
        f"{key.replace('_', ' ')} {value}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        for key, value in model.chosen.items()
    ]
    if model.again:
        words.append(AGAIN_LABEL if model.again == 1 else f"{AGAIN_LABEL} {model.again}")
    return ", ".join([model.name, *words])


def with_texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which models are texts, as users and files get it."""
    texts = {
        name: table[name].map(lambda value: str(value) if isinstance(value, ModelSpec) else value)
        for name in table
        if table[name].dtype == object
    }
    return table.assign(**texts)


def plan_beside(plan_id: str, hogs: int) -> str:
    """Return the id under which a plan's samples with competing processes are kept."""
    return f"{plan_id}-{hogs}" if hogs else plan_id


def is_graph(plan: PlanRow) -> bool:
    """Whether a "plan" row is that of a graph which is no network: it has no parameters."""
    return plan.num_parameters == 0


def record_of(plan: PlanRow) -> dict[str, Any]:
    """Return the choices behind a "plan" row: network, every field of `PlanOptions`, and the competing processes.

    Arguments of a function that makes the network are fields of their own; one with an option's name has a longer name.
    A graph that is no network has no phase. Raises `UsageError`: a value that `PlanOptions` refuses.
    """
    network, arguments = split_call(plan.network)
    network = "calls" if network == CALLS else network
    record = {NETWORK: network, **options.plan_options(plan.options).as_dict(), INTERFERENCE: plan.interference}
    if is_graph(plan):
        record["phase"] = ""
    return record | {f"argument {name}" if name in record else name: value for name, value in arguments.items()}


def axis_label(axis: str) -> str:
    """Return the readable form of an option's name."""
    return axis.replace("_", " ")


def value_text(value: Any) -> str:
    """Return the readable form of an option's value; None stands for one that is not given."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(value_text, value))
    return str(value) if value != "" else "none"


def option_texts(record: Mapping[str, Any], axes: tuple[str, ...]) -> list[str]:
    """Return the options that a title names: those that were swept or changed."""
    defaults = {field.name: field.default for field in fields(options.PlanOptions)}
    return [
        f"{axis_label(name)} {value_text(value)}"
        for name, value in record.items()
        if value is not None
        and name not in ALWAYS_NAMED
        and (name in axes or name not in defaults or value != defaults[name])
    ]


def swept_fields(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields that take several values among records."""
    return tuple(n for n in (records[0] if records else ()) if len({repr(record.get(n)) for record in records}) > 1)


def with_short_names(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return records with the names that their makers gave networks of their own, where these tell them apart."""
    networks = dict.fromkeys(str(record[NETWORK]) for record in records)
    short = dict.fromkeys(map(short_name, networks))
    shown = dict(zip(networks, short if len(short) == len(networks) else networks, strict=True))
    return [{**record, NETWORK: shown[str(record[NETWORK])]} for record in records]


def folder_name(plan: PlanRow) -> str:
    """Return a plan's name as that of a folder: network, batch, granularity, and each option that is not the default.

    Plans of two functions of one name, from two files, have one folder name.
    """
    record = record_of(plan)
    step = [f"batch{record['batch']}"] if record["phase"] else []
    granularity = [str(record[GRANULARITY])] if record["phase"] else []
    words = [short_name(str(record[NETWORK])), *step, *granularity, *option_texts(record, ())]
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "_", "-".join(words)).strip("_-")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{plan.plan_id[:6]}"


def problem_text(record: Mapping[str, Any], axes: tuple[str, ...], besides: str = "") -> str:
    """Return the readable name of a problem; options are named where they are an axis or were changed, except the
    option `besides`."""
    hogs = record[INTERFERENCE]
    step = {"batch": f"batch {record['batch']}", "phase": str(record["phase"])} if record["phase"] else {}
    network = str(record[NETWORK])  # several of one's own may have one name
    told = [text for name, text in step.items() if name != besides]
    told += option_texts({name: value for name, value in record.items() if name != besides}, axes)
    words = [network if NETWORK in axes else short_name(network), *told]
    beside = f" with {plural(hogs, 'competing process', 'competing processes')}" if hogs else ""
    return ", ".join(words) + beside
