"""Files of safetensors: what is written is what the format's own package reads, and what is refused."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy as package

from forktask.cython_src.errors import UsageError
from forktask.experiments.results.files import write_atomically
from forktask.experiments.training.safetensors import read_safetensors, write_safetensors


def example_arrays():
    rng = np.random.default_rng(0)
    return {
        "conv1.weight": rng.standard_normal((4, 3, 5, 5)).astype(np.float32),
        "transposed": rng.standard_normal((3, 4)).T,
        "count": np.array(7, np.int64),
        "flags": np.array([True, False, True]),
        "empty": np.zeros((0, 3), np.float16),
        "big_endian": np.arange(5, dtype=">i4"),
        "bytes": np.arange(3, dtype=np.uint8),
    }


def file_with(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_arrays_come_back_bit_by_bit(tmp_path):
    """Check names, shapes, dtypes, bits and metadata, here and by the package's own reader."""
    arrays = example_arrays()
    path = tmp_path / "a.safetensors"
    write_safetensors(path, arrays, {"note": "1 µs"})
    result, metadata = read_safetensors(path)
    assert metadata == {"note": "1 µs"} and set(result) == set(arrays)
    for found in (result, package.load_file(path)):
        for name, array in arrays.items():
            assert found[name].shape == array.shape
            assert found[name].dtype == array.dtype.newbyteorder("=")
            assert (found[name] == array).all()
            assert found[name].flags.writeable
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_bfloat16_is_widened(tmp_path):
    """Check that BF16 values come as the float32 values they are."""
    values = np.array([1.0, -2.5, 0.0], np.float32)
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    path = file_with(tmp_path / "b", {"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}, raw)
    assert read_safetensors(path)[0]["x"].tolist() == values.tolist()


def test_metadata_that_are_null_are_none_at_all(tmp_path):
    """Check that `"__metadata__": null` gives an empty mapping."""
    assert read_safetensors(file_with(tmp_path / "m", {"__metadata__": None}, b"")) == ({}, {})


def entry(begin, stop, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, stop]}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"{nonsense", b""),
        (b"[" * 100000, b""),
        ({"x": 3}, b""),
        ({"x": entry(0, 8, shape=(-2,))}, bytes(8)),
        ({"x": entry(0, 8), "y": entry(4, 12)}, bytes(12)),
        ({"x": entry(0, 8)}, bytes(9)),
        ({"x": entry(0, 4, shape=(1,) * 100)}, bytes(4)),
        ({"x": entry(0, 0, shape=(0, 2**62, 4))}, b""),
        ({"x": entry(0, 2, dtype="F8_E4M3")}, bytes(2)),
        ({"__metadata__": {"a": 1}}, b""),
    ],
)
def test_damaged_files_are_refused(tmp_path, header, data):
    """Check that each damage, and each array that NumPy cannot have, gives one sentence with the file's name."""
    path = file_with(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(UsageError, match="bad.safetensors"):
        read_safetensors(path)


@pytest.mark.parametrize(
    ("arrays", "metadata", "named"),
    [
        ({"z": np.zeros(2, complex)}, None, "complex128"),
        ({"__metadata__": np.zeros(2)}, None, "__metadata__"),
        ({3: np.zeros(2)}, None, "'int'"),
        ({"x": np.zeros(2)}, {"epoch": 1}, "'int'"),
        ({"x": np.zeros(2)}, {1: "a"}, "'int'"),
    ],
)
def test_what_would_be_read_as_damaged_is_not_written(tmp_path, arrays, metadata, named):
    """Check dtypes, names and metadata that the format has no place for."""
    with pytest.raises(UsageError, match=named):
        write_safetensors(tmp_path / "a", arrays, metadata)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    """Check that an error in mid-write leaves the former content and no temporary file."""
    path = tmp_path / "a"
    write_atomically(path, b"old")
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(UsageError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a"]
