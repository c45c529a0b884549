""".npy, .npz and HDF5 files, and the errors for damaged files of all formats."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from scipy.sparse import random_array, save_npz

from bitmosaic.errors import FileFormatError, MissingFileError
from bitmosaic.io import read as npy
from bitmosaic.views import read_rows, read_views

MATRIX = np.random.default_rng(0).normal(size=(40, 3))
LABELS = np.arange(40) % 4


def test_a_npy_file_is_one_view_as_a_memory_map(tmp_path):
    np.save(tmp_path / "hog.npy", MATRIX)
    views = read_views(tmp_path / "hog.npy")
    assert views.names == ("view0",)
    assert isinstance(views.arrays[0], np.memmap)


@pytest.mark.parametrize("name", ["labels", "Y", "gt"])
def test_a_npz_file_holds_views_and_labels(tmp_path, name):
    np.savez(tmp_path / "a.npz", hog=MATRIX, gist=MATRIX[:, :2], other=np.arange(3), **{name: LABELS})
    views = read_views(tmp_path / "a.npz")
    assert views.names == ("hog", "gist")
    np.testing.assert_array_equal(views.labels, LABELS)
    np.testing.assert_array_equal(views["gist"], MATRIX[:, :2])


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_a_npz_file_of_scipy_is_one_sparse_view(tmp_path, kind):
    matrix = random_array((40, 9), density=0.1, format=kind, rng=0)
    save_npz(tmp_path / "a.npz", matrix)
    views = read_views(tmp_path / "a.npz")
    assert views.names == ("view0",)
    assert views.arrays[0].matrix.nnz == matrix.nnz
    np.testing.assert_array_equal(read_rows(views.arrays[0], slice(3, 30), float), matrix.toarray()[3:30])


@pytest.mark.parametrize("change", [{"indices": np.full(36, 10**6)}, {"format": np.array(b"odd")}, {"indptr": MATRIX}])
def test_a_sparse_npz_file_with_inconsistent_arrays_is_refused(tmp_path, change):
    save_npz(tmp_path / "a.npz", random_array((40, 9), density=0.1, format="csr", rng=0))
    with np.load(tmp_path / "a.npz") as arrays:
        np.savez(tmp_path / "b.npz", **dict(arrays) | change)
    with pytest.raises(FileFormatError, match=r"b.npz is not a whole sparse matrix .*Write it again with scipy"):
        read_views(tmp_path / "b.npz")


def test_a_npz_file_may_hold_string_labels_and_paths(tmp_path):
    names = np.array([f"{i}.png" for i in range(40)])
    np.savez(tmp_path / "a.npz", hog=MATRIX, labels=np.where(LABELS > 1, "cat", "dog"), paths=names)
    views = read_views(tmp_path / "a.npz")
    assert set(views.labels) == {"cat", "dog"}
    assert views.paths == tuple(names.tolist())


def test_a_column_of_labels_is_labels(tmp_path):
    np.savez(tmp_path / "a.npz", hog=MATRIX, y=LABELS[:, None].astype(float))
    np.testing.assert_array_equal(read_views(tmp_path / "a.npz").labels, LABELS)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def test_pickled_objects_are_refused_and_not_run(tmp_path):
    objects = np.array([[Payload(tmp_path / "trace")]], object)
    np.savez(tmp_path / "a.npz", hog=MATRIX, evil=objects)
    np.save(tmp_path / "b.npy", objects, allow_pickle=True)
    for name in ("a.npz", "b.npy"):
        with pytest.raises(FileFormatError, match="pickled objects, and these are refused because they can run code"):
            read_views(tmp_path / name)
    assert not (tmp_path / "trace").exists()


def test_a_npz_file_that_does_not_fit_into_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros((1000, 1000)))
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**20)
    with pytest.raises(FileFormatError, match="more than half of the memory"):
        read_views(tmp_path / "a.npz")


def test_a_npy_file_that_claims_more_than_it_holds_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", MATRIX)
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"(40, 3), }" + b" " * 9, b"(40000000000, 3), }"))
    with pytest.raises(FileFormatError, match=r"is not a whole \.npy file .*file size"):
        read_views(tmp_path / "a.npy")


def test_paths_in_bytes_that_are_not_utf8_are_decoded_like_file_names(tmp_path):
    paths = np.array([b"\xff.png"] * 40)
    np.savez(tmp_path / "a.npz", hog=MATRIX, paths=paths)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["hog"], file["paths"] = MATRIX, paths
    for name in ("a.npz", "a.h5"):
        assert read_views(tmp_path / name).paths == ("\udcff.png",) * 40


def test_the_error_for_a_npz_file_without_a_matrix_lists_its_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", other=np.arange(3))
    with pytest.raises(FileFormatError, match=r"holds other \(3,\) int64. Save \(n, d\) matrices"):
        read_views(tmp_path / "a.npz")


@pytest.mark.parametrize("group", ["", "views/"])
def test_an_hdf5_file_holds_views_and_labels(tmp_path, group):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file[group + "hog"] = MATRIX
        file[group + "raw"] = (MATRIX * 10).astype(">i2")
        file["labels"] = LABELS
        file["path"] = [f"{i}.png" for i in range(40)]
        file["images"] = np.zeros((40, 2, 2))
        file["notes/n"] = np.zeros((2, 2))
    views = read_views(tmp_path / "a.hdf5")
    assert views.names == ("hog", "raw")
    np.testing.assert_array_equal(views.labels, LABELS)
    assert views.paths[:2] == ("0.png", "1.png")
    np.testing.assert_array_equal(read_rows(views["raw"], slice(3, 9)), (MATRIX * 10).astype("i2")[3:9])
    assert not isinstance(views["hog"], np.ndarray)


@pytest.mark.parametrize("length", [None, 5], ids=["variable", "fixed"])
def test_an_hdf5_file_may_hold_text(tmp_path, length):
    kind = h5py.string_dtype("utf-8", length)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["hog"] = MATRIX[:2]
        file.create_dataset("y", data=["cat", "dög"] if length is None else [b"cat", "dög".encode()], dtype=kind)
        file.create_dataset("path", data=[b"a", b"b"], dtype=kind)
    views = read_views(tmp_path / "a.h5")
    assert views.labels.tolist() == ["cat", "dög"]
    assert views.paths == ("a", "b")


def test_an_hdf5_file_cannot_name_a_view_twice(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["hog"], file["views/hog"] = MATRIX, MATRIX
    with pytest.raises(FileFormatError, match="holds 'hog' twice"):
        read_views(tmp_path / "a.h5")


def test_a_broken_hdf5_link_is_skipped(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["hog"], file["gone"] = MATRIX, h5py.SoftLink("/nowhere")
    assert read_views(tmp_path / "a.h5").names == ("hog",)


def test_links_within_an_hdf5_file_are_followed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["deep/hog"] = MATRIX
        file["hog"], file["loop"] = h5py.SoftLink("/deep/hog"), file["/"]
    assert read_views(tmp_path / "a.h5").names == ("hog",)


@pytest.mark.parametrize("name", ["a.h5", "a.mat"])
def test_a_chunk_of_hdf5_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch, name):
    shape = (4096, 1024)
    with h5py.File(tmp_path / name, "w") as file:
        file.create_dataset("X", shape, "f4", chunks=shape, compression="gzip")
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**25 - 2)
    with pytest.raises(FileFormatError, match="more than half of the memory"):
        read_views(tmp_path / name)


def test_the_error_for_invalid_labels_names_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", hog=MATRIX, y=MATRIX[:, 0])
    with pytest.raises(FileFormatError, match=r"a\.npz: Labels must be whole numbers or strings"):
        read_views(tmp_path / "a.npz")


@pytest.mark.parametrize("array", [np.arange(4), np.array([["a"]]), np.zeros((0, 3)), np.eye(2) * 1j])
def test_a_npy_file_must_hold_a_matrix_of_numbers(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(FileFormatError, match=r"a\.npy"):
        read_views(tmp_path / "a.npy")


def test_other_files_are_refused_with_the_list_of_formats(tmp_path):
    (tmp_path / "a.csv").write_text("1,2\n")
    with pytest.raises(FileFormatError, match=r"\.npy, \.npz, \.mat, \.h5, \.hdf5, \.parquet; got 'a\.csv'"):
        read_views(tmp_path / "a.csv")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(MissingFileError, match=r"There is no file or folder .*a\.npy"):
        read_views(tmp_path / "a.npy")


def write_npy(path):
    np.save(path, MATRIX)


def write_npz(path):
    np.savez_compressed(path, hog=MATRIX)


def write_mat(path):
    scipy.io.savemat(path, {"X": MATRIX}, do_compression=True)


def write_mat73(path):
    with h5py.File(path, "w", userblock_size=512) as file:
        file["X"] = MATRIX.T


def write_h5(path):
    with h5py.File(path, "w") as file:
        file["hog"] = MATRIX


def write_parquet(path):
    pq.write_table(pa.table({"hog": MATRIX.tolist()}), path)


WRITERS = [
    ("a.npy", write_npy),
    ("a.npz", write_npz),
    ("a.mat", write_mat),
    ("b.mat", write_mat73),
    ("a.h5", write_h5),
    ("a.parquet", write_parquet),
]


@pytest.mark.parametrize(("name", "write"), WRITERS)
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_truncated_file_is_refused(tmp_path, name, write, share):
    path = tmp_path / name
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(FileFormatError, match=name):
        read_views(path)


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_a_file_of_another_format_is_refused(tmp_path, name, write):
    (tmp_path / name).write_bytes(b"This is a text, not numbers. " * 50)
    with pytest.raises(FileFormatError, match=name):
        read_views(tmp_path / name)


def test_damage_inside_a_file_is_reported_when_its_rows_are_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("hog", data=MATRIX, chunks=(40, 3), compression="gzip", fletcher32=True)
        where = data.id.get_chunk_info(0).byte_offset
    damaged = bytearray((tmp_path / "a.h5").read_bytes())
    damaged[where + 20 : where + 40] = bytes(20)
    (tmp_path / "a.h5").write_bytes(damaged)
    with pytest.raises(FileFormatError, match=r"rows of /hog cannot be read.*damaged"):
        read_rows(read_views(tmp_path / "a.h5")["hog"], slice(0, 3))
