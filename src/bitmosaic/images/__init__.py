"""Images: find, sniff, decode and stream pictures; a bad file is set aside with its cause."""

from bitmosaic.images.door import open_images
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
