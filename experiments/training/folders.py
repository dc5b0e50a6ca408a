"""Data sets of image files: folders of classes, and tables of labels."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ...cython_src.binding.storage import aligned_empty
from ...cython_src.errors import UsageError
from ...cython_src.networks.layers import Network
from ...cython_src.reading import home_expanded
from ..images.decoding import decode, decoder_name
from ..images.listing import Listing, list_classes, list_table
from ..images.packed import CHANNELS, default_folder, pack
from ..images.source import ImageSource, standardising_table, table_of_counts
from ..images.thumbnails import write_thumbnails
from ..tables.numbers import plural
from .config import TrainingConfig
from .dataset import VALID_FRACTION, Dataset, check_memory, stratified_split

KINDS = ("folder", "csv", "thumbnails")
MEASURED = 512  # images whose pixels give mean and deviation where all are decoded anew in each epoch
DEFAULT_SIZE = (32, 32)


def load_folder(
    kind: str,
    argument: str,
    network: Network | None,
    options: TrainingConfig,
    progress: Callable[[int, int], None],
    check: Callable[[Dataset], None],
) -> Dataset:
    """Load a folder with a sub-folder for each class (`kind` "folder"), the images of a table ("csv"), or generated
    photographs ("thumbnails"). Raises `UsageError`: nothing there, a damaged image, splits of different
    classes, or more memory or disk than there is."""
    path = home_expanded(argument)
    if kind == "thumbnails":
        path = _thumbnails(argument, home_expanded(options.cache or default_folder()))
    listing = list_table(path) if kind == "csv" else list_classes(path)
    height, width = _size(options.image_size, network)
    if options.load == "files":
        if options.broken == "skip":
            raise UsageError(
                "--load files decodes each image when its step comes, too late to leave it out; use --broken refuse, "
                "or --load cache"
            )
        return _decoded_in_each_step(kind, listing, height, width, options.decoder, check)
    needed = 4 * len(listing.files) * CHANNELS * height * width
    if options.load == "memory":
        what = f"{len(listing.files)} images of {height} x {width}"
        remedy = "read them in each step with --load cache, or take a smaller --image-size"
        check_memory(needed, what, remedy, options.memory_limit)
    unread = None if options.load == "memory" else ImageSource(_not_there)
    check(_dataset(kind, listing, _split(listing), _no_images(height, width), unread))
    packed = pack(
        listing,
        height,
        width,
        folder=home_expanded(options.cache) if options.cache else None,
        decoder=options.decoder,
        threads=options.threads,
        skip_broken=options.broken == "skip",
        progress=progress,
    )
    splits = _split(listing, kept=packed.present)
    source = ImageSource(packed.get, np.stack([standardising_table(*moments) for moments in packed.moments(splits[0])]))
    if options.load == "cache":
        return _dataset(kind, listing, splits, _no_images(height, width), source, packed.broken())
    images = aligned_empty((len(listing.files), *packed.shape), np.float32)
    for number in np.flatnonzero(packed.present).tolist():
        source.read(number, images[number])
    images[~packed.present] = 0
    return _dataset(kind, listing, splits, images, None, packed.broken())


def _thumbnails(argument: str, folder: Path) -> Path:
    """Generate the photographs of "N" or "N:HEIGHTxWIDTH" below a folder, and return the folder of their classes."""
    parts = re.fullmatch("([0-9]{1,9})(?::([0-9]{1,5})x([0-9]{1,5}))?", argument)
    if parts is None:
        raise UsageError(
            f"thumbnails must be followed by a number and, if wanted, a size, got {argument!r}; use thumbnails:1000 or "
            f"thumbnails:1000:300x400"
        )
    count, *size = (int(part) for part in parts.groups() if part)
    name = f"thumbnails-{count}" + ("-{}x{}".format(*size) if size else "")
    return write_thumbnails(folder / name, count, *size) / "images"


def _decoded_in_each_step(
    kind: str, listing: Listing, height: int, width: int, decoder: str, check: Callable[[Dataset], None]
) -> Dataset:
    """Data whose files are decoded when their step comes. Mean and deviation come from some training images alone."""
    decoder_name(decoder)  # raises where it is missing
    splits, images = _split(listing), _no_images(height, width)
    check(_dataset(kind, listing, splits, images, ImageSource(_not_there)))

    def get(number: int) -> np.ndarray:
        return decode(listing.root / listing.files[number], height, width, decoder)

    step = -(-len(splits[0]) // MEASURED)
    counts = np.zeros((CHANNELS, 256), np.int64)
    for number in splits[0][::step].tolist():
        for channel, pixels in enumerate(get(number)):
            counts[channel] += np.bincount(pixels.ravel(), minlength=256)
    return _dataset(kind, listing, splits, images, ImageSource(get, np.stack([*map(table_of_counts, counts)])))


def _no_images(height: int, width: int) -> np.ndarray:
    return np.empty((0, CHANNELS, height, width), np.float32)


def _not_there(number: int) -> np.ndarray:
    raise AssertionError("data that are checked before they are loaded have no images")


def _dataset(kind, listing, splits, images, source, broken: Sequence[str] = ()) -> Dataset:
    left_out = {("image", "that cannot be decoded"): broken, ("file", "with another ending"): listing.passed_over}
    train, valid, test = splits
    height, width = images.shape[2:]
    title = os.fsencode(listing.root.resolve().name).decode(errors="backslashreplace")  # for reports
    return Dataset(
        name=kind,
        description=f"{title}, {len(train)} + {len(valid)} + {len(test)} images in "
        f"{len(listing.class_names)} classes, {height} x {width}",
        images=images,
        labels=listing.labels,
        train=train,
        valid=valid,
        test=test,
        class_names=listing.class_names,
        source=source,
        note="; ".join(
            f"left out: {plural(len(names), noun)} {what}, {names[0]!r} first"
            for (noun, what), names in left_out.items()
            if names
        ),
    )


def _size(text: str, network: Network | None) -> tuple[int, int]:
    """Height and width of "HxW", or of the network's images."""
    if not text:
        return network.input_shape[1:] if network is not None and network.tokens is None else DEFAULT_SIZE
    try:
        height, width = map(int, text.lower().split("x"))
    except ValueError:
        height = width = 0
    if not (1 <= height <= 65535 and 1 <= width <= 65535):
        raise UsageError(f"image-size must be HEIGHTxWIDTH such as 270x360, got {text!r}")
    return height, width


def _split(listing: Listing, kept: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of the images to train, validate and test on, of all or of some. Where listing names no images for one of
    the last two, a stratified tenth of each class of the others is taken."""
    kept = np.ones(len(listing.files), bool) if kept is None else kept
    named = any(listing.splits)
    train = listing.split("train" if named else "")
    test, valid = listing.split("test"), listing.split("valid")
    for split, numbers in {"train": train, "valid": valid, "test": test}.items():
        if len(numbers) and not kept[numbers].any():
            raise UsageError(
                f"some images of each split must be readable, got none of the {len(numbers)} of {split} below "
                f"{str(listing.root)!r}; repair them"
            )
    without = np.setdiff1d(listing.labels[train], listing.labels[train[kept[train]]])
    if len(without):
        raise UsageError(
            f"some training images of each class must be readable, got none of class "
            f"{listing.class_names[without[0]]!r} below {str(listing.root)!r}; repair them, or leave the class out"
        )
    train, valid, test = (numbers[kept[numbers]] for numbers in (train, valid, test))
    if not len(test):
        train, test = stratified_split(train, listing.labels, VALID_FRACTION)
    if not len(valid):
        train, valid = stratified_split(train, listing.labels, VALID_FRACTION)
    return train, valid, test
