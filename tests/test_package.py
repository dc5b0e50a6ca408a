"""The package as it is installed: what it needs, how large it is, which processors it is for."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import files as installed_files
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest

from forktask.cython_src.kernels.simd import instruction_sets

MEBIBYTE = 2**20
ROOT = Path(__file__).resolve().parent.parent


def requirements() -> dict[str, set[str]]:
    """Names of required packages by extra; those of the plain package under ""."""
    result: dict[str, set[str]] = {}
    for requirement in requires("forktask"):
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        result.setdefault(extra[1] if extra else "", set()).add(re.match(r"[\w.-]+", requirement)[0].lower())
    return result


def test_the_page_of_an_index_has_no_relative_links():
    """Check that the description of the package leads to no file that only the repository has."""
    page = ROOT / tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["readme"]
    assert page.read_text().startswith("# forktask")
    assert not re.findall(r"\]\((?!https?://)", page.read_text())


def test_extras_hold_what_the_plain_package_does_without():
    """Check that measuring on a CPU installs no PyTorch, no CUDA, no test tools."""
    of = requirements()
    assert set(metadata("forktask").get_all("Provides-Extra")) >= {"test", "gpu", "peers", "docs", "dev"}
    assert "torch" in of["peers"] and "sphinx" in of["docs"] and "pytest" in of["test"]
    for extra in ("test", "gpu", "peers", "docs", "dev"):
        assert not of[""] & of[extra], f"the plain package needs what is an extra: {of[''] & of[extra]}"
    assert not [name for name in of[""] if re.search("cuda|cupy|torch|pytest", name)]


def test_the_container_installs_versions_that_are_written_down():
    """Check that each package of a build, an installation and its tests has a version in `constraints.txt`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = project["build-system"]["requires"] + project["project"]["dependencies"]
    named += project["project"]["optional-dependencies"]["test"]
    pinned = re.findall(r"^([\w-]+)==[\w.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {re.match(r"[\w-]+", name)[0] for name in named} <= {*pinned}
    assert "ENV PIP_CONSTRAINT=/forktask/constraints.txt" in (ROOT / "Dockerfile").read_text()


def test_one_build_is_for_all_processors_and_small():
    """Check that inner loops for any processor are there beside this one's, and that all take less than 40 MiB."""
    assert instruction_sets.available()[0] == "generic"
    files = [file.locate() for file in installed_files("forktask")]
    assert len(files) > 100
    size = sum(path.stat().st_size for path in files)
    assert size < 40 * MEBIBYTE, f"{size / MEBIBYTE:.1f} MiB"


def configure(folder, refused):
    """Configure the sources for a compiler that refuses a flag."""
    compiler = folder / "compiler"
    compiler.write_text(
        f'#!/bin/sh\ncase " $* " in *" {refused} "*) echo "{refused}: unknown" >&2; exit 1;; esac\nexec cc "$@"\n'
    )
    compiler.chmod(0o755)
    environment = {**os.environ, "CC": str(compiler), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-P", "-m", "mesonbuild.mesonmain", "setup", folder / "build", ROOT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="flags of other processors' compilers")
def test_inner_loops_compile_where_the_compiler_knows_no_levels_of_x86_64(tmp_path):
    """Check each inner loop with a compiler like gcc before 11, which refuses -march=x86-64-v4."""
    done = configure(tmp_path, "-march=x86-64-v4")
    assert done.returncode == 0, done.stdout
    commands = json.loads((tmp_path / "build" / "compile_commands.json").read_text())
    loops = [one for one in commands if "inner_loops_" in one["output"]]
    assert len(loops) == 3
    for one in loops:
        done = subprocess.run(
            [*shlex.split(one["command"]), "-fsyntax-only"],
            cwd=one["directory"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="flags of other processors' compilers")
def test_a_compiler_that_is_too_old_is_refused_at_configure(tmp_path):
    """Check the sentence for a compiler that does not know a flag of the inner loops."""
    done = configure(tmp_path, "-mavx512bw")
    assert done.returncode != 0
    assert "the C compiler must know" in done.stdout and "gcc 9 or newer" in done.stdout
