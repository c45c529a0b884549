"""Every error that a user can cause. Each message says what is wrong, what was found and what to do.

One exception: NotFittedError is in estimators/parameters.py, because it inherits from scikit-learn's, a slow import.
"""

from importlib import import_module
from typing import Any


class BitmosaicError(Exception):
    """Base class of all errors that a user can cause."""


class InvalidDataError(BitmosaicError, ValueError):
    """An array, a view or a set of labels that cannot be used as it is."""


class ViewMismatchError(InvalidDataError):
    """Views that do not fit each other, or do not fit the fitted model."""


class StaleCheckpointError(InvalidDataError):
    """A checkpoint of other data, parameters or versions, or one that was changed."""


class DataTypeError(BitmosaicError, TypeError):
    """Data of an unsupported type, such as masked arrays."""


class ParameterError(BitmosaicError, ValueError):
    """A parameter outside its range, or one that contradicts another."""


class BusyPortError(ParameterError):
    """A port on which another program listens."""


class FileFormatError(BitmosaicError, ValueError):
    """A file whose content does not match its name or place."""


class ModelFileError(FileFormatError):
    """A model file that is missing, damaged, foreign, or written by a newer version."""


class MissingFileError(BitmosaicError, FileNotFoundError):
    """A file or folder that does not exist."""


class UnwritableFileError(BitmosaicError, OSError):
    """A file or folder that cannot be written: the disk is full or failing, or permission is missing."""

    def __str__(self) -> str:
        return str(self.args[0])  # OSError would put its number first


class UnwritableLogError(BitmosaicError, OSError):
    """An edit log that cannot be written."""


class ImageError(BitmosaicError, ValueError):
    """An image that cannot be read, with strict reading."""


class MissingExtraError(BitmosaicError, ImportError):
    """A part of bitmosaic whose packages are not installed; the message has the pip command."""


class ClusterError(BitmosaicError, RuntimeError):
    """A Dask cluster that cannot be reached, or that failed to compute a block of rows."""


class BusyFolderError(BitmosaicError, RuntimeError):
    """A run or views folder in which another process is working."""


class StaleEditError(BusyFolderError):
    """An edit of clusters that were edited by others since the given version."""


class ConstraintError(BitmosaicError, ValueError):
    """Constraints that contradict each other, or that no clustering satisfies."""


def import_extra(package: str, extra: str, what: str) -> Any:
    """Import a package of an extra; the error says what needs it and how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingExtraError(f"{what} needs {package}: pip install 'bitmosaic[{extra}]'") from error
