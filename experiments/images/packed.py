"""The packed cache: decoded images of one size in one file, memory-mapped, with a checksum for each.

Layout: a page with the description, a record (`ENTRY`) for each image, the pixels. An entry is written after its
pixels, so a process that is killed leaves images that are there or absent; the next one decodes the absent ones.
Checksums of pixels are compared at every read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.plan.builder import ranges
from ..sampling.files import locked_file
from ..sampling.memory import format_bytes
from .decoding import BrokenImage, decode, decoder_name
from .listing import Listing

VERSION = 2
PAGE = mmap.PAGESIZE
CHANNELS = 3
PRESENT, BROKEN = 1, 2
# stamp: of path, size and time of the file. sums, squares: of the pixels' values, for each channel. own: checksum of
# the fields before it.
ENTRY = np.dtype(
    [("state", "<u4"), ("crc", "<u4"), ("stamp", "<u8"), ("sums", "<i8", 3), ("squares", "<i8", 3), ("own", "<u8")]
)
DECODED_TOGETHER = 256  # images that are decoded before the next ones are begun


def default_folder() -> Path:
    """Folder of the caches where the user names none."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forktask" / "images"


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
    """

    def __init__(self, path: Path, listing: Listing, height: int, width: int):
        self.path, self.listing = path, listing
        self.shape = (CHANNELS, height, width)
        self.record_bytes = CHANNELS * height * width
        self.first = PAGE + -(-ENTRY.itemsize * len(listing.files) // PAGE) * PAGE
        self.num_bytes = self.first + self.record_bytes * len(listing.files)
        self.entries = np.zeros(len(listing.files), ENTRY)

    def __repr__(self) -> str:
        return f"<packed images {str(self.path)!r}: {len(self.entries)} of {self.shape}>"

    def map(self) -> None:
        """Map the file for reading."""
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != self.num_bytes:
                raise UsageError(f"{self.path} must have {self.num_bytes} bytes, got {size}; delete it to pack again")
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def get(self, number: int) -> np.ndarray:
        """Return a copy of an image's pixels: uint8, shape (3, height, width).

        Raises
        ------
        UsageError
            The pixels are not those that were written.
        """
        start = self.first + number * self.record_bytes
        pixels = np.frombuffer(self._map[start : start + self.record_bytes], np.uint8)
        if zlib.crc32(pixels) != self.entries["crc"][number]:
            raise UsageError(
                f"{self.path} is damaged: the pixels of {self.listing.files[number]!r}, at byte {start}, are not those "
                f"that were written; delete it to pack the images again"
            )
        # The pages stay with the system while it has memory, and do not count as this process's.
        first, last = start // PAGE * PAGE, min(-(-(start + self.record_bytes) // PAGE) * PAGE, self.num_bytes)
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        return pixels.reshape(self.shape)

    def moments(self, numbers: np.ndarray) -> list[tuple[int, int, int]]:
        """Number of pixels, their sum and the sum of their squares over some images, for each channel."""
        count = len(numbers) * self.shape[1] * self.shape[2]
        totals = [self.entries[name][numbers].sum(axis=0).tolist() for name in ("sums", "squares")]
        return [(count, total, squares) for total, squares in zip(*totals, strict=True)]

    def broken(self) -> list[str]:
        """Return the files that could not be decoded."""
        return [self.listing.files[i] for i in np.flatnonzero(self.entries["state"] == BROKEN)]


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
        No room on the disk, or a cache that another process writes.
    """
    place = hashlib.sha256(str(listing.root.resolve()).encode()).hexdigest()[:12]
    folder = default_folder() if folder is None else folder
    packed = PackedImages(
        folder / f"{listing.root.resolve().name}-{height}x{width}-{place}.packed", listing, height, width
    )
    stamps = _stamps(listing)
    with _writing(packed, decoder_name(decoder)) as file:
        entries = packed.entries
        entries[(entries["stamp"] != stamps) | (entries["own"] != _own_checksums(entries))] = 0
        absent = np.flatnonzero(entries["state"] == 0).tolist()
        if not skip_broken and (broken := packed.broken()):
            raise _refusal(packed, broken)
        done = len(entries) - len(absent)

        def decode_one(number: int) -> None:
            entry = np.zeros(1, ENTRY)
            entry["stamp"] = stamps[number]
            try:
                pixels = decode(listing.root / listing.files[number], height, width, decoder)
            except BrokenImage:
                entry["state"] = BROKEN
            else:
                flat = pixels.reshape(CHANNELS, -1)
                entry["state"], entry["crc"] = PRESENT, zlib.crc32(flat)
                entry["sums"] = flat.sum(axis=1, dtype=np.int64)
                entry["squares"] = np.square(flat, dtype=np.int64).sum(axis=1)
                os.pwrite(file, flat, packed.first + number * packed.record_bytes)
            entry["own"] = _own_checksums(entry)
            os.pwrite(file, entry, PAGE + number * ENTRY.itemsize)
            entries[number] = entry[0]

        with ThreadPoolExecutor(threads) as pool:
            for start, stop in ranges(len(absent), DECODED_TOGETHER):
                some = absent[start:stop]
                progress(done, len(entries))
                try:
                    list(pool.map(decode_one, some))
                except OSError as error:
                    raise UsageError(
                        f"{packed.path} cannot be written ({error.strerror}); the images that are there stay, so make "
                        f"room or name another folder with --cache"
                    ) from None
                done += len(some)
                if not skip_broken and (broken := packed.broken()):
                    raise _refusal(packed, broken)
        progress(done, len(entries))
    packed.map()
    return packed


