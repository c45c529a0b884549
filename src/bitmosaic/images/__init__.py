"""Images: find, sniff, decode and stream pictures; a bad file is set aside with its cause."""

from bitmosaic.images.door import open_images
from bitmosaic.images.source import Batch, ImageSource, Skipped, display_path, folder_name

__all__ = ["Batch", "ImageSource", "Skipped", "display_path", "folder_name", "open_images"]
