"""The results folder."""

import json
import os

import pytest
from experiments.synthetic_results import plan_row, typed
from msgspec import structs

from forktask.cython_src.errors import UsageError
from forktask.experiments.results.folder import ResultsWriter, read_results
from forktask.experiments.results.rows import RunRow, SampleRow

OF_RUN = {"kind": "run", "environment": {"cpu": {"model": "A"}}, "config": {"batch": [8], "repeats": 2}}
OF_SAMPLE = {"kind": "sample", "model": "serial", "threads": 1, "plan_id": "p", "config_id": "x"}
RUN, SAMPLE = typed([OF_RUN, OF_SAMPLE])


def begun(folder):
    """A folder with a run and one sample."""
    with ResultsWriter(folder) as writer:
        assert writer.start(RUN) is False
        writer.append(SAMPLE)
    return folder / "samples.jsonl"


def test_rows_come_back(tmp_path):
    """Check that rows are read as written, one JSON object a line, and that folders are made."""
    path = begun(tmp_path / "deep" / "out")
    lines = path.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["run", "sample"]
    results = read_results(path.parent)
    assert results.rows == [RUN, SAMPLE]
    assert results.finished() == {("sample", "x", 0)}
    assert results.partial == ""


def test_a_half_written_line_is_recognised_and_set_aside(tmp_path):
    """Check that every cut of the last row is recognised, reported by the reader and moved aside by the writer."""
    path = begun(tmp_path / "out")
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    for cut in (start + 1, start + 17, len(whole) - 1):
        path.write_bytes(whole[:cut])
        results = read_results(path.parent)
        assert results.partial == whole[start:cut].decode()
        assert results.finished() == set()
        with ResultsWriter(path.parent) as writer:
            assert writer.results.partial
            assert writer.start(RUN) is True
            assert [*map(type, read_results(path.parent).rows)] == [RunRow]
            writer.append(SAMPLE)
        assert read_results(path.parent).partial == ""
        assert [*map(type, read_results(path.parent).rows)] == [RunRow, RunRow, SampleRow]
    aside = path.with_name("samples.jsonl.partial").read_text()
    assert aside.splitlines() == [whole[start:cut].decode() for cut in (start + 1, start + 17, len(whole) - 1)]


def test_a_folder_whose_first_row_was_cut_begins_anew(tmp_path):
    """Check that a run killed within its first write does not block its folder."""
    (tmp_path / "samples.jsonl").write_text('{"kind":"ru')
    with ResultsWriter(tmp_path) as writer:
        assert writer.start(RUN) is False


@pytest.mark.parametrize("line", ["{half", "[]", '{"kind": "other"}', "", '{"kind": "sample"}', json.dumps(OF_SAMPLE)])
def test_a_damaged_line_is_named(tmp_path, line):
    """Check that alien lines, also a first one that is no run, are refused with their number."""
    path = tmp_path / "samples.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match="line 1"):
        read_results(tmp_path)


def test_a_foreign_folder_is_left_alone(tmp_path):
    """Check that a folder with other files is refused and not written to, and one without results cannot be read."""
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(UsageError, match="other files"):
        ResultsWriter(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(UsageError, match=r"samples\.jsonl"):
        read_results(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    """Check a path below a file, and a file system that takes nothing."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "out", "/proc/forktask-out"):
        with pytest.raises(UsageError, match="--out"):
            ResultsWriter(folder)


def test_two_writers_are_kept_apart(tmp_path):
    """Check the lock, and that it goes with its owner."""
    with ResultsWriter(tmp_path), pytest.raises(UsageError, match="another"):
        ResultsWriter(tmp_path)
    with ResultsWriter(tmp_path):
        pass


def test_a_run_goes_on_only_where_it_belongs(tmp_path):
    """Check that more repeats or a larger budget continue a run; another configuration or environment is refused by
    name.
    """
    begun(tmp_path)
    with ResultsWriter(tmp_path) as writer:
        assert writer.start(structs.replace(RUN, config={"batch": [8], "repeats": 5, "budget_s": 60.0})) is True
    for other, now in (({"batch": [16], "repeats": 5}, r"\[16\]"), ({"repeats": 2}, "None")):
        with ResultsWriter(tmp_path) as writer, pytest.raises(UsageError, match=rf"batch was \[8\], is now {now}"):
            writer.start(structs.replace(RUN, config=other))
    with ResultsWriter(tmp_path) as writer, pytest.raises(UsageError, match=r"cpu\.model was 'A', is now 'B'"):
        changed = {"cpu": {"model": "B"}, "clock": {"cost_ns": 1.0}, "board": "x", "libraries": ["y"]}
        writer.start(structs.replace(RUN, environment=changed, environment_id="b"))


def test_a_folder_of_another_kind_is_refused(tmp_path):
    """Check that METG's rows do not enter a folder of samples, and that the sentence names what shows the folder."""
    path = begun(tmp_path)
    before = path.read_bytes()
    with ResultsWriter(tmp_path) as writer, pytest.raises(UsageError, match="holds samples, not metg"):
        writer.start(structs.replace(RUN, holds="metg"))
    assert path.read_bytes() == before
    for holds, shown in (("study", "report DIR"), ("training", "train --resume --out DIR")):
        with pytest.raises(UsageError, match=shown):
            structs.replace(RUN, holds=holds).check_holds("metg", "DIR")


@pytest.mark.parametrize("left_out", ["products", "algorithms", "batch"])
def test_a_plan_names_every_option(left_out):
    """Check that a row of a plan without one of the options is refused."""
    (row,) = typed([plan_row()])
    options = {name: value for name, value in row.options.items() if name != left_out}
    with pytest.raises(ValueError, match=f"options must have the keys of .* differ in {left_out}$"):
        structs.replace(row, options=options)
