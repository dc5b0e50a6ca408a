"""Typed records that check themselves: options, settings, and whatever is read from a file or a command line.

A field is written once, with its type, its range and its description; help pages, parsers and error messages derive
from it.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self, TypeVar

import msgspec
import numpy as np

from .arguments import in_range, rule
from .errors import UsageError, did_you_mean
from .reading import check_keys
from .typed_text import LONGEST_TEXT, is_text, parse_real, parse_whole

F = TypeVar("F", bound=Callable)
# Whole numbers and numbers without a limit of their own are below these.
LARGEST_WHOLE = 2**53
LARGEST = 1e15


def about(
    text: str,
    *,
    choices: Sequence[Any] = (),
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Annotation of a field: what it means, and which values it takes. `text`: one clause, for help pages; `choices`:
    all values there are; empty: any of the type; `least`, `above`, `below`: numbers are in [least, below), or in
    (above, below)."""
    limits: dict[str, Any] = {"ge": least, "gt": above, "lt": below}
    return msgspec.Meta(description=text, extra={"choices": tuple(choices)}, **limits)


@dataclass(frozen=True)
class Field:
    """A field of a record."""

    name: str
    annotation: Any
    kind: type  # int, float, str, bool or tuple
    item: type  # of a tuple's values: float or str
    default: Any
    text: str
    choices: tuple[Any, ...]  # empty: any value of the kind
    limits: msgspec.Meta

    def rule(self, value: Any) -> str:
        """Return the rule for a value as a clause."""
        if self.choices:
            return f"must be one of {', '.join(map(str, self.choices))}"
        words: dict[Any, str] = {bool: "true or false", tuple: "a list" + " of texts" * (self.item is str)}
        return f"must be {words.get(self.kind) or rule(self.annotation, value)}"

    def refuse(self, value: Any) -> typing.NoReturn:
        """Raise `UsageError` with the rule, the value and, for a misspelt choice, the nearest one."""
        raise UsageError(f"{self.name} {self.rule(value)}; got {value!r}{did_you_mean(value, self.choices)}")

    def checked(self, value: Any) -> Any:
        """Return the value in its own type, or raise `UsageError`."""
        if isinstance(value, np.generic):
            value = value.item()
        if self.kind is float and type(value) is int:
            value = float(value)
        if self.kind is tuple and isinstance(value, list):
            value = tuple(value)
        texts = self.item is not str or (type(value) is tuple and all(isinstance(one, str) for one in value))
        if type(value) is not self.kind or not texts or (self.choices and value not in self.choices):
            self.refuse(value)
        if isinstance(value, str) and not is_text(value):
            raise UsageError(
                f"{self.name} must be a text without control characters, of {LONGEST_TEXT} at most, got {value[:40]!r}"
            )
        if isinstance(value, int | float) and self.kind is not bool:
            if not in_range(value, self.limits) or not math.isfinite(value):
                self.refuse(value)
            most = LARGEST_WHOLE if self.kind is int else LARGEST
            if abs(value) >= most:
                raise UsageError(f"{self.name} must be below {most:g}, got {value:g}")
        return value

    def parse(self, text: str) -> Any:
        """Return the value that a text on a command line stands for, or raise `UsageError`."""
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            if self.kind is tuple:
                return self.checked(tuple(map(str if self.item is str else parse_real, text.split(","))))
            return self.checked({int: parse_whole, float: parse_real}.get(self.kind, self.kind)(text))
        except (ValueError, KeyError) as error:
            if isinstance(error, UsageError):
                raise
            self.refuse(text)


class _RecordType(msgspec.StructMeta):
    """Type of records: one made with an unknown field raises `UsageError`."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        if not values.keys() <= set(cls.__struct_fields__):
            cls._check_names(values, cls.__name__)  # type: ignore[attr-defined]
        return super().__call__(*args, **values)


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=_RecordType):
    """Base of frozen records whose fields are checked when one is made; annotate fields with `about`."""

    def __post_init__(self) -> None:
        for field in fields(type(self)):
            msgspec.structs.force_setattr(self, field.name, field.checked(getattr(self, field.name)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.differences().items())})"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """Make a record from what was read. Raises `UsageError`: an unknown key, or a value that a field refuses."""
        cls._check_names(values, where)
        return cls(**values)

    @classmethod
    def _check_names(cls, names: Iterable[str], where: str) -> None:
        check_keys(names, [field.name for field in fields(cls)], where)

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy in which some fields have other values."""
        return type(self).from_mapping({**self.as_dict(), **changes}, type(self).__name__)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields by name."""
        return msgspec.structs.asdict(self)

    def differences(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(type(self)) if getattr(self, f.name) != f.default}


def takes(*records: type[Record], names: Iterable[str] = ()) -> Callable[[F], F]:
    """Decorate a function whose `**settings` takes the fields of records, and further names."""
    known = (*names, *(field.name for record in records for field in fields(record)))

    def decorated(function: F) -> F:
        function.settings = known  # type: ignore[attr-defined]
        return function

    return decorated


@cache
def fields(record: type[Record]) -> tuple[Field, ...]:
    """Return the fields of a record, in the order in which they are written."""
    hints = typing.get_type_hints(record, include_extras=True)
    result = []
    for info in msgspec.structs.fields(record):
        annotation = hints[info.name]
        meta: Any = next(m for m in annotation.__metadata__ if isinstance(m, msgspec.Meta))
        kind = typing.get_origin(annotation.__origin__) or annotation.__origin__
        item = next(iter(typing.get_args(annotation.__origin__)), float)
        result.append(
            Field(info.name, annotation, kind, item, info.default, meta.description, meta.extra["choices"], meta)
        )
    return tuple(result)


def fields_of(record: type[Record], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of a record."""
    return {field.name: values[field.name] for field in fields(record) if field.name in values}
