"""The report of a sweep with GPU models: gpu.csv, a figure over the batch, and the table as text or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..analysis.gpu import COLUMNS, EPOCH_IMAGES, gpu_table
from ..sampling.files import write_atomically
from ..sampling.results import Results
from .columns import Column, number, percent, time
from .figures.gpu_batch import CAPTION, draw_batches
from .figures.style import save
from .render_text import text_table
from .sections import Table


def gpu_report(out_dir: str, results: Results, as_json: bool = False) -> str:
    """Write gpu.csv, and gpu_batch.pdf where there are several batches; return the table as text or JSON."""
    rows = gpu_table(results)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(Path(out_dir, "gpu.csv"), text.getvalue().encode())
    if len({row["batch"] for row in rows}) > 1:
        figure = draw_batches(rows)
        for kind in ("pdf", "png"):
            save(figure, Path(out_dir, f"gpu_batch.{kind}"))
        write_atomically(Path(out_dir, "gpu_batch.txt"), f"{CAPTION}\n".encode())
    if as_json:
        return json.dumps(rows, indent=1)
    names = sorted({row["gpu"]["name"] for row in results.of_kind("sample") if row.get("gpu")})
    return f"{_as_text(rows, ', '.join(names) or 'none measured')}\n\n{out_dir}: samples.jsonl, gpu.csv"


def _as_text(rows: list[dict[str, Any]], device: str) -> str:
    """Return the table for a terminal."""
    networks = {row["network"] for row in rows}
    one = next(iter(networks)) if len(networks) == 1 else ""
    columns = (
        Column("network", lambda r: "" if one else r["network"]),
        Column("batch", lambda r: str(r["batch"]), True),
        Column("model", lambda r: r["model"] + ("" if r["model"].startswith("gpu_") else f" @ {r['threads']}")),
        Column("step", lambda r: time(r["step_time_s"]), True),
        Column("spread", lambda r: time(r["iqr_s"]), True),
        Column("epoch s", lambda r: number(r["epoch_s"]), True),
        Column("vs gpu_forkjoin", lambda r: _ratio(r, "forkjoin")),
        Column("vs gpu_stream", lambda r: _ratio(r, "stream")),
        Column("overhead", lambda r: time(r["overhead_s"]), True),
        Column("idle", lambda r: percent(r["idle_share"]), True),
        Column("once s", lambda r: number(_once_s(r)), True),
    )
    lines = [
        f"GPU: {device}" + (f"; {one}" if one else ""),
        "",
        *text_table(Table("gpu", columns, rows)),
        "",
        "vs: how many times faster, median of pairs with its 95 % interval. overhead: a step of empty kernels. idle: 1 "
        f"- kernels / step (below 0: kernels overlap). epoch: {EPOCH_IMAGES:,} images. once: context, compilation, "
        "prepare.",
    ]
    return "\n".join(lines)


def _once_s(row: Mapping[str, Any]) -> float:
    return sum(row[name] or 0.0 for name in ("context_s", "compilation_s", "prepare_s"))


def _ratio(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (row[f"vs_{name}{suffix}"] for suffix in ("", "_low", "_high"))
    if value is None:
        return ""
    return f"{value:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low is not None else "")
