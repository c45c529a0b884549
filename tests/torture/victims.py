"""Files of somebody else beside those that are fuzzed: whatever reads hostile files must neither change nor run them.

The fuzzing processes work in the folder HERE of them. In it lie modules named as those that bitmosaic and its libraries
import, and each of them leaves a mark when it is run.
"""

import os
import pickle
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np

HERE = "here"  # the current folder of whoever fuzzes
MODULES = (
    *("h5py", "numpy", "json", "resource", "subprocess", "pickle", "ctypes", "re", "struct", "zipfile", "tempfile"),
    *("onnx", "onnxruntime", "pyarrow", "PIL", "scipy", "sqlite3", "bitmosaic", "sitecustomize", "usercustomize"),
)
RAN = ".ran"
LEAVE_A_MARK = f'open(__file__ + "{RAN}", "w").close()\n'
FILE, FOLDER = "notes.txt", "album"


class Payload:
    """Unpickled, it leaves a mark in the current folder."""

    def __reduce__(self):
        return exec, (f'open("unpickled.py{RAN}", "w").close()',)


def payloads(name: str) -> list[bytes]:
    """Files of the kind of `name` that hold a pickle which runs code, where a reader might unpickle."""
    array, kind = np.array([[Payload()] * 2] * 2, dtype=object), Path(name).suffix
    if kind == ".npy":
        np.save(file := BytesIO(), array, allow_pickle=True)
    elif kind == ".npz":
        np.savez(file := BytesIO(), a=array, labels=array[0])
    elif kind in (".pickle", ".pkl", ""):
        file = BytesIO(pickle.dumps({b"data": Payload(), b"labels": [0]}))
    else:
        return []
    return [file.getvalue()]


class Victims:
    """A folder of files, and whether they are as they were."""

    def __init__(self, folder: Path, seeds: Path | None = None):
        """With `seeds`, make them: some files of any kind, and a copy of every folder that is fuzzed."""
        self.folder, self.seeds = folder, seeds
        if seeds is not None:
            (folder / FOLDER / "below").mkdir(parents=True)
            (folder / HERE).mkdir()
            for name in (FILE, f"{FOLDER}/1.png", f"{FOLDER}/labels.npy", f"{FOLDER}/below/2.png", f"{HERE}/mine.txt"):
                (folder / name).write_bytes(b"mine\n")
            for module in MODULES:
                (folder / HERE / f"{module}.py").write_text(LEAVE_A_MARK)
            for path in seeds.iterdir():
                if path.is_dir() and any(child.is_dir() for child in path.iterdir()):
                    shutil.copytree(path, folder / path.name)
        self.before = self._facts()

    def _facts(self) -> dict[str, tuple]:
        found = {}
        for place, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                status = os.lstat(path := os.path.join(place, name))
                size = status.st_size if name in files else 0
                found[os.path.relpath(path, self.folder)] = (status.st_mode, status.st_ino, size, status.st_mtime_ns)
        return found

    def harm(self) -> dict[str, str]:
        """What was done to them since this was last asked: "loss" and "crash", each with words, where there is any."""
        before, self.before = self.before, self._facts()
        names = [name for name in {**before, **self.before} if before.get(name) != self.before.get(name)]
        marks = [name for name in names if name.endswith(RAN)]
        ran = [name.removesuffix(RAN) for name in marks if name in self.before]
        # A folder changes with what is in it: that of the marks, and that of what is named anyway.
        lost = [name for name in names if name not in marks and not (name == HERE and marks)]
        harm = {}
        if ran:
            harm["crash"] = f"ran code of the current folder: {', '.join(ran[:5])}"
            for name in ran:  # so that the next time is seen as well
                (self.folder / f"{name}{RAN}").unlink()
            self.before = self._facts()
        if lost:
            harm["loss"] = f"files elsewhere were changed, made or removed: {', '.join(lost[:5])}"
        return harm
