"""Keys of a run's row that tables and figures read: of a sweep's configuration, and of the environment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...cython_src.lowering.options import PlanOptions
from ...cython_src.reading import Amount, Count, Name, Number, Text
from ...cython_src.records import fields
from ..machine.numa import POLICIES
from ..machine.topology import BINDS
from .nodes import NODES, NOWHERE, Node

# Keys of a sweep's configuration that tables and figures read; the sweep itself reads all of it by its own records.
AskedFor = msgspec.defstruct(
    "AskedFor",
    [
        *((field.name, list[field.kind], []) for field in fields(PlanOptions)),
        ("title", Text, ""),
        ("data", Text, ""),
        ("network", list[Name], []),
        ("models", list[Name], []),
        ("threads", list[Number], []),
        ("interference", list[Count], []),
        ("inject", list[Name], []),
        ("repeats", Number, 1),
        ("budget_s", Amount, 0.0),
        ("simulate", Annotated[int, Meta(ge=0, le=1024)], 0),
        ("places", Name, "cores"),
        ("bind", Literal[BINDS], "close"),
        ("memory_policy", Literal[POLICIES], POLICIES[0]),
        ("nodes", Literal[NODES], "one"),
        ("rtol", Amount, 0.0),
        ("compare_results", bool, True),
    ],
)


class _Processor(msgspec.Struct, frozen=True):
    model: Text | None = None


class _Cpu(msgspec.Struct, frozen=True):
    cpu: Count
    core: Count
    socket: Count = 0
    node: Count = 0
    kind: Count = 0
    llc: Count | None = None


class _Topology(msgspec.Struct, frozen=True):
    cpus: list[_Cpu] = []


class _CoreKind(msgspec.Struct):
    text: Text
    cpus: list[Count]


class Place(msgspec.Struct):
    """Keys of an environment that are read."""

    cpu: _Processor = _Processor()
    topology: _Topology = _Topology()
    affinity: list[Count] = []
    core_kinds: list[_CoreKind] = []
    gpus: list[Any] = []
    forktask: Text = ""
    node: Node = NOWHERE
