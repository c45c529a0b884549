"""Multi-view .mat files, written by SciPy (v7) and in MATLAB's v7.3 layout by h5py."""

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from mat_files import cell, write_v7, write_v73

from bitmosaic.errors import FileFormatError, ViewMismatchError
from bitmosaic.io import read as npy
from bitmosaic.views import read_rows, read_views

RNG = np.random.default_rng(0)
N = 20
A, B = RNG.normal(size=(N, 5)), RNG.integers(0, 9, (N, 7)).astype(np.uint8)
LABELS = np.arange(N) % 3 + 1


@pytest.fixture(params=[write_v7, write_v73], ids=["v7", "v7.3"])
def read(request, tmp_path):
    def write_and_read(**variables):
        request.param(tmp_path / "set.mat", variables)
        return read_views(tmp_path / "set.mat")

    return write_and_read


def assert_holds(views, *matrices):
    assert len(views) == len(matrices)
    for array, matrix in zip(views.arrays, matrices, strict=True):
        np.testing.assert_array_equal(read_rows(array, slice(None)), np.asarray(matrix, np.float32))


@pytest.mark.parametrize("name", ["X", "fea", "Views"])
@pytest.mark.parametrize("column", [True, False])
def test_cells_of_views_are_read(read, name, column):
    views = read(**{name: cell(A, B, column=column), "Y": LABELS[:, None]})
    assert views.names == ("view0", "view1")
    assert_holds(views, A, B)
    np.testing.assert_array_equal(views.labels, LABELS)


@pytest.mark.parametrize("name", ["Y", "gt", "gnd"])
@pytest.mark.parametrize("labels", [LABELS[:, None], LABELS[None, :], cell(LABELS[:, None], LABELS[:, None])])
def test_labels_are_found_by_name(read, name, labels):
    views = read(**{"X": cell(A, B), name: labels})
    np.testing.assert_array_equal(views.labels, LABELS)
    assert views.labels.dtype.kind in "iu"


def test_labels_may_be_words(read):
    names = [("cat", "dog", "bird")[label - 1] for label in LABELS]
    assert read(X=A, label=cell(*names, column=True)).labels.tolist() == names


def test_cells_of_features_by_samples_are_transposed(read):
    assert_holds(read(data=cell(A.T, B.T), truth=LABELS), A, B)


def test_a_square_cell_is_not_transposed(read):
    square = RNG.normal(size=(N, N))
    assert_holds(read(data=cell(square, B.T), truth=LABELS), square, B)


def test_without_labels_the_shared_side_is_the_samples(read):
    assert_holds(read(X=cell(A.T, B.T)), A, B)
    assert_holds(read(X=cell(A, B)), A, B)
    assert_holds(read(X=cell(A, B.T)), A, B)
    assert_holds(read(X=cell(A.T, B)), A, B)


def test_one_matrix_is_one_view(read):
    assert_holds(read(fea=A, gnd=LABELS), A)
    assert_holds(read(fea=A), A)
    assert_holds(read(fea=A.T, gnd=LABELS), A)


@pytest.mark.parametrize("prefix", ["X", "view"])
def test_numbered_variables_are_views_in_the_order_of_their_numbers(read, prefix):
    variables = {f"{prefix}{i}": A + i for i in (10, 2, 1)}
    views = read(**variables, Y=LABELS)
    assert views.names == (f"{prefix}1", f"{prefix}2", f"{prefix}10")
    assert_holds(views, A + 1, A + 2, A + 10)


def test_sparse_cells_stay_sparse(read):
    sparse = scipy.sparse.random(N, 6, density=0.2, random_state=1)
    views = read(X=cell(A, sparse.tocsc(), sparse.tocsc().T), Y=LABELS)
    assert_holds(views, A, sparse.toarray(), sparse.toarray())
    assert [array.matrix.nnz for array in views.arrays[1:]] == [sparse.nnz] * 2


def test_views_that_do_not_match_the_labels_are_a_mismatch(read):
    with pytest.raises(ViewMismatchError, match=f"number of labels, {N}; view 1 is 19×7"):
        read(X=cell(A, B[:19]), Y=LABELS)


def test_views_without_a_common_side_are_a_mismatch(read):
    with pytest.raises(ViewMismatchError, match=r"got \[20, 19\]"):
        read(X=cell(A, B[:19]))


def test_text_instead_of_views_is_refused(read):
    with pytest.raises(FileFormatError, match=r"variable 'X' must be a matrix of numbers.*text"):
        read(X=cell("hello", "world"), Y=LABELS)


def test_nested_cells_are_refused(read):
    with pytest.raises(FileFormatError, match=r"variable 'X' must be a matrix of numbers.*cell array"):
        read(X=cell(cell(A, B), B), Y=LABELS)


def test_the_error_for_a_file_without_views_lists_its_variables(read):
    with pytest.raises(FileFormatError, match=r"the file holds .*hog \(20×5 float64\)"):
        read(hog=A, name="a set")


def test_views_of_v73_stay_on_disk(tmp_path):
    write_v73(tmp_path / "set.mat", {"X": cell(A, B), "Y": LABELS})
    assert not any(isinstance(array, np.ndarray) for array in read_views(tmp_path / "set.mat").arrays)


def test_a_sparse_matrix_with_rows_out_of_range_is_refused(tmp_path):
    write_v73(tmp_path / "set.mat", {"X": scipy.sparse.eye(N).tocsc()})
    with h5py.File(tmp_path / "set.mat", "r+") as file:
        file["X/ir"][3] = 10**6
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_views(tmp_path / "set.mat")


def test_labels_may_be_rows_of_characters(tmp_path):
    write_v7(tmp_path / "set.mat", {"X": A[:3], "label": np.array(["cat", "dog", "é"])})
    assert read_views(tmp_path / "set.mat").labels.tolist() == ["cat", "dog", "é"]


@pytest.mark.parametrize("options", [{"format": "4"}, {"do_compression": True}])
def test_files_of_version_4_and_compressed_files_are_read(tmp_path, options):
    sparse = scipy.sparse.random(N, 6, density=0.2, random_state=1).tocsc()
    scipy.io.savemat(tmp_path / "set.mat", {"X1": A, "X2": sparse, "Y": LABELS}, **options)
    assert_holds(read_views(tmp_path / "set.mat"), A, sparse.toarray())


def test_a_small_file_whose_matrix_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    scipy.io.savemat(tmp_path / "set.mat", {"X": np.zeros((1000, 1000))}, do_compression=True)
    assert (tmp_path / "set.mat").stat().st_size < 2**16
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**20)
    with pytest.raises(FileFormatError, match="more than half of the memory"):
        read_views(tmp_path / "set.mat")


def test_a_sparse_matrix_is_read_if_it_would_not_fit_into_memory_as_a_dense_one(read, monkeypatch):
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**20)
    views = read(X=scipy.sparse.eye(1000).tocsc())
    np.testing.assert_array_equal(read_rows(views.arrays[0], slice(998, 1000))[:, 998:], np.eye(2))
