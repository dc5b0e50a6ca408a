"""Image files: listing, decoding, the packed cache, augmentation, and training on them."""

import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from PIL import Image
from programs import run_python

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.load.load import put
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.commands.main import main
from forktask.experiments.images import packed as packing
from forktask.experiments.images.decoding import DECODERS, BrokenImage, decode
from forktask.experiments.images.listing import list_classes, list_table
from forktask.experiments.images.packed import ENTRY, pack
from forktask.experiments.images.source import Augmentation, parse
from forktask.experiments.images.thumbnails import write_thumbnails
from forktask.experiments.sampling.child import measure_in_process
from forktask.experiments.studies.one_run import COMMAND
from forktask.experiments.training.config import TrainingConfig
from forktask.experiments.training.data import load_data
from forktask.experiments.training.dataset import stratified_split
from forktask.experiments.training.train import train
from forktask.experiments.training.trainer import Trainer

COUNT = 40
NETWORK = get_network("cifar10_cnn")


@pytest.fixture
def images(tmp_path):
    """Folder of forty small photographs in four classes."""
    return write_thumbnails(tmp_path / "photos", COUNT, 48, 64, classes=4) / "images"


def options(tmp_path, **changes):
    return TrainingConfig(**{"cache": str(tmp_path / "cache"), "threads": 1, **changes})


def config(images, tmp_path, **changes):
    return TrainingConfig(
        **{
            "data": f"folder:{images}",
            "cache": str(tmp_path / "cache"),
            "model": "serial",
            "threads": 1,
            "epochs": 2,
            "batch": 8,
            "out": str(tmp_path / "run"),
            **changes,
        }
    )


RECORD = np.dtype([("pixels", "u1", (3, 32, 32)), ("entry", ENTRY)])


def packed_file(tmp_path):
    (path,) = (tmp_path / "cache").glob("*.packed")
    return path


def test_folders_and_tables_list_the_same_images(images, tmp_path):
    """Check classes, labels and files of a folder, of the same images in a table, and of given splits."""
    listing = list_classes(images)
    assert listing.class_names == ("class-0", "class-1", "class-2", "class-3")
    assert len(listing.files) == COUNT and np.bincount(listing.labels).tolist() == [10] * 4
    rows = [
        f"{images / name},{listing.class_names[label]}"
        for name, label in zip(listing.files, listing.labels, strict=True)
    ]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows]))
    table = list_table(tmp_path / "labels.csv")
    assert table.class_names == listing.class_names and (table.labels == listing.labels).all()
    (tmp_path / "splits.csv").write_text(
        "\n".join(["file,label,split", *(f"{row},{('train', 'val')[i % 5 == 0]}" for i, row in enumerate(rows))])
    )
    assert len(list_table(tmp_path / "splits.csv").split("valid")) == COUNT / 5
    given = tmp_path / "given"
    for split, numbers in {"train": (0, 1, 2), "test": (3,)}.items():
        for label in range(4):
            (given / split / str(label)).mkdir(parents=True)
            for number in numbers:
                name = listing.files[10 * label + number]
                (given / split / str(label) / f"{number}.jpg").write_bytes((images / name).read_bytes())
    data = load_data(f"folder:{given}", NETWORK, options(tmp_path))
    assert len(data.test) == 4 and len(data.train) + len(data.valid) == 12


