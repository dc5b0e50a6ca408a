"""The results folder."""

import json
import os

import pytest
from experiments.synthetic_results import typed
from msgspec import structs

from forktask.cython_src.errors import UsageError
from forktask.experiments.results.folder import ResultsWriter, canonical_json, read_results, short_id
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


def test_ids_do_not_depend_on_the_order_of_keys():
    """Check canonical JSON."""
    assert canonical_json({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}'
    assert short_id({"b": 1, "a": 2}) == short_id({"a": 2, "b": 1}) != short_id({"a": 2, "b": 2})


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


def test_a_folder_above_results_takes_results(tmp_path):
    """Check that the folder in which results lie by default can be named as `--out`, and one with more cannot."""
    (tmp_path / "20261123-040141").mkdir()
    (tmp_path / "20261123-040141" / "samples.jsonl").write_text("")
    ResultsWriter(tmp_path).close()
    assert sorted(os.listdir(tmp_path)) == ["20261123-040141", "samples.jsonl"]
    (tmp_path / "samples.jsonl").unlink()
    (tmp_path / "thesis").mkdir()
    with pytest.raises(UsageError, match="other files"):
        ResultsWriter(tmp_path)


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
    with ResultsWriter(tmp_path) as writer, pytest.raises(UsageError, match=r"batch was \[8\], is now \[16\]"):
        writer.start(structs.replace(RUN, config={"batch": [16], "repeats": 5}))
    with ResultsWriter(tmp_path) as writer, pytest.raises(UsageError, match=r"cpu\.model was 'A', is now 'B'"):
        writer.start(structs.replace(RUN, environment={"cpu": {"model": "B"}}, environment_id="b"))


def test_a_folder_of_another_kind_is_refused(tmp_path):
    """Check that METG's rows do not enter a folder of samples."""
    path = begun(tmp_path)
    before = path.read_bytes()
    with ResultsWriter(tmp_path) as writer, pytest.raises(UsageError, match="holds samples, not metg"):
        writer.start(structs.replace(RUN, holds="metg"))
    assert path.read_bytes() == before


def test_a_full_disk_leaves_whole_rows(tmp_path):
    """Check that a row that cannot be written leaves nothing of itself behind."""
    path = begun(tmp_path)
    before = path.read_bytes()
    with ResultsWriter(tmp_path) as writer:
        real, os.write = os.write, lambda fd, data: real(fd, data[:5])
        try:
            with pytest.raises(UsageError, match="space"):
                writer.append(SAMPLE)
        finally:
            os.write = real
    assert path.read_bytes() == before


def test_a_foreign_file_without_a_newline_is_left_byte_for_byte(tmp_path):
    """Check that what cannot be the beginning of a row is refused, in a new file and behind rows of ours."""
    path = tmp_path / "samples.jsonl"
    for content in (b"my only copy", b'{"kind":"sample","x":1', b'{"kinder":1', b"\x00\xff"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="follows its last whole line"):
            ResultsWriter(tmp_path)
        assert path.read_bytes() == content and os.listdir(tmp_path) == ["samples.jsonl"]
    path.unlink()
    content = begun(tmp_path).read_bytes() + b"notes of mine"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="follows its last whole line"):
        ResultsWriter(tmp_path)
    assert path.read_bytes() == content


def test_a_refused_run_leaves_a_half_written_line_where_it_is(tmp_path):
    """Check that a folder is changed only once the run is known to belong there."""
    path = begun(tmp_path)
    content = path.read_bytes() + b'{"kind":"sam'
    path.write_bytes(content)
    with ResultsWriter(tmp_path) as writer, pytest.raises(UsageError, match="batch was"):
        writer.start(structs.replace(RUN, config={"batch": [16], "repeats": 2}))
    assert path.read_bytes() == content and os.listdir(tmp_path) == ["samples.jsonl"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
def test_what_is_no_file_is_refused(tmp_path, make):
    """Check that a fifo and a folder in the place of the file of rows give one sentence, without waiting."""
    make(tmp_path / "samples.jsonl")
    with pytest.raises(UsageError, match=r"samples\.jsonl"):
        read_results(tmp_path)
    with pytest.raises(UsageError):
        ResultsWriter(tmp_path)
