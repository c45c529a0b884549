"""Small real image files of a few kinds that can be told apart: discs, stripes and noise, in different colors."""

import numpy as np
from PIL import Image

KINDS = ("disc", "noise", "stripes")


def make_image(kind, rng, size=24):
    y, x = np.mgrid[:size, :size]
    image = np.full((size, size, 3), 255.0)
    if kind == "disc":
        cy, cx = rng.uniform(0.4, 0.6, 2) * size
        image[(y - cy) ** 2 + (x - cx) ** 2 < (rng.uniform(0.25, 0.35) * size) ** 2] = (200, 30, 30)
    elif kind == "stripes":
        image[(x + rng.integers(8)) // 3 % 2 == 0] = (30, 60, 200)
    else:
        image[:] = rng.uniform(0, 255, (size, size, 1)) * (0.4, 1, 0.4)
    return np.clip(image + rng.normal(0, 6, image.shape), 0, 255).astype(np.uint8)


def write_images(folder, n_each, seed=0, suffix="png"):
    """n_each images of each kind as files, in a folder for each kind; returns the folder."""
    rng = np.random.default_rng(seed)
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for i in range(n_each):
            Image.fromarray(make_image(kind, rng)).save(folder / kind / f"{i:04d}.{suffix}")
    return folder
