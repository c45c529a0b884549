"""What a user can cause: each error says the rule, what came, and what to do."""


class BitmosaicError(Exception):
    """Everything that a user's input can cause."""


class InvalidDataError(BitmosaicError, ValueError):
    """An array, a view or a set of labels that cannot be used as it is."""


class ViewMismatchError(InvalidDataError):
    """Views that do not fit each other, or do not fit the fitted model."""


class StaleCheckpointError(InvalidDataError):
    """A checkpoint of other data, parameters or versions, or one that was changed."""


class DataTypeError(BitmosaicError, TypeError):
    """Data of a kind that is not supported at all, such as sparse matrices."""


class ParameterError(BitmosaicError, ValueError):
    """A parameter outside its range, or one that contradicts another."""


class FileFormatError(BitmosaicError, ValueError):
    """A file that is not what its place or name promises."""


class ModelFileError(FileFormatError):
    """A model file that was cut, changed, made by hand, or written by a newer version."""


class MissingFileError(BitmosaicError, FileNotFoundError):
    """A file or folder that is not where it was said to be."""


class UnwritableFileError(BitmosaicError, OSError):
    """A file or folder that the system would not write: the disk is full or failing, or permission is lacking."""

    def __str__(self) -> str:
        return str(self.args[0])  # without the number, which OSError would put before it


class ExportError(BitmosaicError, OSError):
    """An export or a report that the system stopped."""


class ImageError(BitmosaicError, ValueError):
    """A picture that cannot be read, where skipping it was not asked for."""


class MissingExtraError(BitmosaicError, ImportError):
    """A part of bitmosaic whose packages are not installed; the message has the pip command."""


class ClusterError(BitmosaicError, RuntimeError):
    """A Dask cluster that cannot be reached, or a block of rows that it could not compute."""


class BusyFolderError(BitmosaicError, RuntimeError):
    """A run or views folder in which another process is working."""


class ConstraintError(BitmosaicError, ValueError):
    """Constraints that contradict each other, or that no clustering was found for."""
