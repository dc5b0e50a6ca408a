"""Imports and includes point one way: between folders, between the rooms of a folder, and between files."""

import pytest
from layering import EXAMPLES, FOLDERS, Sources, arrows, find_cycle, function_lengths

LONG_FUNCTION = 90  # lines
# What the rooms of a folder, and files beside rooms, may name in the same folder: nothing else. A file that names
# another file needs no row, but may not close a circle.
GROUND = {"interface", "maps", "simd"}  # of kernels
CONCEPTS = {
    *("attention", "bench", "convolution", "dense", "depthwise", "elementwise", "embedding", "linear", "load", "loss"),
    *("norm", "optimizer", "pooling"),
}
ARROWS = {
    "": {
        "cython_src": set(),
        "forkjoin": {"cython_src"},
        "tasking": {"cython_src"},
        "experiments": {"cython_src", "forkjoin", "tasking"},
        "api": {"cython_src", "experiments", "forkjoin"},
        EXAMPLES: {"api", "cython_src"},  # a kernel includes block_kernel.h
    },
    "cython_src": {
        "plan": {"shown", "reading", "errors"},
        "networks": {"shown", "arguments", "reading", "errors"},
        "kernels": {"plan", "errors"},
        "lowering": {"plan", "networks", "kernels", "records", "reading", "errors"},
        "binding": {"affinity", "closing", "plan", "kernels", "records", "shown", "reading", "typed_text", "errors"},
        "graphs": {"plan", "kernels", "binding", "shown", "reading", "errors"},
        "gpu": {"plan", "kernels", "binding", "records", "shown", "typed_text", "errors"},
        "targets": {"plan", "binding", "gpu"},
    },
    "cython_src/kernels": {
        "interface": set(),
        "simd": {"interface"},
        "maps": {"interface", "simd"},
        "bench": {"interface"},
        "load": GROUND,
        "optimizer": GROUND,
        "elementwise": GROUND,
        "embedding": GROUND | {"elementwise"},
        "linear": GROUND | {"elementwise"},
        "loss": GROUND | {"elementwise"},
        "norm": GROUND | {"elementwise"},
        "pooling": GROUND | {"elementwise"},
        "attention": GROUND | {"elementwise", "linear"},
        "dense": GROUND | {"elementwise", "pooling"},
        "depthwise": GROUND | {"convolution", "elementwise", "norm"},
        "convolution": GROUND | {"elementwise", "linear", "norm", "pooling"},
        "kernel_table": CONCEPTS | {"interface"},
    },
    "cython_src/lowering": {
        "layouts": {"dense", "elementwise", "ends", "gradients", "options", "state", "units"},
        "lower": {"layouts"},
    },
    "cython_src/lowering/layouts": {"nchw": set(), "nhwc": set(), "rows": set()},
    "tasking": {"programs": {"recorded_graph.h", "scheduler.h"}, "headers": {"programs"}},
    "experiments": {
        "machine": {"tables"},
        "bounds": set(),
        "tables": set(),
        "results": {"bounds", "machine", "subjects", "tables"},
        "subjects": {"machine", "tables"},
        "events": {"results", "subjects", "tables"},
        "sampling": {"results", "machine", "bounds", "subjects", "events", "tables"},
        "plan_check": {"results", "sampling", "subjects", "machine", "tables"},
        "conformance": {"sampling", "subjects", "machine"},
        "analysis": {"results", "machine", "subjects", "events", "bounds", "tables"},
        "simulate": {"results", "analysis", "sampling", "subjects", "bounds", "machine"},
        "diagnosis": {"analysis", "subjects", "events", "simulate", "bounds", "tables"},
        "report": {"results", "analysis", "diagnosis", "subjects", "events", "simulate", "traces", "tables"},
        "sweep": {
            *("results", "analysis", "events", "plan_check", "sampling", "subjects", "simulate", "machine", "tables"),
            "traces",
        },
        "cluster": {"results", "sampling", "simulate", "subjects", "sweep", "machine", "tables"},
        "images": {"results", "subjects"},
        "training": {"results", "images", "plan_check", "report", "sampling", "subjects", "machine", "tables"},
        "peers": {"results", "analysis", "subjects", "tables"},
        "studies": {"results", "analysis", "training", "report", "sampling", "subjects", "machine", "tables"},
        "survey": {"results", "analysis", "report", "simulate", "subjects", "sweep", "machine", "metg", "tables"},
        "metg": {"results", "report", "sampling", "subjects", "machine", "bounds", "tables"},
        "scaling": {"results", "analysis", "sampling", "subjects", "events", "bounds", "machine", "tables"},
        "task_graph": {"report", "bounds", "tables"},
        "traces": {"results", "analysis", "sampling", "subjects", "events", "machine", "tables"},
        "commands": {
            "analysis",
            "cluster",
            "conformance",
            "events",
            "machine",
            "metg",
            "report",
            "results",
            "sampling",
            "subjects",
            "survey",
            "scaling",
            "simulate",
            "studies",
            "sweep",
            "tables",
            "task_graph",
            "traces",
            "training",
        },
    },
    "experiments/report": {
        "sections": {"figures", "verdicts"},
        "verdicts": {"words"},
        "figures": {"verdicts", "words"},
        "files": {"figures", "gantt"},
        "gantt": {"figures"},
        "simulation": {"figures"},
    },
}


