"""Nodes: which machine a row was measured on, and which machines may stand in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from ...cython_src.errors import UsageError
from ...cython_src.reading import Text
from .parts import Part, says

NODES = ("one", "pooled")  # values of the option `nodes` of a sweep
# What pooled nodes must have in common, as entries of their environments.
KIND = {
    "model of CPU": ("cpu", "model"),
    "kernel": ("kernel",),
    "CPUs to run on": ("affinity",),
    "version of forktask": ("forktask",),
}


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


def check_nodes(found: Iterable[tuple[Node, Mapping[str, Any]]], nodes: str) -> None:
    """Check that measurements of some nodes may stand in one table.

    Parameters
    ----------
    found : iterable of (Node, environment)
    nodes : {"one", "pooled"}

    Raises
    ------
    UsageError
        A second node where there may be one; pooled nodes of several kinds.
    """
    first: tuple[Node, Mapping[str, Any]] | None = None
    for node, environment in found:
        first = first or (node, environment)
        if nodes == "one" and not node.is_same(first[0]):
            raise UsageError(
                f'all rows must come from one node, got {first[0].name!r} and {node.name!r}; set nodes = "pooled" (in '
                f"[measure], or by --nodes), or measure each node into a folder of its own"
            )
        for what, path in KIND.items():
            one, other = _entry(first[1], path), _entry(environment, path)
            if nodes == "pooled" and one != other:
                raise UsageError(
                    f"nodes that are pooled must have the same {what}, got {one!r} on {first[0].name!r} and {other!r} "
                    f"on {node.name!r}; measure each kind of node into a folder of its own"
                )


def _entry(environment: Any, path: Iterable[str]) -> Any:
    for key in path:
        environment = environment.get(key) if isinstance(environment, Mapping) else None
    return environment
