"""The edit log of a run: names, merges and moves made by hand. The tables of the run are not changed.

The first line of edits.jsonl has a hash of the labels that it belongs to. Each further line is an edit. Lines are only
appended, except that a line left incomplete by a killed process is cut off. The edits are:
  {"do": "name", "cluster": 3, "name": "cats"}              an empty name removes the name
  {"do": "merge", "clusters": [3, 5], "into": 3}
  {"do": "move", "rows": [17, 4], "to": 3}                   the next unused number creates a cluster
  {"do": "undo"}                                             undoes the last edit that is not undone yet
An edit also has its time under "at". The version of the clusters is the number of edits in the log.
"""

import errno
import hashlib
import json
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from reprlib import repr as brief
from typing import Any

import numpy as np

from bitmosaic.errors import (
    BitmosaicError,
    FileFormatError,
    InvalidDataError,
    StaleEditError,
    UnwritableFileError,
    UnwritableLogError,
)
from bitmosaic.io.files import locked, sync_folder

FILE = "edits.jsonl"
FORMAT, VERSION = "bitmosaic-edits", 1
LONGEST_NAME = 120
LONGEST = 2**25  # bytes of a line; the explorer accepts edits of up to 16 MB

Edit = dict[str, Any]
UNDO: Edit = {"do": "undo"}
_MOVE_AWAY = "Move the file away to start without edits."
LOCK_WAIT = 1.0  # seconds; another process holds the lock of a run only briefly to write an edit


@dataclass
class Edited:
    """Labels and names after some edits."""

    labels: np.ndarray  # (n,) int32
    n_numbers: int  # cluster numbers used so far, including those of clusters that became empty
    names: dict[int, str] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)  # clusters whose members were changed

    def apply(self, edit: Edit) -> None:
        if edit["do"] == "name":
            self.names.pop(edit["cluster"], None)
            if edit["name"]:
                self.names[edit["cluster"]] = edit["name"]
        elif edit["do"] == "merge":
            self._put(np.isin(self.labels, edit["clusters"]), edit["into"])
            for number in set(edit["clusters"]) - {edit["into"]}:
                self.names.pop(number, None)
        else:
            self._put(np.array(edit["rows"], np.int64), edit["to"])
            self.n_numbers = max(self.n_numbers, edit["to"] + 1)

    def _put(self, rows: np.ndarray, number: int) -> None:
        self.touched |= {number, *np.unique(self.labels[rows]).tolist()}
        self.labels[rows] = number

    def affected(self, edit: Edit) -> set[int]:
        """The clusters that an edit changes."""
        if edit["do"] == "name":
            return {edit["cluster"]}
        if edit["do"] == "merge":
            return set(edit["clusters"])
        return {edit["to"], *np.unique(self.labels[edit["rows"]]).tolist()}

    def check(self, edit: Any) -> Edit:
        """The edit in the form of the log. Raises an error if it is not possible. `to` None creates a cluster."""
        match edit:
            case {"do": "name", "cluster": int(number), "name": str(name)}:
                self._require_clusters([number])
                name = " ".join(name.split())
                if len(name) > LONGEST_NAME or not name.isprintable():  # surrogates are not printable
                    raise InvalidDataError(
                        f"A cluster name has at most {LONGEST_NAME} printable characters; got {len(name)} characters. "
                        "Shorten it, and remove control characters."
                    )
                return {"do": "name", "cluster": number, "name": name}
            case {"do": "merge", "clusters": [*numbers], "into": int(into)} if into in numbers:
                self._require_clusters(numbers)
                if len(set(numbers)) < 2:
                    raise InvalidDataError("A merge needs at least two clusters; got one. Select another one.")
                return {"do": "merge", "clusters": sorted(set(numbers)), "into": int(into)}
            case {"do": "move", "rows": [_, *_] as rows, "to": to} if to is None or type(to) is int:
                if not all(type(row) is int and 0 <= row < len(self.labels) for row in rows):
                    raise InvalidDataError(
                        f"Images have the numbers 0 to {len(self.labels) - 1}; got other values. Check the rows."
                    )
                if to not in (None, self.n_numbers):
                    self._require_clusters([to])
                others = sorted({row for row in rows if self.labels[row] != to})
                if not others:
                    raise InvalidDataError(f"All of these images are in cluster {to} already. Choose another cluster.")
                return {"do": "move", "rows": others, "to": self.n_numbers if to is None else to}
        raise InvalidDataError(
            f"An edit names a cluster, merges clusters, moves images or undoes an edit; got {brief(edit):.80}."
        )

    def _require_clusters(self, numbers: list[Any]) -> None:
        sizes = np.bincount(self.labels)
        for number in numbers:
            if type(number) is not int or not 0 <= number < len(sizes) or not sizes[number]:
                raise InvalidDataError(f"There is no cluster {number!r:.20} with images in it. Choose another one.")


