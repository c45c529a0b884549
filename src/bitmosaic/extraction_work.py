"""The hidden folder in which an extraction grows: what has been extracted survives a kill."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bitmosaic.digests import SIZE
from bitmosaic.files import LOCK, megabytes, remove, write_json, writing
from bitmosaic.images import ImageSource, Progress
from bitmosaic.reading import read_json
from bitmosaic.views import Views, write_views


class Work:
    """The hidden folder in which an extraction grows. What its state does not count is cut off when it goes on."""

    def __init__(self, folder: Path, recipe: dict[str, Any], widths: dict[str, int]):
        self.folder, self.recipe, self.widths = folder, recipe, widths
        self._files: dict[str, BinaryIO] = {}
        with writing(folder):
            self.next, self.rows, self.skipped, self.known = self._counted() or self._begin()
            for name, size in self._sizes(self.rows, self.skipped, self.known).items():
                self._files[name] = (folder / name).open("ab")
                self._files[name].truncate(size)

    def _sizes(self, rows: int, skipped: int, known: int) -> dict[str, int]:
        """How many bytes of each file count."""
        sizes = {f"{name}.f32": 4 * width * rows for name, width in self.widths.items()}
        sizes |= {"positions.i64": 8 * rows, "digests.u8": SIZE * rows}
        return sizes | {"skipped.jsonl": skipped, "known.jsonl": known}

    def _counted(self) -> tuple[int, int, int, int] | None:
        """How far this extraction has come, None if it must begin: nothing is there, or not all that should be."""
        try:
            state = read_json(self.folder / "state.json")
            counted = upto, rows, skipped, known = state["next"], state["rows"], state["skipped"], state["known"]
            if state["recipe"] != self.recipe or not all(type(count) is int and count >= 0 for count in counted):
                return None
            files = {self.folder / name: size for name, size in self._sizes(rows, skipped, known).items()}
            if not all(path.is_file() and path.stat().st_size >= size for path, size in files.items()):
                return None
            n_left = sum(
                len(read_pairs((self.folder / name).read_bytes()[:size]))
                for name, size in (("skipped.jsonl", skipped), ("known.jsonl", known))
            )
            positions = np.fromfile(self.folder / "positions.i64", "<i8", rows)
            fits = rows + n_left == upto <= self.recipe["pictures"] and (np.diff(positions) > 0).all()
            return counted if fits and (not rows or 0 <= positions[0] <= positions[-1] < upto) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _begin(self) -> tuple[int, int, int, int]:
        for entry in self.folder.iterdir():
            if not entry.is_dir() and entry.name != LOCK:
                entry.unlink()
        return 0, 0, 0, 0

    def close(self) -> None:
        """What a full disk kept from being written must not follow later: others may have gone on by then."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()

    def collected(self) -> tuple[np.ndarray, np.ndarray]:
        """The positions and digests of the rows so far."""
        positions = np.fromfile(self.folder / "positions.i64", "<i8", self.rows)
        return positions, np.fromfile(self.folder / "digests.u8", np.uint8, SIZE * self.rows).reshape(-1, SIZE)

    def append(self, positions, features, digests, skipped=(), known=()) -> None:
        """Add a batch; it counts once the state says so. Pictures are skipped for a cause, or known as another."""
        lines = {
            name: [json.dumps(pair).encode() + b"\n" for pair in pairs]
            for name, pairs in (("skipped.jsonl", skipped), ("known.jsonl", known))
        }
        with writing(self.folder):
            for name, texts in lines.items():
                self._files[name].writelines(texts)
            self._files["positions.i64"].write(positions.astype("<i8").tobytes())
            self._files["digests.u8"].write(digests.tobytes())
            for name, rows in zip(self.widths, features, strict=True):
                self._files[f"{name}.f32"].write(rows.astype("<f4", copy=False).tobytes())
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
        self.next += len(positions) + len(skipped) + len(known)
        self.rows += len(positions)
        self.skipped += sum(map(len, lines["skipped.jsonl"]))
        self.known += sum(map(len, lines["known.jsonl"]))
        counts = {"next": self.next, "rows": self.rows, "skipped": self.skipped, "known": self.known}
        write_json(self.folder / "state.json", {"recipe": self.recipe} | counts)

    def left_out(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Pictures that could not be read, with their causes, and known ones, with the path of the same."""
        skipped, known = (read_pairs((self.folder / name).read_bytes()) for name in ("skipped.jsonl", "known.jsonl"))
        return skipped, known

    def finish(self, source: ImageSource, labels: np.ndarray | None, progress: Progress) -> Path:
        """Make a views folder of what has been collected; returns where. `labels` are those of all of the source."""
        self.close()
        positions, digests = self.collected()
        arrays = tuple(
            np.memmap(self.folder / f"{name}.f32", "<f4", mode="r", shape=(self.rows, width))
            for name, width in self.widths.items()
        )
        views = Views(
            tuple(self.widths),
            arrays,
            labels=None if labels is None else labels[positions],
            paths=tuple(source.paths[i] for i in positions),
        )
        whole = self.folder / "views"
        with writing(whole):
            if whole.exists():
                remove(whole)
        write_views(
            whole,
            views,
            digests=digests,
            progress=lambda done, total: progress("writing features (MB)", megabytes(done), megabytes(total)),
        )
        return whole


def read_pairs(content: bytes) -> list[tuple[str, str]]:
    """Paths with causes or other paths, a pair a line; a ValueError where there is anything else."""
    try:
        lines = [json.loads(line) for line in content.splitlines()]
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not all(isinstance(line, list) and [*map(type, line)] == [str, str] for line in lines):
        raise ValueError("a pair is missing")
    return [(path, other) for path, other in lines]
