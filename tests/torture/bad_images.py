"""Damaged and hostile images and archives: each is read or skipped with its cause, within a memory limit.

The files are read in a process of its own with a hard limit on its memory. A crash of that process, a traceback other
than one of `BitmosaicError`, an image above the requested size, or a new file on disk is a failure.
"""

import gzip
import io
import json
import os
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from image_files import SUFFIXES, encoded, png_claiming, png_with_text_bomb, sample_image

from torture.tally import Tally

MEMORY = 2**30  # bytes above those of the libraries
SECONDS = 1200
MAX_SIDE = 64
IMAGES, ARCHIVES = "damaged images, read or skipped with their cause", "damaged archives, read or refused"


def tallies(effort):
    for what, seeds in ((IMAGES, image_seeds()), (ARCHIVES, archive_seeds())):
        tally = Tally(what)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "files"
            write_mutants(folder, seeds, effort.mutants)
            names = sorted(os.listdir(folder))
            read_in_a_process(folder, tally)
            if sorted(os.listdir(folder)) != names or os.listdir(place) != ["files"]:
                tally.losses.append("files were created, renamed or removed while images were read")
        yield tally


def image_seeds():
    small = sample_image(0, 12, 16)
    files = {f"image.{suffix}": encoded(small, name) for name, suffix in SUFFIXES.items()}
    files["lzw.tiff"] = encoded(small, "TIFF", compression="tiff_lzw")
    files["progressive.jpg"] = encoded(small, "JPEG", progressive=True)
    files["bomb.png"] = png_claiming(60_000, 60_000)
    files["text-bomb.png"] = png_with_text_bomb()
    return files


def archive_seeds():
    image = encoded(sample_image(0, 12, 16))
    names = ("a/1.png", "b/2.png", "../3.png", "/4.png", "l" * 120 + ".png")
    zipped, deflated, tarred = io.BytesIO(), io.BytesIO(), io.BytesIO()
    for file, method in ((zipped, zipfile.ZIP_STORED), (deflated, zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(file, "w", method) as archive:
            for name in names:
                archive.writestr(name, image)
    with tarfile.open(fileobj=tarred, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(image)
            archive.addfile(member, io.BytesIO(image))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"special-{kind.decode()}.png")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    tar = tarred.getvalue()
    return {
        "stored.zip": zipped.getvalue(),
        "deflated.zip": deflated.getvalue(),
        "plain.tar": tar,
        "packed.tar.gz": gzip.compress(tar, mtime=0),
    }


def write_mutants(folder, seeds, n_each):
    """Each seed as it is, and `n_each` damaged copies of it: the same ones in every run."""
    dice = random.Random(0)
    folder.mkdir()
    for name, content in seeds.items():
        (folder / name).write_bytes(content)
        for number in range(n_each):
            (folder / f"{number:04}-{name}").write_bytes(damaged(content, dice))


def damaged(content, dice):
    """Some bytes changed, and now and then a part removed or repeated. The first bytes decide the format and stay."""
    changed = bytearray(content)
    for _ in range(dice.choice([1, 2, 8, 32])):
        changed[dice.randrange(4, len(changed))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
    if dice.random() < 0.3:
        first, last = sorted(dice.randrange(4, len(changed)) for _ in range(2))
        changed[first:last] = dice.choice([b"", bytes(changed[first:last]) * 2])
    return bytes(changed)


def read_in_a_process(folder, tally):
    """Read every file; a file on which the process dies is noted, and the next process continues after it."""
    paths = sorted(map(str, folder.iterdir()))
    here = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)])}
    while paths:
        done = subprocess.run(
            [sys.executable, "-m", "torture.bad_images"],
            input="\n".join(paths),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=environment,
            check=False,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        tally.tried += len(answers)
        tally.crashes += [
            f"{Path(path).name}: {answer}" for path, answer in zip(paths, answers, strict=False) if answer
        ]
        paths = paths[len(answers) :]
        if done.returncode or not answers:
            died = paths.pop(0) if paths else "no file"
            tally.crashes.append(f"{died}: the process ended with {done.returncode}: {done.stderr[-600:]}")


# ---- in the process that reads


def main():
    from bitmosaic.errors import BitmosaicError

    paths = sys.stdin.read().splitlines()
    read(paths[0])  # load the libraries before the limit
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    for path in paths:
        try:
            problem = read(path)
        except BitmosaicError as error:
            problem = "" if "\n" not in str(error) else f"more than one line: {error}"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        print(json.dumps(problem), flush=True)


def read(path):
    """What is wrong with what was read, or an empty string."""
    from bitmosaic.images import open_images
    from bitmosaic.images.decode import cause_of

    source = open_images(path)
    n_told = 0
    for batch in source.batches(4, max_side=MAX_SIDE, n_threads=1):
        n_told += len(batch.images) + len(batch.skipped)
        for image in batch.images:
            if image.ndim != 3 or max(image.shape) > MAX_SIDE:
                return f"an image of shape {image.shape}"
        for _, skipped in batch.skipped:
            if not skipped.cause or "\n" in skipped.cause or skipped.cause == cause_of(MemoryError()):
                return f"skipped: {skipped.cause!r}"
    return "" if n_told == len(source) else f"{n_told} of {len(source)} images are read or skipped"


if __name__ == "__main__":
    main()
