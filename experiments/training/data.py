"""Data sets: handwritten digits (shipped), CIFAR binary files, IDX files, image files, synthetic images.

All data become standardised float32 images with a fixed split, of 3 x 32 x 32 but for image files and synthetic ones,
which have the network's shape. Pixels pass through a table of 256 values, so that the same files give the same bits on
every machine.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...cython_src.binding.storage import aligned_empty
from ...cython_src.errors import UsageError
from ...cython_src.networks.layers import Network
from ...cython_src.reading import home_expanded, open_regular
from ..images.packed import CHANNELS
from ..images.source import table_of_counts
from . import dataset
from .config import TrainingConfig
from .dataset import Dataset, stratified_split
from .folders import KINDS, load_folder

SIDE = 32
SPECS = "digits, cifar10:FOLDER, cifar100:FOLDER, idx:FOLDER, folder:DIR, csv:FILE, thumbnails:N[:HxW], synthetic:N"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MNIST_CLASSES = 10
IDX_UNSIGNED_BYTE = 0x08
_CHUNK_BYTES = 1 << 20


def load_data(
    spec: str,
    network: Network | None = None,
    options: TrainingConfig | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    check: Callable[[Dataset], None] = lambda data: None,
) -> Dataset:
    """Load a data set.

    Parameters
    ----------
    spec : str
        "digits"; "cifar10:FOLDER" or "cifar100:FOLDER" with the binary files; "idx:FOLDER" with the four
        of the MNIST family, plain or gzip; "folder:DIR" with a sub-folder of images for each class; "csv:FILE", a
        table of images and labels; "thumbnails:N" or "thumbnails:N:HEIGHTxWIDTH" with N generated photographs;
        "synthetic:N" with N random training images.
    network : Network, optional
        Image files are scaled to its size, synthetic data take its shape of images and number of classes; default:
        3 x 32 x 32 and 10.
    options : TrainingConfig, optional
        How image files are read: `image_size`, `load`, `broken`, `decoder`, `cache`, `memory_limit`, `threads`.
    progress : callable
        Called with the numbers of images that are decoded and of all.
    check : callable
        Called with the data, still without their images, before any are decoded or made: a run that cannot be is
        refused while that costs nothing. Images that cannot be decoded are still among them.

    Raises
    ------
    UsageError
        Unknown spec; a folder or file that is missing, truncated, damaged or of another format, with the byte
        offset.
    """
    kind, argument = dataset.check_spec(spec, SPECS)
    options = options or TrainingConfig()
    if kind not in KINDS and (options.image_size or options.load != "memory"):
        raise UsageError(
            f"--image-size and --load are for image files (folder:DIR, csv:FILE, thumbnails:N), got --data {spec}; "
            f"leave them out"
        )
    if kind == "digits":
        return _load_digits()
    if kind == "synthetic":
        return _make_synthetic(argument, network)
    if kind in KINDS:
        return load_folder(kind, argument, network, options, progress, check)
    dataset.check_there(spec)
    folder = home_expanded(argument)
    return _load_idx(folder, check) if kind == "idx" else _load_cifar(folder, kind, check)


def _load_digits() -> Dataset:
    folder = Path(__file__).parent / "datasets"
    pixels = read_idx(folder / "digits-images-idx3-ubyte.gz", 3)
    labels = read_idx(folder / "digits-labels-idx1-ubyte.gz", 1).astype(np.int32)
    train, rest = stratified_split(np.arange(len(labels)), labels, 0.3)
    test, valid = stratified_split(rest, labels, 0.5)
    return Dataset(
        name="digits",
        description="UCI handwritten digits, 8x8 enlarged to 32x32x3 (smoke test)",
        images=_standardise(_to_square(pixels, "digits"), train),
        labels=labels,
        train=train,
        valid=valid,
        test=test,
        class_names=tuple("0123456789"),
        smoke_test=True,
        grey=True,
    )


def _load_cifar(folder: Path, kind: str, check: Callable[[Dataset], None]) -> Dataset:
    if kind == "cifar10":
        folder = _descend(folder, "cifar-10-batches-bin", "data_batch_1.bin")
        train_files, test_file, label_bytes = ([f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin", 1)
        names: tuple[str, ...] = CIFAR10_CLASSES
    else:
        folder = _descend(folder, "cifar-100-binary", "train.bin")
        train_files, test_file, label_bytes = ["train.bin"], "test.bin", 2
        names = tuple(f"class {i}" for i in range(100))
    other = {"Python": Path(train_files[0]).stem, "MATLAB": f"{Path(train_files[0]).stem}.mat"}
    for version, name in other.items():
        below = [path for path in (folder / name, *folder.glob(f"cifar-10*/{name}")) if path.is_file()]
        if below and not (folder / train_files[0]).exists():
            raise UsageError(
                f"--data {kind}:FOLDER must hold {train_files[0]} of the binary version, got {below[0]} of the "
                f"{version} version; fetch {kind.replace('r', 'r-')}-binary.tar.gz"
            )
    parts = [_read_cifar(folder / name, label_bytes, len(names)) for name in (*train_files, test_file)]
    title = kind.upper().replace("CIFAR", "CIFAR-")
    return _with_split(kind, title, parts, names, False, check)


def _load_idx(folder: Path, check: Callable[[Dataset], None]) -> Dataset:
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    first = classes = 0
    folder, names = _find_parts(folder)
    for part in names:
        images_path = _find_idx(folder, f"{part}-images", 3)
        labels_path = _find_idx(folder, f"{part}-labels", 1)
        pixels, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
        if len(pixels) != len(labels):
            raise UsageError(
                f"images and labels must be equally many, got {len(pixels)} in {images_path} and {len(labels)} in "
                f"{labels_path}; use files of one data set"
            )
        if not parts:
            # Ten classes and labels from 0, unless the labels say otherwise: those of EMNIST's letters begin at 1.
            known = np.unique(labels)
            first = int(known[0] == 1 and known[-1] >= MNIST_CLASSES)
            classes = max(MNIST_CLASSES, int((known == first + np.arange(len(known))).sum()))
        _check_labels(labels_path, labels, classes, 8, 1, first)
        parts.append((labels - first, _to_square(pixels, images_path)))
    class_names = tuple(map(str, range(first, first + classes)))
    return _with_split("idx", "IDX files", parts, class_names, True, check)


def _with_split(name, title, parts, class_names, grey, check) -> Dataset:
    """Join labels and pixels of files, and split them: the last file for testing, a stratified tenth of the others for
    validation."""
    labels = np.concatenate([labels for labels, _ in parts]).astype(np.int32)
    pixels = np.concatenate([pixels for _, pixels in parts])
    num_test = len(parts[-1][0])
    first_test = len(labels) - num_test
    train, valid = stratified_split(np.arange(first_test), labels, dataset.VALID_FRACTION)
    data = Dataset(
        name=name,
        description=f"{title}, {len(train)} + {len(valid)} + {num_test} images",
        images=np.empty((0, *pixels.shape[1:]), np.float32),
        labels=labels,
        train=train,
        valid=valid,
        test=np.arange(first_test, len(labels), dtype=np.int32),
        class_names=class_names,
        grey=grey,
    )
    check(data)
    return replace(data, images=_standardise(pixels, train))


def _make_synthetic(argument: str, network: Network | None) -> Dataset:
    count = dataset.synthetic_count(argument)
    num_other = max(count // 10, 1)
    total = count + 2 * num_other
    shape, classes = (network.input_shape, network.num_classes) if network else ((CHANNELS, SIDE, SIDE), 10)
    what = f"the images of --data synthetic:{count}, of shape {shape},"
    dataset.check_memory(4 * total * math.prod(shape), what, "use fewer")
    generator = np.random.default_rng(dataset.SPLIT_SEED)
    images = aligned_empty((total, *shape), np.float32)
    generator.standard_normal(out=images, dtype=np.float32)
    labels = generator.integers(0, classes, total, dtype=np.int32)
    indices = np.arange(total, dtype=np.int32)
    return Dataset(
        name="synthetic",
        description=f"synthetic noise, {count} images (nothing can be learnt from it)",
        images=images,
        labels=labels,
        train=indices[:count],
        valid=indices[count : count + num_other],
        test=indices[count + num_other :],
        class_names=tuple(map(str, range(classes))),
        smoke_test=True,
    )


def _descend(folder: Path, inner: str, first_file: str) -> Path:
    """Return the folder of the files: `folder`, or the one below it to which the original archive unpacks."""
    if not (folder / first_file).exists() and (folder / inner / first_file).exists():
        return folder / inner
    return folder


def _read_cifar(path: Path, label_bytes: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read labels (n,) and pixels (n, 3, 32, 32) uint8 of one binary file; the last label byte counts."""
    record_bytes = label_bytes + CHANNELS * SIDE * SIDE
    raw = np.frombuffer(_read_file(path), np.uint8)
    if len(raw) == 0 or len(raw) % record_bytes:
        raise UsageError(
            f"{path} must hold whole records of {record_bytes} bytes, but it ends at byte {len(raw)}; fetch the binary "
            f"version again"
        )
    records = raw.reshape(-1, record_bytes)
    labels = records[:, label_bytes - 1]
    _check_labels(path, labels, num_classes, label_bytes - 1, record_bytes)
    return labels, records[:, label_bytes:].reshape(-1, CHANNELS, SIDE, SIDE)