@pytest.fixture(scope="module")
def sources():
    return Sources()


@pytest.fixture(scope="module")
def found(sources):
    return arrows(sources.edges())


def forbidden(found, allowed, rooms):
    """Dependencies that touch a room and that no row of `allowed` names."""
    return [
        example
        for entry, examples in found.items()
        for other, example in examples.items()
        if {entry, other} & rooms and other not in allowed.get(entry, ())
    ]


def rooms_of(sources, folder):
    """Entries of a folder that are folders themselves, with source files."""
    if not folder:
        return {*FOLDERS, EXAMPLES}
    inside = [file[len(folder) + 1 :] for file in sources.files if file.startswith(f"{folder}/")]
    return {name.partition("/")[0] for name in inside if "/" in name} - {EXAMPLES.removeprefix(f"{folder}/")}


@pytest.mark.parametrize("folder", ARROWS, ids=lambda folder: folder or "top")
def test_dependencies_follow_the_arrows(sources, found, folder):
    """Check that no file names one of a room that its own may not name."""
    allowed, rooms = ARROWS[folder], rooms_of(sources, folder)
    assert rooms <= {*allowed}, f"{sorted(rooms - {*allowed})} in {folder!r} must have a row in ARROWS"
    assert not (wrong := forbidden(found.get(folder, {}), allowed, rooms)), "\n".join(wrong)


def test_folders_of_rooms_have_arrows(sources):
    """Check that a folder in which two rooms stand has a row for each."""
    folders = {
        folder for file in sources.files if (folder := file.rpartition("/")[0]) and not file.startswith(EXAMPLES)
    }
    above = {folder.rpartition("/")[0] for folder in folders}
    assert {folder for folder in above if len(rooms_of(sources, folder)) > 1} <= {*ARROWS}


def test_no_dependencies_go_in_a_circle(found):
    """Check every folder: neither its rooms nor its files lead back to themselves."""
    for folder, graph in found.items():
        assert not (cycle := find_cycle(graph)), f"a circle in {folder or 'the top'!r}:\n" + "\n".join(cycle)


