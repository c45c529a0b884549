"""A views folder is read back exactly; a damaged or forged one is refused."""

import json
import tempfile

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bitmosaic.errors import FileFormatError, InvalidDataError, ViewMismatchError
from bitmosaic.views import Views, as_views, read_content_hashes, read_views, write_views
from bitmosaic.views import writer as writer_module

MATRIX = np.arange(12, dtype=np.float32).reshape(4, 3)
HASHES = np.arange(64, dtype=np.uint8).reshape(4, 16)
NAMES = st.from_regex(r"\A[a-z][a-z0-9_ .-]{0,8}[a-z0-9]\Z").filter(lambda name: name not in writer_module.TAKEN)
DTYPES = st.sampled_from(["f2", "f4", "f8", ">f4", ">i2", "u1", "i8", "?"])


@st.composite
def some_views(draw):
    n = draw(st.integers(1, 6))
    names = tuple(draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)))
    arrays = tuple(
        draw(hnp.arrays(np.dtype(draw(DTYPES)), (n, draw(st.integers(1, 4))), fill=st.nothing())) for _ in names
    )
    labels = draw(st.none() | hnp.arrays(np.int32, n) | hnp.arrays("U3", n, elements=st.text("abé", max_size=3)))
    paths = draw(st.none() | st.lists(st.text(), min_size=n, max_size=n).map(tuple))
    return Views(names, arrays, labels, paths)


@settings(max_examples=15, deadline=None)
@given(views=some_views())
def test_views_are_read_back_bit_for_bit(views):
    with tempfile.TemporaryDirectory() as folder:
        write_views(folder, views)
        back = read_views(folder)
        assert back.names == views.names
        assert back.paths == views.paths
        for ours, theirs in zip(back.arrays, views.arrays, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes()
        if views.labels is None:
            assert back.labels is None
        else:
            np.testing.assert_array_equal(back.labels, views.labels)


def test_views_are_opened_as_read_only_memory_maps(tmp_path):
    write_views(tmp_path, {"hog": MATRIX})
    array = read_views(tmp_path)["hog"]
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable


def test_a_growing_matrix_is_empty_until_finished_and_then_equals_a_saved_one(tmp_path):
    np.save(tmp_path / "whole.npy", MATRIX)
    grown = writer_module.GrowingMatrix(tmp_path / "grown.npy", 3)
    grown.open(0)
    grown.append(MATRIX)
    grown.close()
    assert np.load(tmp_path / "grown.npy").shape == (0, 3)
    assert (grown.holds(4), grown.holds(5)) == (True, False)
    grown.open(2)  # later rows are discarded
    np.testing.assert_array_equal(grown.rows(), MATRIX[:2])
    grown.append(MATRIX[2:])
    grown.finish()
    assert (tmp_path / "grown.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_the_manifest_lists_the_files(tmp_path):
    write_views(tmp_path, {"hog": MATRIX}, paths=["a", "b", "c", "d"])
    assert json.loads((tmp_path / "manifest.json").read_text()) == {
        "format": "bitmosaic-views",
        "version": 1,
        "n_rows": 4,
        "labels": False,
        "paths": True,
        "digests": False,
        "views": [{"name": "hog", "file": "hog.npy", "shape": [4, 3], "dtype": "<f4"}],
    }


def test_paths_survive_newlines_and_names_that_are_not_utf8(tmp_path):
    paths = ("a\nb.png", "c\u2028d.png", "caf\udce9.png", '"quoted".png')
    write_views(tmp_path, MATRIX, paths=paths)
    assert read_views(tmp_path).paths == paths


def test_views_are_streamed_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "_BLOCK_BYTES", 50)
    matrix = np.random.default_rng(0).normal(size=(37, 3))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_views(tmp_path / "views", {"hog": file.create_dataset("hog", data=matrix)})
    np.testing.assert_array_equal(read_views(tmp_path / "views")["hog"], matrix)


def test_a_folder_may_be_overwritten_by_its_own_views(tmp_path):
    write_views(tmp_path, {"hog": MATRIX}, labels=[0, 0, 1, 1])
    write_views(tmp_path, read_views(tmp_path), labels=["a", "a", "b", "b"])
    views = read_views(tmp_path)
    np.testing.assert_array_equal(views["hog"], MATRIX)
    assert views.labels.tolist() == ["a", "a", "b", "b"]


def test_a_failed_write_keeps_the_old_views_and_leaves_no_other_files(tmp_path):
    class Failing:
        shape, dtype = (4, 3), np.dtype("f4")

        def __getitem__(self, rows):
            raise OSError("disk is gone")

    write_views(tmp_path, {"hog": MATRIX, "gist": MATRIX})
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(FileFormatError, match=r"cannot be written.*disk is gone"):
        write_views(tmp_path, Views(("hog", "gist"), (MATRIX + 1, Failing())))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["../up", "a\\b", ".hidden", "LABELS", "a.", "c:d"])
