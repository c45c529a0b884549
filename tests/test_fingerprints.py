"""Fingerprints stay where a picture is resized or recompressed, and differ between pictures."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bitmosaic.fingerprints import fingerprint
from copied_pictures import scene


def bits_between(one, other):
    return int(np.bitwise_count(fingerprint(one) ^ fingerprint(other)).sum())


def recompressed(image, quality):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


@given(st.integers(0, 10_000), st.floats(0.5, 3), st.floats(0.5, 3))
@settings(max_examples=40, deadline=None)
def test_a_resized_picture_keeps_its_fingerprint(seed, across, down):
    image = scene(seed, 64)
    size = round(64 * across), round(64 * down)
    resized = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
    assert bits_between(image, resized) <= 12


@given(st.integers(0, 10_000), st.integers(30, 95))
@settings(max_examples=40, deadline=None)
def test_a_recompressed_or_brighter_picture_keeps_its_fingerprint(seed, quality):
    image = scene(seed, 64)
    assert bits_between(image, recompressed(image, quality)) <= 12
    assert bits_between(image, (0.7 * image + 40).astype(np.uint8)) <= 12


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