def _others(folder):
    folder.mkdir(parents=True)
    for name in ("a.avif", "b.avif"):
        (folder / name).touch()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "must name a folder that exists, got '.*data'; name the folder of the classes"),
        (lambda folder: folder.touch(), "must name a folder, got a file '.*data'"),
        (lambda folder: folder.mkdir(), "must hold images in sub-folders"),
        (lambda folder: (folder / "cat").mkdir(parents=True), "must hold images .*'.*cat'"),
        (lambda folder: _others(folder / "cat"), "cat' but 2 of other endings, such as 'cat/a.avif',"),
        (
            lambda folder: [
                ((folder / path).parent.mkdir(parents=True), (folder / path).touch())
                for path in ("train/cat/1.jpg", "train/dog/1.jpg", "test/cat/1.jpg")
            ],
            "same classes, got 2 in train and 1 in test; 'dog' is in one alone",
        ),
    ],
)
def test_folders_that_are_no_data_are_refused(tmp_path, make, message):
    """Check one sentence for no folder, no images, an empty class and classes that differ between splits."""
    make(tmp_path / "data")
    with pytest.raises(UsageError, match=message):
        load_data(f"folder:{tmp_path / 'data'}", NETWORK, options(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,class\na.jpg,1", "columns file and label, got class, name"),
        ("file,label\na.jpg,", "line 2 has not"),
        ("file,label\nnone.jpg,1", "no such file"),
        ("file,label,split\na.jpg,1,some", "got 'some' in line 2"),
        ("file,label,split\na.jpg,1,test\nb.jpg,2,", "training among them"),
        ("\ufefffile, label\r\na.jpg,1\r\n\r\nb.jpg,1\r\n", "at least two classes, got one, '1'"),
        ("file,label\na.jpg,1\nb.jpg,2\n./a.jpg,2", "named once, './a.jpg' is in lines 2 and 4"),
        ('file,label\n"a.jpg,b.jpg",1', "names 'a.jpg,b.jpg' in line 2"),
        (f"file,label\n{'a' * 300}.jpg,1", "no such file"),
    ],
)
def test_tables_that_are_no_data_are_refused(tmp_path, text, message):
    """Check one sentence for each kind of wrong table."""
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "labels.csv").write_text(text, newline="")
    with pytest.raises(UsageError, match=message):
        list_table(tmp_path / "labels.csv")


def test_files_that_are_no_images_are_counted(images, tmp_path):
    """Check that endings in capitals and JPEG's other ones count, hidden files do not, and others are named."""
    listing = list_classes(images)
    first = images / listing.files[0]
    first.rename(first.with_suffix(".JFIF"))
    for name in ("notes.txt", "photo", ".hidden", ".hidden.jpg"):
        (first.parent / name).write_bytes(b"")
    data = load_data(f"folder:{images}", NETWORK, options(tmp_path))
    assert data.num_samples == COUNT
    assert data.note == "left out: 2 files with another ending, 'class-0/notes.txt' first"


def test_classes_of_few_images_are_split_too():
    """Check that of a thousand classes of three images a tenth of all is chosen, and some of each class is left; and
    that of large classes each gives its tenth, whatever other classes there are."""
    few = np.repeat(np.arange(1000), 3).astype(np.int32)
    rest, chosen = stratified_split(np.arange(3000), few, 0.1)
    assert len(chosen) == 300 and set(few[rest]) == set(range(1000))
    assert sorted([*rest, *chosen]) == [*range(3000)] and len(set(few[chosen] // 100)) == 10
    both = np.concatenate([np.full(40, 1000), few, np.full(31, 2000)]).astype(np.int32)
    for part in (np.arange(40), np.arange(3040)):
        assert set(range(40)) & {*stratified_split(part, both, 0.1)[1]} == {
            *stratified_split(np.arange(40), both, 0.1)[1]
        }
    alone = np.arange(5, dtype=np.int32)
    assert len(stratified_split(np.arange(5), alone, 0.1)[1]) == 1


def test_decoding_takes_the_middle_part(tmp_path):
    """Check that proportions are kept, the middle is taken, and grey and transparent images become three channels."""
    pixels = np.zeros((40, 120, 3), np.uint8)
    pixels[:, 40:80] = (200, 100, 50)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    result = decode(tmp_path / "wide.png", 20, 20)
    assert result.shape == (3, 20, 20) and (result[:, :, 1:-1] == np.array([200, 100, 50])[:, None, None]).all()
    for mode in ("L", "RGBA", "P", "1"):
        Image.fromarray(pixels).convert(mode).save(tmp_path / "other.png")
        assert decode(tmp_path / "other.png", 20, 20).shape == (3, 20, 20)
    Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257).save(tmp_path / "deep.png")
    assert (decode(tmp_path / "deep.png", 20, 20)[:, :, 1:-1] == 200).all()
    Image.fromarray(pixels[:, :, 0].astype(np.float32)).save(tmp_path / "real.tif")
    with pytest.raises(BrokenImage, match="mode F, have no known range; convert it to 8 bits"):
        decode(tmp_path / "real.tif", 20, 20)
    Image.fromarray(pixels).resize((720, 540)).save(tmp_path / "large.jpg")
    assert decode(tmp_path / "large.jpg", 270, 360).shape == (3, 270, 360)


@pytest.mark.parametrize(
    ("dtype", "header", "ending"),
    [(">u2", "P5 60 40 65535\n", "pgm"), ("<i2", None, "tif"), ("<u2", None, "tif")],
    ids=["PGM", "TIFF with a sign", "TIFF"],
)
def test_grey_values_of_16_bits_are_divided_by_256(dtype, header, ending, tmp_path):
    """Check files of 16 bits that Pillow gives as 32 bits, and that negative values are refused for what they are."""
    pixels = np.full((40, 60), 100 * 256 + 255, dtype)
    path = tmp_path / f"deep.{ending}"
    if header:
        path.write_bytes(header.encode() + pixels.tobytes())
    else:
        path.write_bytes(tiff(pixels))
    assert (decode(path, 20, 30) == 100).all()
    if dtype == "<i2":
        path.write_bytes(tiff(pixels - 30000))
        with pytest.raises(BrokenImage, match="values of 16 bits are negative"):
            decode(path, 20, 30)
        path.write_bytes(tiff(pixels.astype("<i4")))
        with pytest.raises(BrokenImage, match="values of 32 bits"):
            decode(path, 20, 30)


def tiff(pixels):
    """A TIFF of grey values, signed or not: Pillow writes none with a sign."""
    rows, columns = pixels.shape
    sizes = [(256, columns), (257, rows), (258, 8 * pixels.itemsize), (259, 1), (262, 1), (273, 8), (277, 1)]
    sizes += [(278, rows), (279, pixels.nbytes), (339, 2 if pixels.dtype.kind == "i" else 1)]
    tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sizes)
    return struct.pack("<4sI", b"II*\0", 8 + pixels.nbytes) + pixels.tobytes() + struct.pack("<H", 10) + tags + bytes(4)


