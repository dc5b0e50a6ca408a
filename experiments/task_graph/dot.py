"""Views of task graphs in DOT, the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from .view import GraphView, Row

# Fill of the tasks of each phase; names of X11, which every Graphviz knows.
FILLS = {"load": "gray90", "forward": "lightblue", "backward": "navajowhite", "update": "palegreen", "other": "white"}


def as_dot(views: Sequence[GraphView]) -> str:
    """Return one digraph with a cluster for each view; in it a cluster for each layer and phase.

    Barriers are bars, joins points, folded tasks ellipses with dashes; edges to the next iteration are dashed and have
    no say in the ranks.
    """
    lines = [
        "digraph tasks {",
        "  compound=true; rankdir=TB; fontname=sans; labeljust=l;",
        "  node [shape=box, style=filled, fontname=sans, fontsize=9, height=0.2, margin=0.05];",
        "  edge [arrowsize=0.5];",
    ]
    for number, view in enumerate(views):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(f'{view.title}, barrier {view.barrier}')};"]
        lines += [f"    {line}" for line in _lines(view, f"v{number}_")]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _lines(view: GraphView, prefix: str) -> Iterator[str]:
    def key(row: Row) -> tuple[str, str, str]:
        return (row.layer, row.phase, "") if row.kind == "loop" else ("", "", row.name + str(row.nodes))

    for number, (_, group) in enumerate(groupby(view.rows, key)):
        rows = list(group)
        if rows[0].kind == "barrier":
            label = _quoted(rows[0].name)
            yield f"{prefix}{rows[0].nodes[0]} [label={label}, fillcolor=black, fontcolor=white, width=4];"
        elif rows[0].kind == "folded":
            label = _quoted(f"{rows[0].phase}: {rows[0].name}")
            yield f"{prefix}{rows[0].nodes[0]} [label={label}, shape=ellipse, style=dashed];"
        else:
            yield f"subgraph cluster_{prefix}{number} {{"
            yield f"  label={_quoted(f'{rows[0].layer or rows[0].name}, {rows[0].phase}')}; color=gray;"
            for row in rows:
                for block, node in enumerate(row.nodes):
                    label = _quoted(f"{row.name}[{block}]")
                    yield f"  {prefix}{node} [label={label}, fillcolor={FILLS[row.phase]}];"
            yield "}"
    for join in view.joins:
        yield f"{prefix}{join} [shape=point];"
    for (source, target), crosses in view.edges.items():
        yield f"{prefix}{source} -> {prefix}{target}{' [style=dashed, constraint=false]' * crosses};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
