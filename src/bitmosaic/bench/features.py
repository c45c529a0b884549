"""Compare the speed of our extractors with scikit-image's functions, on the same cores and images."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from bitmosaic.bench.timing import best_times
from bitmosaic.errors import import_extra
from bitmosaic.features import extract, extractor
from bitmosaic.images import open_images

VIEWS = ("lbp", "gist", "hog")


def skimage_lbp(image):
    """58 uniform patterns in 5×5 cells, like our LBP."""
    from skimage.color import rgb2gray
    from skimage.feature import local_binary_pattern

    codes = local_binary_pattern((255 * rgb2gray(image)).astype(np.uint8), 8, 1, method="nri_uniform")
    rows = np.array_split(codes, 5)
    cells = [cell for row in rows for cell in np.array_split(row, 5, axis=1)]
    return np.concatenate([np.bincount(cell.astype(int).ravel(), minlength=59)[:58] for cell in cells])


def skimage_hog(image):
    """18 orientations in 8×8 cells, like our HOG."""
    from skimage.feature import hog

    cell = (image.shape[0] // 8, image.shape[1] // 8)
    return hog(image, orientations=18, pixels_per_cell=cell, cells_per_block=(1, 1), channel_axis=-1)


PEERS: dict[str, Callable] = {"lbp": skimage_lbp, "hog": skimage_hog}


def _peer_block(work):
    names, images = work
    return [[PEERS[name](image) for image in images] for name in names]


@dataclass
class Timings:
    """The best time of each method, in seconds for all images."""

    n_images: int
    seconds: dict[str, float]

    def rate(self, name):
        return self.n_images / self.seconds[name]


def measure(src, limit, repeats, n_threads, progress):
    """The best times of all methods."""
    import_extra("skimage.feature", "bench", "bench features")
    source = open_images(src, progress)
    images = []
    for batch in source.batches(1024, n_threads=n_threads):
        images += batch.images
        progress("reading images", min(len(images), limit), min(len(source), limit))
        if len(images) >= limit:
            break
    images = images[:limit]

    def ours(name, mirror):
        chosen = [extractor(name, mirror=mirror)]
        extract(chosen, images[:64], n_threads)  # compile before timing
        return lambda: extract(chosen, images, n_threads)

    def whole():
        chosen = [extractor(name, mirror=True) for name in VIEWS]
        done = 0
        for batch in source.batches(1024, n_threads=n_threads):
            keep = batch.images[: len(images) - done]
            extract(chosen, keep, n_threads)
            done += len(keep)
            if done == len(images):
                return

    with ProcessPoolExecutor(n_threads) as pool:
        blocks = [images[i : i + 250] for i in range(0, len(images), 250)]

        def peer(*names):
            list(pool.map(_peer_block, [(names, block[:2]) for block in blocks[: 2 * n_threads]]))  # imports
            return lambda: list(pool.map(_peer_block, [(names, block) for block in blocks]))

        methods = {f"bitmosaic {name}": ours(name, False) for name in VIEWS}
        methods |= {f"bitmosaic {name} mirror": ours(name, True) for name in VIEWS}
        methods |= {f"scikit-image {name}": peer(name) for name in PEERS}
        methods |= {"scikit-image lbp+hog": peer(*PEERS), "bitmosaic decoding+lbp+gist+hog mirror": whole}
        return Timings(len(images), best_times(methods, repeats, progress)[0])


def ratios(timings):
    """Our speed divided by that of the peer, for comparable methods."""
    pairs = {
        "lbp": ("bitmosaic lbp", "scikit-image lbp"),
        "hog": ("bitmosaic hog", "scikit-image hog"),
        "whole extraction against lbp+hog": ("bitmosaic decoding+lbp+gist+hog mirror", "scikit-image lbp+hog"),
    }
    return {name: timings.rate(our) / timings.rate(peer) for name, (our, peer) in pairs.items()}
