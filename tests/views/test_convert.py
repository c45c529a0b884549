"""`as_views` converts user input, and refuses invalid input with one clear error."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array

from bitmosaic.errors import DataTypeError, InvalidDataError, MissingFileError, ViewMismatchError
from bitmosaic.views import Views, as_views, read_rows


@pytest.fixture
def matrix():
    return np.random.default_rng(0).normal(size=(10, 4))


def test_views_are_returned_as_they_are(matrix):
    views = as_views([matrix])
    assert as_views(views) is views


def test_a_dict_names_its_views(matrix):
    views = as_views({"hog": matrix, "gist": matrix[:, :2]})
    assert views.names == ("hog", "gist")
    assert views.n_rows == 10
    assert views.widths == (4, 2)
    assert len(views) == 2
    assert views["gist"].shape == (10, 2)
    assert list(views) == ["hog", "gist"]


def test_an_unknown_view_is_an_error_that_lists_the_views(matrix):
    with pytest.raises(ViewMismatchError, match="no view 'lbp'; the views are hog"):
        as_views({"hog": matrix})["lbp"]


@pytest.mark.parametrize("container", [list, tuple])
def test_a_list_of_matrices_is_a_list_of_views(matrix, container):
    assert as_views(container([matrix, matrix])).names == ("view0", "view1")


def test_nested_lists_of_numbers_are_one_view():
    views = as_views([[1, 2], [3, 4], [5, 6]])
    assert views.names == ("view0",)
    np.testing.assert_array_equal(views.arrays[0], [[1, 2], [3, 4], [5, 6]])


def test_lists_of_lists_of_lists_are_several_views():
    views = as_views([[[1, 2], [3, 4]], [[5], [6]]])
    assert views.names == ("view0", "view1")
    assert views.widths == (2, 1)


def test_a_data_frame_is_one_view(matrix):
    pandas = pytest.importorskip("pandas")
    views = as_views(pandas.DataFrame(matrix))
    np.testing.assert_array_equal(views.arrays[0], matrix)


@pytest.mark.parametrize("as_path", [str, Path])
def test_a_path_is_read(tmp_path, matrix, as_path):
    np.save(tmp_path / "hog.npy", matrix)
    np.testing.assert_array_equal(as_views(as_path(tmp_path)).arrays[0], matrix)


def test_a_path_that_does_not_exist_is_a_missing_file():
    with pytest.raises(MissingFileError, match="There is no file or folder nowhere"):
        as_views("nowhere")
    with pytest.raises(FileNotFoundError):
        as_views("nowhere")


@pytest.mark.parametrize("dtype", ["f2", ">f8", "u1", "?"])
def test_number_arrays_are_kept_and_never_copied(matrix, dtype):
    array = matrix.astype(dtype)
    assert as_views({"a": array}).arrays[0] is array


def test_a_memory_map_stays_a_memory_map(tmp_path, matrix):
    np.save(tmp_path / "a.npy", matrix)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    kept = as_views([mapped]).arrays[0]
    assert isinstance(kept, np.memmap)
    assert np.shares_memory(kept, mapped)


def test_an_hdf5_group_is_a_dict_of_views_that_stay_on_disk(tmp_path, matrix):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["hog"] = matrix
        views = as_views(file)
        assert not isinstance(views["hog"], np.ndarray)
        np.testing.assert_array_equal(read_rows(views["hog"], slice(2, 5)), matrix[2:5].astype(np.float32))


def test_different_numbers_of_rows_are_a_mismatch(matrix):
    with pytest.raises(ViewMismatchError, match=r"same number of rows; got \[10, 9\].*hog, gist.*skipped\.csv"):
        as_views({"hog": matrix, "gist": matrix[:9]})


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], InvalidDataError, "at least one view; got none"),
        ({3: np.ones((2, 2))}, InvalidDataError, "non-empty string; got 3"),
        (np.arange(3), InvalidDataError, "Reshape your data"),
        (np.ones((3, 0)), InvalidDataError, r"0 feature\(s\) \(shape=\(3, 0\)\) while a minimum of 1 is required"),
        (np.ones((2, 2), complex), InvalidDataError, "Complex data not supported"),
        (np.array([["a", "b"]]), InvalidDataError, "not compatible with arrays of bytes/strings"),
        (np.array([["a", 1]], object), InvalidDataError, "numbers only; could not convert string to float: 'a'"),
        (np.ones((2, 2)).astype("M8[s]"), InvalidDataError, "must hold real numbers.*datetime64"),
        ({"hog": csr_array(np.eye(3) * 1j)}, InvalidDataError, "View 'hog': Complex data not supported"),
        (coo_array(np.arange(3)), InvalidDataError, r"a matrix of at least one row and one column; .* shape \(3,\)"),
        (csr_array((0, 5)), InvalidDataError, r"a matrix of at least one row and one column; .* shape \(0, 5\)"),
        (np.ma.masked_greater(np.eye(3), 0), DataTypeError, "Masked arrays are not supported"),
        ([np.ones((3, 2)), np.ones(3)], InvalidDataError, r"item 1 is a ndarray of shape \(3,\)"),
        (None, InvalidDataError, "Expected 2D array"),
    ],
)
def test_invalid_input_is_refused(data, error, message):
    with pytest.raises(error, match=message):
        as_views(data)


def test_an_hdf5_dataset_is_checked_like_an_array(tmp_path):
    with (
        h5py.File(tmp_path / "a.h5", "w") as file,
        pytest.raises(InvalidDataError, match=r"view 'view0' has shape \(3,\)"),
    ):
        as_views(file.create_dataset("a", data=np.arange(3)))


def test_the_constructor_of_views_checks_its_arguments(matrix):
    with pytest.raises(InvalidDataError, match="must be unique; a came more than once"):
        Views(("a", "a"), (matrix, matrix))
    with pytest.raises(InvalidDataError, match="1 names for 2 views"):
        Views(("a",), (matrix, matrix))
    with pytest.raises(InvalidDataError, match="view 'a' is a list"):
        Views(("a",), ([[1, 2]],))
    with pytest.raises(ViewMismatchError, match="got 3 labels for 10 rows"):
        Views(("a",), (matrix,), labels=np.arange(3))
    with pytest.raises(ViewMismatchError, match="got 1 paths for 10 rows"):
        Views(("a",), (matrix,), paths=("x.png",))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([3.0, 1.0], np.array([3, 1])),
        (np.array([[3], [1]], np.uint8), np.array([3, 1], np.uint8)),
        (np.array([True, False]), np.array([1, 0])),
        (["cat", "dog"], np.array(["cat", "dog"])),
        (np.array(["cat", "dog"], object), np.array(["cat", "dog"])),
        (np.array([b"cat", b"dog"]), np.array(["cat", "dog"])),
        (np.array([3, 1], ">i2"), np.array([3, 1], "<i2")),
        (np.array(["cat", "dog"], ">U5"), np.array(["cat", "dog"], "<U5")),
    ],
)
def test_labels_become_integers_or_strings(given, kept):
    labels = Views(("a",), (np.ones((2, 1)),), given).labels
    np.testing.assert_array_equal(labels, kept)
    assert labels.dtype == kept.dtype  # in native byte order, which pyarrow needs


@pytest.mark.parametrize("given", [[0.5, 1.0], [np.nan, 1.0], [None, "dog"]])
def test_invalid_labels_are_refused(given):
    with pytest.raises(InvalidDataError, match="whole numbers or strings, with none missing"):
        Views(("a",), (np.ones((2, 1)),), given)
