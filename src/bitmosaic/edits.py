"""What people changed by hand: a log in the run folder, beside the result and never over it, and its replay.

edits.jsonl has a first line that says which clusters it is for, and then an edit a line, only ever appended:
  {"do": "name", "cluster": 3, "name": "cats"}              an empty name takes the name away
  {"do": "merge", "clusters": [3, 5], "into": 3}
  {"do": "move", "rows": [17, 4], "to": 3}                   a number not used yet makes a new cluster
  {"do": "undo"}                                             takes back the last edit that is not taken back yet
"""

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import RawIOBase
from pathlib import Path
from reprlib import repr as brief
from typing import Any

import numpy as np

from bitmosaic.errors import BitmosaicError, BusyFolderError, FileFormatError, InvalidDataError, UnwritableFileError
from bitmosaic.files import locked, sync_folder
from bitmosaic.reading import read_lines

FILE = "edits.jsonl"
FORMAT, VERSION = "bitmosaic-edits", 1
LONGEST_NAME = 120
LONGEST = 2**25  # bytes of a line: of an edit of 16 MB, the most that the explorer takes, an older log has more

Edit = dict[str, Any]
UNDO: Edit = {"do": "undo"}
TRIES, PAUSE = 20, 0.05  # seconds between tries to lock the run folder


class StaleEditError(BusyFolderError):
    """An edit of clusters that somebody else has changed since they were looked at."""


class UnwritableLogError(BitmosaicError, OSError):
    """A run folder in which nothing can be written."""


@dataclass
class Edited:
    """Labels and names after some edits."""

    labels: np.ndarray  # (n,) int32
    n_numbers: int  # numbers of clusters given so far, those of emptied ones included
    names: dict[int, str] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)  # clusters whose pictures are not those of the run

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

    def concerned(self, edit: Edit) -> set[int]:
        """The clusters that an edit changes."""
        if edit["do"] == "name":
            return {edit["cluster"]}
        if edit["do"] == "merge":
            return set(edit["clusters"])
        return {edit["to"], *np.unique(self.labels[edit["rows"]]).tolist()}

    def check(self, edit: Any) -> Edit:
        """The edit as it goes into the log; an error if it makes no sense here. Moving `to` None makes a cluster."""
        match edit:
            case {"do": "name", "cluster": int(number), "name": str(name)}:
                self._require_clusters([number])
                name = " ".join(name.split())
                if len(name) > LONGEST_NAME or not (name.isprintable() and _encodes(name)):
                    raise InvalidDataError(
                        f"The name of a cluster is at most {LONGEST_NAME} printable characters; got {len(name)}."
                    )
                return {"do": "name", "cluster": number, "name": name}
            case {"do": "merge", "clusters": [*numbers], "into": int(into)} if into in numbers:
                self._require_clusters(numbers)
                if len(set(numbers)) < 2:
                    raise InvalidDataError("Clusters are merged two at least; got one. Select another.")
                return {"do": "merge", "clusters": sorted(set(numbers)), "into": int(into)}
            case {"do": "move", "rows": [_, *_] as rows, "to": to} if to is None or type(to) is int:
                if not all(type(row) is int and 0 <= row < len(self.labels) for row in rows):
                    raise InvalidDataError(f"Pictures have the numbers 0 to {len(self.labels) - 1}; got others.")
                if to not in (None, self.n_numbers):
                    self._require_clusters([to])
                others = sorted({row for row in rows if self.labels[row] != to})
                if not others:
                    raise InvalidDataError(f"Pictures are moved to another cluster; these are in cluster {to} already.")
                return {"do": "move", "rows": others, "to": self.n_numbers if to is None else to}
        raise InvalidDataError(
            f"An edit names a cluster, merges some, moves pictures or is undone; got {brief(edit):.80}."
        )

    def _require_clusters(self, numbers: list[Any]) -> None:
        sizes = np.bincount(self.labels)
        for number in numbers:
            if type(number) is not int or not 0 <= number < len(sizes) or not sizes[number]:
                raise InvalidDataError(f"There is no cluster {number!r:.20} with pictures in it. Choose another.")