@pytest.mark.parametrize("decoder", ["pillow", pytest.param("simplejpeg", marks=pytest.mark.simplejpeg)])
@pytest.mark.parametrize("part", [2.05, 2.56, 3.2, 3.9])
def test_fine_patterns_are_averaged(part, decoder, tmp_path):
    """Check stripes of three pixels and noise against Pillow's bilinear filter, between half and a quarter of the
    size, where a JPEG file could be decoded at half of it."""
    stripes = np.repeat(np.tile(np.uint8([[255, 0, 0]]), (480, 160))[..., None], 3, axis=2)
    noise = np.random.default_rng(0).integers(0, 256, (480, 480, 3), np.uint8)
    side = round(480 / part)
    for pixels in (stripes, noise):
        Image.fromarray(pixels).save(tmp_path / "fine.jpg", quality=95, subsampling=0)
        with Image.open(tmp_path / "fine.jpg") as image:
            expected = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1).astype(int)
        assert np.abs(decode(tmp_path / "fine.jpg", side, side, decoder) - expected).max() <= 3


# What a camera does to a picture that viewers turn back, by the value of EXIF's orientation.
TURNED = {
    1: [],
    2: [Image.Transpose.FLIP_LEFT_RIGHT],
    3: [Image.Transpose.ROTATE_180],
    4: [Image.Transpose.FLIP_TOP_BOTTOM],
    5: [Image.Transpose.TRANSPOSE],
    6: [Image.Transpose.ROTATE_90],
    7: [Image.Transpose.TRANSVERSE],
    8: [Image.Transpose.ROTATE_270],
    9: [],  # no orientation
}


