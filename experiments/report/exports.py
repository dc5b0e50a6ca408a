"""Results for other tools and for papers: raw samples as CSV, tables in LaTeX."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ...cython_src.errors import UsageError
from ..analysis.load import load
from ..analysis.speeds import is_usable
from ..analysis.study import Study
from ..results.files import write_atomically, write_table
from ..tables import Table
from . import columns
from .sections import speed_rows, with_usable
from .words import plan_title

EXPORT_FOLDER = "exports"


def sample_frame(study: Study) -> pd.DataFrame:
    """Return the raw samples, a row each: whether their point is usable, the plan's options, then the scalar fields of
    the sample."""
    rows = []
    for row in study.samples.to_dict("records"):
        record = {
            k: v if not isinstance(v, (tuple, list)) else str(v) for k, v in study.records[row["plan_id"]].items()
        }
        usable = is_usable(study, (row["plan_id"], row["model"], row["threads"]))
        rows.append(
            {
                "usable": usable,
                **record,
                **{k: v for k, v in row.items() if not isinstance(v, (list, dict, tuple, set))},
            }
        )
    return pd.DataFrame(rows)


def latex_tables(study: Study) -> str:
    """Return the table of every model and number of threads, a LaTeX table for each plan (package booktabs)."""
    tables = []
    for plan_id in study.plan_ids():
        chosen, rows = with_usable(study, Table("speed", columns.SPEED, speed_rows(study, plan_id))).cells()
        frame = pd.DataFrame(rows, columns=[column.heading for column in chosen])
        style = frame.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis="columns")
        form = "".join("r" if column.number else "l" for column in chosen)
        caption = re.sub(r"[&%$#_{}]", r"\\\g<0>", plan_title(study, plan_id))
        tables.append(style.to_latex(column_format=form, hrules=True, caption=caption, label=f"tab:{plan_id}"))
    return "\n".join(tables)


EXPORTS = {
    "csv": ("samples.csv", lambda study, path: write_table(path, sample_frame(study))),
    "latex": ("tables.tex", lambda study, path: write_atomically(path, latex_tables(study))),
}


def export_folder(folder: str | os.PathLike, kinds: Sequence[str]) -> list[Path]:
    """Write exports of a results folder to its folder `exports`, and return their paths.

    Parameters
    ----------
    kinds : sequence of str
        Keys of `EXPORTS`.

    Raises
    ------
    UsageError
        No samples, or a folder that cannot be written.
    """
    study = load(folder)
    if not len(study.samples):
        raise UsageError(f"an export needs samples, got none in {str(folder)!r}; measure first")
    paths = []
    try:
        (Path(folder) / EXPORT_FOLDER).mkdir(exist_ok=True)
        for kind in kinds:
            name, write = EXPORTS[kind]
            path = Path(folder) / EXPORT_FOLDER / name
            write(study, path)
            paths.append(path)
    except OSError as error:
        raise UsageError(
            f"exports must be writable to {str(folder)!r}, got: {error.strerror}; copy the folder"
        ) from None
    return paths
