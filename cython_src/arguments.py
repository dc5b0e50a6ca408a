"""Checks of arguments of public functions: a wrong name, type or range gives one sentence."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from .errors import UsageError, did_you_mean
from .typed_text import is_unicode

F = TypeVar("F", bound=Callable)
T = TypeVar("T")
_UNIONS = (typing.Union, types.UnionType)
LONG_UNION = 6  # types of which a sentence names the first one only
_TEXTS = (str, bytes)
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    type(None): "None",
    Callable: "callable",
}


def checked_call(function: F, name: str = "", further: Iterable[str] = ()) -> F:
    """Return a function that raises `UsageError` for arguments that do not fit its signature and annotations.

    A text in an `Annotated` parameter is the remedy that the sentence names; numbers and texts have their ranges as
    those of `reading` do. What has no annotation takes anything. `name`: by which users call the function; `further`:
    names that its `**` takes.
    """
    name, signature = name or function.__name__, inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    known = tuple(dict.fromkeys((*(p.name for p in parameters if p.kind is not p.VAR_KEYWORD), *further)))
    takes_any = not further and any(p.kind is p.VAR_KEYWORD for p in parameters)
    positional = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    kinds = functools.cache(lambda: _annotations(function, signature))
    checks = functools.cache(lambda: {key: fits(kind) for key, kind in kinds().items()})

    def misfit(args: tuple, kwargs: dict) -> str:
        for given in kwargs:
            if given not in known and not takes_any:
                return f"got {given!r}{did_you_mean(given, known)}"
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return ""

    def repaired(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Return arguments that fit, or raise `UsageError`."""
        if problem := misfit(args, kwargs):
            raise UsageError(f"arguments of {name} are {', '.join(known)}; {problem}")
        bound = signature.bind(*args, **kwargs)
        for key, fit in checks().items():
            if key in bound.arguments and not fit(value := bound.arguments[key]):
                bound.arguments[key] = _plain(value)
                if not fit(bound.arguments[key]):
                    kind = kinds()[key]
                    remedy = next((f"; {m}" for m in getattr(kind, "__metadata__", ()) if isinstance(m, str)), "")
                    whole = "" if not isinstance(value, str) or is_unicode(value) else ", without lone surrogates"
                    got = " ".join(repr(value).split())[:80]  # an array has several lines
                    raise UsageError(f"{key} of {name} must be {rule(kind, value)}{whole}, got {got}{remedy}")
        return bound.args, bound.kwargs

    @functools.wraps(function)
    def call(*args, **kwargs):
        fit = checks()
        for key, value in (*zip(positional, args, strict=False), *kwargs.items()):
            if (key in fit and not fit[key](value)) or (key not in known and key != "self" and not takes_any):
                args, kwargs = repaired(args, kwargs)
                break
        try:
            return function(*args, **kwargs)
        except TypeError:
            if problem := misfit(args, kwargs):
                raise UsageError(f"arguments of {name} are {', '.join(known)}; {problem}") from None
            raise

    return call  # type: ignore[return-value]


def checked_class(kind: type[T]) -> type[T]:
    """Let the constructor and public methods of a class, and its bases', raise as `checked_call`; return the class."""
    for owner in kind.__mro__:
        for name, value in list(vars(owner).items()):
            ours = inspect.isfunction(value) and not hasattr(value, "__wrapped__")
            if ours and (name == "__init__" or not name.startswith("_")):
                setattr(owner, name, checked_call(value, owner.__name__ if name == "__init__" else name))
    return kind


def check_arguments(names: dict[str, Any], *, leave_out: Iterable[str] = ()) -> None:
    """Let all functions and classes of a module of the interface raise as `checked_call` does. `names`: the module's,
    with `__all__`; `leave_out`: those that cost less than a check."""
    for name in set(names["__all__"]).difference(leave_out):
        value = names[name]
        if inspect.isclass(value):
            if not issubclass(value, BaseException):
                checked_class(value)
        elif callable(value):
            names[name] = checked_call(value, further=getattr(value, "settings", ()))


def _annotations(function: Callable, signature: inspect.Signature) -> dict[str, Any]:
    """Return the types of single parameters by name, without those that cannot be found here."""
    result = {}
    for p in signature.parameters.values():
        if p.annotation is p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        holder = type("Holder", (), {"__annotations__": {p.name: p.annotation}})
        try:
            names = inspect.unwrap(function).__globals__
            result |= typing.get_type_hints(holder, names, include_extras=True)  # type: ignore[arg-type]
        except (NameError, AttributeError, TypeError):  # a user's own annotation may say anything
            continue
    return result


