"""Fingerprints stay where a picture is resized or recompressed, and differ between pictures."""

import io

import numpy as np
import pytest
from PIL import Image

from bitmosaic.fingerprints import fingerprint
from copied_pictures import scene


def bits_between(one, other):
    return int(np.bitwise_count(fingerprint(one) ^ fingerprint(other)).sum())


def recompressed(image, quality):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def test_resized_pictures_keep_their_fingerprints():
    rng = np.random.default_rng(0)
    distances = []
    for seed, across, down in zip(rng.integers(0, 10_000, 200).tolist(), *rng.uniform(0.5, 3, (2, 200)), strict=True):
        image = scene(seed, 64)
        size = round(64 * across), round(64 * down)
        distances.append(bits_between(image, np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))))
    assert np.mean(np.array(distances) <= 12) > 0.95
    assert max(distances) <= 24


def test_recompressed_and_brighter_pictures_keep_their_fingerprints():
    rng = np.random.default_rng(0)
    images = [scene(seed, 64) for seed in rng.integers(0, 10_000, 200).tolist()]
    for changed in (
        [recompressed(image, int(quality)) for image, quality in zip(images, rng.integers(30, 96, 200), strict=True)],
        [(0.7 * image + 40).astype(np.uint8) for image in images],
    ):
        distances = [bits_between(image, other) for image, other in zip(images, changed, strict=True)]
        assert np.mean(np.array(distances) <= 12) > 0.95
        assert max(distances) <= 24


def test_half_the_bits_of_unrelated_pictures_differ():
    distances = [bits_between(scene(2 * i), scene(2 * i + 1)) for i in range(200)]
    assert 30 < np.mean(distances) < 70
    assert min(distances) > 16


def test_bits_are_the_signs_of_the_slowest_waves():
    ramp = np.repeat(np.arange(0, 250, 5, dtype=np.uint8)[None, :, None], 30, axis=0).repeat(3, axis=2)
    first_of = {"across": 0, "down": 0}
    for name, image in (("across", ramp[:, ::-1]), ("down", ramp[:, ::-1].transpose(1, 0, 2))):
        first_of[name] = int(np.unpackbits(fingerprint(np.ascontiguousarray(image)))[:2].argmax())
    assert sorted(first_of.values()) == [0, 1]  # the slowest wave of each direction
    assert not np.unpackbits(fingerprint(ramp))[:2].any()  # the same waves, upside down


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (2000, 3), (5, 5)])
def test_any_size_has_a_fingerprint(shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    assert fingerprint(image).shape == (16,)


def test_pictures_of_one_colour_are_told_apart_by_it():
    def flat(*colour):
        return np.full((20, 30, 3), colour, np.uint8)

    assert bits_between(flat(200, 100, 50), flat(202, 99, 50)) <= 2
    assert bits_between(flat(200, 100, 50), recompressed(flat(200, 100, 50), 30)) <= 2
    assert bits_between(flat(0, 0, 0), flat(255, 255, 255)) > 100
    assert bits_between(flat(200, 100, 50), flat(200, 100, 150)) > 16
    assert bits_between(flat(200, 100, 50), scene(0)) > 16
