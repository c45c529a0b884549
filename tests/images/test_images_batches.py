"""Batches come in order, the same for any number of threads, from any start, in bounded memory."""

import time

import numpy as np
import pytest
from image_files import encoded, good_files, sample_image

from bitmosaic.errors import ImageError
from bitmosaic.images import open_images
from bitmosaic.images.files import FileSource


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for i in range(200):
        (folder / f"{i:03}.png").write_bytes(encoded(sample_image(i, 9 + i % 5, 11)) if i % 17 else b"")
    return folder


def flat(batches):
    """(position, pixels or cause) of everything in the batches, in the order of the positions."""
    everything = []
    for batch in batches:
        good = [(int(i), image.tobytes()) for i, image in zip(batch.positions, batch.images, strict=True)]
        everything += sorted(good + [(i, skipped.cause) for i, skipped in batch.skipped])
    return everything


def test_batches_hold_consecutive_images_and_count_bad_ones(folder):
    batches = list(open_images(folder).batches(batch_size=30))
    assert [len(batch.images) + len(batch.skipped) for batch in batches] == [30] * 6 + [20]
    assert batches[0].positions.dtype == np.int64
    assert [i for i, _ in flat(batches)] == list(range(200))
    assert [i for batch in batches for i, _ in batch.skipped] == list(range(0, 200, 17))


@pytest.mark.parametrize("n_threads", [1, 2, 5, None])
@pytest.mark.parametrize("batch_size", [1, 64, 100, 1000])
def test_nothing_depends_on_threads_and_batch_size(folder, n_threads, batch_size):
    source = open_images(folder)
    assert flat(source.batches(batch_size, n_threads=n_threads)) == flat(source.batches(n_threads=1))


@pytest.mark.parametrize("start", [1, 63, 64, 150, 199, 200])
def test_a_later_start_gives_the_tail_of_a_full_pass(folder, start):
    source = open_images(folder)
    assert flat(source.batches(start=start)) == flat(source.batches())[start:]


def test_a_batch_may_hold_no_image_at_all(folder):
    batch = next(open_images(folder).batches(batch_size=1))
    assert batch.images == []
    assert batch.positions.shape == (0,)


def test_no_image_is_decoded_after_the_reader_stops_early(folder, monkeypatch):
    source, decoded = open_images(folder), []
    image = source._image
    monkeypatch.setattr(source, "_image", lambda i, *rest: decoded.append(i) or image(i, *rest))
    batches = source.batches(batch_size=8, n_threads=3)
    next(batches)
    batches.close()
    n_decoded = len(decoded)
    time.sleep(0.05)
    assert len(decoded) == n_decoded < len(source)


def test_only_a_few_pieces_are_read_ahead(folder, monkeypatch):
    read = []
    content = FileSource._content

    def counted(self, position):
        read.append(position)
        return content(self, position)

    monkeypatch.setattr(FileSource, "_content", counted)
    for n_taken, _ in enumerate(open_images(folder).batches(batch_size=5, n_threads=2), start=1):
        assert len(read) <= 5 * (n_taken + 3)
    assert sorted(read) == list(range(200))


def test_single_images_are_read_in_full_size(tmp_path):
    shown = good_files(tmp_path, 9)
    (tmp_path / "z.jpg").write_bytes(b"nothing")
    (tmp_path / "large.png").write_bytes(encoded(sample_image(0, 300, 200)))
    source = open_images(tmp_path)
    for i, expected in enumerate(shown.values()):
        np.testing.assert_array_equal(source.read(i), expected)
    assert source.read(9).shape == (300, 200, 3)
    assert source.read(9, max_side=64).shape == (64, 64, 3)
    with pytest.raises(ImageError, match=r"Cannot read the image z.jpg: not an image\. It may have changed"):
        source.read(10)


def test_many_images_are_read_by_position_and_bad_ones_left_out(tmp_path):
    shown = list(good_files(tmp_path, 9).values())
    (tmp_path / "z.jpg").write_bytes(b"nothing")
    read = open_images(tmp_path).read_many(np.array([9, 5, 2, 5]))
    assert list(read) == [2, 5]
    np.testing.assert_array_equal(read[5], shown[5])
    assert open_images(tmp_path).read_many([]) == {}
