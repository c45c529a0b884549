"""Embeddings by any image encoder in one ONNX file (extra ``[deep]``).

ONNX Runtime rounds differently for another batch size or number of threads, and for some models at another position in
the batch. Each image is therefore a batch of its own on one thread, and `extract` runs several in parallel: a row does
not depend on the other images. Larger batches are not faster for encoders of usual size (docs/decisions/onnx.md).
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bitmosaic.errors import BitmosaicError, FileFormatError, MissingFileError, ParameterError, import_extra
from bitmosaic.features.registry import register

DEFAULT_SIZE = 224
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PIXEL_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}
METADATA_PREFIXES = ("", "image_", "norm_", "pixel_")


@register("onnx")
class OnnxExtractor:
    """The embedding of each image by an ONNX model.

    Input: the model's only input, (n, 3, h, w) or (n, h, w, 3); if the shape is ambiguous, (n, 3, h, w). Images are
    resized to the model's height and width; if the model takes any size, to `size` (one number, or height and width;
    default 224). The filter is Pillow's bicubic, the aspect ratio is not kept, and an image of that size stays as it
    is. A uint8 model gets the pixels as they are. Others get (pixel - mean) / std per channel: `mean` and `std` as
    given, else from the model's metadata (mean and std, image_mean and image_std, ...), else those of ImageNet. They
    apply to pixels from 0 to 255 if one of them is above 1, else to pixels from 0 to 1.

    Output: the one named `output`, else the first (n, d) output, else the first (n, d, h, w) or (n, h, w, d) one
    averaged over all positions, else the first token of the first (n, tokens, d) one.

    A model that takes batches of a fixed size only gets copies of the image.
    """

    def __init__(
        self,
        path: str | Path,
        size: int | Sequence[int] | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        mirror: bool = False,
        name: str | None = None,
        output: str | None = None,
    ):
        self.path = Path(path)
        self.name = name or re.sub("[^A-Za-z0-9_-]+", "-", self.path.stem).strip("-_") or "onnx"
        self.mirror = mirror
        self._session = _open(self.path)
        pixels = self._only_input()
        self._input = pixels.name
        self._channels_last = _channels_last(pixels.shape)
        rows, columns = pixels.shape[1:3] if self._channels_last else pixels.shape[2:4]
        self.size = _sides(size, rows, columns)
        self._rows = pixels.shape[0] if isinstance(pixels.shape[0], int) else 1  # of each run
        self._table = self._pixel_table(PIXEL_TYPES[pixels.type], mean, std)  # (3, 256)
        self._output, self._rank, self.width = self._choose_output(output)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        features = np.empty((len(images), self.width), np.float32)
        for row, image in zip(features, images, strict=True):
            resized = self._resize(image)
            row[:] = self._values(resized)
            if self.mirror:
                np.maximum(row, self._values(resized[:, ::-1]), out=row)
        return features

    def _resize(self, image):
        from PIL import Image

        if image.shape[:2] == self.size:
            return image
        rows, columns = self.size
        return np.asarray(Image.fromarray(image).resize((columns, rows), Image.Resampling.BICUBIC))

    def _values(self, image):
        values = self._run([self._output], image)[0][0]
        if self._rank == 4:
            return values.mean(axis=(0, 1) if self._channels_last else (1, 2), dtype=np.float64)
        return values[0] if self._rank == 3 else values

    def _run(self, outputs, image):
        """The model's outputs for a batch of copies of one image."""
        channels = [self._table[c][image[..., c]] for c in range(3)]
        pixels = np.stack(channels, axis=-1 if self._channels_last else 0)
        try:
            return self._session.run(outputs, {self._input: np.repeat(pixels[None], self._rows, axis=0)})
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise FileFormatError(
                f"{self.path} failed on an image of {_times(self.size)} pixels: {_first_line(error)} "
                "Does the model need another size?"
            ) from error

    def _only_input(self):
        inputs = self._session.get_inputs()
        if len(inputs) == 1:
            shape = inputs[0].shape
            if inputs[0].type in PIXEL_TYPES and len(shape) == 4 and _channels_last(shape) is not None:
                return inputs[0]
        found = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in inputs) or "none"
        raise FileFormatError(
            f"An image encoder must have one input, (n, 3, h, w) or (n, h, w, 3) of floats or uint8; "
            f"{self.path} has {found}."
        )

    def _pixel_table(self, dtype, mean, std):
        """The model input for each byte value of each channel."""
        byte = np.arange(256)
        if (mean is None) != (std is None):
            raise ParameterError("mean and std must be given together; got only one of them.")
        if dtype == np.uint8:
            if mean is not None:
                raise ParameterError(f"{self.path} takes uint8 pixels as they are; leave mean and std out.")
            return np.tile(byte.astype(np.uint8), (3, 1))
        if mean is not None:
            mean, std = _three("mean", mean, ParameterError), _three("std", std, ParameterError)
        else:
            mean, std = self._normalization_of_model()
        if not (std > 0).all():
            raise ParameterError(f"std must be above 0; it is {std.tolist()}.")
        unit = 1 if max(mean.max(), std.max()) > 1 else 255
        return ((byte / unit - mean[:, None]) / std[:, None]).astype(dtype)

    def _normalization_of_model(self):
        metadata = {key.lower(): text for key, text in self._session.get_modelmeta().custom_metadata_map.items()}
        for prefix in METADATA_PREFIXES:
            keys = [prefix + "mean", prefix + "std"]
            found = [key for key in keys if key in metadata]
            if len(found) == 1:
                raise FileFormatError(
                    f"The metadata of {self.path} must have both {keys[0]} and {keys[1]}; it has only {found[0]}. "
                    "Pass mean and std."
                )
            if found:
                return [_three(f"{key} in the metadata of {self.path}", metadata[key], FileFormatError) for key in keys]
        return np.array(IMAGENET_MEAN), np.array(IMAGENET_STD)

    def _choose_output(self, wanted):
        """Name, rank and width of the output to use, from one run on a black image."""
        names = [one.name for one in self._session.get_outputs()]
        if wanted is not None and wanted not in names:
            raise ParameterError(f"{self.path} has no output {wanted!r}; its outputs are {', '.join(names)}.")
        values = dict(zip(names, self._run(names, np.zeros((*self.size, 3), np.uint8)), strict=True))
        for rank in (2, 4, 3):
            for name in names if wanted is None else [wanted]:
                value = values[name]
                if (
                    isinstance(value, np.ndarray)
                    and value.dtype.kind in "fiu"
                    and value.ndim == rank
                    and len(value) == self._rows
                ):
                    channels = 1 if rank == 4 and not self._channels_last else -1
                    return name, rank, value.shape[channels]
        shapes = ", ".join(f"{name}: {getattr(value, 'shape', type(value).__name__)}" for name, value in values.items())
        raise FileFormatError(
            f"An image encoder must have an output of one row of numbers per image, such as (n, d); {self.path} gave "
            f"{shapes} for {self._rows} image(s)."
        )


