"""Which images a folder or a table of labels names, with their classes and splits; nothing is decoded."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.reading import open_regular
from ..results.files import list_folder

ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# Other names of the splits' folders, and of their values in a table.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Listing:
    """Images by path, without their pixels."""

    root: Path  # folder that the paths begin at
    files: tuple[str, ...]
    # int32, shape (N,)
    labels: np.ndarray
    splits: tuple[str, ...]  # of each image, train, valid or test; "" where neither folders nor table say
    class_names: tuple[str, ...]  # in alphabetical order
    passed_over: tuple[str, ...] = ()  # files beside the images whose names have other endings

    def __repr__(self) -> str:
        return f"<listing of {len(self.files)} images in {len(self.class_names)} classes below {str(self.root)!r}>"

    def split(self, name: str) -> np.ndarray:
        """Numbers of the images of a split: int32."""
        return np.flatnonzero(np.array(self.splits, dtype=object) == name).astype(np.int32)


def list_classes(folder: Path) -> Listing:
    """List a folder with a sub-folder for each class, or with folders train, valid, test of such. Raises `UsageError`:
    no folder, one without images, a class without images, or splits with other classes than those of training."""
    if not folder.is_dir():
        rule = "name a folder, got a file" if folder.exists() else "name a folder that exists, got"
        raise UsageError(f"--data folder:DIR must {rule} {str(folder)!r}; name the folder of the classes' folders")
    inside = _folders(folder)
    splits: dict[str, str] = {}
    for name in inside:
        split = SPLIT_NAMES.get(name.lower())
        if split in splits:
            raise UsageError(
                f"a split must have one folder, got {splits[split]!r} and {name!r} of {split} in {str(folder)!r}; "
                f"put them together"
            )
        if split:
            splits[split] = name
    if "train" not in splits:
        files = {name: _images_of_class(folder, name) for name in inside}
        rows = [(file, name, "") for name, (images, _) in files.items() for file in images]
        return _make(folder, rows, [file for _, others in files.values() for file in others])
    result, passed_over, classes = [], [], {}
    for split, name in splits.items():
        classes[split] = set(_folders(folder / name))
        for label in sorted(classes[split]):
            images, others = _images_of_class(folder, f"{name}/{label}")
            result += [(file, label, split) for file in images]
            passed_over += others
    _check_same_classes(classes, folder)
    return _make(folder, result, passed_over)


def list_table(path: Path) -> Listing:
    """List the images that a CSV table names: columns "file" and "label", optionally "split"; paths begin at the
    table's folder. Raises `UsageError`: a missing table, column or image, an unknown split, or splits with other
    classes than those of training."""
    try:
        with open_regular(path, "CSV file") as (file, _):
            reader = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""), skipinitialspace=True)
            columns = set(reader.fieldnames or ())
            if not {"file", "label"} <= columns:
                raise UsageError(
                    f"the table of --data csv:FILE must have the columns file and label, got "
                    f"{', '.join(sorted(columns)) or 'none'} in {path}; name the columns in its first line"
                )
            rows = [
                (reader.line_num, row["file"], (row["label"] or "").strip(), (row.get("split") or "").strip().lower())
                for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"the table {str(path)!r} cannot be read ({error}); name a CSV file") from None
    first: dict[str, int] = {}
    for line, name, label, split in rows:
        if not name or not label:
            raise UsageError(f"each row of {path} must have a file and a label, line {line} has not; complete it")
        if split and split not in SPLIT_NAMES:
            raise UsageError(
                f"split must be train, valid or test, got {split!r} in line {line} of {path}; use one of these"
            )
        if not os.path.isfile(path.parent / name):
            raise UsageError(f"{path} names {name!r} in line {line}, and there is no such file; correct the line")
        if first.setdefault(os.path.normpath(name), line) != line:
            raise UsageError(
                f"each image must be named once, {name!r} is in lines {first[os.path.normpath(name)]} and {line} of "
                f"{path}; leave one out"
            )
    rows = [(name, label, SPLIT_NAMES[split] if split else "") for _, name, label, split in rows]
    given = {split for _, _, split in rows}
    if given != {""}:
        if "" in given or "train" not in given:
            raise UsageError(
                f"all rows of {path} must name a split, training among them, or none may; got "
                f"{', '.join(sorted(split or 'no split' for split in given))}"
            )
        _check_same_classes({split: {label for _, label, other in rows if other == split} for split in given}, path)
    return _make(path.parent, rows)


def _folders(folder: Path) -> list[str]:
    return sorted(path.name for path in list_folder(folder) if path.is_dir() and not path.name.startswith("."))


def _refuse_unreadable(error: OSError) -> None:
    raise UsageError(f"folder {error.filename!r} cannot be read ({error.strerror}); mend or remove it") from None


def _images_of_class(folder: Path, name: str) -> tuple[list[str], list[str]]:
    """Paths of the images below a class's folder, at any depth, and of other files that are not hidden; links to
    folders in it are not followed."""
    result: list[str] = []
    others: list[str] = []
    for at, _, files in os.walk(folder / name, onerror=_refuse_unreadable):
        for file in files:
            if not file.startswith("."):
                kind = result if file.lower().endswith(ENDINGS) else others
                kind.append(os.path.relpath(os.path.join(at, file), folder))
    if not result:
        left_out = f" but {len(others)} of other endings, such as {min(others)!r}," if others else ""
        raise UsageError(
            f"each class's folder must hold images ({', '.join(ENDINGS)}), got none in {str(folder / name)!r}{left_out}"
            f"; remove the folder or name another"
        )
    return sorted(result), sorted(others)


def _check_same_classes(classes: dict[str, set[str]], source: Path) -> None:
    """Raise `UsageError` unless every split has the classes of training."""
    for split, names in classes.items():
        if names != classes["train"]:
            other = sorted(names ^ classes["train"])
            raise UsageError(
                f"all splits of {source} must have the same classes, got {len(classes['train'])} in train and "
                f"{len(names)} in {split}; {other[0]!r} is in one alone, so give each split images of it or of none"
            )


def _make(root: Path, rows: list[tuple[str, str, str]], passed_over: Sequence[str] = ()) -> Listing:
    if len(rows) < 2:
        raise UsageError(
            f"a data set must hold images in sub-folders, one for each class, got {len(rows)} below {str(root)!r}; "
            f"name the folder of the classes' folders"
        )
    names = tuple(sorted({label for _, label, _ in rows}))
    if len(names) < 2:
        raise UsageError(
            f"a data set must have at least two classes, got one, {names[0]!r}, below {str(root)!r}; name the folder "
            f"of the classes' folders, or give labels"
        )
    number = {name: i for i, name in enumerate(names)}
    return Listing(
        root=root,
        files=tuple(file for file, _, _ in rows),
        labels=np.array([number[label] for _, label, _ in rows], np.int32),
        splits=tuple(split for _, _, split in rows),
        class_names=names,
        passed_over=tuple(passed_over),
    )