def _check_labels(path: Path, labels: np.ndarray, num_classes: int, start: int, stride: int, first: int = 0) -> None:
    """Raise `UsageError` for a label that no class has; labels begin at `first`, and at byte `start` of the file."""
    wrong = np.flatnonzero((labels < first) | (labels >= first + num_classes))
    if len(wrong):
        place = f"at byte {wrong[0] * stride + start} of {path}"
        raise UsageError(
            f"labels must lie in {first}..{first + num_classes - 1}, got {labels[wrong[0]]} {place}; is it "
            f"another format?"
        )


def _find_parts(folder: Path) -> tuple[Path, tuple[str, str]]:
    """Return the folder of IDX files, this one or one of torchvision's below it, and how the names of the training and
    the test files begin there; EMNIST's have the name of a split before."""
    for place in (folder, folder / "raw", *sorted(folder.glob("*/raw"))):
        before = sorted({path.name.partition("train-images")[0] for path in place.glob("*train-images*")})
        if len(before) > 1:
            got = " and ".join(name + "train" for name in before)
            raise UsageError(
                f"{place} must hold files of one data set, got those of {got}; put the four files of one into a folder"
            )
        if before:
            return place, (f"{before[0]}train", f"{before[0]}test" if before[0] else "t10k")
    return folder, ("train", "t10k")


