"""The safetensors reader and writer."""

import itertools
import json
import struct

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.experiments.training.safetensors import read_safetensors, write_atomically, write_safetensors


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
    """Check names, shapes, dtypes, bits and metadata."""
    arrays = example_arrays()
    write_safetensors(tmp_path / "a.safetensors", arrays, {"note": "1 µs"})
    result, metadata = read_safetensors(tmp_path / "a.safetensors")
    assert metadata == {"note": "1 µs"} and set(result) == set(arrays)
    for name, array in arrays.items():
        assert result[name].shape == array.shape
        assert result[name].dtype == array.dtype.newbyteorder("=")
        assert (result[name] == array).all()
        assert result[name].flags.writeable
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_data_are_aligned_and_without_holes(tmp_path):
    """Check the layout against the format's text: header length, tiling, alignment of every array."""
    write_safetensors(tmp_path / "a", example_arrays())
    raw = (tmp_path / "a").read_bytes()
    length = struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8 : 8 + length])
    assert (8 + length) % 8 == 0
    spans = sorted(entry["data_offsets"] for entry in header.values())
    assert spans[0][0] == 0 and spans[-1][1] == len(raw) - 8 - length
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    for entry in header.values():
        assert entry["data_offsets"][0] % (int(entry["dtype"].strip("BFOLIU") or 8) // 8) == 0


def test_bfloat16_is_widened(tmp_path):
    """Check that BF16 values come as the float32 values they are."""
    values = np.array([1.0, -2.5, 0.0], np.float32)
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    path = file_with(tmp_path / "b", {"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}, raw)
    assert read_safetensors(path)[0]["x"].tolist() == values.tolist()


def entry(begin, stop, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, stop]}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{nonsense", b"", "must be JSON"),
        (b"[1]", b"", "must be a JSON object"),
        (b"\xff\xfe{}", b"", "must be JSON"),
        (b'{"x":1,"x":2}', b"", "appears twice"),
        (b"[" * 100000, b"", "must be JSON"),
        ({"x": 3}, b"", "must have a known dtype"),
        ({"x": entry(0, 8, dtype="Q3")}, bytes(8), "must have a known dtype"),
        ({"x": entry(0, 8, shape=(-2,))}, bytes(8), "must have a known dtype"),
        ({"x": entry(0, 8, shape=(2.0,))}, bytes(8), "must have a known dtype"),
        ({"x": entry(0, 12)}, bytes(12), "must fill bytes"),
        ({"x": entry(4, 12)}, bytes(12), "must fill bytes"),
        ({"x": entry(0, 8), "y": entry(4, 12)}, bytes(12), "must fill bytes"),
        ({"x": entry(0, 8), "y": entry(12, 20)}, bytes(20), "must fill bytes"),
        ({"x": entry(8, 0)}, bytes(8), "must fill bytes"),
        ({"x": entry(0, 8)}, bytes(7), "truncated: array 'x' ends at byte"),
        ({"x": entry(0, 8)}, bytes(9), "but ends at byte"),
        ({"x": entry(0, 2**60, shape=(2**58,))}, bytes(8), "truncated"),
        ({"__metadata__": {"a": 1}}, b"", "map strings to strings"),
    ],
)
def test_damaged_files_are_refused(tmp_path, header, data, message):
    """Check that each damage gives one clear sentence with the file's name."""
    path = file_with(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(UsageError, match=message) as raised:
        read_safetensors(path)
    assert "bad.safetensors" in str(raised.value)


def test_every_truncation_is_noticed(tmp_path):
    """Check that no prefix of a file is read as if it were whole."""
    write_safetensors(tmp_path / "a", {"x": np.arange(4.0), "y": np.arange(3, dtype=np.int8)})
    raw = (tmp_path / "a").read_bytes()
    for length in range(len(raw)):
        (tmp_path / "a").write_bytes(raw[:length])
        with pytest.raises(UsageError):
            read_safetensors(tmp_path / "a")


def test_what_cannot_be_written_or_read_is_said(tmp_path):
    """Check the errors about a missing file, a missing folder and a dtype without a name."""
    with pytest.raises(UsageError, match="cannot be read"):
        read_safetensors(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be written"):
        write_safetensors(tmp_path / "no" / "a", {})
    with pytest.raises(UsageError, match="float, integer or bool"):
        write_safetensors(tmp_path / "a", {"z": np.zeros(2, complex)})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    """Check that an error in mid-write leaves the former content and no temporary file."""
    path = tmp_path / "a"
    write_atomically(path, b"old")
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(UsageError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.safetensors
def test_pytorchs_package_reads_and_writes_the_same(tmp_path):
    """Check both directions against the `safetensors` package."""
    import safetensors.numpy as other

    arrays = {name: np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="))) for name, a in example_arrays().items()}
    write_safetensors(tmp_path / "ours", arrays, {"a": "b"})
    for name, array in other.load_file(tmp_path / "ours").items():
        assert array.dtype == arrays[name].dtype and (array == arrays[name]).all()
    other.save_file(arrays, tmp_path / "theirs")
    for name, array in read_safetensors(tmp_path / "theirs")[0].items():
        assert array.dtype == arrays[name].dtype and (array == arrays[name]).all()
