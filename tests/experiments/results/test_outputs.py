"""Files that a user names for output: they take the place of nothing, or of one of their kind."""

import json

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.report.figures import style
from forktask.experiments.results import files
from forktask.experiments.scaling import summary
from forktask.experiments.simulate.machine_model import read_machine
from forktask.experiments.simulate.measured_machine import write_machine
from forktask.experiments.training.safetensors import read_safetensors, write_safetensors

ROWS = [{"kind": "test", "test": "t", "outcome": "passed"}]


def _figure(path):
    figure, _ = style.new_figure("single", 1)
    style.save(figure, path)


WRITERS = {
    "machine.toml": write_machine,
    "rows.jsonl": lambda path: summary.write(ROWS, path, None),
    "figure.pdf": _figure,
    "figure.png": _figure,
    "figure.svg": _figure,
    "weights.safetensors": lambda path: write_safetensors(path, {"x": np.ones(3, np.float32)}),
}


@pytest.fixture(autouse=True)
def _no_summary(monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_another_kind_stays(tmp_path, name):
    """Check that each writer writes twice, on nothing and on its own file, and leaves what the others wrote."""
    path = tmp_path / name
    WRITERS[name](path)
    first = path.read_bytes()
    WRITERS[name](path)
    others = {"samples.jsonl": b'{"kind":"run","holds":"samples"}\n', "notes.txt": b"my notes\n"}
    others |= {"weights.safetensors": (24).to_bytes(8, "little") + b'{"x":0}', "rows.jsonl": b'{"kind": "run"}\n'}
    others["figure.pdf"] = b"%PDF-1.4"
    for other, content in others.items():
        if (other.partition(".")[0]) == name.partition(".")[0]:
            continue
        path.write_bytes(content)
        with pytest.raises(UsageError, match="holds something else; choose another name"):
            WRITERS[name](path)
        assert path.read_bytes() == content
    path.write_bytes(b"")
    WRITERS[name](path)
    assert path.read_bytes()[:6] == first[:6] and [*tmp_path.iterdir()] == [path]


def test_files_are_read_again(tmp_path):
    """Check that what is written on a file of its kind is whole."""
    for _ in range(2):
        for name in ("machine.toml", "rows.jsonl", "weights.safetensors"):
            WRITERS[name](tmp_path / name)
    read_machine(tmp_path / "machine.toml")
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()][1:] == ROWS
    assert read_safetensors(tmp_path / "weights.safetensors")[0]["x"].shape == (3,)


def test_info_refuses_before_it_measures(tmp_path, monkeypatch, capsys):
    """Check that a foreign file is refused first, and stays."""
    monkeypatch.setattr("forktask.experiments.machine.info.describe_machine", lambda: pytest.fail("measured"))
    path = tmp_path / "samples.jsonl"
    path.write_text('{"kind":"run"}\n')
    assert main(["info", "--machine", str(path)]) == 2
    assert "holds something else" in capsys.readouterr().err and path.read_text() == '{"kind":"run"}\n'


@pytest.mark.parametrize("content", [b'{"kind":"run"}\n', b"\x18\0\0\0\0\0\0\0{}", b"%PDF-1.4"])
def test_a_summary_is_appended_to_text_alone(tmp_path, content):
    """Check that rows, weights and figures do not get Markdown at their end; a page of another step does."""
    path = tmp_path / "summary"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="holds something else"):
        summary.check_outputs(None, str(path))
    path.write_text("## Another step\n\n- done \u2713\n", encoding="utf-8")
    summary.check_outputs(None, str(path))
    summary.write(ROWS, None, str(path))
    assert path.read_text(encoding="utf-8").startswith("## Another step")
    files.check_appendable(tmp_path / "new.md")
    assert not (tmp_path / "new.md").exists()
