"""The packed cache: decoded images of one size in one file, memory-mapped, with a checksum for each.

Layout: a page with the description, a record (`ENTRY`) for each image, the pixels. An entry is written after its
pixels, so a process that is killed leaves images that are there or absent; the next one decodes the absent ones.
Checksums of pixels are compared at every read.

An image that is there is never overwritten, since another process may be reading it. Where files were added, removed
or changed, a new file is made, takes over the images whose files are the same, and replaces the old one, which those
who have mapped it keep.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.plan.builder import ranges
from ..sampling.files import cache_folder
from ..sampling.memory import format_bytes
from .decoding import BrokenImage, decode, decoder_name
from .listing import Listing

VERSION = 3  # since 3, images are turned as their EXIF orientation says
PAGE = mmap.PAGESIZE
CHANNELS = 3
PRESENT = 1  # of an entry's state; every other one is absent
# stamp: of path, size and time of the file. sums, squares: of the pixels' values, for each channel. own: checksum of
# the fields before it.
ENTRY = np.dtype(
    [("state", "<u4"), ("crc", "<u4"), ("stamp", "<u8"), ("sums", "<i8", 3), ("squares", "<i8", 3), ("own", "<u8")]
)
WAITING_S = 0.05  # between two looks whether another process still writes
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
    failures : dict from int to str
        Number of each image that cannot be decoded, and the reason.
    """

    def __init__(self, path: Path, listing: Listing, height: int, width: int):
        self.path, self.listing = path, listing
        self.shape = (CHANNELS, height, width)
        self.record_bytes = CHANNELS * height * width
        self.first, self.num_bytes = _layout(len(listing.files), self.record_bytes)
        self.entries = np.zeros(len(listing.files), ENTRY)
        self.failures: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<packed images {str(self.path)!r}: {len(self.entries)} of {self.shape}>"

    @property
    def present(self) -> np.ndarray:
        """Whether each image is there: bool, shape (N,)."""
        return self.entries["state"] == PRESENT

    def map(self, file: int) -> None:
        """Map the open file for reading; it may be closed, removed or replaced afterwards."""
        self._map = mmap.mmap(file, self.num_bytes, prot=mmap.PROT_READ)

    def get(self, number: int) -> np.ndarray:
        """Return a copy of an image's pixels: uint8, shape (3, height, width).

        Raises
        ------
        BrokenImage
            The pixels are not those that were written.
        """
        if self._map.size() < self.num_bytes:  # reading beyond the end of a mapped file would kill the process
            raise BrokenImage(
                f"{self.path} must have {self.num_bytes} bytes and has {self._map.size()}: it was cut off since it was "
                f"opened; delete it to pack the images again"
            )
        start = self.first + number * self.record_bytes
        pixels = np.frombuffer(self._map[start : start + self.record_bytes], np.uint8)
        if zlib.crc32(pixels) != self.entries["crc"][number]:
            raise BrokenImage(
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
    Where another process writes the same cache, this one waits for it.
    """
    root = listing.root.resolve()
    place = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    folder = default_folder() if folder is None else folder
    packed = PackedImages(folder / f"{root.name}-{height}x{width}-{place}.packed", listing, height, width)
    stamps = _stamps(listing)
    with _writing(packed, decoder_name(decoder), stamps, lambda: progress(0, len(stamps))) as file:
        entries = packed.entries
        absent = np.flatnonzero(~packed.present).tolist()
        done = len(entries) - len(absent)

        def decode_one(number: int) -> None:
            try:
                pixels = decode(listing.root / listing.files[number], height, width, decoder)
            except BrokenImage as error:
                packed.failures[number] = str(error)  # not stored: the next run tries again
                return
            entry, flat = np.zeros(1, ENTRY), pixels.reshape(CHANNELS, -1)
            entry["state"], entry["crc"], entry["stamp"] = PRESENT, zlib.crc32(flat), stamps[number]
            entry["sums"] = flat.sum(axis=1, dtype=np.int64)
            entry["squares"] = np.square(flat, dtype=np.int64).sum(axis=1)
            entry["own"] = _own_checksums(entry)
            _write_image(packed, file, number, flat, entry)
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
                if packed.failures and not skip_broken:
                    raise _refusal(packed, done)
        progress(done, len(entries))
        packed.map(file)
    return packed


def _refusal(packed: PackedImages, done: int) -> BrokenImage:
    reason = packed.failures[min(packed.failures)].removesuffix("; repair or remove it")
    others = len(packed.failures) - 1
    more = f", nor can {others} more of the {done} images that were tried" * bool(others)
    return BrokenImage(f"{reason}{more}; repair or remove it, or leave such files out with --broken skip")


def _stamps(listing: Listing) -> np.ndarray:
    """Numbers that change with path, size or time of an image's file: uint64, shape (N,)."""
    stamps = np.zeros(len(listing.files), np.uint64)
    for i, name in enumerate(listing.files):
        try:
            status = os.stat(listing.root / name)
            text = f"|{status.st_size}|{status.st_mtime_ns}"
        except OSError:
            text = "|missing"  # decoding says why
        stamp = hashlib.blake2b(os.fsencode(name) + text.encode(), digest_size=8).digest()
        stamps[i] = int.from_bytes(stamp, "little")
    return stamps


def _own_checksums(entries: np.ndarray) -> np.ndarray:
    """Checksums of the entries themselves: uint64, shape (N,)."""
    size = ENTRY.fields["own"][1]
    rows = entries.view(np.uint8).reshape(len(entries), ENTRY.itemsize)[:, :size]
    return np.array([zlib.crc32(row.tobytes()) for row in rows], np.uint64)


def _layout(count: int, record_bytes: int) -> tuple[int, int]:
    """Byte at which the pixels of so many images begin, and bytes of the whole file."""
    first = PAGE + -(-ENTRY.itemsize * count // PAGE) * PAGE
    return first, first + record_bytes * count


def _header(decoder: str, shape: tuple[int, ...], count: int) -> bytes:
    """Return the first page, which says what the file holds."""
    described = {"version": VERSION, "decoder": decoder, "shape": shape, "images": count}
    page = json.dumps(described).encode().ljust(PAGE - 4, b" ")
    return page + zlib.crc32(page).to_bytes(4, "little")


@contextmanager
def _writing(packed: PackedImages, decoder: str, stamps: np.ndarray, waiting: Callable[[], None]) -> Iterator[int]:
    """Open the file with its entries, made anew where it is of other images; other writers wait meanwhile."""
    try:
        packed.path.parent.mkdir(parents=True, exist_ok=True)
        file = _open_alone(packed.path, waiting)
    except OSError as error:
        raise _unwritable(packed, error) from None
    try:
        entries, _ = _read_entries(packed, file, decoder)
        if entries is None or len(entries) != len(stamps) or (entries["stamp"] != stamps)[_there(entries)].any():
            file = _replace(packed, file, decoder, stamps)
            entries, _ = _read_entries(packed, file, decoder)
        packed.entries[:] = np.where(_there(entries), entries, np.zeros(1, ENTRY))
        yield file
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # a mapping keeps the file open, and would keep the lock
        os.close(file)


def _there(entries: np.ndarray) -> np.ndarray:
    """Whether entries are whole and of images that are there: bool, shape (N,)."""
    return (entries["state"] == PRESENT) & (entries["own"] == _own_checksums(entries))


def _unwritable(packed: PackedImages, error: OSError) -> UsageError:
    return UsageError(f"{packed.path} cannot be written ({error.strerror}); name another folder with --cache")


def _open_alone(path: Path, waiting: Callable[[], None] = lambda: None) -> int:
    """Open a file to read and write it, made where there is none, once no other process has locked it; `waiting` is
    called again and again until then."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):  # nobody replaced it meanwhile
                return file
        except (BlockingIOError, FileNotFoundError):
            waiting()
            time.sleep(WAITING_S)
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _read_entries(packed: PackedImages, file: int, decoder: str) -> tuple[np.ndarray | None, int]:
    """Return the entries of an open file, or None where it holds no images of this decoder and size, and the byte at
    which its pixels begin."""
    page = os.pread(file, PAGE, 0)
    try:
        count = int(json.loads(page[: PAGE - 4])["images"])
    except (ValueError, TypeError, KeyError):
        return None, 0
    first, num_bytes = _layout(count, packed.record_bytes)
    if page != _header(decoder, packed.shape, count) or os.fstat(file).st_size != num_bytes:
        return None, 0
    return np.frombuffer(os.pread(file, count * ENTRY.itemsize, PAGE), ENTRY), first


def _replace(packed: PackedImages, old: int, decoder: str, stamps: np.ndarray) -> int:
    """Make a file of the listing's images beside the old one, which is open, take over what is the same, and put it in
    its place. Returns it open and locked; the old one is closed if all went well."""
    part = packed.path.with_suffix(".part")
    try:
        file = _open_alone(part)  # the lock stays with the file when it gets its name
    except OSError as error:
        raise _unwritable(packed, error) from None
    try:
        os.ftruncate(file, 0)
        _reserve(packed, file)
        _write(file, _header(decoder, packed.shape, len(stamps)), 0)
        entries, first = _read_entries(packed, old, decoder)
        there = {} if entries is None else {int(entries["stamp"][i]): i for i in np.flatnonzero(_there(entries))}
        for number, stamp in enumerate(stamps.tolist()):
            if (place := there.get(stamp)) is not None:
                pixels = os.pread(old, packed.record_bytes, first + place * packed.record_bytes)
                if zlib.crc32(pixels) == entries["crc"][place]:
                    _write_image(packed, file, number, pixels, entries[place : place + 1])
        os.replace(part, packed.path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        os.close(file)
        if not os.fstat(old).st_size:
            packed.path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(packed, error) from None
        raise
    os.close(old)
    return file


def _write_image(packed: PackedImages, file: int, number: int, pixels, entry: np.ndarray) -> None:
    _write(file, pixels, packed.first + number * packed.record_bytes)
    _write(file, entry, PAGE + number * ENTRY.itemsize)


def _write(file: int, content, start: int) -> None:
    """Write all of an array or of bytes at a byte of a file."""
    rest = memoryview(np.frombuffer(content, np.uint8))
    while rest:
        written = os.pwrite(file, rest, start)
        rest, start = rest[written:], start + written


def _reserve(packed: PackedImages, file: int) -> None:
    """Take all the room on the disk at once, so that a disk that is too small is known before anything is decoded, and
    without filling it."""
    free = os.statvfs(packed.path.parent)
    try:
        if packed.num_bytes > free.f_bavail * free.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(file, 0, packed.num_bytes)
    except OSError as error:
        older = f"delete {packed.path}, which has older images, or " * bool(os.path.getsize(packed.path))
        raise UsageError(
            f"the packed images need {format_bytes(packed.num_bytes)} on the disk of {packed.path.parent}, which has "
            f"{format_bytes(free.f_bavail * free.f_frsize)} free ({error.strerror}); {older}name another folder with "
            f"--cache, or a smaller --image-size"
        ) from None
