"""Writes Cython's view of C code when the package is built: `declarations.py OUTPUT COMPILER FILE...`

For each folder of kernels, OUTPUT/<folder>_c.pxd has

- what its C headers declare: constants, enumerations, structs, inline functions;
- for each table of inner loops a function `<table>_loops(micro)` that finds it;
- for each kernel in its `specs.py` a struct `<kernel>_args` with all that the kernel gets, by the names there, and
  `read_<kernel>(args, block)`, which fills it.

For each .pyx file of another folder, OUTPUT/<file>_c.pxd has what the file uses of the folder's C headers.

The C compiler preprocesses headers, and pycparser parses them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import arguments
from pycparser.c_ast import ArrayDecl, Constant, Enum, FuncDecl, FuncDef, Node, PtrDecl, Struct, Typedef
from pycparser.c_parser import CParser

HEAD = '''"""Written by interface/declarations.py."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
'''
LOWEST = "interface", "simd", "maps"  # folders that all others use, each those before it
# Headers for inner loops, which Cython code does not call.
OF_INNER_LOOPS = (
    "activations.h", "functions.h", "micro_kernels.h", "nchw_sums.h", "nhwc_planes_loops.h", "nhwc_rows.h",
    "nhwc_windows_loops.h", "six_products.h", "tiles.h", "vectors.h",
)  # fmt: skip
# pycparser reads no GNU C: the system's headers are empty for it, their types mere names, and assembler is left out.
SYSTEM_HEADERS = (
    "errno.h", "immintrin.h", "linux/futex.h", "linux/membarrier.h", "omp.h", "pthread.h", "sched.h", "semaphore.h",
    "signal.h", "starpu.h", "stdatomic.h", "stddef.h", "stdint.h", "stdlib.h", "string.h", "sys/resource.h",
    "sys/syscall.h", "time.h", "unistd.h",
)  # fmt: skip
SYSTEM_TYPES = (
    "typedef int int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t, size_t, "
    "ptrdiff_t, cpu_set_t, pthread_attr_t, pthread_mutex_t, pthread_t, sem_t, sigset_t;\n"
)
WITHOUT_GNU_C = ("-D__attribute__(x)=", "-D__asm__=", "-Dvolatile(...)=")
ROOT = Path(__file__).resolve().parents[3]
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


def declaration(kind: Node, name: str) -> str:
    """Return what declares a name of a type for Cython; an array whose length is no number is a pointer."""
    if isinstance(kind, PtrDecl):
        return declaration(kind.type, f"(*{name})" if isinstance(kind.type, FuncDecl) else f"*{name}")
    if isinstance(kind, ArrayDecl):
        return declaration(kind.type, f"{name}[{kind.dim.value}]" if isinstance(kind.dim, Constant) else f"*{name}")
    if isinstance(kind, FuncDecl):
        given = [declaration(parameter.type, "").strip() for parameter in kind.args.params]
        given = ", ".join(given) if given != ["void"] else ""
        return declaration(kind.type, f"{name}({given})") + " noexcept nogil"
    names = [kind.type.name] if isinstance(kind.type, Struct) else kind.type.names
    return " ".join([*kind.quals, *names, name])


def items(node: Node, used: set[str] | None) -> Iterator[tuple[str, list[str]]]:
    """Yield each name that C declares with the lines that declare it for Cython; of structs the members in `used`."""
    kind = node.type.type if isinstance(node, Typedef) else node.type
    if isinstance(kind, Enum):
        for each in kind.values.enumerators:
            yield each.name, [f"const int {each.name}"]
    elif isinstance(node, Typedef) and (isinstance(kind, Struct) or "_Atomic" in node.type.quals):
        members = kind.decls or () if isinstance(kind, Struct) else ()
        lines = [
            declaration(member.type, 'input "in"' if member.name == "in" else member.name)
            for member in members
            if used is None or member.name in used
        ]
        yield node.name, [f"ctypedef struct {node.name}:", *(f"    {line}" for line in lines or ["pass"])]
    elif node.name:
        yield node.name, ["ctypedef " * isinstance(node, Typedef) + declaration(node.type, node.name)]


def macro(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of a macro that has a value, and the line that declares it: a number, or a function of numbers."""
    name, _, value = text.partition(" ")
    name, bracket, parameters = name.partition("(")
    if value and bracket:
        given = ", ".join("ptrdiff_t" for each in parameters.rstrip(")").split(",") if each)
        yield name, [f"ptrdiff_t {name}({given})"]
    elif value:
        yield name, [f"const int {name}"]


def read(
    headers: Sequence[Path], preprocess: list[str], used: set[str] | None = None
) -> dict[Path, dict[str, list[str]]]:
    """Return what headers declare, and those that they include: by file and name lines of a block `cdef extern`, in an
    order in which Cython can read them."""
    text = SYSTEM_TYPES + "".join(f'#include "{path}"\n' for path in headers)
    done = subprocess.run(preprocess, input=text, stdout=subprocess.PIPE, text=True, check=True)
    code, macros, file = [], [], ""
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "#":
            file = rest.split('"')[1]
        if word == "#define":
            macros.append((Path(file), rest))
        elif word != "#undef":
            code.append(line)
    result: dict[Path, dict[str, list[str]]] = {}
    for node in CParser().parse("\n".join(code)).ext:
        node = node.decl if isinstance(node, FuncDef) else node
        result.setdefault(Path(node.coord.file), {}).update(items(node, used))
    for path, rest in macros:
        result.setdefault(path, {}).update(macro(rest))
    return result


def extern(path: Path, lines: list[str]) -> str:
    """Return a block of declarations of a header."""
    return f'\ncdef extern from "{path.relative_to(ROOT)}" nogil:\n' + "".join(f"    {line}\n" for line in lines)


def view(file: Path, headers: list[Path], preprocess: list[str]) -> str:
    """Return the .pxd file of a module: what it uses of headers, and what that needs, which stands before it in C."""
    text, blocks = file.read_text(), []
    needed = {*re.findall(r"\w+", text)}
    for path, names in reversed(read(headers, preprocess, {*re.findall(r"\.(\w+)", text)}).items()):
        lines: list[str] = []
        for own in (names[name] for name in reversed(names) if name in needed and path in headers):
            needed.update(re.findall(r"\w+", " ".join(own)))
            lines = [*own, *lines]
        blocks += [extern(path, lines)] if lines else []
    return HEAD + "from interface_c cimport *\n" + "".join(reversed(blocks))


def header(path: Path, names: dict[str, list[str]], tables: dict[str, str]) -> str:
    """Return the declarations of a header, and functions that find its tables of inner loops."""
    result = extern(path, [line for lines in names.values() for line in lines])
    return result + "".join(TABLE.format(struct=name, name=tables[name]) for name in names if name in tables)


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


def folder(name: str, files: list[Path], preprocess: list[str], tables: dict[str, str]) -> str:
    """Return the whole .pxd file of a folder."""
    headers = read([file for file in files if file.suffix == ".h" and file.name not in OF_INNER_LOOPS], preprocess)
    used = {path.parent.name for path in headers if path.is_relative_to(ROOT / "cython_src/kernels")}
    used |= {*LOWEST[: LOWEST.index(name) if name in LOWEST else None]}
    text = HEAD + "".join(f"from {other}_c cimport *\n" for other in sorted(used - {name}))
    if name == "maps":
        text += '\ncdef extern from "kernel_arguments.h" nogil:\n'
        for struct, fields in {**arguments.STRUCTS, **arguments.BOXES}.items():
            text += f"    ctypedef struct {struct}:\n        int {', '.join(fields)}\n"
    text += "".join(header(path, names, tables) for path, names in headers.items() if path in files)
    if any(file.name == "specs.py" for file in files):
        specs = import_module(f"cython_src.kernels.{name}.specs").KERNELS
        text += "".join(kernel(*item) for item in specs.items())
    return text


def main(output: str, compiler: str, *files: str) -> None:
    """Write the .pxd files; one whose content stays is left alone, so that nothing is built again for it."""
    sys.path[0], sys.dont_write_bytecode = str(ROOT), True  # where `specs.py` of the folders are found
    folders: dict[str, list[Path]] = {}
    texts: dict[str, str] = {}
    for file in (Path(name).resolve() for name in files):
        top, room, *_ = file.relative_to(ROOT).parts
        room = f"/{top}/{room}" if top == "experiments" else f"/{top}"
        folders.setdefault(file.parent.name if top == "cython_src" else room, []).append(file)
    with TemporaryDirectory() as empty:
        for path in (Path(empty, name) for name in SYSTEM_HEADERS):
            path.parent.mkdir(exist_ok=True)
            path.touch()
        places = (empty, ROOT, ROOT / "tasking", ROOT / "forkjoin", output)
        preprocess = [*shlex.split(compiler), "-E", "-dD", "-nostdinc", *WITHOUT_GNU_C, *(f"-I{p}" for p in places)]
        preprocess += ["-xc", "-"]
        table_file = ROOT / "cython_src/kernels/simd/micro_kernels.h"
        loops = read([table_file], preprocess)[table_file]["MicroKernels"]
        tables = {struct: name.removeprefix("*") for _, struct, name in map(str.split, loops[1:])}
        for name, inside in folders.items():
            if not name.startswith("/"):
                texts[name] = folder(name, inside, preprocess, tables)
                continue
            headers = [file for file in inside if file.suffix == ".h"]
            texts |= {file.stem: view(file, headers, preprocess) for file in inside if file.suffix == ".pyx"}
    for name, text in texts.items():
        path = Path(output) / f"{name}_c.pxd"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