# (file, its text): each names tasking/executor, tasking/team.h or tasking/graph.
WAYS_TO_NAME = {
    "relative": ("forkjoin/a.py", "from ..tasking.executor import X\n"),
    "relative in the folder": ("tasking/a.py", "from . import executor as other\n"),
    "absolute from": ("forkjoin/a.py", "from forktask.tasking.executor import (\n    X,\n    Y,\n)\n"),
    "in a function": ("forkjoin/a.py", "def f():\n    if True:\n        from ..tasking.executor import X\n"),
    "in a template": ("api/a.py.in", "VERSION = @version@\nfrom .tasking.executor import X\n"),
    "by name": ("forkjoin/a.py", "import importlib\nimportlib.import_module('forktask.tasking.executor')\n"),
    "by a name of the package": (
        "forkjoin/a.py",
        "N = ('.tasking.executor',)\nfor n in N: import_module(n, 'forktask')\n",
    ),
    "by a name of the folder": (
        "tasking/a.py",
        "N = {'executor': 1}\nm = [import_module(f'.{n}', __package__) for n in N]\n",
    ),
    "cimport from, in lines": ("forkjoin/a.pxd", "from ..tasking.graph cimport (\n    G,\n    H)\n"),
    "cimport": ("forkjoin/a.pxd", "cimport numpy, forktask.tasking.graph as g\n"),
    "include of Cython": ("tasking/a.pyx", "include 'part.pxi'\n"),
    "extern with a text": ("forkjoin/a.pyx", 'cdef extern from *:\n    """\n    #include "tasking/team.h"\n    """\n'),
    "include": ("forkjoin/a.c", '#include "tasking/team.h"\n'),
    "include beside": ("tasking/a.h", '  #  include "team.h" /* it */\n'),
    "include by a path": ("tasking/programs/a.h", '#include "../team.h"\n'),
    "include from a search path": ("forkjoin/a.hpp", "#include <team.h>\n"),
}


@pytest.fixture
def tree(tmp_path):
    """A package of a few files, to which tests add one."""

    def add(*files):
        for name, text in (("tasking/executor.py", ""), ("tasking/graph.pxd", ""), ("tasking/part.pxi", ""), *files):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "tasking" / "team.h").touch()
        return Sources(tmp_path)

    return add


@pytest.mark.parametrize("way", WAYS_TO_NAME)
def test_every_way_to_name_a_file_is_seen(tree, way):
    """Check each kind of import and include."""
    file, text = WAYS_TO_NAME[way]
    (target,) = tree((file, text)).targets(file)
    assert target in ("tasking/executor.py", "tasking/graph.pxd", "tasking/part.pxi", "tasking/team.h")


def test_a_forbidden_arrow_and_a_circle_are_found(tree):
    """Check the searches themselves on trees that break the rules, between folders, rooms and files."""
    sources = tree(("forkjoin/a.py", "from ..tasking.executor import X\n"))
    graph = arrows(sources.edges())[""]
    assert forbidden(graph, ARROWS[""], rooms_of(sources, "")) == ["forkjoin/a.py names tasking/executor.py"]
    assert not find_cycle(graph)
    plan, bind = ("cython_src/plan/a.py", "from ..binding import b\n"), ("cython_src/binding/b.pyx", "")
    sources = tree(plan, bind)
    graph = arrows(sources.edges())["cython_src"]
    assert forbidden(graph, ARROWS["cython_src"], rooms_of(sources, "cython_src")) == [f"{plan[0]} names {bind[0]}"]
    assert not find_cycle(graph)
    sources = tree(plan, (bind[0], "from ..plan cimport c\n"), ("cython_src/plan/c.pxd", ""))
    assert len(find_cycle(arrows(sources.edges())["cython_src"])) == 2
    texts = {"a.h": '#include "b.h"\n', "b.h": '#include "c.h"\n', "c.h": '#include "a.h"\n'}
    sources = tree(*((f"forkjoin/{name}", text) for name, text in texts.items()))
    assert len(find_cycle(arrows(sources.edges())["forkjoin"])) == 3


def test_functions_fit_into_a_head(sources):
    """Check that each function of Python and Cython has fewer than 90 lines, its docstring among them."""
    texts = {file: (sources.root / file).read_text() for file in sources.files if file.endswith((".py", ".pyx"))}
    assert not [(file, *f) for file, text in texts.items() for f in function_lengths(text) if f[1] >= LONG_FUNCTION]
    python = "def f(\n    a,\n) -> None:\n    x = 1\n\n    def g():\n        pass\n\n\n"
    cython = "cdef int h(int a,\n           int b):\n    pass\n"
    assert dict(function_lengths(python + cython)) == {"f": 7, "g": 2, "h": 3}