@pytest.mark.parametrize("decoder", ["pillow", pytest.param("simplejpeg", marks=pytest.mark.simplejpeg)])
@pytest.mark.parametrize("size", [(48, 64), (480, 640)], ids=["small", "decoded at a fraction of its size"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_photographs_are_turned_as_their_orientation_says(tmp_path, decoder, size):
    """Check each orientation of EXIF against the picture that was never turned, also in files that are no JPEG, and
    that damaged EXIF data leave a picture as it is."""
    y, x = np.mgrid[0 : size[0], 0 : size[1]] / np.array(size)[:, None, None]
    upright = Image.fromarray((255 * np.stack([x, y, x * y], axis=-1)).astype(np.uint8))
    upright.save(tmp_path / "upright.png")
    expected = decode(tmp_path / "upright.png", 24, 30).astype(int)
    for orientation, changes in TURNED.items():
        picture, exif = upright, Image.Exif()
        exif[0x0112] = orientation
        for change in changes:
            picture = picture.transpose(change)
        picture.save(tmp_path / "turned.jpg", quality=98, exif=exif)
        picture.save(tmp_path / "turned.png", exif=exif)
        picture.save(tmp_path / "turned.tif", exif=exif)
        for path in tmp_path.glob("turned.*"):
            result = decode(path, 24, 30, decoder)
            assert result.flags.c_contiguous and np.abs(result - expected).max() <= 8, (path, orientation)
    picture.save(tmp_path / "damaged.jpg", quality=98, exif=b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0")
    assert np.abs(decode(tmp_path / "damaged.jpg", 24, 30, decoder) - expected).max() <= 8
    program = (
        "import sys; from forktask.experiments.images.decoding import decode; decode(sys.argv[1], 24, 30, sys.argv[2])"
    )
    assert run_python(program, tmp_path / "damaged.jpg", decoder, check=True).stderr == ""  # no warning of Pillow


@pytest.mark.simplejpeg
def test_decoders_agree(images, tmp_path, monkeypatch):
    """Check pixels of simplejpeg against Pillow's, whole and at a quarter of the size, that other and damaged files are
    Pillow's, and that images of another decoder are packed anew."""
    listing = list_classes(images)
    both = [decode(images / listing.files[0], 40, 50, decoder).astype(int) for decoder in DECODERS]
    assert np.abs(both[0] - both[1]).max() <= 2
    large = Image.open(images / listing.files[0]).resize((720, 540))
    for mode, ending in (("RGB", "jpg"), ("L", "jpg"), ("CMYK", "jpg"), ("RGBA", "png")):
        path = tmp_path / f"large.{ending}"
        large.convert(mode).save(path)
        both = [decode(path, 135, 180, decoder).astype(int) for decoder in DECODERS]
        assert np.abs(both[0] - both[1]).max() <= 2
    path.write_bytes((images / listing.files[0]).read_bytes()[:500])
    with pytest.raises(BrokenImage, match="(?i)truncated"):
        decode(path, 32, 32, "simplejpeg")
    pack(listing, 32, 32, folder=tmp_path / "cache")
    decoded = []
    monkeypatch.setattr(packing, "decode", lambda *arguments: decoded.append(arguments) or decode(*arguments))
    for _ in range(2):
        pack(listing, 32, 32, folder=tmp_path / "cache", decoder="simplejpeg")
    assert len(decoded) == COUNT


def test_training_is_bit_identical_however_images_are_loaded(images, tmp_path):
    """Check weights after two epochs, from memory and from the cache, serial and by overlapping tasks with slots."""
    result = set()
    for load, model, threads in (
        ("memory", "serial", 1),
        ("cache", "serial", 1),
        ("cache", "taskiter", 2),
        ("cache", "taskiter:unroll=2:slots=2", 2),
        ("cache", "forkjoin", 2),
        ("cache", "tasks", 2),
    ):
        for augment in ("none", "flip,crop"):
            if augment == "none" and model in ("forkjoin", "tasks", "taskiter"):
                continue
            out = str(tmp_path / f"{load}-{model}-{augment}")
            run = config(images, tmp_path, load=load, model=model, threads=threads, augment=augment, out=out)
            summary = train(run, report=lambda line: None)
            result.add((augment, summary.seeds[0].parameters_sha256, summary.seeds[0].test_loss))
    assert len(result) == 2


def test_files_can_be_decoded_in_each_step(images, tmp_path, capsys):
    """Check training without a cache, that the plan reads in its loop `read`, and a file that breaks meanwhile."""
    run = config(images, tmp_path, load="files", model="taskiter", threads=2)
    summary = train(run, report=lambda line: None)
    assert np.isfinite(summary.seeds[0].test_loss) and not (tmp_path / "cache").exists()
    data = load_data(run.data, NETWORK, run)
    with Trainer(run, data, 0) as trainer:
        assert [loop.name for loop in trainer.plan.loops if loop.phase == "load"] == ["read", "load"]
        for name in os.listdir(images / "class-0"):
            (images / "class-0" / name).write_bytes(b"nothing")
        with pytest.raises(UsageError, match="cannot be decoded"):
            trainer.train_epoch()
    assert main(["train", "--data", run.data, "--load", "files", "--broken", "skip", "--out", str(tmp_path / "x")]) == 2
    assert "use --broken refuse" in capsys.readouterr().err


def test_broken_images_are_named_or_left_out(images, tmp_path, capsys):
    """Check that a damaged file is named and refused, or left out and counted, and that others stay decoded."""
    name = sorted(os.listdir(images / "class-1"))[3]
    whole = (images / "class-1" / name).read_bytes()
    (images / "class-1" / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BrokenImage, match=rf"class-1/{name} cannot be decoded \(.*truncated.*--broken skip"):
        load_data(f"folder:{images}", NETWORK, options(tmp_path))
    run = config(images, tmp_path, broken="skip", epochs=1)
    lines = []
    summary = train(run, report=lines.append)
    assert lines[0] == f"left out: 1 image that cannot be decoded, 'class-1/{name}' first" == summary.data_note
    data = load_data(run.data, NETWORK, run)
    assert len(data.train) + len(data.valid) + len(data.test) == COUNT - 1
    with pytest.raises(BrokenImage, match=name):
        load_data(f"folder:{images}", NETWORK, options(tmp_path))
    (images / "class-1" / name).write_bytes(whole)
    assert len(load_data(f"folder:{images}", NETWORK, options(tmp_path)).images) == COUNT


def there(tmp_path):
    """Number of images in the cache whose entries are whole."""
    paths = [*(tmp_path / "cache").glob("*.packed")]
    records = np.fromfile(paths[0], RECORD) if paths else []
    return sum(int(record["entry"]["own"] == packing._own_checksum(record["entry"])) for record in records)


def test_processes_killed_at_random_leave_a_cache_that_is_completed(images, tmp_path):
    """Check kill -9 at seeded moments, before, between and after images: each process goes on where the last one was,
    and the file ends as one that was written without a break."""
    listing = list_classes(images)
    pack(listing, 32, 32, folder=tmp_path / "whole")
    (whole,) = (tmp_path / "whole").iterdir()
    program = f"""
    import os, signal, sys, threading
    from pathlib import Path
    from forktask.experiments.images import packed
    from forktask.experiments.images.listing import list_classes
    left, pwrite, decode, lock = int(sys.argv[1]), os.pwrite, packed.decode, threading.Lock()
    def killed_when_none_is_left(file, content, start):
        global left
        with lock:
            left -= 1
            if left < 0:
                pwrite(file, bytes(content)[: len(content) // 2], start)
                os.kill(os.getpid(), signal.SIGKILL)
        return pwrite(file, content, start)
    def counted(*arguments):
        print("one", flush=True)
        return decode(*arguments)
    os.pwrite, packed.decode = killed_when_none_is_left, counted
    folder = Path({str(tmp_path / "cache")!r})
    packed.pack(list_classes(Path({str(images)!r})), 32, 32, folder=folder, threads=2)
    """
    moments = np.random.default_rng(16).integers(0, 12, 40).tolist()
    kills = 0
    for moment in moments:
        before = there(tmp_path)
        result = run_python(textwrap.dedent(program), moment)
        if result.returncode == 0:
            break
        assert result.returncode == -signal.SIGKILL, result.stderr
        assert before <= there(tmp_path) <= before + moment
        kills += 1
    assert kills >= 4 and result.stdout.count("one") == COUNT - before
    assert packed_file(tmp_path).read_bytes() == whole.read_bytes()
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".packed"]


def test_processes_that_pack_together_wait_for_each_other(images, tmp_path):
    """Check that each image is decoded by one of two processes, and that both read all of them."""
    program = f"""
    from pathlib import Path
    from forktask.experiments.images import packed
    from forktask.experiments.images.listing import list_classes
    decode = packed.decode
    def counted(*arguments):
        print("one", flush=True)
        return decode(*arguments)
    packed.decode = counted
    found = packed.pack(list_classes(Path({str(images)!r})), 32, 32, folder=Path({str(tmp_path / "cache")!r}))
    print("sum", sum(int(found.get(number).sum()) for number in range({COUNT})))
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(program)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    texts = [process.communicate()[0] for process in both]
    assert sum(text.count("one") for text in texts) == COUNT
    assert len({text.splitlines()[-1] for text in texts}) == 1 and "sum" in texts[0]


def test_files_that_come_and_go_cost_their_own_decoding_alone(images, tmp_path, monkeypatch):
    """Check that a listing with other files keeps the images that both have, that what it adds lies behind them, and
    that who reads the images of the old listing keeps them."""
    listing = list_classes(images)
    result = pack(listing, 32, 32, folder=tmp_path / "cache")
    expected = [result.get(number) for number in range(COUNT)]
    content = packed_file(tmp_path).read_bytes()
    (images / listing.files[7]).unlink()
    Image.fromarray(np.full((50, 50, 3), 9, np.uint8)).save(images / "class-2" / "new.jpg")
    decoded = []
    monkeypatch.setattr(packing, "decode", lambda *arguments: decoded.append(arguments[0].name) or decode(*arguments))
    changed = list_classes(images)
    later = pack(changed, 32, 32, folder=tmp_path / "cache")
    assert decoded == ["new.jpg"] and packed_file(tmp_path).read_bytes().startswith(content)
    for number, name in enumerate(changed.files):
        assert (later.get(number) == decode(images / name, 32, 32)).all()
    for number in range(COUNT):
        assert (result.get(number) == expected[number]).all()


def test_names_may_be_any_bytes(tmp_path):
    """Check a class and an image whose names are no UTF-8, from the command line to the report."""
    images = write_thumbnails(tmp_path / "photos", COUNT, 48, 64, classes=4) / "images"
    (images / "class-0").rename(images / os.fsdecode(b"caf\xe9"))
    first = images / "class-1" / sorted(os.listdir(images / "class-1"))[0]
    first.rename(first.with_name(os.fsdecode(b"\xff.jpg")))
    assert main(["train", *training_of(images, tmp_path), "--load", "cache"]) == 0
    os.truncate(first.with_name(os.fsdecode(b"\xff.jpg")), 100)
    with pytest.raises(BrokenImage, match="\udcff.jpg cannot be decoded"):
        load_data(f"folder:{images}", NETWORK, options(tmp_path))
    assert main(["train", *training_of(images, tmp_path), "--out", str(tmp_path / "other"), "--broken", "skip"]) == 0


def training_of(images, tmp_path):
    """Arguments of a training of one epoch."""
    arguments = {"data": f"folder:{images}", "cache": tmp_path / "cache", "out": tmp_path / "run", "model": "serial"}
    arguments |= {"threads": 1, "epochs": 1, "batch": 8, "learning-rate": 0.001}
    return [word for name, value in arguments.items() for word in (f"--{name}", str(value))]


def test_flipped_bits_are_found(images, tmp_path):
    """Check that a bit of the pixels is found when they are read, one of an entry when the file is opened."""
    listing = list_classes(images)
    pack(listing, 32, 32, folder=tmp_path / "cache")
    path = packed_file(tmp_path)
    good = path.read_bytes()

    def with_flipped(byte):
        content = bytearray(good)
        content[byte] ^= 4
        path.write_bytes(content)
        return pack(listing, 32, 32, folder=tmp_path / "cache")

    result = with_flipped(len(good) - ENTRY.itemsize - 5)
    for number in range(COUNT - 1):
        result.get(number)
    with pytest.raises(UsageError, match=f"damaged: the pixels of '{listing.files[-1]}'.*delete it"):
        result.get(COUNT - 1)
    with pytest.raises(UsageError, match="is damaged"):
        load_data(f"folder:{images}", NETWORK, options(tmp_path))
    for byte in (3, 20, ENTRY.itemsize - 1):
        byte += 5 * RECORD.itemsize - ENTRY.itemsize
        with_flipped(byte)
        assert path.read_bytes() == good


def test_a_full_disk_is_known_before_anything_is_decoded(images, tmp_path, monkeypatch):
    """Check one sentence with the room that is needed, and that no file is left behind."""

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UsageError, match="packed images need .*No space left.*--cache"):
        pack(list_classes(images), 32, 32, folder=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    # Taking what there is until no more is left would disturb others, and leave nothing to report.
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: pytest.fail("the disk is filled"))
    monkeypatch.setattr(os, "statvfs", lambda path: types.SimpleNamespace(f_bavail=3, f_frsize=4096))
    with pytest.raises(UsageError, match="which has 12 KiB free .No space left"):
        pack(list_classes(images), 32, 32, folder=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_augmentation_depends_on_seed_image_and_epoch_alone():
    """Check flips and moves against their definition, and that they repeat for the same seed, image and epoch."""
    image = np.arange(2 * 16 * 24, dtype=np.float32).reshape(2, 16, 24) + 1
    seen = {}
    for seed in (0, 1):
        for epoch in (3, 0, 3):
            augmentation = Augmentation(parse("flip,crop"), seed, 50, 16, 24)
            augmentation.begin(epoch)
            outputs = []
            for number in range(50):
                out = np.full_like(image, np.nan)
                put(image, None, *augmentation.of(number), out)
                flipped, down, right = augmentation._table[number].tolist()
                assert abs(down) <= 2 and abs(right) <= 3
                padded = np.pad(image[:, :, :: -1 if flipped else 1], ((0, 0), (2, 2), (3, 3)))
                assert (out == padded[:, 2 - down : 18 - down, 3 - right : 27 - right]).all()
                outputs.append(out)
            key = seed, epoch
            assert key not in seen or np.array_equal(seen[key], outputs)
            seen[key] = outputs
    assert not np.array_equal(seen[0, 0], seen[0, 3]) and not np.array_equal(seen[0, 0], seen[1, 0])
    flips = [bool((out[0, 8, 12] > out[0, 8, 13]) and out[0, 8, 13]) for out in seen[0, 0]]
    assert 10 < sum(flips) < 40
    with pytest.raises(UsageError, match="augment must be none or some of flip, crop; got 'rotate'"):
        TrainingConfig(augment="rotate")


def test_training_stays_within_the_memory_limit(tmp_path):
    """Check the peak of a process that trains and evaluates on 334 MiB of images with a limit of 300 MiB."""
    images = write_thumbnails(tmp_path / "photos", 300, 24, 32) / "images"
    run = config(images, tmp_path, network="starpu_cnn", image_size="270x360", load="cache", epochs=1, batch=2)
    run = run.with_changes(memory_limit="300MiB", learning_rate=1e-4, augment="flip")
    job = {"stages": [run.as_dict()], "folder": str(tmp_path / "out"), "cpus": None}
    result = measure_in_process(job, {}, 300.0, COMMAND)
    assert "failure" not in result, result
    (seed,) = result["stages"][0]["summary"]["seeds"]
    assert 100 << 20 < seed["peak_bytes"] < 300 << 20
    with pytest.raises(UsageError, match="evaluating need .*, the memory limit is 150 MiB"):
        train(run.with_changes(memory_limit="150MiB", out=str(tmp_path / "refused")), report=lambda line: None)


def test_images_that_break_during_training_lose_nothing(images, tmp_path):
    """Check the sentence for a file that breaks after the first epoch, that the epoch is kept, that the run does not
    go on without the file, and that with it, whole again, it leaves the bits of a run without a break."""
    run = config(images, tmp_path, load="files", model="taskiter", threads=2, epochs=3)
    whole = train(run.with_changes(out=str(tmp_path / "whole")), report=lambda line: None)
    path = images / list_classes(images).files[5]
    content = path.read_bytes()
    lines = []

    def breaking(line):
        lines.append(line)
        if line.startswith("seed 0  epoch   1"):
            path.write_bytes(content[:300])

    sentence = f"{path.name} cannot be decoded .*; repair it; whole epochs are kept, .*train --resume --out {run.out}"
    with pytest.raises(UsageError, match=sentence):
        train(run, report=breaking)
    assert len((tmp_path / "run" / "epochs.csv").read_text().splitlines()) == 2
    path.unlink()
    with pytest.raises(UsageError, match="samples differ"):
        train(run, resume=True, report=lines.append)
    path.write_bytes(content)
    result = train(run, resume=True, report=lines.append)
    assert result.seeds[0].parameters_sha256 == whole.seeds[0].parameters_sha256


def test_splits_and_classes_without_a_readable_image_are_refused(images, tmp_path):
    """Check one sentence where all images of a named split are left out, since others would take their place in
    silence, and where those of a class are."""
    data = tmp_path / "data"
    for split in ("train", "test"):
        (data / split).parent.mkdir(exist_ok=True)
        (images.rename(data / split) if split == "train" else data / split).mkdir(exist_ok=True)
    for label in os.listdir(data / "train"):
        (data / "test" / label).mkdir()
        (data / "test" / label / "1.jpg").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="some images of each split must be readable, got none of the 4 of test"):
        load_data(f"folder:{data}", NETWORK, options(tmp_path, broken="skip"))
    shutil.rmtree(data / "test")
    for path in (data / "train" / "class-2").iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(UsageError, match="training images of each class must be readable, got none of class 'class-2'"):
        load_data(f"folder:{data}", NETWORK, options(tmp_path, broken="skip"))
