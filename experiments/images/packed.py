"""The packed cache: decoded images of one size in one file, with a checksum for each.

The file is an entry (`ENTRY`) for each image of a listing, in its order, and then the pixels. An entry is written after
its pixels and holds a checksum of both, so a process that is killed leaves images that are there or absent; the next
one decodes the absent ones.

An image that is there is never overwritten, since another process may be reading it. Where files were added, removed
or changed, a new file is made, takes over the images whose files are the same, and replaces the old one, which those
who have opened it keep.
"""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.plan.builder import ranges
from ..results.files import cache_folder, locked_file
from ..sampling.memory import format_bytes
from .decoding import BrokenImage, decode, decoder_name
from .listing import Listing

VERSION = 4  # of entries and of what decoding gives
CHANNELS = 3
# stamp: of the image's file and how it was decoded. sums, squares: of the pixels' values, for each channel. pixels,
# own: checksums of the pixels and of the fields before.
ENTRY = np.dtype([("stamp", "<u8"), ("sums", "<i8", 3), ("squares", "<i8", 3), ("pixels", "<u4"), ("own", "<u4")])
DECODED_TOGETHER = 256  # images that are decoded before the next ones are begun


def default_folder() -> Path:
    """Folder of the caches where the user names none."""
    return cache_folder("images")


class PackedImages:
    """Decoded images of a listing, of one size. Made by `pack`.

    Parameters
    ----------
    path : Path
    listing : Listing
    height, width : int

    Attributes
    ----------
    entries : structured array (ENTRY), shape (N,)
    present : bool, shape (N,)
        Whether each image is there.
    failures : dict from int to str
        Number of each image that cannot be decoded, and the reason.
    """

    def __init__(self, path: Path, listing: Listing, height: int, width: int):
        self.path, self.listing = path, listing
        self.shape = (CHANNELS, height, width)
        self.image_bytes = CHANNELS * height * width
        self.num_bytes = len(listing.files) * (ENTRY.itemsize + self.image_bytes)
        self.entries = np.zeros(len(listing.files), ENTRY)
        self.present = np.zeros(len(listing.files), bool)
        self.failures: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<packed images {str(self.path)!r}: {len(self.entries)} of {self.shape}>"

    def open(self) -> None:
        """Open the file for reading and writing; it may be removed or replaced afterwards."""
        self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115  as long as its images are read

    def read(self, number: int, of: int) -> bytes:
        """Return the bytes of an image's pixels in a file of so many images."""
        return os.pread(self._file.fileno(), self.image_bytes, of * ENTRY.itemsize + number * self.image_bytes)

    def write(self, number: int, pixels: bytes, entry: np.ndarray) -> None:
        """Write an image's pixels, and then its entry."""
        count = len(self.entries)
        _write(self._file.fileno(), pixels, count * ENTRY.itemsize + number * self.image_bytes)
        _write(self._file.fileno(), entry.tobytes(), number * ENTRY.itemsize)
        self.entries[number], self.present[number] = entry, True

    def get(self, number: int) -> np.ndarray:
        """Return an image's pixels: uint8, shape (3, height, width).

        Raises
        ------
        BrokenImage
            The pixels are not those that were written.
        """
        pixels = self.read(number, len(self.entries))
        if zlib.crc32(pixels) != self.entries["pixels"][number]:
            raise BrokenImage(
                f"{self.path} is damaged: the pixels of {self.listing.files[number]!r} are not those that were "
                f"written; delete it to pack the images again"
            )
        return np.frombuffer(pixels, np.uint8).reshape(self.shape)

    def moments(self, numbers: np.ndarray) -> list[tuple[int, int, int]]:
        """Number of pixels, their sum and the sum of their squares over some images, for each channel."""
        count = len(numbers) * self.shape[1] * self.shape[2]
        totals = [self.entries[name][numbers].sum(axis=0).tolist() for name in ("sums", "squares")]
        return [(count, total, squares) for total, squares in zip(*totals, strict=True)]

    def broken(self) -> list[str]:
        """Return the files that could not be decoded."""
        return [self.listing.files[number] for number in sorted(self.failures)]


