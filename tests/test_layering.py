"""Imports point one way: cython_src <- forkjoin, tasking <- experiments."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cython_src", "forkjoin", "tasking", "experiments")
ALLOWED = {
    "cython_src": {"cython_src"},
    "forkjoin": {"forkjoin", "cython_src"},
    "tasking": {"tasking", "cython_src"},
    "experiments": set(FOLDERS),
}
RELATIVE = re.compile(r"^\s*(?:from\s+\.\.(\w+)|from\s+forktask\.(\w+)|c?import\s+forktask\.(\w+))", re.MULTILINE)


def imported_folders(path: Path) -> set[str]:
    """Folders of the package that a Python or Cython file names in its imports."""
    text = path.read_text()
    if path.suffix == ".py":
        found = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level == 2 and node.module:
                found.add(node.module.split(".")[0])
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forktask."):
                found.add(node.module.split(".")[1])
            elif isinstance(node, ast.Import):
                found.update(a.name.split(".")[1] for a in node.names if a.name.startswith("forktask."))
        return found & set(FOLDERS)
    return {name for match in RELATIVE.findall(text) for name in match if name in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_follow_the_arrows(folder):
    """Check that no folder imports one that stands above it, and that forkjoin and tasking never meet."""
    files = [p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".pyx", ".pxd")]
    assert files
    for path in files:
        outside = imported_folders(path) - ALLOWED[folder]
        assert not outside, f"{path.relative_to(ROOT)} imports {sorted(outside)}"


def test_a_forbidden_import_is_seen(tmp_path):
    """Check that the search for imports would notice each form that the sources use."""
    for name, text in {
        "a.py": "from ..tasking.executor import X\n",
        "b.py": "import forktask.tasking.executor\n",
        "c.pyx": "from ..tasking.graph cimport G\n",
    }.items():
        path = tmp_path / name
        path.write_text(text)
        assert imported_folders(path) == {"tasking"}
