"""Data sets: what is loaded, and what is said about files that cannot be."""

import gzip
import os
import struct

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.experiments.training import data as data_module
from forktask.experiments.training.config import TrainingConfig
from forktask.experiments.training.data import load_data, read_idx
from forktask.experiments.training.dataset import random_order
from forktask.experiments.training.train import data_for


def idx_bytes(array, type_code=8):
    array = np.asarray(array, np.uint8)
    return bytes([0, 0, type_code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_folder(folder, side=28, count=40, pack=False):
    rng = np.random.default_rng(0)
    contents = {}
    for part, n in (("train", count), ("t10k", 11)):
        contents[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (n, side, side), dtype=np.uint8)
        contents[f"{part}-labels-idx1-ubyte"] = np.arange(n) % 10
    for name, array in contents.items():
        data = idx_bytes(array)
        (folder / (name + ".gz" * pack)).write_bytes(gzip.compress(data) if pack else data)
    return contents


def write_cifar_folder(folder, records=20, label_bytes=1):
    rng = np.random.default_rng(1)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    if label_bytes == 2:
        names = ["train.bin", "test.bin"]
    contents = []
    for name in names:
        array = rng.integers(0, 256, (records, label_bytes + 3072), dtype=np.uint8)
        array[:, 0] = np.arange(records) % 10
        array[:, label_bytes - 1] = np.arange(records) % (10 if label_bytes == 1 else 100)
        (folder / name).write_bytes(array.tobytes())
        contents.append(array)
    return np.concatenate(contents)


def check_split(data):
    parts = np.concatenate([data.train, data.valid, data.test])
    assert sorted(parts) == list(range(len(data.labels)))
    assert data.images.shape == (len(data.labels), 3, 32, 32) and data.images.dtype == np.float32
    assert data.labels.dtype == data.train.dtype == np.int32
    assert data.images.ctypes.data % 64 == 0 and data.images.flags.c_contiguous


def test_digits_are_the_uci_digits():
    """Check counts per class, the standardisation, the enlargement and the label as a smoke test."""
    data = load_data("digits")
    check_split(data)
    assert np.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert len(data.train) > 1200 and len(data.test) > 200 and len(data.valid) > 200
    for part in (data.train, data.valid, data.test):
        assert np.bincount(data.labels[part]).min() > 0.09 * len(part)
    train = data.images[data.train].astype(np.float64)
    assert abs(train.mean()) < 1e-6 and abs(train.std() - 1) < 1e-6
    cells = data.images.reshape(-1, 3, 8, 4, 8, 4)
    assert (cells == cells[:, :1, :, :1, :, :1]).all()
    assert data.smoke_test and "smoke test" in data.description
    again = load_data("digits")
    assert (again.images == data.images).all() and (again.train == data.train).all()


@pytest.mark.sklearn
def test_digits_equal_scikit_learns_copy():
    """Check the shipped pixels against scikit-learn's."""
    from sklearn.datasets import load_digits

    expected = load_digits()
    data = load_data("digits")
    levels = {}
    for raw, ours in zip(expected.images.ravel(), data.images[:, 0, ::4, ::4].ravel(), strict=True):
        assert levels.setdefault(raw, ours) == ours
    assert len(levels) == 17 and sorted(levels.values()) == [levels[k] for k in sorted(levels)]
    assert (expected.target == data.labels).all()


@pytest.mark.parametrize("pack", [False, True])
def test_idx_files_are_padded_to_32(tmp_path, pack):
    """Check that 28 x 28 images land in the middle of 32 x 32, plain and gzip, and the test split."""
    contents = write_idx_folder(tmp_path, pack=pack)
    data = load_data(f"idx:{tmp_path}")
    check_split(data)
    assert data.test.tolist() == list(range(40, 51))
    raw = np.concatenate([contents["train-images-idx3-ubyte"], contents["t10k-images-idx3-ubyte"]])
    order_ours = np.argsort(data.images[:, 0, 2:30, 2:30].ravel(), kind="stable")
    assert (np.diff(raw.ravel()[order_ours].astype(int)) >= 0).all()
    border = np.delete(data.images[0, 0], np.s_[2:30], axis=0)
    assert (border == data.images.min()).all()
    assert (data.images[:, 0] == data.images[:, 2]).all()


def test_cifar_records_are_read_in_order(tmp_path):
    """Check labels, channels and the test split of CIFAR-10 files, also below the archive's own folder."""
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    records = write_cifar_folder(inner)
    data = load_data(f"cifar10:{tmp_path}")
    check_split(data)
    assert (data.labels == records[:, 0]).all()
    assert data.test.tolist() == list(range(100, 120)) and len(data.valid) == 10
    for channel in range(3):
        raw = records[:, 1 + 1024 * channel : 1 + 1024 * (channel + 1)]
        train = raw[data.train].astype(np.float64)
        expected = (raw - train.mean()) / train.std()
        np.testing.assert_allclose(data.images[:, channel].reshape(len(raw), -1), expected, rtol=1e-5, atol=1e-6)


def test_cifar100_uses_the_fine_label(tmp_path):
    """Check that the second label byte of CIFAR-100 counts."""
    records = write_cifar_folder(tmp_path, records=120, label_bytes=2)
    data = load_data(f"cifar100:{tmp_path}")
    assert (data.labels == records[:, 1]).all() and data.num_classes == 100


@pytest.mark.parametrize("kind", ["cifar10", "idx"])
def test_a_plan_above_the_limit_is_refused_before_images_become_floats(tmp_path, monkeypatch, kind):
    """Check that number and size of images are enough to refuse a run, with the sentence of the trainer."""
    write_cifar_folder(tmp_path) if kind == "cifar10" else write_idx_folder(tmp_path)
    standardised = []
    monkeypatch.setattr(data_module, "_standardise", lambda *arguments: standardised.append(arguments))
    run = TrainingConfig(data=f"{kind}:{tmp_path}", batch=16, memory_limit="51MiB")
    with pytest.raises(UsageError, match="the plan needs .*, the memory limit is 51 MiB"):
        data_for(run)
    with pytest.raises(UsageError, match="--batch must not exceed the"):
        data_for(run.with_changes(batch=200))
    assert not standardised


def test_synthetic_images_are_the_same_each_time():
    """Check the number of images and that two loads agree."""
    data, again = load_data("synthetic:64"), load_data("synthetic:64")
    check_split(data)
    assert len(data.train) == 64 and (data.images == again.images).all() and (data.labels == again.labels).all()


def test_random_order_is_a_fixed_permutation():
    """Check that the order is a permutation, depends on every part of the seed, and never changes."""
    assert sorted(random_order(50, 1, 2)) == list(range(50))
    assert (random_order(50, 1, 2) != random_order(50, 1, 3)).any()
    assert random_order(8, 20260).tolist() == [6, 0, 7, 1, 3, 5, 4, 2]


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "digit",
        "digits:x",
        "cifar10",
        "cifar10:",
        "idx:/does/not/exist",
        "synthetic",
        "synthetic:-3",
        "synthetic:many",
        "synthetic:99999999999",
    ],
)
def test_bad_specs_are_refused(spec):
    """Check that a bad spec names what was received."""
    with pytest.raises(UsageError):
        load_data(spec)


