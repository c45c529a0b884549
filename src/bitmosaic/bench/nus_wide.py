"""NUS-WIDE's low-level features and ground truth, text files as its page gives them -> views with one class a row.

Chua et al., NUS-WIDE: A Real-World Web Image Database from National University of Singapore, CIVR 2009. An image has
any number of 81 concepts. As in the HSIC paper, the most frequent 21 count, and images with none of them are left
out. Of several, the paper takes "one of the most representative" and does not say which; here it is the rarest of
them, since sky and person, which a third of the images show, say least about an image.
"""

import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyarrow import ArrowInvalid, csv, float32

from bitmosaic.bench.selection import called
from bitmosaic.errors import FileFormatError, InvalidDataError, MissingFileError, ParameterError
from bitmosaic.files import megabytes
from bitmosaic.images import Progress, quiet
from bitmosaic.views import Views

WIDTHS = {"CH": 64, "CM55": 225, "CORR": 144, "EDH": 73, "WT": 128}
VIEWS = {"CH": "ch", "CM55": "cm", "CORR": "corr", "EDH": "edh", "WT": "wt"}  # as our own extractors are called
CONCEPTS = 21
BLOCK = 16 * 2**20  # bytes of text
_FEATURES = re.compile(r"(?:(Train|Test)_)?Normalized_(CH|CM55|CORR|EDH|WT)(?:_Lite_(Train|Test))?\.dat")
_LABELS = re.compile(r"(?:Lite_)?Labels_(.+?)(?:_(Train|Test))?\.txt")
_LIST = re.compile(r"Concepts\d*\.txt")


@dataclass
class Files:
    """What was found. A part is Train, Test, or "" for the files of all images."""

    features: dict[tuple[str, str], Path] = field(default_factory=dict)  # part, feature
    labels: dict[tuple[str, str], Path] = field(default_factory=dict)  # part, concept
    lists: dict[tuple[str, str], Path] = field(default_factory=dict)

    def all(self) -> list[Path]:
        return sorted({*self.features.values(), *self.labels.values(), *self.lists.values()})


def has_features(folder: Path, depth: int = 3) -> bool:
    """Whether a file of features lies in a folder or a little below; in one of a million pictures, that is quick."""
    with os.scandir(folder) as entries:
        there = [entry for entry in entries if not entry.name.startswith(".")]
    if any(_FEATURES.fullmatch(entry.name) for entry in there):
        return True
    return depth > 1 and any(has_features(Path(entry.path), depth - 1) for entry in there if entry.is_dir())


def find_files(folder: Path) -> Files:
    """Every file of NUS-WIDE or NUS-WIDE-Lite in a folder and below, by its name."""
    found = Files()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if match := _FEATURES.fullmatch(name):
                kind, key = found.features, (match[1] or match[3] or "", match[2])
            elif match := _LABELS.fullmatch(name):
                kind, key = found.labels, (match[2] or "", match[1])
            elif _LIST.fullmatch(name):
                kind, key = found.lists, ("", "")
            else:
                continue
            if kind is not found.lists and key in kind:
                raise InvalidDataError(
                    f"Each file of NUS-WIDE must be there once; {called(kind[key])} and {called(Path(root, name))} are "
                    "the same part. Choose a folder with one of them."
                )
            kind[key] = Path(root, name)
    return found


