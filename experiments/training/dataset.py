"""A data set of images: what every reader of files gives to training and inference."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from ...cython_src.binding.storage import aligned_empty
from ...cython_src.errors import UsageError, did_you_mean
from ...cython_src.networks.layers import Network
from ...cython_src.reading import home_expanded
from ..images.source import ImageSource
from ..subjects.memory import allowed_bytes, format_bytes, memory_bounds

VALID_FRACTION = 0.1
SPLIT_SEED = 20260
MOST_SYNTHETIC = 1_000_000


def check_spec(spec: str, forms: str) -> tuple[str, str]:
    """Return kind and argument of a data set's name, such as "csv:images.csv"; files are not looked for. Raises
    `UsageError`: it has none of the forms, such as "digits, csv:FILE, synthetic:N"."""
    kind, colon, argument = spec.partition(":")
    known = [form.partition(":") for form in forms.split(", ")]
    fitting = [word for name, other, word in known if (name, other) == (kind, colon)]
    if not fitting or bool(colon) != bool(argument) or (fitting[0][:1] == "N" and not re.match("[0-9]", argument)):
        names = [name for name, _, _ in known]
        near = "" if kind in names else did_you_mean(kind, names)
        raise UsageError(f"data must be one of {forms}; got {spec!r}{near}")
    return kind, argument


def check_there(spec: str) -> None:
    """Raise `UsageError` where a data set's name, as `check_spec` takes it, leads to no file or folder."""
    kind, _, argument = spec.partition(":")
    if argument and kind not in ("synthetic", "thumbnails") and not home_expanded(argument).exists():
        raise UsageError(f"--data {kind}:NAME must name a folder or file that is there, got {argument!r}; name another")


def synthetic_count(argument: str) -> int:
    """Return the number of training samples in "synthetic:N"."""
    count = int(argument) if re.fullmatch("[0-9]{1,12}", argument) else 0
    if not 10 <= count <= MOST_SYNTHETIC:
        raise UsageError(
            f"the number of samples in --data synthetic:N must be in [10, {MOST_SYNTHETIC}], got {argument!r}; use "
            f"synthetic:1024"
        )
    return count


def check_memory(needed: int, what: str, remedy: str, limit: str = "") -> None:
    """Raise `UsageError` unless the bytes `needed` are within the limit and free, before anything is loaded."""
    allowed, source = allowed_bytes(*memory_bounds(limit))
    if needed > allowed:
        raise UsageError(f"{what} need {format_bytes(needed)} of memory, {source} {format_bytes(allowed)}; {remedy}")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images, labels and the split.

    Attributes
    ----------
    name : str
        The data set's spec without the folder.
    description : str
        One line for tables and figures.
    images : float32, shape (N, channels, height, width), 64-byte aligned
        Standardised: mean 0 and standard deviation 1 per channel over the training images. None of them, shape
        (0, ...), where `source` reads them during each step.
    labels : int32, shape (N,)
    train, valid, test : int32, one dimension
        Indices into `images`; disjoint.
    smoke_test : bool
        Whether the data are too easy to compare networks on, which all results then say.
    grey : bool
        Whether the channels are equal.
    source : ImageSource, optional
        Reads the images one by one.
    note : str
        What a report says about the data beside `description`.
    """

    name: str
    description: str
    images: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    class_names: tuple[str, ...]
    smoke_test: bool = False
    grey: bool = False
    source: ImageSource | None = None
    note: str = ""

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.images.shape[1:]))
        return f"<data {self.name!r}: {self.num_samples} images of {shape}, {self.num_classes} classes>"

    def fit(self, network: Network) -> Network:
        """Return a network with the image size and number of classes of these data. Raises `UsageError`: the network
        cannot read images of this shape, or its input is tokens."""
        return network.for_images(self.images.shape[1:], self.num_classes)

    def with_channels(self, channels: int) -> Dataset:
        """Return the data with a network's input channels: grey images have one if one is asked for."""
        if channels != 1 or not self.grey:
            return self
        images = aligned_empty((len(self.images), 1, *self.images.shape[2:]), np.float32)
        images[:] = self.images[:, :1]
        return replace(self, images=images)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_samples(self) -> int:
        return len(self.labels)

    @property
    def answers(self) -> int:
        """Answers that a network gives to a sample."""
        return 1

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Buffer of a plan -> the array that it is."""
        images = {"dataset.images": self.images} if self.source is None else {}
        return {**images, "dataset.labels": self.labels}


def random_order(count: int, *seed: int) -> np.ndarray:
    """Return a permutation of 0 ... count - 1 that depends on `seed` alone: int64, shape (count,).

    It sorts raw bits of PCG64, which unlike `Generator.permutation` are the same in every version of NumPy.
    """
    return np.argsort(np.random.PCG64(list(seed)).random_raw(count), kind="stable")


def stratified_split(indices: np.ndarray, labels: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Return two sorted int32 index arrays; the second takes `fraction` of each class, at least one image in all.

    Classes of which it would take no whole image are taken together; each of them keeps one image at least. The choice
    depends on nothing but the labels.
    """
    indices = np.asarray(indices, np.int32)
    if len(indices) < 2:
        raise UsageError(f"a data set must hold at least 2 training images to split, got {len(indices)}; use more")
    chosen = np.zeros(len(indices), bool)
    by_label = np.argsort(labels[indices], kind="stable")
    names, starts = np.unique(labels[indices][by_label], return_index=True)
    small, total = [], 0
    for label, members in zip(names.tolist(), np.split(by_label, starts[1:]), strict=True):
        members = members[random_order(len(members), SPLIT_SEED, label)]
        if count := round(fraction * len(members)):
            chosen[members[:count]] = True
        else:
            small += members[1:].tolist()
            total += len(members)
    if small:
        order = random_order(len(small), SPLIT_SEED)
        chosen[np.array(small)[order[: round(fraction * total)]]] = True
    if not chosen.any():
        chosen[-1] = True
    return indices[~chosen], indices[chosen]
