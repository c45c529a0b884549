"""A model on disk: one safetensors file with a JSON manifest in its metadata. Loading it runs no code.

The manifest holds a SHA-256 over itself and all arrays, so a damaged file is noticed.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bitmosaic import __version__
from bitmosaic.errors import ModelFileError, UnwritableFileError
from bitmosaic.io.files import result_path

FORMAT = "bitmosaic-model"
FORMAT_VERSION = 1


def write_model(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]
) -> None:
    """Write arrays and facts (plain JSON) to `path`, whole or not at all. The same content gives the same bytes."""
    path = Path(path)
    # safetensors ignores strides, so the arrays must be in C order.
    stored = {name: np.asarray(array, array.dtype.newbyteorder("<"), order="C") for name, array in arrays.items()}
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kind": kind,
        "written_by": f"bitmosaic {__version__}",
        "facts": dict(facts),
        "arrays": _described(stored),
    }
    manifest["sha256"] = _content_hash(manifest, stored)
    with result_path(path) as temporary:
        try:
            save_file(stored, temporary, {"bitmosaic": _canonical(manifest)})
        except SafetensorError as error:
            raise UnwritableFileError(
                f"The model cannot be written to {path}: {error}. Free some disk space, or choose another folder."
            ) from error


def read_model(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and facts of the model at `path`. Raises ModelFileError if it is damaged or of another kind."""
    path = Path(path)
    if not path.is_file():
        raise ModelFileError(f"There is no model file at {path}. Check the path, or save a model there first.")
    try:
        with safe_open(path, "numpy", backend="pread") as file:  # mapped pages would double the resident memory
            manifest = json.loads((file.metadata() or {})["bitmosaic"])
            _check(manifest, kind, path)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _described(arrays) != manifest["arrays"] or _content_hash(manifest, arrays) != manifest["sha256"]:
            raise _unusable("it was changed after it was written", path)
        return arrays, manifest["facts"]
    except SafetensorError as error:
        raise _unusable(f"it is damaged or not a safetensors file ({error})", path) from error
    except OSError as error:
        raise ModelFileError(f"The model file {path} cannot be read: {error}. Check its permissions.") from error
    except ModelFileError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unusable("bitmosaic did not write it, or it is damaged", path) from error


@contextmanager
def complete(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside the block, a missing part or one of the wrong kind raises ModelFileError for `path`."""
    try:
        yield
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        raise _unusable(f"a part is missing or of the wrong kind ({error})", path) from error


def _unusable(what: str, path: str | os.PathLike[str]) -> ModelFileError:
    return ModelFileError(
        f"{os.fspath(path)} is not a usable model: {what}. Copy it again from the original, or save the model again."
    )


def _check(manifest: dict[str, Any], kind: str, path: Path) -> None:
    """Check that this version can read the manifest, and that the model is of this kind."""
    if manifest["format"] != FORMAT:
        raise _unusable("bitmosaic did not write it", path)
    if manifest["version"] > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} was written by a newer bitmosaic (model format {manifest['version']}; this one reads up to "
            f"{FORMAT_VERSION}). Upgrade with: pip install --upgrade bitmosaic"
        )
    if manifest["kind"] != kind:
        found = manifest["kind"]
        raise ModelFileError(f"{path} holds a {found!r:.80} model, not {kind!r}; load it with {found:.80}.load.")


def _described(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in arrays.items()}


def _content_hash(manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the manifest without its hash, and the bytes of the arrays by name."""
    content_hash = hashlib.sha256(_canonical({key: manifest[key] for key in manifest if key != "sha256"}).encode())
    for name in sorted(arrays):
        content_hash.update(arrays[name].reshape(-1).view(np.uint8))  # no copy
    return content_hash.hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
