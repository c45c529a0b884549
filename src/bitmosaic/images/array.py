"""Images in memory, or in a .npy file: an array (n, h, w) or (n, h, w, channels)."""

import os
import zlib

import numpy as np
from PIL import Image

from bitmosaic.errors import DataTypeError, InvalidDataError
from bitmosaic.images.decode import BadImageError, fit, to_array
from bitmosaic.images.source import ImageSource
from bitmosaic.io.read import open_npy

_RULE = "An array of images must be (n, height, width), or (n, height, width, channels) with 1, 3 or 4 channels"


class ArraySource(ImageSource):
    def __init__(self, array: np.ndarray, path: str | None = None):
        check_images(array)
        super().__init__(path or "an array", map(str, range(len(array))))
        self.array = array
        self._file_signature = None
        if path is not None:
            status = os.stat(path)
            self._file_signature = status.st_size, status.st_mtime_ns

    def labels(self) -> None:
        return None

    def image_signature(self, position: int) -> tuple[int, int]:
        if self._file_signature is not None:
            return self._file_signature
        image = np.ascontiguousarray(self.array[position])
        return image.nbytes, zlib.crc32(image.data)

    def _content(self, position: int) -> np.ndarray:
        return self.array[position]

    def _decode(self, content: np.ndarray, max_side: int | None) -> np.ndarray:
        image = eight_bits(content)
        if image.ndim == 2 or image.shape[2] == 1:
            image = np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
        if image.shape[2] == 4:
            color, alpha = image[..., :3].astype(np.uint32), image[..., 3:].astype(np.uint32)
            image = ((color * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
        if max_side is None or max(image.shape[:2]) <= max_side:
            return np.array(image, order="C")
        return to_array(fit(Image.fromarray(np.ascontiguousarray(image)), max_side))


def eight_bits(image: np.ndarray) -> np.ndarray:
    if image.dtype == np.uint8:
        return image
    if image.dtype == np.bool_:
        return image.astype(np.uint8) * 255
    low, high = float(image.min()), float(image.max())
    if not (low >= 0 and high <= 1):
        raise BadImageError(f"floats must be from 0 to 1, got {low:g} to {high:g}")
    return np.rint(image * 255).astype(np.uint8)


def check_images(array: np.ndarray) -> None:
    shape = array.shape
    if array.ndim not in (3, 4) or (array.ndim == 4 and shape[3] not in (1, 3, 4)):
        channels_first = array.ndim == 4 and shape[1] in (1, 3, 4)
        cure = " Move the channels to the end: np.moveaxis(array, 1, -1)." if channels_first else ""
        raise InvalidDataError(f"{_RULE}; got shape {shape}.{cure}")
    if array.ndim == 3 and shape[2] in (1, 3, 4):
        raise InvalidDataError(f"{_RULE}; got shape {shape}, which looks like one image: pass array[None].")
    if 0 in shape:
        raise InvalidDataError(f"{_RULE}, with at least one pixel; got shape {shape}.")
    if array.dtype not in (np.uint8, np.bool_) and not np.issubdtype(array.dtype, np.floating):
        raise DataTypeError(f"Images must be uint8, or floats from 0 to 1; got {array.dtype}. Scale them first.")
    first = array[0]
    if np.issubdtype(array.dtype, np.floating) and first.max() > 1:
        raise InvalidDataError(
            f"Images of floats must be from 0 to 1; the maximum of the first is {first.max():g}. "
            "Divide by the maximum, or pass uint8."
        )


def read_npy(path: str) -> ArraySource:
    return ArraySource(open_npy(path), path)
