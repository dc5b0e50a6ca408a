"""Names of what kernels get, as C declarations: the build writes them for Cython, `gpu.launches` for CUDA.

A kernel's spec lists operands, attributes and bounds by name; a kernel's code finds each under that name. Consecutive
attributes that describe a map (`in_channels`, `in_height`, ...) become one struct, `in_map`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

# Integers that stand together, in the order of the struct that C, CUDA and Cython know by this name.
STRUCTS = {
    "Map": ("channels", "height", "width", "rows", "pitch", "halo", "lanes"),  # maps/nchw.py
    "NhwcMap": ("channels", "height", "width", "halo", "pitch"),  # maps/nhwc.py
    "Geometry": ("kernel", "stride", "padding", "dilation", "groups", "algorithm"),
    "Window": ("kernel", "stride", "padding"),
    "Elements": ("num_partials", "partial_stride", "row_length", "row_stride", "row_offset"),  # of a gradient
}
_, MAP_NAMES, GEOMETRY, WINDOW, ELEMENTS = STRUCTS.values()
# Bounds of a block: images, interior rows, channels; groups of images, channels, interior rows.
BOXES = {"Box": ("n0", "n1", "y0", "y1", "c0", "c1"), "NchwBox": ("g0", "g1", "c0", "c1", "y0", "y1")}
BOX, NCHW_BOX = BOXES.values()
# Codes of the attribute "activation"; the build writes them for C, as it does the structs, `gpu.launches` for CUDA.
ACTIVATIONS = ("none", "relu", "relu6", "gelu", "sigmoid")
BYTES, INTEGERS = ("index",), (
    "batch_order", "correct", "correct_log", "dataset_labels", "dataset_tokens", "labels", "predictions", "targets",
    "tokens",
)  # fmt: skip
TYPES = dict.fromkeys(BYTES, "uint8_t") | dict.fromkeys(INTEGERS, "int32_t")  # of operands that are not float


class Arguments(NamedTuple):
    """What a kernel gets, as a folder's `specs.py` says; see `KernelSpec`."""

    operands: tuple[str, ...]
    integers: tuple[str, ...]
    reals: tuple[str, ...]
    bounds: tuple[str, ...]
    algorithms: tuple[str, ...]


def takes(
    operands: str,
    integers: str | Sequence[str] = (),
    reals: str = "",
    bounds: str | Sequence[str] = (),
    algorithms: str | Sequence[str] = (),
) -> Arguments:
    """Return what a kernel gets, from names with spaces between; a tuple may have such texts among its names."""
    lists = ([names] if isinstance(names, str) else names for names in (operands, integers, reals, bounds, algorithms))
    return Arguments(*(tuple(" ".join(names).split()) for names in lists))


def map_attributes(prefix: str) -> tuple[str, ...]:
    """Names of the attributes that describe a map with the images in the vector lanes."""
    return tuple(f"{prefix}_{name}" for name in STRUCTS["Map"])


def nhwc_attributes(prefix: str) -> tuple[str, ...]:
    """Names of the attributes that describe a map with the channels in the vector lanes."""
    return tuple(f"{prefix}_{name}" for name in STRUCTS["NhwcMap"])


def struct_of(struct: str, attributes: Mapping[str, int], prefix: str = "") -> dict[str, int]:
    """Return the fields of a struct from a loop's attributes."""
    return {name: attributes[prefix + name] for name in STRUCTS[struct]}


def pointers(operands: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield type and name of each operand."""
    for name in operands:
        name = name.rstrip("?")
        yield TYPES.get(name, "float"), "in_" if name == "in" else name


def attributes(integers: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield struct, name and fields of each map, and "", name and () of each other integer."""
    names = [name.rstrip("?") for name in integers]
    while names:
        prefix = names[0].removesuffix("channels") if names[0].endswith("_channels") else ""
        for struct, fields in STRUCTS.items():
            if names[: len(fields)] == [prefix + field for field in fields]:
                yield struct, f"{prefix}map" if prefix else struct.lower(), fields
                names = names[len(fields) :]
                break
        else:
            yield "", names.pop(0), ()


def cuda_struct(spec, limits: tuple[int, int, int]) -> str:
    """Return the declaration of a kernel's arguments, laid out like `GpuArgs` with the three arrays that follow it."""

    types = {"uint8_t": "unsigned char", "int32_t": "int"}
    operands = [f"{types.get(kind, kind)} *{name};" for kind, name in pointers(spec.operands)]
    reals = [f"double {name};" for name in spec.reals]
    integers = [f"{struct or 'int'} {name};" for struct, name, _ in attributes(spec.integers)]
    fields = f"struct Bounds {{ int {', '.join(spec.bounds) or 'none'}; }};"
    rests = ("void *no_operand", "double no_real", "int no_integer")
    given = (len(operands), len(reals), len(spec.integers))
    for lines, rest, limit, count in zip((operands, reals, integers), rests, limits, given, strict=True):
        fields += " " + " ".join([*lines, f"{rest}[{limit - count}];"] if count < limit else lines)
    return f"struct {spec.name}_args : GpuArgs {{ {fields} }};"


def box_of(bounds: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the struct that holds a block's images, rows and channels, and which of its bounds; "" and () without."""
    for struct, fields in BOXES.items():
        boxed = tuple(name for name in fields if name in bounds)
        if fields[0] in boxed and len(boxed) >= 4:
            return struct, boxed
    return "", ()


def activation_codes() -> str:
    """Return the enumeration of activations for C and CUDA, and `EACH_ACTIVATION(F)`, which calls F with each code."""
    names = ", ".join(f"ACTIVATION_{name.upper()}" for name in ACTIVATIONS)
    calls = " ".join(f"F({code})" for code in range(len(ACTIVATIONS)))
    return f"enum {{ {names} }};\n#define EACH_ACTIVATION(F) {calls}"


def c_structs() -> str:
    """Return the structs of attributes and of bounds as C declares them."""
    structs = {**STRUCTS, **BOXES}.items()
    return "\n".join(f"typedef struct {name} {{\n    int {', '.join(fields)};\n}} {name};" for name, fields in structs)


if __name__ == "__main__":
    print(f"#ifndef KERNEL_ARGUMENTS_H\n#define KERNEL_ARGUMENTS_H\n{activation_codes()}\n{c_structs()}\n#endif")