def read_nus_wide(folder: Path, n_concepts: int = CONCEPTS, progress: Progress = quiet) -> Views:
    """The five views of the images with one of the most frequent concepts. Train comes before Test where split."""
    files = find_files(folder)
    parts = _parts(files, folder)
    concepts = _concepts(files, parts)
    if not 2 <= n_concepts <= len(concepts):
        raise ParameterError(
            f"concepts must be from 2 to {len(concepts)}, those in {called(folder)}; got {n_concepts}."
        )
    flags = {part: _flags(files, part, concepts) for part in parts}  # each (n, concepts)
    counts = sum(of_part.sum(axis=0) for of_part in flags.values())
    rarest_first = np.argsort(-np.asarray(counts), kind="stable")[:n_concepts][::-1]
    frequent = {part: flags[part][:, rarest_first] for part in parts}
    keep: dict[str, np.ndarray] = {part: np.any(frequent[part], axis=1) for part in parts}
    n_rows = sum(int(rows.sum()) for rows in keep.values())
    if n_rows == 0:
        raise InvalidDataError(f"Some images must have a concept; all label files in {called(folder)} hold only 0.")
    labels = np.concatenate([rarest_first[frequent[part][keep[part]].argmax(axis=1)] for part in parts])
    done, total = 0, sum(files.features[part, name].stat().st_size for part in parts for name in WIDTHS)

    def read(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        progress("reading features (MB)", megabytes(done), megabytes(total))

    arrays = []
    for name, width in WIDTHS.items():
        array = np.empty((n_rows, width), np.float32)
        filled = 0
        for part in parts:
            n_part = int(keep[part].sum())
            _read_features(files.features[part, name], keep[part], array[filled : filled + n_part], read)
            filled += n_part
        arrays.append(array)
    return Views(tuple(VIEWS.values()), tuple(arrays), labels=np.array(concepts)[labels])


def _parts(files: Files, folder: Path) -> list[str]:
    """The parts to read: all images in one, or else what there is of Train and Test. Every view must be there."""
    whole = all(("", name) in files.features for name in WIDTHS) and any(part == "" for part, _ in files.labels)
    split = [part for part in ("Train", "Test") if any(found == part for found, _ in files.features)]
    parts = [""] if whole or not split else split
    missing = [
        f"{part}_Normalized_{name}.dat".removeprefix("_")
        for part in parts
        for name in WIDTHS
        if (part, name) not in files.features
    ]
    missing += [
        f"Labels_CONCEPT_{part}.txt".replace("_.", ".")
        for part in parts
        if not any(found == part for found, _ in files.labels)
    ]
    if missing:
        raise MissingFileError(
            "NUS-WIDE is Low_Level_Features with Normalized_CH, CM55, CORR, EDH and WT.dat and Groundtruth with "
            f"Labels_CONCEPT.txt, each whole or as Train and Test; {called(folder)} lacks {', '.join(missing)}. "
            "Unpack the rest beside it."
        )
    return parts


def _concepts(files: Files, parts: list[str]) -> list[str]:
    """In the order of the list of concepts where it is there, otherwise in that of the alphabet."""
    found = [{concept for part, concept in files.labels if part == wanted} for wanted in parts]
    if files.lists:
        path = files.lists["", ""]
        concepts = list(dict.fromkeys(path.read_text(encoding="utf-8", errors="replace").split()))
    else:
        path, concepts = Path("Groundtruth"), sorted(set.union(*found))
    for part, have in zip(parts, found, strict=True):
        if missing := [concept for concept in concepts if concept not in have]:
            raise MissingFileError(
                f"Every concept must have a label file{f' for {part}' if part else ''}; of {len(concepts)} in "
                f"{called(path)}, {len(missing)} have none, such as {missing[0]}. Unpack Groundtruth again."
            )
    return concepts


def _flags(files: Files, part: str, concepts: list[str]) -> np.ndarray:
    """(n, concepts) whether an image of this part has a concept."""
    columns = [_read_flags(files.labels[part, concept]) for concept in concepts]
    for concept, column in zip(concepts, columns, strict=True):
        if len(column) != len(columns[0]):
            raise FileFormatError(
                f"All label files must have as many lines; {called(files.labels[part, concepts[0]])} has "
                f"{len(columns[0]):,}, {called(files.labels[part, concept])} {len(column):,}. One may be cut: unpack "
                "it again."
            )
    return np.stack(columns, axis=1)


def _read_flags(path: Path) -> np.ndarray:
    """(n,) of a text with 0 or 1 on each line."""
    text = np.frombuffer(path.read_bytes().strip().replace(b"\r", b"").replace(b" ", b"") + b"\n", np.uint8)
    flags, ends = text[::2], text[1::2]
    if len(flags) != len(ends) or np.any(ends != ord("\n")) or np.any((flags != ord("0")) & (flags != ord("1"))):
        raise FileFormatError(
            f"A label file of NUS-WIDE has 0 or 1 on each line; {called(path)} has something else. Unpack it again."
        )
    return flags == ord("1")


def _read_features(path: Path, keep: np.ndarray, out: np.ndarray, read: Callable[[int], None]) -> None:
    """The rows to keep, into `out`; `read` is told the bytes that are done."""
    first = filled = 0
    for block in _blocks(path, read):
        rows = _parse(block, out.shape[1], path, first)
        kept = rows[: max(0, len(keep) - first)][keep[first : first + len(rows)]]
        out[filled : filled + len(kept)] = kept
        first, filled = first + len(rows), filled + len(kept)
    if first != len(keep):
        raise FileFormatError(
            f"A feature file must have a line for each image, {len(keep):,} as the label files say; {called(path)} has "
            f"{first:,}. It may be cut, or of another part: unpack it again."
        )


def _blocks(path: Path, read: Callable[[int], None]) -> Iterator[bytes]:
    """Whole lines, numbers apart by one space each. The real files end their lines with a space."""
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(BLOCK):
            read(len(chunk))
            text, _, rest = (rest + chunk).rpartition(b"\n")
            yield _single_spaces(text)
    yield _single_spaces(rest)


def _single_spaces(text: bytes) -> bytes:
    text = text.replace(b"\t", b" ").replace(b"\r", b"")
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    return text.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip()


def _parse(text: bytes, width: int, path: Path, first: int) -> np.ndarray:
    """(n, width) float32; `first` is the number of lines before."""
    if not text:
        return np.empty((0, width), np.float32)
    names = [str(column) for column in range(width)]
    try:
        table = csv.read_csv(
            io.BytesIO(text),
            csv.ReadOptions(column_names=names, block_size=len(text) + 1),
            csv.ParseOptions(delimiter=" ", quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(names, float32()), null_values=[]),
        )
    except ArrowInvalid as error:
        lines = enumerate(text.split(b"\n"), first + 1)
        wrong = next(((number, n) for number, line in lines if (n := len(line.split())) != width), None)
        what = f"{wrong[1]} on line {wrong[0]:,}" if wrong else str(error).partition("\n")[0]
        raise FileFormatError(
            f"{path.name} must have {width} numbers on each line; {called(path)} has {what}. It may be cut or of other "
            "features: unpack it again."
        ) from error
    rows = np.empty((table.num_rows, width), np.float32)
    for column in range(width):
        rows[:, column] = table.column(column).to_numpy()
    return rows
