"""Folders are searched by content, in a stable order; lists are taken as they are."""

import os
from pathlib import Path

import numpy as np
import pytest
from image_files import SUFFIXES, encoded, good_files, sample_image

from bitmosaic.errors import DataTypeError, FileFormatError, InvalidDataError, MissingFileError
from bitmosaic.images import display_path, open_images

PNG = encoded(sample_image())


def put(folder: Path, *paths: str, content: bytes = PNG) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def test_images_are_found_by_content_under_any_name(tmp_path):
    for file_format in SUFFIXES:
        (tmp_path / f"{file_format}.dat").write_bytes(encoded(sample_image(), file_format))
        (tmp_path / f"{file_format}-bare").write_bytes(encoded(sample_image(), file_format))
    put(tmp_path, "a-png-called.jpg")
    source = open_images(tmp_path)
    assert len(source) == 2 * len(SUFFIXES) + 1
    (batch,) = source.batches()
    assert not batch.skipped


def test_files_that_are_not_images_are_ignored(tmp_path):
    put(tmp_path, "a.png")
    put(tmp_path, "notes.txt", content=b"BMW, P5 and other words")
    put(tmp_path, "Thumbs.db", content=b"\xd0\xcf\x11\xe0")
    put(tmp_path, "empty", "empty.txt", content=b"")
    put(tmp_path, "film.mp4", content=b"\0\0\0\x18ftypmp42")
    put(tmp_path, "sound.wav", content=b"RIFF\0\0\0\0WAVE")
    put(tmp_path, "list.csv", content=b"P5 is a size,BM another")
    os.mkfifo(tmp_path / "pipe")
    os.symlink("nowhere", tmp_path / "dangling")
    assert open_images(tmp_path).paths == ("a.png",)


def test_a_pipe_named_like_a_manifest_does_not_block(tmp_path):
    put(tmp_path, "folder/a.png")
    os.mkfifo(tmp_path / "folder" / "manifest.json")
    assert open_images(tmp_path).paths == ("folder/a.png",)


def test_hidden_files_and_folders_are_left_out(tmp_path):
    put(tmp_path, "a.png", ".b.png", ".git/c.png", "d/._d.png", "d/e.png")
    assert open_images(tmp_path).paths == ("a.png", "d/e.png")


def test_a_hidden_folder_that_was_asked_for_is_searched(tmp_path):
    put(tmp_path, ".hidden/a.png")
    assert open_images(tmp_path / ".hidden").paths == ("a.png",)


def test_paths_are_relative_and_sorted_by_their_bytes(tmp_path):
    names = ["b.png", "B.png", "a/z.png", "a.png", "a-b.png", "10.png", "9.png", "é.png", "z/y/x/w.png", "日本.png"]
    put(tmp_path, *names)
    source = open_images(str(tmp_path))
    assert list(source.paths) == sorted(names, key=str.encode)
    assert source.paths == open_images(f"{tmp_path}/").paths


def test_odd_names_are_read(tmp_path):
    names = ["two words.png", "two\nlines.png", "tab\t.png", "ünïcødé.png", "n" * 246 + ".png", "'quotes\".png"]
    put(tmp_path, *names)
    bytes_name = os.path.join(os.fsencode(tmp_path), b"latin-\xe9\xff.png")
    with open(bytes_name, "wb") as file:
        file.write(PNG)
    source = open_images(tmp_path)
    (batch,) = source.batches()
    assert len(batch.images) == len(names) + 1
    assert set(source.paths) == {*names, os.fsdecode(b"latin-\xe9\xff.png")}
    assert [display_path(path) for path in source.paths if path.startswith("latin")] == [r"latin-\xe9\xff.png"]


def test_display_path_can_always_be_encoded():
    for path in ("plain", "é日", os.fsdecode(b"\x80\xff"), "lone \ud800 surrogate"):
        display_path(path).encode()
    assert display_path("é日 with\nnewline") == "é日 with\nnewline"
    assert display_path("lone \ud800") == r"lone \ud800"


def test_loops_of_links_end_and_no_folder_is_read_twice(tmp_path):
    put(tmp_path, "in/a/1.png", "outside/2.png")
    os.symlink("..", tmp_path / "in" / "a" / "up")
    os.symlink(".", tmp_path / "in" / "self")
    os.symlink("a", tmp_path / "in" / "A-link-sorted-first")
    os.symlink(tmp_path / "outside", tmp_path / "in" / "linked")
    os.symlink(tmp_path / "outside", tmp_path / "in" / "linked-again")
    os.symlink("1.png", tmp_path / "in" / "a" / "file-link.png")
    assert open_images(tmp_path / "in").paths == ("a/1.png", "a/file-link.png", "linked/2.png")


def test_a_folder_below_that_may_not_be_read_is_reported(tmp_path, monkeypatch):
    put(tmp_path, "a.png", "secret/b.png")
    scan, open_file = os.scandir, os.open

    def guarded(function):
        def call(place, *options):
            if str(place).endswith("secret"):
                raise PermissionError(13, "Permission denied")
            return function(place, *options)

        return call

    monkeypatch.setattr(os, "scandir", guarded(scan))
    monkeypatch.setattr(os, "open", guarded(open_file))
    source = open_images(tmp_path)
    assert source.paths == ("a.png", "secret")
    (batch,) = source.batches()
    assert [skipped.cause for _, skipped in batch.skipped] == ["permission denied"]


