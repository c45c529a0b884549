"""Cluster the handwritten digits that come with scikit-learn: real images, without a download."""

from pathlib import Path

import numpy as np
from PIL import Image

from bitmosaic import pipeline
from bitmosaic.io.files import writing
from bitmosaic.run.folder import Run

SIDE = 32  # pixels; the digits have 8


def write_digits(folder) -> None:
    """Write 1,797 digits as PNG files, one folder per digit: the folder is the true label."""
    from sklearn.datasets import load_digits

    data = load_digits()
    ink = (255 - data.images * (255 / 16)).astype(np.uint8)  # (n, 8, 8), black on white
    for digit in np.unique(data.target):
        Path(folder, str(digit)).mkdir(parents=True, exist_ok=True)
    for number, (image, digit) in enumerate(zip(ink, data.target, strict=True)):
        large = Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        large.save(Path(folder, str(digit), f"{number:04d}.png"))


def run_demo(folder, seed: int = 0, progress: pipeline.Progress = pipeline.quiet) -> Run:
    """Write the digits to `folder`/images and cluster them into the run folder `folder`/run."""
    folder = Path(folder)
    images = folder / ("pictures" if (folder / "pictures").is_dir() else "images")  # the former by version 0.1.0
    if not (folder / "run").exists():
        with writing(folder):
            write_digits(images)
    # A mirrored digit is another shape.
    return pipeline.cluster(images, folder / "run", 10, mirror=False, labels="folder", seed=seed, progress=progress)