def test_missing_files_are_named(tmp_path):
    """Check the message about each missing file."""
    with pytest.raises(UsageError, match="train-images-idx3-ubyte.gz"):
        load_data(f"idx:{tmp_path}")
    with pytest.raises(UsageError, match="data_batch_1.bin"):
        load_data(f"cifar10:{tmp_path}")
    write_cifar_folder(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(UsageError, match="data_batch_4.bin"):
        load_data(f"cifar10:{tmp_path}")
    os.mkfifo(tmp_path / "data_batch_4.bin")
    with pytest.raises(UsageError, match="data_batch_4.bin must be a regular file"):
        load_data(f"cifar10:{tmp_path}")


def test_truncated_cifar_names_file_and_byte(tmp_path):
    """Check that a file cut in mid-record, and an empty one, give file and byte."""
    write_cifar_folder(tmp_path)
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UsageError, match=r"data_batch_2.bin .* ends at byte 5000"):
        load_data(f"cifar10:{tmp_path}")
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="ends at byte 0"):
        load_data(f"cifar10:{tmp_path}")


def test_cifar_label_out_of_range_names_the_byte(tmp_path):
    """Check that a label above 9 gives its offset."""
    write_cifar_folder(tmp_path)
    path = tmp_path / "test_batch.bin"
    raw = bytearray(path.read_bytes())
    raw[2 * 3073] = 10
    path.write_bytes(raw)
    with pytest.raises(UsageError, match=r"got 10 at byte 6146 of .*test_batch.bin"):
        load_data(f"cifar10:{tmp_path}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: b"\x89PNG" + raw[4:], "begin with 00 00 08 03, got 89 50 4e 47"),
        (lambda raw: b"", "got nothing"),
        (lambda raw: raw[:2] + b"\x0d" + raw[3:], "got 00 00 0d 03"),
        (lambda raw: raw[:3] + b"\x01" + raw[4:], "got 00 00 08 01"),
        (lambda raw: raw[:10], "ends at byte 10"),
        (lambda raw: raw[:1000], "40 x 28 x 28, .* 31376 bytes .* ends at byte 1000"),
        (lambda raw: raw + b"x", "ends at byte 31377"),
        (lambda raw: raw[:4] + b"\xff" * 12, "4294967295"),
        (lambda raw: raw[:4] + bytes(12), "at least one value"),
    ],
)
@pytest.mark.parametrize("pack", [False, True])
def test_alien_idx_names_file_and_byte(tmp_path, change, message, pack):
    """Check the message about each kind of wrong IDX file."""
    write_idx_folder(tmp_path, pack=pack)
    path = tmp_path / ("train-images-idx3-ubyte" + ".gz" * pack)
    raw = gzip.decompress(path.read_bytes()) if pack else path.read_bytes()
    raw = change(raw)
    path.write_bytes(gzip.compress(raw) if pack else raw)
    with pytest.raises(UsageError, match=message) as raised:
        load_data(f"idx:{tmp_path}")
    assert path.name in str(raised.value)


