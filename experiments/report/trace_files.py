"""The files of traced models besides their logs: pictures, losses, and traces for other tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from ...cython_src.errors import UsageError
from ..analysis.losses import all_losses, as_rows, as_table, as_text
from ..analysis.windows import Window, typical
from ..events.events import EventLog
from ..results.files import write_atomically, write_table
from ..traces.paje import write_paje
from ..traces.paraver import write_paraver
from ..traces.perfetto import write_perfetto
from ..traces.sweep import LOSSES_TABLE, SHOWN
from .figures.losses import draw_traced, losses_chart
from .figures.style import FORMATS, save
from .gantt import draw_gantt, gantt_text

MAX_EXPORTED = 200_000  # events of a model in each trace for another tool


def write_trace_files(folder: str | os.PathLike, title: str, logs: Sequence[EventLog], shown: int = SHOWN) -> list[str]:
    """Write pictures, losses and traces of some logs; return a sentence for each file and the table of losses.

    Parameters
    ----------
    title : str
        Of the plan.
    logs : sequence of EventLog
        Of one plan.
    shown : int
        Iterations of each model in the pictures. The traces hold as many as `MAX_EXPORTED` events allow.

    Raises
    ------
    UsageError
        A file that cannot be written.
    """
    folder = Path(folder)
    windows = [typical(log, shown) for log in logs]
    exported = [largest_window(log) for log in logs]
    texts = []
    try:
        texts.append(_save(folder, "gantt", partial(draw_gantt, windows, title=title), gantt_text(windows, title)))
        result = all_losses(logs)
        write_table(folder / LOSSES_TABLE, as_table(result))
        texts.append(f"{folder / LOSSES_TABLE}: seconds by model, phase and layer")
        rows = as_rows(result)
        caption = f"{title}. {' '.join(losses_chart(rows, ()).caption)}\n"
        texts.append(_save(folder, "losses", partial(draw_traced, rows, title=title), caption))
        for name, write in (("json.gz", write_perfetto), ("prv", write_paraver), ("paje", write_paje)):
            texts.append(write(folder / f"trace.{name}", exported))
    except OSError as error:
        raise UsageError(f"traces must be writable to {os.fspath(folder)!r}, got: {error.strerror}") from None
    cut = [w.log for w in exported if len(w.passes) * w.log.about["stride"] < w.log.about["iterations"]]
    if cut:
        texts.append(
            f"Traces for other tools hold at most {MAX_EXPORTED} events per model: the first iterations of "
            f"{', '.join(str(log.model) for log in cut)}"
        )
    return [*texts, "", as_text(result)]


def largest_window(log: EventLog) -> Window:
    """Return the first iterations of a log that have at most `MAX_EXPORTED` events."""
    passes = int(log.about["iterations"] // log.about["stride"])
    return Window(log, range(max(1, min(passes, passes * MAX_EXPORTED // len(log.events)))))


def _save(folder: Path, name: str, draw: Callable[..., Figure], text: str) -> str:
    for column, stem in (("double", name), ("single", f"{name}-single")):
        figure = draw(column=column)
        for kind in FORMATS:
            save(figure, folder / f"{stem}.{kind}")
    write_atomically(folder / f"{name}.txt", text)
    return f"{folder / name}.{{{','.join(FORMATS)}}}: {name}; {name}-single for a column of 3.3 in"
