"""Content hashes find equal images; perceptual hashes find resized and recompressed ones."""

import io

import numpy as np
import pytest
from copied_images import scene
from PIL import Image

from bitmosaic.images.hashes import KnownImages, content_hashes, perceptual_hash

RNG = np.random.default_rng(0)
IMAGES = [RNG.integers(256, size=(4, 5, 3), dtype=np.uint8) for _ in range(70)]


def test_a_content_hash_depends_on_shape_and_pixels_and_not_on_threads():
    one = content_hashes(IMAGES, 1)
    assert one.shape == (70, 16)
    np.testing.assert_array_equal(one, content_hashes(IMAGES, 3))
    np.testing.assert_array_equal(one[3], content_hashes([IMAGES[3].copy(order="F")])[0])
    assert (content_hashes([IMAGES[3].reshape(5, 4, 3)])[0] != one[3]).any()
    assert len(np.unique(one, axis=0)) == 70
    assert content_hashes([]).shape == (0, 16)


def test_known_images_are_found_in_any_part_and_among_the_new_ones():
    hashes = content_hashes(IMAGES)
    names = [f"old{row}" for row in range(200)]
    known = KnownImages([(10, hashes[:20]), (100, hashes[20:30])], names.__getitem__)
    some = hashes[[25, 40, 3, 41, 40]]
    new, same = known.sort_out(some, ["a", "b", "c", "d", "e"])
    assert new.tolist() == [1, 3]
    assert same == [("a", "old105"), ("c", "old13"), ("e", "b")]
    assert known.sort_out(hashes[[41]], ["f"])[1] == [("f", "d")]


def test_half_a_content_hash_is_not_enough():
    hashes = content_hashes(IMAGES[:2])
    half = hashes[:1].copy()
    half[0, 15] ^= 1
    known = KnownImages([(0, np.concatenate([half, hashes[:1]]))], ["half", "whole"].__getitem__)
    assert known.sort_out(hashes[:1], ["a"])[1] == [("a", "whole")]
    half[0, 15] ^= 2
    assert known.sort_out(half, ["b"])[0].tolist() == [0]


def test_without_content_hashes_every_image_is_new():
    new, same = KnownImages([], str).sort_out(content_hashes(IMAGES[:2]), ["a", "b"])
    assert (new.tolist(), same) == ([0, 1], [])


def bits_between(one, other):
    return int(np.bitwise_count(perceptual_hash(one) ^ perceptual_hash(other)).sum())


def recompressed(image, quality):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def test_resized_images_keep_their_perceptual_hash():
    rng = np.random.default_rng(0)
    distances = []
    for seed, across, down in zip(rng.integers(0, 10_000, 200).tolist(), *rng.uniform(0.5, 3, (2, 200)), strict=True):
        image = scene(seed, 64)
        size = round(64 * across), round(64 * down)
        distances.append(bits_between(image, np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))))
    assert np.mean(np.array(distances) <= 12) > 0.95
    assert max(distances) <= 24


def test_recompressed_and_brighter_images_keep_their_perceptual_hash():
    rng = np.random.default_rng(0)
    images = [scene(seed, 64) for seed in rng.integers(0, 10_000, 200).tolist()]
    for changed in (
        [recompressed(image, int(quality)) for image, quality in zip(images, rng.integers(30, 96, 200), strict=True)],
        [(0.7 * image + 40).astype(np.uint8) for image in images],
    ):
        distances = [bits_between(image, other) for image, other in zip(images, changed, strict=True)]
        assert np.mean(np.array(distances) <= 12) > 0.95
        assert max(distances) <= 24


def test_half_the_bits_of_unrelated_images_differ():
    distances = [bits_between(scene(2 * i), scene(2 * i + 1)) for i in range(200)]
    assert 30 < np.mean(distances) < 70
    assert min(distances) > 16


def test_bits_are_the_signs_of_the_slowest_waves():
    ramp = np.repeat(np.arange(0, 250, 5, dtype=np.uint8)[None, :, None], 30, axis=0).repeat(3, axis=2)
    first_of = {"across": 0, "down": 0}
    for name, image in (("across", ramp[:, ::-1]), ("down", ramp[:, ::-1].transpose(1, 0, 2))):
        first_of[name] = int(np.unpackbits(perceptual_hash(np.ascontiguousarray(image)))[:2].argmax())
    assert sorted(first_of.values()) == [0, 1]  # the slowest wave of each direction
    assert not np.unpackbits(perceptual_hash(ramp))[:2].any()  # the same waves, upside down


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (2000, 3), (5, 5)])
def test_any_size_has_a_perceptual_hash(shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    assert perceptual_hash(image).shape == (16,)


def test_flat_images_are_hashed_by_their_color():
    def flat(*color):
        return np.full((20, 30, 3), color, np.uint8)

    assert bits_between(flat(200, 100, 50), flat(202, 99, 50)) <= 2
    assert bits_between(flat(200, 100, 50), recompressed(flat(200, 100, 50), 30)) <= 2
    assert bits_between(flat(0, 0, 0), flat(255, 255, 255)) > 100
    assert bits_between(flat(200, 100, 50), flat(200, 100, 150)) > 16
    assert bits_between(flat(200, 100, 50), scene(0)) > 16