def pack(
    listing: Listing,
    height: int,
    width: int,
    *,
    folder: Path | None = None,
    decoder: str = "pillow",
    threads: int = 1,
    skip_broken: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PackedImages:
    """Return the decoded images of a listing, from the cache as far as they are there.

    Parameters
    ----------
    listing : Listing
    height, width : int
    folder : Path, optional
        Of the cache; default: below the user's cache folder.
    decoder : str
        Of `DECODERS`; the images of another one are decoded anew.
    threads : int
        That decode.
    skip_broken : bool
        Go on after a file that cannot be decoded (`PackedImages.broken`); if not, it is an error.
    progress : callable
        Called with the numbers of images that are there and of all.

    Raises
    ------
    BrokenImage
        A file cannot be decoded; all images that were decoded stay in the cache.
    UsageError
        No room on the disk.

    Notes
    -----
    Where another process writes a cache in the same folder, this one waits for it.
    """
    stamps = _stamps(listing, f"{VERSION}|{decoder_name(decoder)}")
    root = listing.root.resolve()
    place = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    folder = default_folder() if folder is None else folder
    packed = PackedImages(folder / f"{root.name}-{height}x{width}-{place}.packed", listing, height, width)
    progress(0, len(stamps))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked_file(folder, wait=True):
            _open(packed, stamps)
            _decode_absent(packed, stamps, decoder, threads, skip_broken, progress)
    except OSError as error:
        raise UsageError(
            f"{packed.path} cannot be written ({error.strerror}); the images that are there stay, so make room or name "
            f"another folder with --cache"
        ) from None
    return packed


def _decode_absent(packed, stamps, decoder, threads, skip_broken, progress) -> None:
    absent = np.flatnonzero(~packed.present).tolist()
    done = len(stamps) - len(absent)

    def decode_one(number: int) -> None:
        try:
            path = packed.listing.root / packed.listing.files[number]
            pixels = decode(path, *packed.shape[1:], decoder).reshape(CHANNELS, -1)
        except BrokenImage as error:
            packed.failures[number] = str(error)  # not stored: the next run tries again
            return
        sums, squares = pixels.sum(axis=1, dtype=np.int64), np.square(pixels, dtype=np.int64).sum(axis=1)
        entry = np.array((stamps[number], sums, squares, zlib.crc32(pixels), 0), ENTRY)
        entry["own"] = _own_checksum(entry)
        packed.write(number, pixels.tobytes(), entry)

    with ThreadPoolExecutor(threads) as pool:
        for start, stop in ranges(len(absent), DECODED_TOGETHER):
            progress(done, len(stamps))
            list(pool.map(decode_one, absent[start:stop]))
            done += stop - start
            if packed.failures and not skip_broken:
                raise _refusal(packed, done)
    progress(done, len(stamps))


def _refusal(packed: PackedImages, done: int) -> BrokenImage:
    reason = packed.failures[min(packed.failures)].removesuffix("; repair or remove it")
    others = len(packed.failures) - 1
    more = f", nor can {others} more of the {done} images that were tried" * bool(others)
    return BrokenImage(f"{reason}{more}; repair or remove it, or leave such files out with --broken skip")


def _stamps(listing: Listing, how: str) -> np.ndarray:
    """Numbers that change with path, size or time of an image's file, and how it is decoded: uint64, shape (N,)."""
    stamps = np.zeros(len(listing.files), np.uint64)
    for i, name in enumerate(listing.files):
        try:
            status = os.stat(listing.root / name)
            text = f"|{status.st_size}|{status.st_mtime_ns}|{how}"
        except OSError:
            text = "|missing"  # decoding says why
        stamp = hashlib.blake2b(os.fsencode(name) + text.encode(), digest_size=8).digest()
        stamps[i] = int.from_bytes(stamp, "little")
    return stamps


def _own_checksum(entry: np.ndarray) -> int:
    return zlib.crc32(entry.tobytes()[: -ENTRY["own"].itemsize])


def _open(packed: PackedImages, stamps: np.ndarray) -> None:
    """Open the file with its entries, made anew where it is of other images than the listing's."""
    entries = _read_entries(packed)
    there = {int(entry["stamp"]): i for i, entry in enumerate(entries) if entry["own"] == _own_checksum(entry)}
    places = [there.get(stamp, -1) for stamp in stamps.tolist()]
    old, path = PackedImages(packed.path, packed.listing, *packed.shape[1:]), packed.path
    try:
        if len(entries) == len(stamps) and all(stamps[i] == stamp for stamp, i in there.items()):
            packed.open()
            packed.present[:] = np.array(places) >= 0
            packed.entries[packed.present] = entries[packed.present]
            return
        if there:
            old.open()
        packed.path = path.with_suffix(".part")
        _reserve(packed, path)
        packed.open()
        for number, place in enumerate(places):
            if place >= 0 and zlib.crc32(pixels := old.read(place, len(entries))) == entries["pixels"][place]:
                packed.write(number, pixels, entries[place])
        os.replace(packed.path, path)
    finally:
        path.with_suffix(".part").unlink(missing_ok=True)
        packed.path = path


def _read_entries(packed: PackedImages) -> np.ndarray:
    """Return the entries of the file, none where there is no file or none of images of this size."""
    try:
        with open(packed.path, "rb") as file:
            count, rest = divmod(os.fstat(file.fileno()).st_size, ENTRY.itemsize + packed.image_bytes)
            return np.fromfile(file, ENTRY, 0 if rest else count)
    except FileNotFoundError:
        return np.zeros(0, ENTRY)


def _write(file: int, content: bytes, start: int) -> None:
    """Write all bytes at a place of a file."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(file, rest, start)
        rest, start = rest[written:], start + written


def _reserve(packed: PackedImages, path: Path) -> None:
    """Make the file with all its room on the disk, so that a disk that is too small is known before anything is
    decoded, and without filling it."""
    free = os.statvfs(path.parent)
    try:
        if packed.num_bytes > free.f_bavail * free.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(packed.path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, packed.num_bytes)
    except OSError as error:
        older = f"delete {path}, which has older images, or " * path.exists()
        raise UsageError(
            f"the packed images need {format_bytes(packed.num_bytes)} on the disk of {path.parent}, which has "
            f"{format_bytes(free.f_bavail * free.f_frsize)} free ({error.strerror}); {older}name another folder with "
            f"--cache, or a smaller --image-size"
        ) from None