class EditLog:
    """The log of one run folder. It may not exist yet, and others may append to it meanwhile."""

    def __init__(self, folder: Path, labels: np.ndarray, n_clusters: int, fitted: np.ndarray | None = None):
        """`fitted`: the first of the labels, if pictures were added since; edits are for what the fit has found."""
        self.path = folder / FILE
        self._writing = threading.Lock()
        self.labels, self.n_clusters = labels, n_clusters
        self.head = _head(labels if fitted is None else fitted)

    def entries(self) -> list[Edit]:
        """Every line but the head, undone ones and undos included: their number is the version of the clusters."""
        try:
            if self.path.exists() and not self.path.is_file():  # a pipe, say, which one would wait for
                raise FileFormatError(f"{self.path} must be a file; it is none. Move it away.")
            return self._read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FileFormatError(f"{self.path} cannot be read ({error.strerror}). Move it away.") from error

    def _read(self) -> list[Edit]:
        head, entries = None, list[Edit]()
        try:
            for line in read_lines(self.path, LONGEST):
                if not line.endswith(b"\n"):  # it was cut short
                    break
                entry = json.loads(line)
                if head is None:
                    head = entry
                elif _is_edit(entry):
                    entries.append({key: value for key, value in entry.items() if key != "at"})
                else:
                    raise FileFormatError(f"{self.path} must hold one edit a line. Move it away.")
        except FileFormatError:
            raise
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{self.path} must hold one JSON object a line ({error}). Move it away.") from error
        if head not in (None, self.head):
            raise FileFormatError(
                f"{self.path} holds edits of other clusters than those of this run, or of a newer bitmosaic. "
                "Move it away to begin anew."
            )
        return entries

    def replay(self, entries: list[Edit]) -> Edited:
        """The labels and names after all edits but those taken back."""
        state = Edited(self.labels.astype(np.int32), self.n_clusters)
        for edit in in_force(entries):
            try:
                state.apply(state.check(edit))
            except InvalidDataError as error:
                raise FileFormatError(f"{self.path} must fit the run; it does not: {error} Was it changed?") from error
        return state

    def append(self, edit: Any, version: int) -> Edit:
        """Add an edit, or UNDO, to clusters that were seen at this version; returns it as it was written.

        What others have added meanwhile is no obstacle if it concerns other clusters, and nothing was undone.
        """
        try:
            with self._writing, self._locked():
                entries = self.entries()
                if edit == UNDO:
                    if not in_force(entries):
                        raise InvalidDataError("There is no edit to take back.")
                    fits = version == len(entries)
                else:
                    fits = self._still_fits(edit, version, entries)
                    edit = self.replay(entries).check(edit) if fits else edit
                if not fits:
                    raise StaleEditError("Somebody else has edited these clusters meanwhile. Look at them again first.")
                self._write(edit | {"at": datetime.now(UTC).isoformat(timespec="seconds")})
                return edit
        except OSError as error:
            if isinstance(error, BitmosaicError) and not isinstance(error, UnwritableFileError):
                raise
            raise UnwritableLogError(
                f"Edits are kept in {self.path}, which cannot be written ({error.strerror}); nothing was changed."
            ) from error

    def _still_fits(self, edit: Any, version: int, entries: list[Edit]) -> bool:
        """Whether what was added after `version` leaves the clusters of this edit alone."""
        if version == len(entries):
            return True
        later = entries[version:]
        if not 0 <= version < len(entries) or UNDO in later:
            return False
        state = self.replay(entries[:version])
        ours = state.concerned(state.check(edit))
        for other in later:
            if ours & state.concerned(other):
                return False
            state.apply(other)
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The run folder to ourselves; other explorers need it for a moment only."""
        with ExitStack() as stack:
            for left in reversed(range(TRIES)):
                try:
                    stack.enter_context(locked(self.path.parent))
                    break
                except BusyFolderError:
                    if not left:
                        raise
                    time.sleep(PAUSE)
            yield

    def _write(self, entry: Edit) -> None:
        with self.path.open("ab+", buffering=0) as file:
            last = file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST))
            whole = last + file.read().rfind(b"\n") + 1
            file.truncate(whole)  # a line that a killed process left unfinished
            lines = [entry] if whole else [self.head, entry]
            text = _lines(lines)
            try:
                if file.write(text) < len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
                if not whole:  # it may be a new file
                    sync_folder(self.path.parent)
            except OSError as error:
                self._take_back(file, whole, error)
                raise

    def _take_back(self, file: RawIOBase, whole: int, error: OSError) -> None:
        """Cut the log to what was whole: an edit that is said to have failed must not be there, or that is said too."""
        try:
            file.truncate(whole)
        except OSError:
            raise UnwritableLogError(
                f"Edits are kept in {self.path}, which cannot be written ({error.strerror}); it may hold an edit that "
                "was not confirmed. Look at the clusters again once it can be written."
            ) from error


def new_log(labels: np.ndarray, names: dict[int, str]) -> bytes:
    """The content of a log that gives clusters their names and has nothing else."""
    return _lines([_head(labels), *({"do": "name", "cluster": n, "name": name} for n, name in sorted(names.items()))])


def _head(labels: np.ndarray) -> Edit:
    """Says which clusters a log is for: those of the labels that a fit has found."""
    return {"format": FORMAT, "version": VERSION, "labels": hashlib.sha256(labels.tobytes()).hexdigest()}


def _lines(entries: list[Edit]) -> bytes:
    return b"".join(json.dumps(entry, separators=(",", ":")).encode("ascii") + b"\n" for entry in entries)


def in_force(entries: list[Edit]) -> list[Edit]:
    """The edits that are not taken back."""
    kept: list[Edit] = []
    for entry in entries:
        if entry != UNDO:
            kept.append(entry)
        elif kept:
            kept.pop()
    return kept


def in_words(edit: Edit) -> str:
    """An edit as a sentence for a person."""
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
        return f"{count:,} picture{'s' * (count > 1)} moved to cluster {edit['to']}"
    return "the last edit taken back"


def _is_edit(entry: Any) -> bool:
    """Whether it says what an edit of its kind says, also one that was taken back: it is still told in words."""
    match entry:
        case {"do": "name", "cluster": int(), "name": str(), **rest}:
            pass
        case {"do": "merge", "clusters": [*numbers], "into": int(), **rest} if _are_numbers(numbers):
            pass
        case {"do": "move", "rows": [*rows], "to": int(), **rest} if _are_numbers(rows):
            pass
        case {"do": "undo", **rest}:
            pass
        case _:
            return False
    return not rest.keys() - {"at"}


def _are_numbers(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
