"""A model on disk: one safetensors file whose metadata is a JSON manifest. Loading it runs no code.

The file is whole or absent, and it is what was written: the manifest holds a SHA-256 over itself and all
arrays, and the rest of the file (header, offsets, padding, size) has only one accepted form. Sizes are
checked before anything is allocated. What the arrays and facts mean is for the caller to know and check.
"""

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bitmosaic import __version__
from bitmosaic.errors import ModelFileError
from bitmosaic.files import result_file
from bitmosaic.places import led_to, refuse_special

FORMAT = "bitmosaic-model"
FORMAT_VERSION = 1
MAX_HEADER_BYTES = 16 * 2**20
MAX_MANIFEST_CHARS = MAX_HEADER_BYTES // 4  # quoted once more inside the header, it stays below the cap

# The dtypes a model may hold, by NumPy's name: as stored, and as safetensors calls them; in the order of the file.
STORED_DTYPES = {
    "uint64": ("<u8", "U64"),
    "int64": ("<i8", "I64"),
    "float64": ("<f8", "F64"),
    "float32": ("<f4", "F32"),
    "int32": ("<i4", "I32"),
    "uint8": ("|u1", "U8"),
    "bool": ("|b1", "BOOL"),
}


class _Slot(NamedTuple):
    """Where an array lies in the data area."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def write_model(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]
) -> None:
    """Write arrays and facts (plain JSON) to `path`, whole or not at all. The same content gives the same bytes.

    The arrays are written from where they are: no copy of them is made.
    """
    path = _usable_path(path)
    stored = {name: _storable(name, array) for name, array in arrays.items()}
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kind": kind,
        "written_by": f"bitmosaic {__version__}",
        "facts": _plain_json(facts),
        "arrays": {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in stored.items()},
    }
    manifest["sha256"] = _digest(manifest, stored)
    text = _canonical(manifest)
    if len(text) > MAX_MANIFEST_CHARS:
        raise ModelFileError(
            f"The facts of a model must take less than {MAX_MANIFEST_CHARS} characters as JSON; got {len(text)}. "
            "Store long lists as arrays."
        )
    order = list(STORED_DTYPES)
    stored = {
        name: stored[name] for name in sorted(stored, key=lambda name: (order.index(stored[name].dtype.name), name))
    }
    _replace_file(path, _header(text, stored), stored)


def read_model(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and facts of the model at `path`, which must be of this kind, whole and unchanged."""
    path = _usable_path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelFileError(f"{path} is a folder, not a model file. Name the file inside it.")
        require(stat.S_ISREG(mode), "it is no ordinary file", path)  # opening a pipe would wait for ever
        with path.open("rb") as file:
            return _read(file, kind, path)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"There is no model file at {path}. Check the path, or save a model there first."
        ) from error
    except OSError as error:
        raise ModelFileError(
            f"The model file {path} cannot be read: {error.strerror or error}. Check its permissions and the disk."
        ) from error
    except MemoryError as error:
        raise ModelFileError(
            f"The model at {path} does not fit into memory. Load it on a machine with more."
        ) from error


def require(condition: bool, what: str, path: str | os.PathLike[str]) -> None:
    """Refuse the model at `path` unless the condition holds; `what` says what is wrong, as "it is empty"."""
    if not condition:
        raise _unusable(what, path)


