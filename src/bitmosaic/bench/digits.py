"""The handwritten digits that come with scikit-learn, seen through four kinds of features."""

import numpy as np
from sklearn.datasets import load_digits

from bitmosaic.views import Views


def digit_views():
    """1,797 digits of 8×8 pixels as views: pixels, strokes, fourier and profiles; the true digits as labels."""
    data = load_digits()
    images = data.images / 16.0  # (n, 8, 8) in [0, 1]
    views = {
        "pixels": images.reshape(len(images), -1),
        "strokes": stroke_directions(images),
        "fourier": fourier_magnitudes(images),
        "profiles": profiles(images),
    }
    arrays = tuple(array.astype(np.float32) for array in views.values())
    return Views(tuple(views), arrays, labels=data.target), images


def stroke_directions(images, n_directions=8, n_cells=4):
    """How strong the strokes are in each direction, in each cell of a grid: (n, n_cells² · n_directions)."""
    dy, dx = np.gradient(images, axis=(1, 2))
    direction = (np.arctan2(dy, dx) / (2 * np.pi) * n_directions).round().astype(int) % n_directions
    strength = np.hypot(dx, dy)
    layers = strength[..., None] * (direction[..., None] == np.arange(n_directions))  # (n, 8, 8, directions)
    size = images.shape[1] // n_cells
    cells = layers.reshape(len(images), n_cells, size, n_cells, size, n_directions).sum((2, 4))
    return cells.reshape(len(images), -1)


def fourier_magnitudes(images):
    """Magnitudes of the two-dimensional spectrum, which do not change when a digit is moved: (n, 40)."""
    return np.abs(np.fft.rfft2(images)).reshape(len(images), -1)


def profiles(images):
    """Sums and outer contours along rows and columns: (n, 48)."""
    ink = images > 0.25
    left, right = ink.argmax(2), ink[:, :, ::-1].argmax(2)
    top, bottom = ink.argmax(1), ink[:, ::-1].argmax(1)
    return np.hstack([images.sum(2), images.sum(1), left, right, top, bottom])