def _refusal(packed: PackedImages, broken: list[str]) -> BrokenImage:
    try:
        decode(packed.listing.root / broken[0], *packed.shape[1:])
        reason = "it could not be decoded when it was packed"
    except BrokenImage as error:
        reason = str(error).removesuffix("; repair or remove it")
    others = f", and {len(broken) - 1} more like it" * (len(broken) > 1)
    return BrokenImage(f"{reason}{others}; repair or remove it, or leave such files out with --broken skip")


def _stamps(listing: Listing) -> np.ndarray:
    """Numbers that change with path, size or time of an image's file: uint64, shape (N,)."""
    stamps = np.zeros(len(listing.files), np.uint64)
    for i, name in enumerate(listing.files):
        try:
            status = os.stat(listing.root / name)
        except OSError as error:
            raise UsageError(f"{listing.root / name} cannot be read ({error.strerror}); mend or remove it") from None
        text = f"{name}|{status.st_size}|{status.st_mtime_ns}".encode()
        stamps[i] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return stamps


def _own_checksums(entries: np.ndarray) -> np.ndarray:
    """Checksums of the entries themselves: uint64, shape (N,)."""
    size = ENTRY.fields["own"][1]
    rows = entries.view(np.uint8).reshape(len(entries), ENTRY.itemsize)[:, :size]
    return np.array([zlib.crc32(row.tobytes()) for row in rows], np.uint64)


@contextmanager
def _writing(packed: PackedImages, decoder: str) -> Iterator[int]:
    """Open the file with its entries, made anew where it is of other images, and keep other writers out."""
    described = {"version": VERSION, "decoder": decoder, "shape": packed.shape, "images": len(packed.entries)}
    content = json.dumps(described).encode()
    header = content.ljust(PAGE - 4, b" ")
    header += zlib.crc32(header).to_bytes(4, "little")
    try:
        packed.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(packed.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(
            f"{packed.path} cannot be written ({error.strerror}); name another folder with --cache"
        ) from None
    try:
        with locked_file(packed.path):
            if os.pread(file, PAGE, 0) != header or os.fstat(file).st_size != packed.num_bytes:
                os.ftruncate(file, 0)
                _reserve(packed, file)
                os.pwrite(file, header, 0)
            stored = os.pread(file, packed.entries.nbytes, PAGE)
            packed.entries[:] = np.frombuffer(stored, ENTRY)
            yield file
    finally:
        os.close(file)


def _reserve(packed: PackedImages, file: int) -> None:
    """Take all the room on the disk at once, so that a disk that is too small is known before anything is decoded."""
    try:
        os.posix_fallocate(file, 0, packed.num_bytes)
    except OSError as error:
        packed.path.unlink()
        free = os.statvfs(packed.path.parent)
        raise UsageError(
            f"the packed images need {format_bytes(packed.num_bytes)} on the disk of {packed.path.parent}, which has "
            f"{format_bytes(free.f_bavail * free.f_frsize)} free ({error.strerror}); name another folder with --cache, "
            f"or a smaller --image-size"
        ) from None