def test_labels_are_the_names_of_the_folders(tmp_path):
    put(tmp_path, "top.png", "train/cat/1.png", "test/dog/2.png", "cat/3.png")
    labels = dict(zip(open_images(tmp_path).paths, open_images(tmp_path).labels(), strict=True))
    assert labels == {"top.png": "", "train/cat/1.png": "cat", "test/dog/2.png": "dog", "cat/3.png": "cat"}


def test_the_signature_of_a_file_changes_with_it(tmp_path):
    put(tmp_path, "a.png", "b.png")
    before = open_images(tmp_path).image_signature(0)
    assert before[0] == len(PNG)
    assert open_images([tmp_path / "a.png"]).image_signature(0) == before
    put(tmp_path, "a.png", content=PNG + b"\0")
    assert open_images(tmp_path).image_signature(0) != before
    assert open_images([tmp_path / "gone.png"]).image_signature(0) == (-1, -1)


@pytest.mark.parametrize("kind", ["folder", "list"])
def test_each_file_is_stated_once(tmp_path, kind, monkeypatch):
    put(tmp_path, "a.png", "b.png")
    looked_up = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda place, **options: looked_up.append(str(place)) or stat(place, **options))
    source = open_images(tmp_path if kind == "folder" else [tmp_path / "a.png", tmp_path / "b.png"])
    for _ in range(2):
        assert [source.image_signature(i)[0] for i in range(2)] == [len(PNG)] * 2
        assert len(source.read_many(range(2))) == 2
    # The listing of a folder gives the sizes and dates of its files.
    names = [place for place in looked_up if place.endswith(".png")]
    assert len(names) == (0 if kind == "folder" else 2)


def test_a_list_keeps_its_order_and_repeated_paths(tmp_path):
    put(tmp_path, "a.png", "b.png")
    paths = [tmp_path / "b.png", str(tmp_path / "a.png"), os.fsencode(tmp_path / "b.png")]
    source = open_images(paths)
    assert source.paths == tuple(os.fsdecode(path) for path in paths)
    assert source.labels().tolist() == [tmp_path.name] * 3
    (batch,) = source.batches()
    assert batch.positions.tolist() == [0, 1, 2]


def test_a_text_file_lists_one_path_per_line_relative_to_its_folder(tmp_path):
    shown = good_files(tmp_path, 4)
    lines = [*shown, "", str(tmp_path / "a/000.png")]
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    source = open_images(tmp_path / "list.txt")
    assert source.paths == (*shown, str(tmp_path / "a/000.png"))
    (batch,) = source.batches()
    for image, expected in zip(batch.images, shown.values(), strict=False):
        np.testing.assert_array_equal(image, expected)
    assert len(batch.images) == 5


def test_a_list_separated_by_nul_bytes_may_contain_newlines(tmp_path):
    put(tmp_path, "two\nlines.png", "b.png")
    (tmp_path / "list.txt").write_bytes(b"two\nlines.png\0b.png\0")
    assert open_images(tmp_path / "list.txt").paths == ("two\nlines.png", "b.png")


def test_a_single_image_file_is_a_source(tmp_path):
    put(tmp_path, "a.png")
    source = open_images(tmp_path / "a.png")
    assert source.paths == (str(tmp_path / "a.png"),)
    np.testing.assert_array_equal(source.read(0), sample_image())
    put(tmp_path, "bad.jpg", content=b"")
    (batch,) = open_images(tmp_path / "bad.jpg").batches()
    assert batch.skipped[0][1].cause == "empty file"


def test_a_source_is_returned_as_it_is(tmp_path):
    put(tmp_path, "a.png")
    source = open_images(tmp_path)
    assert open_images(source) is source
    assert repr(source) == f"<FolderSource {tmp_path}: 1 images>"


def test_a_folder_without_images_is_refused(tmp_path):
    put(tmp_path, "notes.txt", content=b"hello")
    looked_for = "looked for JPEG, PNG, WebP, BMP, TIFF, GIF, PPM/PGM"
    with pytest.raises(InvalidDataError, match=f"No images found in {tmp_path}; {looked_for}"):
        open_images(tmp_path)


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(MissingFileError, match=f"Images come from a folder, .*; there is nothing at {tmp_path}/none"):
        open_images(tmp_path / "none")
    with pytest.raises(MissingFileError, match="there is nothing at"):
        open_images("nul\0byte")


@pytest.mark.parametrize(("name", "content"), [("a.pdf", b"%PDF-1.4"), ("empty", b""), ("a.csv", b"path\na.png\n")])
def test_a_file_of_another_kind_is_refused(tmp_path, name, content):
    put(tmp_path, name, content=content)
    with pytest.raises(FileFormatError, match=f"{name} is none of these, judging by its first bytes"):
        open_images(tmp_path / name)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match="neither a file nor a folder"):
        open_images(tmp_path / "pipe")


def test_a_folder_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    def deny(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(FileFormatError, match="cannot be read: permission denied"):
        open_images(tmp_path)


def test_empty_lists_and_unsupported_types_are_refused(tmp_path):
    with pytest.raises(InvalidDataError, match="needs at least one path; the list is empty"):
        open_images([])
    put(tmp_path, "list.txt", content=b"\n\n")
    with pytest.raises(InvalidDataError, match=r"list.txt is empty"):
        open_images(tmp_path / "list.txt")
    with pytest.raises(DataTypeError, match=r"got a list with a ndarray in it. Stack arrays with np.stack"):
        open_images([sample_image()])
    with pytest.raises(DataTypeError, match="got a int"):
        open_images(7)
    with pytest.raises(DataTypeError, match="got a NoneType"):
        open_images(None)
