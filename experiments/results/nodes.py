"""Bases of the rows of results folders; and nodes: which machine a row was measured on, and which machines may stand in
one folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from ...cython_src.errors import UsageError
from ...cython_src.reading import Text

NODES = ("one", "pooled")  # values of the option `nodes` of a sweep
# What pooled nodes must have in common, as `leaves` of their environments.
KIND = {
    "model of CPU": "cpu.model",
    "kernel": "kernel",
    "CPUs to run on": "affinity",
    "version of forktask": "forktask",
}


def says(text: str) -> Meta:
    """Annotation of a field: its meaning."""
    return Meta(description=text)


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of rows and of their parts."""


class Row(Part, frozen=True, kw_only=True, tag_field="kind"):
    """Base of rows: a JSON object whose `kind` says which. Lists named together in `ALIKE` have an item each of the
    same things."""

    ALIKE: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def __post_init__(self) -> None:
        for names in self.ALIKE:
            lengths = {name: len(getattr(self, name)) for name in names}
            if len({*lengths.values()}) > 1:
                raise ValueError(f"the lists {', '.join(names)} must be equally long, got {[*lengths.values()]}")


class Node(Part, frozen=True, kw_only=True):
    """A machine."""

    host: Annotated[Text, says("host name")]
    scheduler: Annotated[Text, says("the scheduler's name of the node; empty without a scheduler")]
    boot_id: Annotated[Text, says("the kernel's random name of its last start; empty where it is hidden")]

    @property
    def name(self) -> str:
        """What people call it."""
        return self.scheduler or self.host

    def is_same(self, other: Node) -> bool:
        """Return whether both are one machine: of one name, or booted at once, as containers are that share it."""
        return self.name == other.name or (self.boot_id == other.boot_id != "")


NOWHERE = Node(host="", scheduler="", boot_id="")


def check_nodes(result: Iterable[tuple[Node, Mapping[str, Any]]], nodes: str) -> None:
    """Check that measurements of some nodes may stand in one table.

    Parameters
    ----------
    result : iterable of (Node, environment)
    nodes : {"one", "pooled"}

    Raises
    ------
    UsageError
        A second node where there may be one; pooled nodes of several kinds.
    """
    first: tuple[Node, Mapping[str, Any]] | None = None
    for node, environment in result:
        first = first or (node, environment)
        if nodes == "one" and not node.is_same(first[0]):
            raise UsageError(
                f'all rows must come from one node, got {first[0].name!r} and {node.name!r}; set nodes = "pooled" (in '
                f"[measure], or by --nodes), or measure each node into a folder of its own"
            )
        entries = dict(leaves(first[1])), dict(leaves(environment))
        for what, name in KIND.items():
            one, other = (result.get(name) for result in entries)
            if nodes == "pooled" and one != other:
                raise UsageError(
                    f"nodes that are pooled must have the same {what}, got {one!r} on {first[0].name!r} and {other!r} "
                    f"on {node.name!r}; measure each kind of node into a folder of its own"
                )


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of an environment as (dotted name, text)."""
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from leaves(value[key], f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(v, (Mapping, list)) for v in value):
        for i, v in enumerate(value):
            yield from leaves(v, f"{name}[{i}]")
    elif isinstance(value, (list, tuple)):
        yield name, " ".join(map(str, value))
    else:
        yield name, "" if value is None else str(value)
