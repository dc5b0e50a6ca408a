"""Data sets: what is loaded, and what is said about files that cannot be."""

import gzip
import struct

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.experiments.training.data import load_data


def idx_bytes(array):
    array = np.asarray(array, np.uint8)
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_folder(folder, pack=False):
    rng = np.random.default_rng(0)
    contents = {}
    for part, n in (("train", 40), ("t10k", 11)):
        contents[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        contents[f"{part}-labels-idx1-ubyte"] = np.arange(n) % 10
    for name, array in contents.items():
        data = idx_bytes(array)
        (folder / (name + ".gz" * pack)).write_bytes(gzip.compress(data) if pack else data)
    return contents


def write_cifar_folder(folder):
    rng = np.random.default_rng(1)
    contents = []
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        array = rng.integers(0, 256, (20, 1 + 3072), dtype=np.uint8)
        array[:, 0] = np.arange(20) % 10
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


@pytest.mark.parametrize(
    "spec", ["", "digit", "digits:x", "cifar10:", "idx:/does/not/exist", "synthetic", "synthetic:-3", "synthetic:many"]
)
def test_bad_specs_are_refused(spec):
    """Check that a bad spec names what was received."""
    with pytest.raises(UsageError):
        load_data(spec)


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


@pytest.mark.parametrize(
    ("name", "labels"),
    [("letters", range(1, 27)), ("balanced", range(47)), ("byclass", range(62)), ("digits", range(10))],
)
def test_emnist_is_read_with_its_names_and_classes(name, labels, tmp_path):
    """Check names, number of classes and labels of EMNIST, in the folder that torchvision makes."""
    folder = tmp_path / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    expected = np.resize(labels, 3 * 62)
    for part in ("train", "test"):
        images = np.random.default_rng(0).integers(0, 256, (len(expected), 28, 28), dtype=np.uint8)
        (folder / f"emnist-{name}-{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"emnist-{name}-{part}-labels-idx1-ubyte").write_bytes(idx_bytes(expected))
    data = load_data(f"idx:{tmp_path}")
    check_split(data)
    assert data.class_names == tuple(map(str, labels))
    assert (data.labels[data.test] == expected - labels[0]).all()
    (folder / f"emnist-{name}-test-labels-idx1-ubyte").write_bytes(idx_bytes([*expected[1:], labels[-1] + 1]))
    with pytest.raises(UsageError, match=rf"labels must lie in {labels[0]}\.\.{labels[-1]}, got .* at byte 193"):
        load_data(f"idx:{tmp_path}")
    (folder / "emnist-other-train-images-idx3-ubyte").touch()
    with pytest.raises(UsageError, match="files of one data set, got those of emnist"):
        load_data(f"idx:{tmp_path}")


def test_mnist_is_read_from_the_folder_that_torchvision_makes(tmp_path):
    """Check the root, the data set's folder and `raw` itself; and labels that leave classes out, which stay ten."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    write_idx_folder(raw)
    for folder in (tmp_path, raw.parent, raw):
        assert load_data(f"idx:{folder}").num_classes == 10
    for part, count in (("train", 40), ("t10k", 11)):
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(count) % 7 + 1))
    data = load_data(f"idx:{tmp_path}")
    assert data.num_classes == 10 and set(data.labels) == set(range(1, 8))


@pytest.mark.parametrize(
    ("kind", "name", "version"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_1", "Python"),
        ("cifar10", "data_batch_1", "Python"),
        ("cifar10", "cifar-10-batches-mat/data_batch_1.mat", "MATLAB"),
        ("cifar100", "cifar-100-python/train", "Python"),
    ],
)
def test_another_version_of_cifar_is_named(kind, name, version, tmp_path):
    """Check what is said about files of CIFAR's other versions, which are not read."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(UsageError, match=rf"of the {version} version; fetch cifar-10+-binary\.tar\.gz"):
        load_data(f"{kind}:{tmp_path}")