class EditLog:
    """The edit log of a run folder. The file may not exist yet, and other processes may append to it."""

    def __init__(self, folder: Path, labels: np.ndarray, n_clusters: int, fitted: np.ndarray | None = None):
        """`fitted`: the labels of the last fit, to which the log belongs. By default all labels."""
        self.path = folder / FILE
        self._writing = threading.Lock()
        self.labels, self.n_clusters = labels, n_clusters
        self.head = _head(labels if fitted is None else fitted)

    def entries(self) -> list[Edit]:
        """All edits in the log, including undos and undone edits. Their number is the version of the clusters."""
        try:
            return self._read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FileFormatError(f"{self.path} cannot be read ({error.strerror}). Check its permissions.") from error

    def _read(self) -> list[Edit]:
        head, entries = None, list[Edit]()
        try:
            for line in self.path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):  # an incomplete line, left by a killed process
                    break
                entry = json.loads(line)
                if head is None:
                    head = entry
                else:
                    entries.append({key: value for key, value in entry.items() if key != "at"})
        except (ValueError, AttributeError) as error:
            raise FileFormatError(f"{self.path} must hold one JSON object per line ({error}). {_MOVE_AWAY}") from error
        if head not in (None, self.head):
            raise FileFormatError(
                f"{self.path} holds edits of other clusters than those of this run, or of a newer bitmosaic. "
                f"{_MOVE_AWAY}"
            )
        return entries

    def replay(self, entries: list[Edit]) -> Edited:
        """The labels and names after all edits that are not undone."""
        state = Edited(self.labels.astype(np.int32), self.n_clusters)
        for edit in in_force(entries):
            state.apply(edit)
        return state

    def append(self, edit: Any, version: int) -> Edit:
        """Append an edit, or UNDO, made on the clusters of `version`. Returns it as written.

        Edits that others appended since `version` must not affect the same clusters, and must not be undos. Otherwise
        StaleEditError is raised.
        """
        try:
            with self._writing, locked(self.path.parent, LOCK_WAIT):
                entries = self.entries()
                if edit == UNDO:
                    if not in_force(entries):
                        raise InvalidDataError("There is no edit to undo.")
                    fits = version == len(entries)
                else:
                    fits = self._still_fits(edit, version, entries)
                    edit = self.replay(entries).check(edit) if fits else edit
                if not fits:
                    raise StaleEditError("Somebody else edited these clusters. Reload them and try again.")
                self._write(edit | {"at": datetime.now(UTC).isoformat(timespec="seconds")})
                return edit
        except OSError as error:
            if isinstance(error, BitmosaicError) and not isinstance(error, UnwritableFileError):
                raise
            raise UnwritableLogError(
                f"Edits are kept in {self.path}, which cannot be written ({error.strerror}). The edit was not saved."
            ) from error

    def _still_fits(self, edit: Any, version: int, entries: list[Edit]) -> bool:
        """Whether the edits after `version` affect other clusters only."""
        if version == len(entries):
            return True
        later = entries[version:]
        if not 0 <= version < len(entries) or UNDO in later:
            return False
        state = self.replay(entries[:version])
        ours = state.affected(state.check(edit))
        for other in later:
            if ours & state.affected(other):
                return False
            state.apply(other)
        return True

    def _write(self, entry: Edit) -> None:
        with self.path.open("ab+", buffering=0) as file:
            last = file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST))
            whole = last + file.read().rfind(b"\n") + 1
            file.truncate(whole)  # remove an incomplete line, left by a killed process
            lines = [entry] if whole else [self.head, entry]
            text = _lines(lines)
            try:
                if file.write(text) < len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
                if not whole:  # the file may be new
                    sync_folder(self.path.parent)
            except OSError:
                with suppress(OSError):
                    file.truncate(whole)
                raise


def new_log(labels: np.ndarray, names: dict[int, str]) -> bytes:
    """The content of a log that only names clusters."""
    return _lines([_head(labels), *({"do": "name", "cluster": n, "name": name} for n, name in sorted(names.items()))])


def _head(labels: np.ndarray) -> Edit:
    """The first line of a log, with a hash of the labels of the fit."""
    return {"format": FORMAT, "version": VERSION, "labels": hashlib.sha256(labels.tobytes()).hexdigest()}


def _lines(entries: list[Edit]) -> bytes:
    return b"".join(json.dumps(entry, separators=(",", ":")).encode("ascii") + b"\n" for entry in entries)


def in_force(entries: list[Edit]) -> list[Edit]:
    """The edits that are not undone."""
    kept: list[Edit] = []
    for entry in entries:
        if entry != UNDO:
            kept.append(entry)
        elif kept:
            kept.pop()
    return kept


def in_words(edit: Edit) -> str:
    """An edit as text for the user."""
    if edit["do"] == "name":
        return (
            f"cluster {edit['cluster']} is called “{edit['name']}”"
            if edit["name"]
            else f"cluster {edit['cluster']} has no name"
        )
    if edit["do"] == "merge":
        others = [str(number) for number in edit["clusters"] if number != edit["into"]]
        return f"cluster{'s' * (len(others) > 1)} {', '.join(others)} merged into cluster {edit['into']}"
    if edit["do"] == "move":
        count = len(edit["rows"])
        return f"{count:,} image{'s' * (count > 1)} moved to cluster {edit['to']}"
    return "last edit undone"