def _find_idx(folder: Path, stem: str, dimensions: int) -> Path:
    """Return the path of an IDX file under one of the names of its distributions."""
    names = [f"{stem}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UsageError(f"{folder} must hold {names[0]} or {names[1]}, and holds neither; fetch the missing file")


def read_idx(path: Path | str, dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes, plain or gzip: uint8. Raises `UsageError`: another format, truncated, damaged
    or longer than its header says. Offsets of gzip files count unpacked bytes."""
    path = Path(path)
    content, begin = _read_file(path), bytes((0, 0, IDX_UNSIGNED_BYTE, dimensions))
    header_bytes = 4 + 4 * dimensions
    if content[:4] != begin:
        raise UsageError(
            f"an IDX file of unsigned bytes with {dimensions} dimensions must begin with {begin.hex(' ')}, got "
            f"{content[:4].hex(' ') or 'nothing'} in {path}; is it another format, or exchanged with another file?"
        )
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header_bytes, 4))
    expected = header_bytes + math.prod(shape)
    if len(content) != expected or expected == header_bytes:
        raise UsageError(
            f"{path} must hold an array of {' x '.join(map(str, shape))}, at least one value, and so {expected} bytes "
            f"in all, as its header says, but it ends at byte {len(content)}; fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _read_file(path: Path) -> bytes:
    """Read all bytes of a file; unpack it if its name ends in .gz."""
    parts: list[bytes] = []
    try:
        with open_regular(path, "file of a data set") as (stored, _):
            file = gzip.GzipFile(fileobj=stored) if path.suffix == ".gz" else stored
            while part := file.read(_CHUNK_BYTES):
                parts.append(part)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(
            f"{path} is damaged after byte {sum(map(len, parts))} of its unpacked data ({error}); fetch it again"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}); fetch or mend it") from None
    return b"".join(parts)


def _to_square(pixels: np.ndarray, source) -> np.ndarray:
    """Enlarge grey images (n, h, w) to (n, 3, 32, 32): pixels become squares as large as fits, with zeros around.

    The three channels are views of the same memory.
    """
    count, height, width = pixels.shape
    if max(height, width) > SIDE:
        raise UsageError(
            f"images must be at most {SIDE} x {SIDE}, got {height} x {width} in {source}; scale them down first"
        )
    factor = SIDE // max(height, width)
    top, left = (SIDE - factor * height) // 2, (SIDE - factor * width) // 2
    square = np.zeros((count, SIDE, SIDE), np.uint8)
    square[:, top : top + factor * height, left : left + factor * width] = pixels.repeat(factor, 1).repeat(factor, 2)
    return np.broadcast_to(square[:, None], (count, CHANNELS, SIDE, SIDE))


def _standardise(pixels: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Subtract the mean and divide by the standard deviation of each channel over the training images."""
    images = aligned_empty(pixels.shape, np.float32)
    for channel in range(CHANNELS):
        counts = np.zeros(256, np.int64)
        for start in range(0, len(train), 4096):
            counts += np.bincount(pixels[train[start : start + 4096], channel].ravel(), minlength=256)
        table = table_of_counts(counts)
        for start in range(0, len(pixels), 4096):
            images[start : start + 4096, channel] = table[pixels[start : start + 4096, channel]]
    return images