@contextmanager
def complete(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside, a part that is missing or of the wrong kind refuses the model at `path`."""
    try:
        yield
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        raise _unusable(f"a part is missing or of the wrong kind ({error})", path) from error


def _usable_path(path: str | os.PathLike[str]) -> Path:
    try:
        usable = isinstance(os.fspath(path), str) and b"\0" not in os.fsencode(path)
    except (UnicodeEncodeError, TypeError):
        usable = False
    if not usable:
        raise ModelFileError(f"A model file needs a path of ordinary text; got {path!r}. Choose another name.")
    return Path(path)


def require_arrays(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, tuple[type, tuple[int, ...]]], path: str | os.PathLike[str]
) -> None:
    """Refuse the model at `path` unless it has exactly these arrays, of these types and shapes, and finite."""
    require(arrays.keys() == expected.keys(), f"its arrays are not {', '.join(sorted(expected))}", path)
    for name, (dtype, shape) in expected.items():
        array = arrays[name]
        wanted = f"{np.dtype(dtype)} of shape {shape}"
        require(array.dtype == dtype and array.shape == shape, f"{name} is not {wanted}", path)
        require(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"{name} holds NaN or infinity", path)


def require_labels(labels: np.ndarray, n_clusters: int, path: str | os.PathLike[str]) -> None:
    """Refuse the model at `path` unless every label is that of a cluster."""
    require(bool(((labels >= 0) & (labels < n_clusters)).all()), "a label names no cluster", path)


def _unusable(what: str, path: str | os.PathLike[str]) -> ModelFileError:
    return ModelFileError(
        f"{os.fspath(path)} is not a usable model: {what}. "
        "Copy it again from where it was made, or save the model again."
    )


# --- writing -------------------------------------------------------------------------------------------


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    """The array in C order and little-endian: safetensors looks at neither strides nor byte order."""
    array = np.asarray(array)
    if array.dtype.name not in STORED_DTYPES:
        raise ModelFileError(
            f"A model file holds arrays of {', '.join(STORED_DTYPES)}; got {name!r} of {array.dtype}. "
            "Convert it with astype first."
        )
    try:
        usable = name != "__metadata__" and bool(name.encode())
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise ModelFileError(f"An array in a model file needs a name of ordinary text; got {name!r}. Rename it.")
    return np.asarray(array, dtype=STORED_DTYPES[array.dtype.name][0], order="C")


def _plain_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        back = json.loads(_canonical(facts))
        same = isinstance(facts, dict) and back == facts
        problem = "they would come back changed (a tuple, or a key that is no string?)"
    except (TypeError, ValueError, RecursionError) as error:
        same, problem = False, str(error)
    if not same:
        raise ModelFileError(
            "The facts of a model must be plain JSON: dicts with string keys, lists, strings, finite numbers, "
            f"booleans and None; {problem}. Convert them first."
        )
    return back


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the manifest, which names every dtype and shape, and then the bytes of the arrays by name."""
    unsigned = {key: value for key, value in manifest.items() if key != "sha256"}
    digest = hashlib.sha256(_canonical(unsigned).encode())
    for name in sorted(arrays):
        digest.update(_bytes_of(arrays[name]))
    return digest.hexdigest()


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)  # of a C-ordered array this is no copy, whatever its shape