def _plain(value: Any) -> Any:
    """Return a list as a tuple, and a number of NumPy's as Python's own."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


@functools.cache
def fits(kind: Any) -> Callable[[Any], bool]:
    """Return whether a value is of a type as annotations write it, as a function; other forms take anything."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        of_type, limits = fits(inner[0]), [meta for meta in inner[1:] if not isinstance(meta, str)]
        return lambda value: of_type(value) and all(in_range(value, meta) for meta in limits)
    if origin in _UNIONS:
        single = tuple(one for one in inner if isinstance(one, type) and one not in (bool, int, float, Any))
        others = [fits(one) for one in inner if one not in single]
        return lambda value: isinstance(value, single) or any(other(value) for other in others)
    if origin is Literal:
        return lambda value: value in inner
    if kind is int or kind is float:
        number = int if kind is int else int | float
        return lambda value: isinstance(value, number) and not isinstance(value, bool)
    kind = origin or kind
    if kind is Callable:
        return callable
    if kind is Any or not isinstance(kind, type):
        return lambda value: True
    if kind in (tuple, list, Sequence):
        return _fits_sequence(tuple if kind is tuple else Sequence, inner)
    if issubclass(kind, Mapping) and inner:
        key, item = map(fits, inner)
        return lambda value: isinstance(value, Mapping) and all(key(k) and item(v) for k, v in value.items())
    return lambda value: isinstance(value, kind)


def _fits_sequence(kind: type, inner: tuple) -> Callable[[Any], bool]:
    single = [fits(one) for one in inner if one is not ...]
    if kind is tuple and inner and ... not in inner:
        return lambda value: (
            isinstance(value, kind)
            and len(value) == len(single)
            and all(f(v) for f, v in zip(single, value, strict=True))
        )
    item = single[0] if single else lambda value: True
    return lambda value: isinstance(value, kind) and not isinstance(value, _TEXTS) and all(map(item, value))


def in_range(value: Any, meta: Any) -> bool:
    """Return whether a value is within the limits of a `msgspec.Meta`; a union's other types have none."""
    if isinstance(meta, str) or not isinstance(value, int | float | str):
        return True
    if isinstance(value, str):
        return (meta.min_length or 0) <= len(value) <= (meta.max_length or len(value)) and is_unicode(value)
    return (
        (meta.ge is None or value >= meta.ge)
        and (meta.gt is None or value > meta.gt)
        and (meta.le is None or value <= meta.le)
        and (meta.lt is None or value < meta.lt)
    )


def rule(kind: Any, value: Any) -> str:
    """Return what values of a type are, in words; an upper limit of whole numbers is named where the value is above."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        (meta,) = [m for m in inner[1:] if not isinstance(m, str)] or [None]
        if inner[0] is float and (meta.ge is not None or meta.gt is not None):
            low = f"({meta.gt:g}" if meta.ge is None else f"[{meta.ge:g}"
            return f"{'a positive number, ' * (meta.gt == 0)}in {low}, {'inf' if meta.lt is None else f'{meta.lt:g}'})"
        low = "" if getattr(meta, "ge", None) is None else f" of at least {meta.ge}"
        above = low and meta.lt is not None and isinstance(value, int | float) and value >= meta.lt
        filled = ", not empty" if getattr(meta, "min_length", None) else ""
        return rule(inner[0], value) + filled + low + (f" and below {meta.lt}" if above else "")
    if origin in _UNIONS and len(inner) >= LONG_UNION:
        return f"of a type such as {inner[0].__name__}"
    if origin in _UNIONS:
        return " or ".join(rule(one, value) for one in inner)
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    kind = origin or kind
    if kind in _WORDS:
        return _WORDS[kind]
    if isinstance(kind, type) and issubclass(kind, Mapping) and inner:
        return f"a mapping of {rule(inner[0], value)} to values {rule(inner[1], value)}"
    if kind in (tuple, list, Sequence):
        several = [one for one in inner if one is not ...]
        if kind is tuple and several and ... not in inner:
            return f"a list of {len(several)}"
        return f"a list, each {rule(several[0], value)}" if several else "a list"
    return f"of type {getattr(kind, '__name__', kind)}"
