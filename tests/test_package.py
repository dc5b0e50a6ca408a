"""The package as it is installed: what it needs, how large it is, which processors it is for."""

import re
import tomllib
from importlib.metadata import files as installed_files
from importlib.metadata import metadata, requires
from pathlib import Path

from forktask.cython_src.kernels.simd import instruction_sets

MEBIBYTE = 2**20
ROOT = Path(__file__).resolve().parent.parent


def requirements() -> dict[str, set[str]]:
    """Names of required packages by extra; those of the plain package under ""."""
    found: dict[str, set[str]] = {}
    for requirement in requires("forktask"):
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        found.setdefault(extra[1] if extra else "", set()).add(re.match(r"[\w.-]+", requirement)[0].lower())
    return found


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


def test_one_build_is_for_all_processors_and_small():
    """Check that inner loops for any processor are there beside this one's, and that all take less than 40 MiB."""
    assert instruction_sets.available()[0] == "generic"
    files = [file.locate() for file in installed_files("forktask")]
    assert len(files) > 100
    size = sum(path.stat().st_size for path in files)
    assert size < 40 * MEBIBYTE, f"{size / MEBIBYTE:.1f} MiB"
