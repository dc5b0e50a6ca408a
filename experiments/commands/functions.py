"""Base of the commands that are functions of `forktask` too: their result, and arguments that several take."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cython_src.errors import UsageError, check_choice
from ...cython_src.shown import Shown
from .arguments import folder_of, progress_printer, show
from .sweeping import command_line

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..report.figures.chart import Chart


class InFolder(Shown):
    """Base of results that are read from their folder, whose path they stand for."""

    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)


class Result(Shown):
    """What `metg`, `info`, `train`, `evaluate`, `simulate` and `diagnose` return, and base of `Trace`.
    Printing one prints what the command prints.

    Attributes
    ----------
    table : DataFrame
    figures : list of str
        Names of the figures that there are.
    folder : Path or None
        Where files were left.
    data : dict or list
        What the command prints with `--json`.
    """

    def __init__(
        self,
        title: str,
        table: pd.DataFrame,
        text: str,
        folder: Path | None = None,
        charts: dict[str, Any] | None = None,
        data: Any = None,
    ):
        self.table, self.folder, self._title, self._text, self.data = table, folder, title, text, data
        self._charts = dict(charts or {})
        self.figures = list(self._charts)

    def figure(
        self, name: str | None = None, *, column: str = "double", title: bool = True, ax: Axes | None = None
    ) -> Figure:
        """Draw a figure, by default the first, 7 in ("double") or 3.3 in ("single") wide; of one panel into `ax`.

        Raises
        ------
        UsageError
            Another name or column, or axes for several panels.
        """
        from ..report.figures.chart import drawn
        from ..report.figures.style import in_style

        with in_style():
            return drawn(self._chart(name), column, title, ax)

    def figure_data(self, name: str | None = None) -> pd.DataFrame:
        """Return the numbers behind a figure, one row per value, as `Comparison.figure_data` does."""
        from ..analysis.names import with_texts

        return with_texts(self._chart(name).data())

    def caption(self, name: str | None = None) -> str:
        """Return a figure's caption."""
        return self._chart(name).text

    def _chart(self, name: str | None) -> Chart:
        if not self._charts:
            raise UsageError(
                f"name of figure must be one that {self!r} has, and there is none, got {name!r}; print it, or take its "
                f"table"
            )
        name = next(iter(self._charts)) if name is None else name
        check_choice("name of figure", name, self._charts)
        return self._charts[str(name)]()

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table.to_dict("records")
        return rows

    def __repr__(self) -> str:
        return f"<{self._title}: {len(self.table)} rows>"

    def __str__(self) -> str:
        return self._text


def call_text(function: str, arguments: Mapping[str, Any]) -> str:
    """Return a call of a function of `forktask`, to be pasted into a program."""
    return f"forktask.{function}({', '.join(f'{name}={literal(value)}' for name, value in arguments.items())})"


def literal(value: Any) -> str:
    """Return a setting as it can be pasted into a program."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {literal(one)}" for name, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(literal, value))}]"
    value = value.item() if hasattr(value, "item") else value  # NumPy's numbers
    return repr(value if isinstance(value, int | float | None) else str(value))


def arguments_of(function: Callable[..., Result], arguments: Namespace) -> dict[str, Any]:
    """Return what a command gives to its function: the parameters and settings that were given, and, if it takes them,
    the folder, the command that continues, and what prints lines on the way."""
    names = {*inspect.signature(function).parameters, *getattr(function, "settings", ())}
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    if "kind_of_folder" in arguments:
        given["out"] = folder_of(arguments)
    if "command" in names:
        given["command"] = command_line(given["out"])
    if "progress" in names:
        given["progress"] = progress_printer(arguments)
    return given


def call_function(function: Callable[..., Result], arguments: Namespace, **further: Any) -> Result:
    """Call a function with the arguments of its command and further ones; print and return its result."""
    result = function(**{**arguments_of(function, arguments), **further})
    show(arguments, result.data, lambda _: str(result))
    return result
