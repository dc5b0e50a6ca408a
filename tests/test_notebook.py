"""The notebook of the guide runs, and shows what its text says."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "guide" / "first_look.ipynb"


@pytest.mark.nbclient
def test_the_notebook_runs_and_shows_tables_and_figures(tmp_path):
    """Check that every cell runs, that objects come as tables, and that weights are equal."""
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    check_outputs(notebook.cells)


def test_the_notebook_has_stored_outputs():
    """Check that a reader sees what the cells printed and drew, that no cell is a shell line, and that no folder of who
    ran it is in it."""
    text = NOTEBOOK.read_text()
    cells = json.loads(text)["cells"]
    assert not any("".join(cell["source"]).lstrip().startswith("!") for cell in cells)
    assert not re.search(r"/(home|tmp|root|work)/", text)
    check_outputs(cells)


def check_outputs(cells):
    """Check that objects come as tables, figures as pictures, and that weights are equal."""
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    text = "".join("".join(output.get("text", "")) for output in outputs)
    shown = [output["data"] for output in outputs if "data" in output]
    tables = "".join("".join(data.get("text/html", "")) for data in shown)
    assert "the same weights, bit for bit: True" in text
    assert "<event log of taskiter, 2 threads: " in text
    for title in (
        "network 'mine'",
        "plan 'mine train b16'",
        "closed graph of",
        "taskiter on 2 threads",
        "Comparison of",
    ):
        assert f"<p>&lt;{title}".replace("'", "&#x27;") in tables
    assert sum("image/png" in data for data in shown) == 2
