"""The build's own files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["meson.build", "forkjoin/meson.build"])
def test_lists_are_split_by_lines(name):
    """Check that no output of a program is split at blanks, which paths may have."""
    assert {*re.findall(r"split\((.*?)\)", (ROOT / name).read_text())} <= {r"'\n'", "'.'"}
