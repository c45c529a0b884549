"""Find, detect, decode and stream images. A bad file is skipped, and its cause is reported."""

from bitmosaic.images.open import open_images
from bitmosaic.images.source import Batch, ImageSource, Progress, Skipped, display_path, folder_name, printable, quiet

__all__ = [
    "Batch",
    "ImageSource",
    "Progress",
    "Skipped",
    "display_path",
    "folder_name",
    "open_images",
    "printable",
    "quiet",
]