@pytest.mark.parametrize("cut", [5, 400, -4])
def test_truncated_gzip_is_refused(tmp_path, cut):
    """Check that a gzip file cut in its header, body or trailer is found."""
    write_idx_folder(tmp_path, pack=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UsageError, match=r"images-idx3-ubyte.gz is damaged after byte \d+"):
        load_data(f"idx:{tmp_path}")


def test_damaged_gzip_is_refused(tmp_path):
    """Check that a flipped byte in a gzip file, and a plain file called .gz, are found."""
    write_idx_folder(tmp_path, pack=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    good = path.read_bytes()
    raw = bytearray(good)
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(UsageError, match="is damaged"):
        load_data(f"idx:{tmp_path}")
    path.write_bytes(gzip.decompress(good))
    with pytest.raises(UsageError, match="is damaged after byte 0"):
        load_data(f"idx:{tmp_path}")


def test_idx_label_out_of_range_names_the_byte(tmp_path):
    """Check that a label above 9 gives its offset."""
    write_idx_folder(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(idx_bytes([0, 1, 77] + [0] * 8))
    with pytest.raises(UsageError, match=r"got 77 at byte 10 of .*t10k-labels"):
        load_data(f"idx:{tmp_path}")


def test_images_and_labels_must_be_equally_many(tmp_path):
    """Check that files of two data sets are not mixed, and that large images are refused."""
    write_idx_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes([1, 2]))
    with pytest.raises(UsageError, match="got 11 in .* and 2 in"):
        load_data(f"idx:{tmp_path}")
    write_idx_folder(tmp_path, side=33)
    with pytest.raises(UsageError, match="at most 32 x 32, got 33 x 33"):
        load_data(f"idx:{tmp_path}")


def test_small_images_are_enlarged(tmp_path):
    """Check that 16 x 16 images become squares of 2 x 2 pixels."""
    path = tmp_path / "a"
    path.write_bytes(idx_bytes(np.arange(8).reshape(2, 2, 2)))
    assert read_idx(path, 3).tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    write_idx_folder(tmp_path, side=16)
    images = load_data(f"idx:{tmp_path}").images.reshape(-1, 3, 16, 2, 16, 2)
    assert (images == images[:, :, :, :1, :, :1]).all()
