"""The packed cache: decoded images of one size in one file, a record with a checksum for each.

A record is an image's pixels and then its entry (`ENTRY`), so a process that is killed leaves records that are whole or
have a wrong checksum, and then their places are free. The stamp says which file an image is of, in which state and how
decoded: images of a listing are found by it, wherever they lie. Whole records are never overwritten, since another
process may be reading them; those of files that were changed or removed stay until the cache is deleted.
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
from ..subjects.memory import format_bytes
from .decoding import BrokenImage, decode, decoder_name
from .listing import Listing

VERSION = 6  # of records and of what decoding gives
CHANNELS = 3
# sums, squares: of the pixels' values, for each channel. pixels, own: checksums of the pixels and of the fields before.
ENTRY = np.dtype([("stamp", "<u8"), ("sums", "<i8", 3), ("squares", "<i8", 3), ("pixels", "<u4"), ("own", "<u4")])
DECODED_TOGETHER = 256  # images that are decoded before the next ones are begun


def default_folder() -> Path:
    """Return the folder of the caches where the user names none."""
    return cache_folder("images")


class PackedImages:
    """Decoded images of a listing, of one size. Made by `pack`.

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
        self.record = np.dtype([("pixels", "u1", self.shape), ("entry", ENTRY)])
        self.entries = np.zeros(len(listing.files), ENTRY)
        self.present = np.zeros(len(listing.files), bool)
        self.failures: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<packed images {str(self.path)!r}: {len(self.entries)} of {self.shape}>"

    def open(self, stamps: np.ndarray) -> None:
        """Find the images that are there, and give the others free places, with room for all of them on the disk."""
        size = self.path.stat().st_size if self.path.exists() else 0
        count = size // self.record.itemsize
        entries = np.zeros(0, ENTRY)
        if count:
            entries = np.array(np.memmap(self.path, self.record, "r", shape=(count,))["entry"])
        whole = {int(entry["stamp"]): i for i, entry in enumerate(entries) if entry["own"] == _own_checksum(entry)}
        self._places = np.array([whole.get(stamp, -1) for stamp in stamps.tolist()])
        self.present[:] = self._places >= 0
        self.entries[self.present] = entries[self._places[self.present]]
        num_absent = int((~self.present).sum())
        free = np.setdiff1d(np.arange(len(entries) + num_absent), list(whole.values()))[:num_absent]
        self._places[~self.present] = free
        _reserve(self.path, size, int(max(free, default=-1) + 1) * self.record.itemsize)
        self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115  as long as its images are read

    def put(self, number: int, stamp: int, pixels: np.ndarray) -> None:
        """Write an image, of shape (3, height, width)."""
        flat = pixels.reshape(CHANNELS, -1)
        sums, squares = flat.sum(axis=1, dtype=np.int64), np.square(flat, dtype=np.int64).sum(axis=1)
        record = np.array((pixels, (stamp, sums, squares, zlib.crc32(pixels), 0)), self.record)
        record["entry"]["own"] = _own_checksum(record["entry"])
        rest, start = memoryview(record.tobytes()), self._places[number] * self.record.itemsize
        while rest:
            written = os.pwrite(self._file.fileno(), rest, start)
            rest, start = rest[written:], start + written
        self.entries[number], self.present[number] = record["entry"], True

    def get(self, number: int) -> np.ndarray:
        """Return an image's pixels: uint8, shape (3, height, width). Raises `BrokenImage`: the pixels are not those
        that were written."""
        pixels = os.pread(self._file.fileno(), np.prod(self.shape), self._places[number] * self.record.itemsize)
        if zlib.crc32(pixels) != self.entries["pixels"][number]:
            raise BrokenImage(
                f"{self.path} is damaged: the pixels of {self.listing.files[number]!r} are not those that were written",
                "delete it to pack the images again",
            )
        return np.frombuffer(pixels, np.uint8).reshape(self.shape)

    def moments(self, numbers: np.ndarray) -> list[tuple[int, int, int]]:
        """Return number of pixels, their sum and the sum of their squares over some images, for each channel."""
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

    Where another process writes a cache in the same folder, this one waits for it. The images of another decoder are
    decoded anew.

    Parameters
    ----------
    folder : Path, optional
        Of the cache; default: below the user's cache folder.
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
            packed.open(stamps)
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
            pixels = decode(packed.listing.root / packed.listing.files[number], *packed.shape[1:], decoder)
        except BrokenImage as error:
            packed.failures[number] = error.fact  # not stored: the next run tries again
        else:
            packed.put(number, int(stamps[number]), pixels)

    with ThreadPoolExecutor(threads) as pool:
        for start, stop in ranges(len(absent), DECODED_TOGETHER):
            progress(done, len(stamps))
            list(pool.map(decode_one, absent[start:stop]))
            done += stop - start
            if packed.failures and not skip_broken:
                raise _refusal(packed, done)
    progress(done, len(stamps))


def _refusal(packed: PackedImages, done: int) -> BrokenImage:
    fact = packed.failures[min(packed.failures)]
    others = len(packed.failures) - 1
    more = f", nor can {others} more of the {done} images that were tried" if others else ""
    return BrokenImage(f"{fact}{more}", "repair or remove it, or leave such files out with --broken skip")


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


def _reserve(path: Path, size: int, wanted: int) -> None:
    """Make room for a file that has `size` bytes, so that a disk that is too small is known before anything is decoded,
    and without filling it."""
    if wanted <= size:
        return
    free = os.statvfs(path.parent)
    try:
        if wanted - size > free.f_bavail * free.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(path, "ab") as file:
            os.posix_fallocate(file.fileno(), size, wanted - size)
    except OSError as error:
        if size:
            os.truncate(path, size)
        else:
            path.unlink(missing_ok=True)
        older = f"delete {path}, which has older images, or " if size else ""
        raise UsageError(
            f"the packed images need {format_bytes(wanted - size)} more on the disk of {path.parent}, which has "
            f"{format_bytes(free.f_bavail * free.f_frsize)} free ({error.strerror}); {older}name another folder with "
            f"--cache, or a smaller --image-size"
        ) from None
