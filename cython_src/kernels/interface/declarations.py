"""Writes Cython's view of C code when the package is built: `declarations.py OUTPUT FILE...`

For each folder of kernels, OUTPUT/<folder>_c.pxd has

- what its C headers declare: constants, enumerations, structs, inline functions;
- for each table of inner loops a function `<table>_loops(micro)` that finds it;
- for each kernel in its `specs.py` a struct `<kernel>_args` with all that the kernel gets, by the names there, and
  `read_<kernel>(args, block)`, which fills it.

For each .pyx file of another folder, OUTPUT/<file>_c.pxd has what the file uses of the folder's C headers.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import arguments

HEAD = '''"""Written by interface/declarations.py."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
'''
LOWEST = "interface", "simd", "maps"  # folders that all others use, each those before it
ALL = ("const int32_t *bounds", "const MicroKernels *micro")
TABLE = '''
cdef extern from *:
    """
    #include "cython_src/kernels/interface/block_kernel.h"
    #include "cython_src/kernels/simd/micro_kernels.h"
    #define forktask_{name}_loops(table) ((table)->{name})
    """
    const {struct} *{name}_loops "forktask_{name}_loops"(const MicroKernels *) nogil
'''


def members(body: str, constants: dict[str, str], used: set[str] | None = None) -> list[str]:
    """Return the lines that declare a C struct's members for Cython; of those that are used, if that is given."""
    result = []
    for member in " ".join(body.split()).split(";")[:-1]:
        if "sizeof" in member or (used is not None and not used.intersection(re.findall(r"\w+", member))):
            continue  # padding, or not used
        member = re.sub(r"\[(\w+)\]", lambda m: f"[{constants.get(m[1], m[1])}]", member.strip())
        member = re.sub(r"(\w+)\[[A-Z]\w+\]$", r"*\1", member)  # as many as an enumeration says
        if "(" in member:
            result.append(re.sub(r"\bin\b", "input", member) + " noexcept nogil")
            continue
        kind, declarators = re.fullmatch(r"((?:const )?\w+) (.*)", member).groups()
        for declarator in declarators.split(", "):
            result.append(f"{kind} {declarator}" + (' "in"' if declarator.lstrip("*") == "in" else ""))
    return [re.sub(r"\bin$", "input", line.replace('in "in"', 'input "in"')) for line in result]


def items(path: Path, used: set[str] | None = None) -> dict[str, list[str]]:
    """Return what a header declares, by name, as lines of a block `cdef extern`; of structs what is used."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S).replace("\\\n", " ")
    text = re.sub(r"^#(if|endif).*", "", text, flags=re.M)
    constants = dict(re.findall(r"^#define (\w+) +(\S+)", text, re.M))
    result = {}
    for m in re.finditer(r"^#define (\w+) +\S", text, re.M):
        result[m.start(), m[1]] = [f"const int {m[1]}"]
    for m in re.finditer(r"^#define (\w+)\(([A-Z_, ]+)\) +\S", text, re.M):
        given = ", ".join(f"ptrdiff_t {name}" for name in m[2].split(", "))
        result[m.start(), m[1]] = [f"ptrdiff_t {m[1]}({given})"]
    for m in re.finditer(r"^enum \{(.*?)\};", text, re.M | re.S):
        names = [name.split("=")[0].strip() for name in m[1].split(",") if name.strip()]
        result |= {(m.start(), name): [f"const int {name}"] for name in names}
    for m in re.finditer(r"^typedef (?:_Atomic|struct) \w+ (\w+);", text, re.M):
        result[m.start(), m[1]] = [f"ctypedef struct {m[1]}:", "    pass"]
    for m in re.finditer(r"^typedef (\w+ \(\*(\w+)\)\(.*?\));", text, re.M):
        result[m.start(), m[2]] = [f"ctypedef {m[1]} noexcept"]
    for m in re.finditer(r"^typedef struct \w+ \{(.*?)\n\} (\w+);", text, re.M | re.S):
        lines = members(m[1], constants, used) or ["pass"]
        result[m.start(), m[2]] = [f"ctypedef struct {m[2]}:", *(f"    {line}" for line in lines)]
    for m in re.finditer(r"^static (?:inline )?([^{;]*?)\n\{", text, re.M):
        line = " ".join(m[1].replace("(void)", "()").split())
        result[m.start(), re.search(r"(\w+)\(", line)[1]] = [line]
    for m in re.finditer(r"^static (void \(\*const (\w+)\[)\](\).*?) = \{", text, re.M | re.S):
        result[m.start(), m[2]] = [" ".join(f"{m[1]}1]{m[3]}".replace("*const ", "*").split()) + " noexcept"]
    return {name: result[start, name] for start, name in sorted(result)}


def declared(path: Path) -> list[str]:
    """Return what a header declares, as the lines of a block `cdef extern`."""
    return [line for lines in items(path).values() for line in lines]


def extern(path: Path, root: Path, lines: list[str]) -> str:
    """Return a block of declarations of a header; nothing of one that has macros alone."""
    if not lines:
        return ""
    return f'\ncdef extern from "{path.relative_to(root)}" nogil:\n' + "".join(f"    {line}\n" for line in lines)


def view(file: Path, headers: list[Path], root: Path) -> str:
    """Return the .pxd file of a module that uses some of what headers declare, each after what it needs itself."""
    text = file.read_text()
    known = {}
    for path in headers:
        for name, lines in items(path, {*re.findall(r"\.(\w+)", text)}).items():
            # What a function takes a pointer to is such a function too.
            known[name] = path, [re.sub(r"(\(\*\w+\)\([^)]*\))(?! noexcept)", r"\1 noexcept", line) for line in lines]
    done, result = set(), HEAD + "from interface_c cimport *\n"

    def add(name: str) -> None:
        nonlocal result
        done.add(name)
        path, lines = known[name]
        for other in re.findall(r"\w+", " ".join(lines)):
            if other in known and other not in done and known[other][1][0].startswith("ctypedef"):
                add(other)
        result += extern(path, root, lines)

    for name in dict.fromkeys(re.findall(r"\w+", text)):
        if name in known and name not in done:
            add(name)
    return result


def header(path: Path, root: Path) -> str:
    """Return the declarations of a header, and functions that find its tables of inner loops."""
    lines = declared(path)
    result = extern(path, root, lines)
    tables = (root / "cython_src/kernels/simd/micro_kernels.h").read_text()
    for struct, name in re.findall(r"TABLE\((\w+), (\w+)\) *\\?\n", tables):
        if f"ctypedef struct {struct}:" in lines:
            result += TABLE.format(struct=struct, name=name)
    return result


def kernel(kernel: str, spec: arguments.Arguments) -> str:
    """Return the struct of a kernel's arguments and the function that fills it."""
    fields, fill = [], []
    for i, (kind, name) in enumerate(arguments.pointers(spec.operands)):
        fields.append(f"{kind} *{name}")
        fill.append(f"a.{name} = <{kind} *> k.operand[{i}]")
    i = 0
    for struct, name, parts in arguments.attributes(spec.integers):
        fields.append(f"{struct or 'Py_ssize_t'} {name}")
        for part in [f"{name}.{part}" for part in parts] or [name]:
            fill.append(f"a.{part} = {'<int> ' if struct else ''}k.integers[{i}]")
            i += 1
    fields += [f"double {name}" for name in spec.reals]
    fill += [f"a.{name} = k.reals[{i}]" for i, name in enumerate(spec.reals)]
    box, boxed = arguments.box_of(spec.bounds)
    fields += [f"{box} box"] if box else []
    fields += [f"Py_ssize_t {name}" for name in spec.bounds if name not in boxed]
    fill += [f"a.{'box.' if name in boxed else ''}{name} = b[{i}]" for i, name in enumerate(spec.bounds)]
    lines = [
        "",
        f"cdef struct {kernel}_args:",
        *(f"    {field}" for field in [*fields, *ALL]),
        "",
        f"cdef inline {kernel}_args read_{kernel}(const void *args, Py_ssize_t block) noexcept nogil:",
        f"    cdef {kernel}_args a",
        "    cdef const KernelArgs *k = <const KernelArgs *> args",
        "    cdef const int32_t *b = k.bounds + block * k.bounds_width",
        *(f"    {line}" for line in [*fill, "a.bounds, a.micro = b, k.micro", "return a"]),
    ]
    return "\n".join(lines) + "\n"


def folder(name: str, files: list[Path], root: Path) -> str:
    """Return the whole .pxd file of a folder."""
    # Headers for inner loops alone are no business of Cython's.
    skipped = re.compile("INLINE|BY_ISA|MICRO_ISA|TABLE")
    headers = [file for file in files if file.suffix == ".h" and not skipped.search(file.read_text())]
    used = {other for file in headers for other in re.findall(r'#include "cython_src/kernels/(\w+)/', file.read_text())}
    used |= {*LOWEST[: LOWEST.index(name) if name in LOWEST else None]}
    text = HEAD + "".join(f"from {other}_c cimport *\n" for other in sorted(used - {name}))
    if name == "maps":
        text += '\ncdef extern from "kernel_arguments.h" nogil:\n'
        for struct, fields in {**arguments.STRUCTS, **arguments.BOXES}.items():
            text += f"    ctypedef struct {struct}:\n        int {', '.join(fields)}\n"
    done: list[Path] = []

    def add(file: Path) -> None:
        """Add a header to `done` behind those of the folder that it includes."""
        for other in re.findall(r'#include "(\w+\.h)"', file.read_text()):
            if file.with_name(other) in files:  # else the build writes it
                add(file.with_name(other))
        if file not in done:
            done.append(file)

    for file in headers:
        add(file)
    text += "".join(header(file, root) for file in done)
    if any(file.name == "specs.py" for file in files):
        specs = import_module(f"cython_src.kernels.{name}.specs").KERNELS
        text += "".join(kernel(*item) for item in specs.items())
    return text


def main(output: str, *files: str) -> None:
    """Write the .pxd files; one whose content stays is left alone, so that nothing is built again for it."""
    root = Path(__file__).resolve().parents[3]
    sys.path[0], sys.dont_write_bytecode = str(root), True  # where `specs.py` of the folders are found
    folders: dict[str, list[Path]] = {}
    texts: dict[str, str] = {}
    for file in (Path(name).resolve() for name in files):
        top, room, *_ = file.relative_to(root).parts
        room = f"/{top}/{room}" if top == "experiments" else f"/{top}"
        folders.setdefault(file.parent.name if top == "cython_src" else room, []).append(file)
    for name, inside in folders.items():
        if not name.startswith("/"):
            texts[name] = folder(name, inside, root)
            continue
        headers = [file for file in inside if file.suffix == ".h"]
        texts |= {file.stem: view(file, headers, root) for file in inside if file.suffix == ".pyx"}
    for name, text in texts.items():
        path = Path(output) / f"{name}_c.pxd"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
