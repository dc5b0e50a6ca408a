"""Tests of what the build writes for Cython, and `gpu.launches` for CUDA, from the kernels' specs."""

import ctypes
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from forktask.cython_src.gpu import launches
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.kernels.interface import arguments

SOURCES = Path(__file__).parents[3] / "cython_src/kernels"


@pytest.fixture
def declarations(monkeypatch):
    """The script of the build, as a module."""
    monkeypatch.setitem(sys.modules, "arguments", arguments)
    place = importlib.util.spec_from_file_location("declarations", SOURCES / "interface/declarations.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def test_the_kernels_of_specs_are_registered():
    """Check that each kernel that the build declares arguments of is registered with these, and has an address."""
    folders = [file.parent.name for file in SOURCES.glob("*/specs.py")]
    result = {}
    for folder in folders:
        result |= importlib.import_module(f"forktask.cython_src.kernels.{folder}.specs").KERNELS
    assert len(result) > 80
    for name, spec in result.items():
        registered = kernel_table.get(name)
        assert registered.address
        for names in ("operands", "integers", "reals", "bounds"):
            assert tuple(n.rstrip("?") for n in getattr(spec, names)) == getattr(registered, names), name


def test_headers_are_declared_as_they_are(declarations, tmp_path):
    """Check constants, enumerations, structs with pointers, arrays and functions, and inline functions of a header."""
    header = tmp_path / "x_loops.h"
    header.write_text(
        "#ifndef X\n#define X\n#define WIDTH 4 /* of it */\n#define FLOATS(N) ((N) + 1)\nenum { A = 2, B };\n"
        "typedef struct Team Team;\n"
        "typedef struct Task {\n    const float *in, *w; /* one, two */\n    int n[WIDTH];\n"
        "    void (*run)(const float *in, int n);\n    const Team *team;\n"
        "    char padding[128 - sizeof(float *)];\n} Task;\n"
        "static inline int twice(int a,\n    int b)\n{\n    return 2;\n}\n#endif\n"
    )
    assert declarations.declared(header) == [
        "const int WIDTH",
        "ptrdiff_t FLOATS(ptrdiff_t N)",
        "const int A",
        "const int B",
        "ctypedef struct Team:",
        "    pass",
        "ctypedef struct Task:",
        '    const float *input "in"',
        "    const float *w",
        "    int n[4]",
        "    void (*run)(const float *input, int n) noexcept nogil",
        "    const Team *team",
        "int twice(int a, int b)",
    ]


def test_a_module_sees_what_it_uses(declarations, tmp_path):
    """Check that of headers only what a module names is declared, in the order of need."""
    header, module = tmp_path / "team.h", tmp_path / "runs.pyx"
    header.write_text(
        "typedef int32_t (*Body)(int32_t worker);\n"
        "typedef struct Team {\n    int threads, spare;\n    Body body;\n} Team;\n"
        "typedef _Atomic int64_t atomic_long;\nenum { ASLEEP, AWAKE };\n"
        "static void start(Team *team)\n{\n}\nstatic void unused(Team *team)\n{\n}\n"
        "static void (*const run[])(Team *team) = {start, unused};\n"
    )
    module.write_text("cdef class A:\n    def go(self):\n        start(&self.t)\n        self.t.body = run[AWAKE]\n")
    text = declarations.view(module, [header], tmp_path)
    blocks = text.split('\ncdef extern from "team.h" nogil:\n')[1:]
    assert blocks == [
        "    ctypedef int32_t (*Body)(int32_t worker) noexcept\n",
        "    ctypedef struct Team:\n        Body body\n",
        "    void start(Team *team)\n",
        "    void (*run[1])(Team *team) noexcept\n",
        "    const int AWAKE\n",
    ]


def test_cuda_finds_arguments_where_they_are_put():
    """Check that the record that is filled has the size of the struct: what is common, pointers, reals, integers."""
    common = 4 * ctypes.sizeof(ctypes.c_void_p) + 6 * ctypes.sizeof(ctypes.c_int)
    limits = launches.MAX_OPERANDS, launches.MAX_REALS, launches.MAX_INTEGERS
    assert launches.ARGS_DTYPE.itemsize == common + 8 * limits[0] + 8 * limits[1] + 4 * limits[2]
    spec = SimpleNamespace(name="k", operands=("a?", "index"), integers=("x",), reals=(), bounds=("i",))
    assert arguments.cuda_struct(spec, (3, 1, 2)) == (
        "struct k_args : GpuArgs { struct Bounds { int i; }; float *a; unsigned char *index; void *no_operand[1]; "
        "double no_real[1]; int x; int no_integer[1]; };"
    )
