"""Functions that make a graph are found by another process wherever this one has imported them from."""

import importlib
import json
import py_compile
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from programs import run_python

from forktask.experiments.subjects.subject import describe

GRAPH = """
import numpy as np
import forktask as ft

def one(a):
    a += 1

def means(grain):
    graph = ft.UserGraph("g")
    x = graph.array("x", np.zeros(64))
    for i in graph.taskloop(64, grainsize=grain):
        graph.task(one, updates=x[i])
    return graph
"""
LOGGED = """
import functools
def logged(function):
    @functools.wraps(function)
    def wrapper(*values, **named):
        return function(*values, **named)
    return wrapper
"""
MAKE = "import json, sys; from forktask.experiments.subjects.subject import make_bound as m; m(json.load(sys.stdin))"


def made_elsewhere(function):
    """Return whether a new process can make the graph."""
    job = json.dumps(describe(function, {"grain": 16}))
    done = run_python(MAKE, input=job)
    return done.returncode == 0 or done.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder from which modules are imported, which are forgotten afterwards."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("has_init", [True, False])
def test_relative_imports_of_a_package_that_import_does_not_find(tmp_path, monkeypatch, has_init):
    """Check the modules that pytest's import mode importlib makes: packages in `sys.modules`, and no path to them."""
    package = tmp_path / "some" / "own_tests"
    package.mkdir(parents=True)
    (package / "kernels.py").write_text(GRAPH)
    (package / "graphs.py").write_text(
        "from .kernels import means as inner\ndef means(grain):\n    return inner(grain)\n"
    )
    if has_init:
        (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    with monkeypatch.context() as paths:
        paths.syspath_prepend(tmp_path)
        function = importlib.import_module("some.own_tests.graphs").means
    assert made_elsewhere(function) is True


def test_a_function_decorated_in_another_module(folder):
    """Check that the function is searched in its own module, not in the decorator's."""
    (folder / "deco.py").write_text(LOGGED)
    (folder / "decorated.py").write_text("from deco import logged\n" + GRAPH.replace("def means", "@logged\ndef means"))
    assert made_elsewhere(importlib.import_module("decorated").means) is True


def test_a_module_that_is_compiled_only(folder):
    """Check a module without its source, also under a name that import does not find."""
    (folder / "source.py").write_text(GRAPH)
    py_compile.compile(str(folder / "source.py"), cfile=str(folder / "compiled.pyc"))
    (folder / "source.py").unlink()
    assert made_elsewhere(importlib.import_module("compiled").means) is True
    spec = spec_from_file_location("of_no_path", folder / "compiled.pyc")
    sys.modules["of_no_path"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert made_elsewhere(module.means) is True