def _header(manifest: str, arrays: Mapping[str, np.ndarray]) -> bytes:
    """What safetensors puts before arrays that follow each other in this order."""
    entries: dict[str, Any] = {"__metadata__": {"bitmosaic": manifest}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        dtype = STORED_DTYPES[array.dtype.name][1]
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _replace_file(path: Path, header: bytes, arrays: Mapping[str, np.ndarray]) -> None:
    """At every moment `path` is the old file or the new one."""
    if os.path.isdir(path):  # Path.is_dir raises where a name is too long
        raise ModelFileError(f"The model cannot be written to {path}, which is a folder. Name a file inside it.")
    refuse_special(led_to(path))
    try:
        with result_file(path) as file:
            file.write(header)
            for array in arrays.values():
                file.write(_bytes_of(array).data)
    except OSError as error:
        raise ModelFileError(
            f"The model cannot be written to {path}: {error.strerror or error}. "
            "Choose a folder that exists, may be written to and has room; a file already there is unchanged."
        ) from error


# --- reading -------------------------------------------------------------------------------------------


def _read(file: BufferedReader, kind: str, path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    size = os.fstat(file.fileno()).st_size
    require(size > 0, "it is empty", path)
    require(size >= 8, f"it was cut short or never was a model (it has {size} bytes)", path)
    header_size = int.from_bytes(file.read(8), "little")
    require(header_size <= MAX_HEADER_BYTES, "it does not begin as a bitmosaic model does", path)
    require(8 + header_size <= size, "it was cut short", path)
    raw = file.read(header_size)
    header = _parse(raw, path)
    manifest = _manifest(header, kind, path)
    slots = _slots(raw, header, manifest, size - 8 - header_size, path)

    arrays = {}
    for name, slot in slots.items():
        array = np.empty(slot.shape, slot.dtype)
        file.seek(8 + header_size + slot.begin)
        got = file.readinto(_bytes_of(array).data)
        require(got == array.nbytes, "it was cut short", path)
        arrays[name] = array
    require(_digest(manifest, arrays) == manifest["sha256"], "it was changed after it was written", path)
    for name, array in arrays.items():
        if array.dtype == bool:  # NumPy takes a byte other than 0 and 1 for both true and false
            require(not (_bytes_of(array) > 1).any(), f"array {name!r} holds bytes that are no booleans", path)
    native = {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}
    return native, manifest["facts"]


def _parse(raw: bytes, path: Path) -> Any:
    """JSON -> Python; every way in which it can fail ends in one sentence."""
    try:
        return json.loads(raw.decode(), object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise _unusable("its header is nested too deeply", path) from error
    except _RepeatedKeyError as error:
        raise _unusable(f"its header has the key {error!s:.80} twice", path) from error
    except ValueError as error:  # not UTF-8, not JSON, an integer of thousands of digits
        raise _unusable("its header is not JSON, so it was changed or never was a model", path) from error


class _RepeatedKeyError(ValueError):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise _RepeatedKeyError(repr(key))
        unique[key] = value
    return unique


def _manifest(header: Any, kind: str, path: Path) -> dict[str, Any]:
    """The manifest in the header, once it is known to be one that this version can read."""
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    text = metadata.get("bitmosaic") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise _unusable("bitmosaic did not write it", path)
    try:
        manifest = _parse(text.encode(), path)
    except UnicodeEncodeError as error:
        raise _unusable("its manifest is not text", path) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _unusable("bitmosaic did not write it", path)
    version, found = manifest.get("version"), manifest.get("kind")
    if type(version) is not int or version < 1:
        raise _unusable("its format has no known version", path)
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} was written by a newer bitmosaic (model format {version}; this one reads up to "
            f"{FORMAT_VERSION}). Upgrade with: pip install --upgrade bitmosaic"
        )
    if not isinstance(found, str):
        raise _unusable("it does not say what kind of model it is", path)
    if found != kind:
        cure = f"load it with {found}.load." if found.isidentifier() else "it cannot be loaded here."
        raise ModelFileError(f"This file holds a {found!r:.80} model, not {kind!r}; {cure} ({path})")
    return manifest


def _slots(
    raw: bytes, header: dict[str, Any], manifest: dict[str, Any], data_size: int, path: Path
) -> dict[str, _Slot]:
    """Where each array lies, once header, manifest and file size agree in every detail."""
    keys = {"format", "version", "kind", "written_by", "facts", "arrays", "sha256"}
    facts, described = manifest.get("facts"), manifest.get("arrays")
    if manifest.keys() != keys or not isinstance(facts, dict) or not isinstance(described, dict):
        raise _unusable("its manifest lacks a part or has one too many", path)
    try:
        same_text = header["__metadata__"] == {"bitmosaic": _canonical(manifest)}
        compact = json.dumps(header, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise _unusable("its header was changed after it was written", path) from error
    require(same_text and raw.rstrip(b" ") == compact, "its header was changed after it was written", path)
    require(header.keys() - {"__metadata__"} == described.keys(), "its lists of arrays disagree", path)

    slots = {name: _slot(name, header[name], described[name], path) for name in described}
    end = 0
    for slot in sorted(slots.values(), key=lambda slot: (slot.begin, slot.end)):
        require(slot.begin == end, "its arrays overlap or leave a gap", path)
        end = slot.end
    require(end <= data_size, f"it was cut short: its arrays take {end} bytes, and {data_size} are there", path)
    require(end == data_size, f"it has {data_size - end} bytes too many at the end", path)
    return slots


def _slot(name: str, entry: Any, described: Any, path: Path) -> _Slot:
    """One array's place, from its entry in the header and its description in the manifest."""
    wrong = _unusable(f"the description of array {name!r:.80} is wrong", path)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise wrong
    if not isinstance(described, dict) or described.keys() != {"dtype", "shape"}:
        raise wrong
    dtype, shape, offsets = described["dtype"], described["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORED_DTYPES or entry["dtype"] != STORED_DTYPES[dtype][1]:
        raise wrong
    if not _are_sizes(shape) or not _are_sizes(entry["shape"]) or entry["shape"] != shape or len(shape) > 64:
        raise wrong
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise wrong
    stored = np.dtype(STORED_DTYPES[dtype][0])
    # NumPy computes strides also for an empty array, so its other dimensions must be sane as well.
    too_long = math.prod(max(size, 1) for size in shape) * stored.itemsize >= 2**63
    if too_long or offsets[1] - offsets[0] != math.prod(shape) * stored.itemsize:
        raise wrong
    return _Slot(stored, tuple(shape), *offsets)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