def _open(path: Path):
    """Open an ONNX Runtime session."""
    runtime = import_extra("onnxruntime", "deep", "A view of an ONNX model")
    if not path.is_file():
        raise MissingFileError(f"There is no ONNX model at {path}. Check the path.")
    status = path.stat()
    try:
        return _session(runtime, path.resolve(), status.st_size, status.st_mtime_ns)
    except Exception as error:  # ONNX Runtime's errors have no common class
        raise FileFormatError(
            f"ONNX Runtime {runtime.__version__} cannot load {path}: {_first_line(error)} "
            "Is it a complete ONNX model, without custom operators, and not newer than this version?"
        ) from error


@lru_cache(maxsize=2)
def _session(runtime, path: Path, size: int, changed: int):
    """A session on one thread. Cached: a run opens the model for its width, for its features and for search."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # errors are raised, do not also print them
    runtime.disable_telemetry_events()
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _channels_last(shape) -> bool | None:
    """False for (n, 3, h, w), True for (n, h, w, 3), None for neither. A dynamic dimension is a string or None."""
    if shape[1] == 3:
        return False
    if shape[3] == 3:
        return True
    if not isinstance(shape[1], int):
        return False
    return None if isinstance(shape[3], int) else True


def _sides(size, rows, columns) -> tuple[int, int]:
    """The height and width to resize to."""
    wanted = (size, size) if size is None or np.ndim(size) == 0 else tuple(size)
    if len(wanted) != 2 or not all(side is None or _is_side(side) for side in wanted):
        raise ParameterError(f"size must be one integer of at least 1, or height and width; got {size!r}.")
    sides = []
    for side, fixed in zip(wanted, (rows, columns), strict=True):
        if isinstance(fixed, int) and side not in (None, fixed):
            raise ParameterError(f"The model takes only images of {_times((rows, columns))} pixels; got size={size!r}.")
        sides.append(fixed if isinstance(fixed, int) else side or DEFAULT_SIZE)
    return sides[0], sides[1]


def _is_side(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _three(name: str, value, error_class: type[BitmosaicError]) -> np.ndarray:
    """One number per channel, from one number, three numbers, or a string ("[0.5, 0.5, 0.5]" or "0.5 0.5 0.5")."""
    try:
        if isinstance(value, str):
            value = json.loads(value) if value.lstrip().startswith("[") else value.replace(",", " ").split()
        numbers = np.atleast_1d(np.asarray(value, np.float64))
        if numbers.shape not in ((1,), (3,)) or not np.isfinite(numbers).all():
            raise ValueError
    except (TypeError, ValueError):
        raise error_class(f"{name} must be one number or three, one per channel; got {value!r}.") from None
    return np.broadcast_to(numbers, 3)


def _times(sides) -> str:
    return " × ".join(str(side) for side in sides)


def _first_line(error: Exception) -> str:
    """The first line of ONNX Runtime's message, without its error code."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text).strip().rstrip(".") + "."