def test_names_that_are_not_valid_file_names_are_refused(tmp_path, name):
    with pytest.raises(InvalidDataError, match="becomes a file name"):
        write_views(tmp_path / "views", {name: MATRIX})
    assert not (tmp_path / "views").exists()


def test_names_that_differ_by_case_only_are_refused(tmp_path):
    with pytest.raises(InvalidDataError, match="got 'HOG' and 'hog'"):
        write_views(tmp_path, {"HOG": MATRIX, "hog": MATRIX})


def test_a_folder_without_manifest_is_read_by_name(tmp_path):
    np.save(tmp_path / "lbp.npy", MATRIX)
    np.save(tmp_path / "gist.npy", MATRIX)
    np.save(tmp_path / "labels.npy", np.array([1, 2, 3, 4]))
    views = as_views(tmp_path)
    assert views.names == ("gist", "lbp")
    assert views.labels.tolist() == [1, 2, 3, 4]


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="holds none"):
        read_views(tmp_path)


def change_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize("file", ["../hog.npy", "/etc/passwd", "sub\\hog.npy"])
def test_a_manifest_cannot_name_files_outside_its_folder(tmp_path, file):
    write_views(tmp_path / "views", {"hog": MATRIX})
    np.save(tmp_path / "hog.npy", MATRIX)
    entry = {"name": "hog", "file": file, "shape": [4, 3], "dtype": "<f4"}
    change_manifest(tmp_path / "views", views=[entry])
    with pytest.raises(FileFormatError, match="only files of its own folder"):
        read_views(tmp_path / "views")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "must be 'bitmosaic-views'"),
        ({"version": 2}, "must have version 1; got 2. Update bitmosaic"),
        ({"views": [{"name": "gone", "file": "gone.npy", "shape": [4, 3], "dtype": "<f4"}]}, "may be missing"),
        ({"labels": True}, "labels.npy is not a whole .npy file"),
        ({"paths": True}, "must hold one JSON string per line"),
    ],
)
def test_a_manifest_that_does_not_match_its_files_is_refused(tmp_path, changes, message):
    write_views(tmp_path, {"hog": MATRIX})
    change_manifest(tmp_path, **changes)
    with pytest.raises(FileFormatError, match=message):
        read_views(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_manifest_that_is_not_valid_json_is_refused(tmp_path, text):
    write_views(tmp_path, {"hog": MATRIX})
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"manifest\.json"):
        read_views(tmp_path)


def test_damaged_paths_are_refused(tmp_path):
    write_views(tmp_path, {"hog": MATRIX}, paths=["a", "b", "c", "d"])
    (tmp_path / "paths.jsonl").write_text('"a"\n"b"\n"c')
    with pytest.raises(FileFormatError, match="one JSON string per line"):
        read_views(tmp_path)
    (tmp_path / "paths.jsonl").write_text('"a"\n"b"\n"c"\n')
    with pytest.raises(ViewMismatchError, match="got 3 paths for 4 rows"):
        read_views(tmp_path)


# ---- content hashes


def test_content_hashes_are_a_memory_map_and_not_a_view(tmp_path):
    write_views(tmp_path, {"hog": MATRIX}, digests=HASHES)
    assert isinstance(read_content_hashes(tmp_path), np.memmap)
    np.testing.assert_array_equal(read_content_hashes(tmp_path), HASHES)
    assert read_views(tmp_path).names == ("hog",)


def test_lost_content_hashes_are_an_error_and_absent_ones_are_none(tmp_path):
    write_views(tmp_path / "without", {"hog": MATRIX})
    assert read_content_hashes(tmp_path / "without") is None
    assert read_content_hashes(tmp_path) is None  # not a views folder
    write_views(tmp_path / "with", {"hog": MATRIX}, digests=HASHES)
    (tmp_path / "with" / "digests.npy").unlink()
    with pytest.raises(FileFormatError, match=r"digests\.npy is not a whole \.npy file"):
        read_content_hashes(tmp_path / "with")
    assert read_views(tmp_path / "with").n_rows == 4  # the views do not need them


def test_labels_and_content_hashes_of_overwritten_views_are_ignored(tmp_path):
    write_views(tmp_path, {"hog": MATRIX}, labels=[0, 0, 1, 1], digests=HASHES)
    write_views(tmp_path, {"hog": MATRIX + 1})
    assert read_content_hashes(tmp_path) is None
    assert read_views(tmp_path).labels is None
