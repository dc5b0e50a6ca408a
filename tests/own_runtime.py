"""The runtime of the guide, built whole or changed."""

import re
import subprocess
from pathlib import Path

import forktask as ft

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "guide" / "own_runtime.md").read_text()
QUEUE = re.search(r'^source = r"""(.*?)^"""', GUIDE, re.MULTILINE | re.DOTALL)[1]


def build(folder, *changes, name="mine", source=QUEUE):
    """Build the guide's runtime, changed, and return its model."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    (folder / f"{name}.c").write_text(source)
    path = folder / f"lib{name}.so"
    command = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", f"-I{ft.get_include()}"]
    subprocess.run([*command, str(folder / f"{name}.c"), "-o", str(path)], check=True)
    return f"lib:{path}"
