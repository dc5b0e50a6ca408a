"""Sphinx: `make docs` renders the pages of this repository as they stand, the Python interface, and the experiments.

The source folder is the repository's root, so that every link between its Markdown files works here as it does there.
"""

from importlib.metadata import version as version_of
from pathlib import Path

import forktask as ft

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "experiments" / "configs"

project = "forktask"
version = release = version_of("forktask")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
root_doc = "docs/README"
include_patterns = [
    "docs/**",
    "*.md",
    "forkjoin/README.md",
    "tasking/README.md",
    "results/README.md",
    "examples/runtimes/README.md",
]
html_theme = "furo"
html_title = f"forktask {version}"
html_copy_source = False
html_extra_path = ["root"]  # index.html leads to the root page
myst_heading_anchors = 4
highlight_language = "none"
numpydoc_show_class_members = False
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"  # numpydoc's sections have the types


def contents() -> str:
    """What leads from the root page to all others."""
    parts = {
        "Guide": ["Overview </README>", "/docs/guide/*"],
        "Findings": [
            "/docs/when_do_tasks_pay",
            "/docs/findings",
            "/docs/related_work",
            "/docs/studies",
            "/docs/studies/*",
            "/docs/site/experiments",
            "/docs/machines",
            "/docs/gallery",
            "/results/README",
        ],
        "Reference": [
            "/docs/site/api",
            "/docs/reference/*",
            "/forkjoin/README",
            "/tasking/README",
            "/examples/runtimes/README",
        ],
        "Notes": ["/docs/notes/*", "/CONTRIBUTING", "/CHANGELOG"],
    }
    return "\n".join(
        "\n".join(["```{toctree}", ":hidden:", f":caption: {part}", ":glob:", "", *pages, "```"])
        for part, pages in parts.items()
    )


def experiments() -> str:
    """Each shipped experiment: how to read its curve, from the comment at its head, and the file itself."""
    text = []
    for path in sorted(CONFIGS.glob("*.toml")):
        head, _, rest = path.read_text().partition('title = "')
        title, _, settings = rest.partition('"')
        comment = [line.removeprefix("#").strip() for line in head.splitlines()]
        text += [f"## {path.stem}: {title}", "", *comment, "", "```sh", f"forktask run {path.stem}", "```", ""]
        text += ["```toml", settings.strip(), "```", ""]
    return "\n".join(text)


def interface() -> str:
    """The documentation of every name of `forktask`, from the code."""
    text = []
    for name in ft.__all__:
        value = getattr(ft, name)
        kind = "class" if isinstance(value, type) else "function" if callable(value) else "data"
        text += [f"## {name}", "", "```{eval-rst}", f".. auto{kind}:: forktask.{name}", "```", ""]
    return "\n".join(text)


GENERATED = {root_doc: contents, "docs/site/experiments": experiments, "docs/site/api": interface}


def setup(app):
    """Append what is generated to its page."""

    def append(app, name, source):
        if name in GENERATED:
            source[0] += "\n" + GENERATED[name]()

    app.connect("source-read", append)
