"""A bad file never stops a run: it is skipped with a cause that a user understands."""

import os
import threading
import warnings

import numpy as np
import pytest
from image_files import bad_files, encoded, good_files, sample_image
from PIL import Image

from bitmosaic.errors import BitmosaicError, ImageError
from bitmosaic.images import Skipped, open_images
from bitmosaic.images import decode as decoding
from bitmosaic.images.decode import cause_of


def read_all(source, **options):
    batches = list(source.batches(**options))
    images = {source.paths[i]: image for b in batches for i, image in zip(b.positions, b.images, strict=True)}
    causes = {skipped.path: skipped.cause for batch in batches for _, skipped in batch.skipped}
    return images, causes


def test_thirty_bad_files_among_good_ones_are_skipped_with_their_causes(tmp_path, capfd):
    shown = good_files(tmp_path)
    expected = {f"bad/{name}": cause for name, cause in bad_files(tmp_path / "bad").items()}
    assert len(expected) == 30
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        images, causes = read_all(open_images(tmp_path), batch_size=7)
    assert images.keys() == shown.keys()
    assert causes.keys() == expected.keys()
    wrong = {path: cause for path, cause in causes.items() if not cause.startswith(expected[path])}
    assert not wrong
    assert not [str(warning.message) for warning in caught]
    assert capfd.readouterr() == ("", "")


def test_every_cause_is_one_line_without_addresses(tmp_path):
    bad_files(tmp_path)
    _, causes = read_all(open_images(tmp_path))
    for cause in causes.values():
        assert "\n" not in cause
        assert "0x" not in cause
        assert len(cause) < 150


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_a_file_truncated_anywhere_is_read_or_skipped_with_a_known_cause(file_format, tmp_path):
    content = encoded(sample_image(0, 12, 12), file_format)
    paths = []
    for length in range(0, len(content), 7):
        paths.append(tmp_path / f"{length}.bin")
        paths[-1].write_bytes(content[:length])
    _, causes = read_all(open_images(paths))
    # The last few bytes hold no pixels, so some formats decode without them.
    assert len(causes) >= len(paths) - 20
    assert set(causes.values()) <= {
        *("empty file", "not an image", "truncated"),
        *(cause for cause in causes.values() if cause.startswith("damaged: ")),
    }


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_flipped_bytes_give_an_image_or_a_cause(file_format, tmp_path, capfd):
    rng = np.random.default_rng(0)
    content = np.frombuffer(encoded(sample_image(0, 12, 12), file_format), dtype=np.uint8)
    paths = []
    for i in range(150):
        damaged = content.copy()
        damaged[rng.integers(0, min(len(damaged), 300), 3)] = rng.integers(0, 256, 3)
        paths.append(tmp_path / f"{i}.bin")
        paths[-1].write_bytes(damaged.tobytes())
    images, causes = read_all(open_images(paths))
    assert len(images) + len(causes) == 150
    assert all(image.ndim == 3 and image.shape[2] == 3 for image in images.values())
    assert capfd.readouterr().err == ""


def test_strict_stops_at_the_first_bad_file_and_names_it(tmp_path):
    good_files(tmp_path, 5)
    (tmp_path / "b" / "000.jpg").write_bytes(b"")
    (tmp_path / "b" / "zzz.jpg").write_bytes(b"hello")
    with pytest.raises(
        ImageError, match=r"^Cannot read the image b/000.jpg: empty file\. Repair or remove it, or leave"
    ):
        list(open_images(tmp_path).batches(strict=True))
    assert issubclass(ImageError, BitmosaicError)
    assert issubclass(ImageError, ValueError)


def test_a_name_with_a_newline_does_not_break_the_line_of_the_error(tmp_path):
    (tmp_path / "two\nlines.jpg").write_bytes(b"")
    with pytest.raises(ImageError, match=r"two\\nlines.jpg: empty file"):
        open_images(tmp_path).read(0)


def test_a_file_that_vanishes_while_running_is_skipped(tmp_path):
    shown = good_files(tmp_path, 12)
    source = open_images(tmp_path)
    batches = source.batches(batch_size=1, n_threads=1)
    next(batches)
    for path in ("b/010.png", "c/011.png"):
        (tmp_path / path).unlink()
    rest = list(batches)
    skipped = [skipped for batch in rest for _, skipped in batch.skipped]
    assert skipped == [Skipped("b/010.png", "no such file"), Skipped("c/011.png", "no such file")]
    assert sum(len(batch.images) for batch in rest) == len(shown) - 3


def test_a_folder_and_a_missing_file_in_a_list_are_skipped(tmp_path):
    (tmp_path / "good.png").write_bytes(encoded(sample_image()))
    paths = [tmp_path / "none.png", tmp_path, tmp_path / "good.png", tmp_path / "good.png" / "x.png", "nul\0.png"]
    (batch,) = open_images(paths).batches()
    assert batch.positions.tolist() == [2]
    causes = {i: skipped.cause for i, skipped in batch.skipped}
    assert causes == {0: "no such file", 1: "it is a folder", 3: "no such file", 4: "no such file"}


def test_a_file_that_may_not_be_read_says_permission_denied(tmp_path, monkeypatch):
    (tmp_path / "secret.png").write_bytes(encoded(sample_image()))
    (tmp_path / "secret.png").chmod(0)
    if os.access(tmp_path / "secret.png", os.R_OK):  # root can read everything

        def deny(*_, **options):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("builtins.open", deny)
    (batch,) = open_images([tmp_path / "secret.png"]).batches()
    assert batch.skipped[0][1].cause == "permission denied"


def test_the_pixel_limit_applies_also_where_pillow_only_warns(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    path = tmp_path / "large.png"
    path.write_bytes(encoded(sample_image(0, 12, 12)))
    _, causes = read_all(open_images([path]))
    assert causes[str(path)] == "decompression bomb: 12×12 pixels exceed the limit of 100"


def test_a_file_too_large_for_the_memory_is_skipped(tmp_path, monkeypatch):
    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr(decoding, "_upright", exhausted)
    (tmp_path / "a.png").write_bytes(encoded(sample_image()))
    _, causes = read_all(open_images(tmp_path))
    assert causes == {"a.png": "too large for the memory of this machine"}


def test_a_disk_error_keeps_its_message():
    assert cause_of(OSError(5, "Input/output error")) == "cannot be read: Input/output error"
    assert cause_of(RuntimeError("odd")) == "cannot be read: odd"
    assert cause_of(KeyError(), b"GIF89a;") == "damaged: KeyError"


def test_concurrent_readers_restore_the_warning_filters(tmp_path):
    bad_files(tmp_path)
    rules = list(warnings.filters)
    threads = [threading.Thread(target=read_all, args=[open_images(tmp_path)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == rules
