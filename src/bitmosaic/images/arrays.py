"""Pictures in memory, or in a .npy file: an array (n, h, w) or (n, h, w, channels)."""

import os
import zlib

import numpy as np
from PIL import Image

from bitmosaic.errors import DataTypeError, InvalidDataError
from bitmosaic.images.decode import BadPictureError, fit, to_array
from bitmosaic.images.source import ImageSource
from bitmosaic.npy import open_npy

_RULE = "An array of pictures must be (n, height, width), or (n, height, width, channels) with 1, 3 or 4 channels"


class ArraySource(ImageSource):
    def __init__(self, array: np.ndarray, path: str | None = None):
        check_pictures(array)
        super().__init__(path or "an array", map(str, range(len(array))))
        self.array = array
        self.path = path

    def labels(self) -> None:
        return None

    def fingerprint(self, position: int) -> tuple[int, int]:
        if self.path is not None:
            status = os.stat(self.path)
            return status.st_size, status.st_mtime_ns
        picture = np.ascontiguousarray(self.array[position])
        return picture.nbytes, zlib.crc32(picture.data)

    def _content(self, position: int) -> np.ndarray:
        return self.array[position]

    def _decode(self, content: np.ndarray, max_side: int | None) -> np.ndarray:
        picture = eight_bits(content)
        if picture.ndim == 2 or picture.shape[2] == 1:
            picture = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)
        if picture.shape[2] == 4:
            colour, alpha = picture[..., :3].astype(np.uint32), picture[..., 3:].astype(np.uint32)
            picture = ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
        if max_side is None or max(picture.shape[:2]) <= max_side:
            return np.array(picture, order="C")
        return to_array(fit(Image.fromarray(np.ascontiguousarray(picture)), max_side))


def eight_bits(picture: np.ndarray) -> np.ndarray:
    if picture.dtype == np.uint8:
        return picture
    if picture.dtype == np.bool_:
        return picture.astype(np.uint8) * 255
    low, high = float(picture.min()), float(picture.max())
    if not (low >= 0 and high <= 1):
        raise BadPictureError(f"floats must be from 0 to 1, and these are from {low:g} to {high:g}")
    return np.rint(picture * 255).astype(np.uint8)


def check_pictures(array: np.ndarray) -> None:
    shape = array.shape
    if array.ndim not in (3, 4) or (array.ndim == 4 and shape[3] not in (1, 3, 4)):
        channels_first = array.ndim == 4 and shape[1] in (1, 3, 4)
        cure = " Move the channels to the end: np.moveaxis(array, 1, -1)." if channels_first else ""
        raise InvalidDataError(f"{_RULE}; got shape {shape}.{cure}")
    if array.ndim == 3 and shape[2] in (1, 3, 4):
        raise InvalidDataError(f"{_RULE}; got shape {shape}, which looks like one picture: pass array[None].")
    if 0 in shape:
        raise InvalidDataError(f"{_RULE}, and hold a pixel at least; got shape {shape}.")
    if array.dtype not in (np.uint8, np.bool_) and not np.issubdtype(array.dtype, np.floating):
        raise DataTypeError(f"Pictures must be uint8, or floats from 0 to 1; got {array.dtype}. Scale them first.")
    first = array[0]
    if np.issubdtype(array.dtype, np.floating) and first.max() > 1:
        raise InvalidDataError(
            f"Pictures of floats must be from 0 to 1; the first goes up to {first.max():g}. Divide by the maximum, "
            "or pass uint8."
        )


def read_npy(path: str) -> ArraySource:
    return ArraySource(open_npy(path), path)
