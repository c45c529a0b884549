"""Images with shapes of their own, and copies of them."""

import shutil

import numpy as np
from PIL import Image


def scene(seed, side=48):
    """Smooth colored shapes, unlike those of any other seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC))


def write_scenes(folder, n=30, side=48):
    """n scenes, and copies: of 0 resized twice, of 1 recompressed, of 2 the same file. Returns the folder."""
    folder.mkdir(parents=True)
    for i in range(n):
        Image.fromarray(scene(i, side)).save(folder / f"{i:02d}.png")
    Image.fromarray(scene(0, side)).resize((2 * side, 2 * side)).save(folder / "large.png")
    Image.fromarray(scene(0, side)).resize((side // 2, side // 2)).save(folder / "small.png")
    Image.fromarray(scene(1, side)).save(folder / "poor.jpg", quality=40)
    (folder / "twin.png").write_bytes((folder / "02.png").read_bytes())
    return folder


def copy_run(made, folder):
    """A copy of the run and its images in a folder. The copied run refers to the copied images."""
    images = shutil.copytree(made / "images", folder / "images")
    shutil.copytree(made / "run", folder / "run")
    recipe = folder / "run" / "views" / "extraction.json"
    recipe.write_text(recipe.read_text().replace(str(made / "images"), str(images)))
