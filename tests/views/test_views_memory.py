"""How much memory a .mat file may take is asked of the system, in time, and not too often."""

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from bitmosaic import npy, threads
from bitmosaic.errors import FileFormatError
from bitmosaic.views import matlab, read_views
from bitmosaic.views.mat5 import dense
from mat_files import cell, write_v7, write_v73


@pytest.mark.parametrize("write", [write_v7, write_v73])
def test_the_system_is_not_asked_for_its_memory_for_every_cell(tmp_path, write, monkeypatch):
    asked = []
    monkeypatch.setattr(threads, "_told", None)
    monkeypatch.setattr(threads, "_container_limits", lambda: asked.append(1) or [])
    write(tmp_path / "a.mat", {"X": np.zeros((200, 5)), "Y": cell(*"y" * 200, column=True)})
    read_views(tmp_path / "a.mat")
    assert 1 <= len(asked) < 20  # once a second


def test_a_mat_file_of_version_4_larger_than_memory_is_refused(tmp_path, monkeypatch):
    scipy.io.savemat(tmp_path / "a.mat", {"X": np.zeros((100, 100))}, format="4")
    size = (tmp_path / "a.mat").stat().st_size
    monkeypatch.setattr(npy, "machine_memory", lambda: 4 * size)  # it is there twice, in half of the memory
    assert read_views(tmp_path / "a.mat").widths == (100,)
    monkeypatch.setattr(npy, "machine_memory", lambda: 4 * size - 2)
    with pytest.raises(FileFormatError, match="must be at most half of the memory"):
        read_views(tmp_path / "a.mat")


@pytest.mark.parametrize("write", [write_v7, write_v73])
def test_a_sparse_matrix_that_takes_more_than_the_memory_is_refused(tmp_path, write, monkeypatch):
    write(tmp_path / "a.mat", {"X": scipy.sparse.eye(1000).tocsc()})
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**24)  # half of it is 8.4 MB, the matrix has 8.0
    assert read_views(tmp_path / "a.mat").widths == (1000,)
    monkeypatch.setattr(npy, "machine_memory", lambda: 15_000_000)
    with pytest.raises(FileFormatError, match=r"unpacks to 0\.0 GB; that must be at most half of the memory"):
        read_views(tmp_path / "a.mat")


@pytest.mark.parametrize("row", [-1, 9])
def test_a_value_above_or_below_a_sparse_matrix_is_refused(tmp_path, row):
    (tmp_path / "a.mat").touch()
    with pytest.raises(ValueError, match="values outside of it"):
        dense(tmp_path / "a.mat", (9, 1), np.array([row]), np.array([0, 1]), np.ones(1))


def test_cells_of_a_v73_file_that_refer_to_the_same_text_count_each(tmp_path, monkeypatch):
    write_v73(tmp_path / "a.mat", {"X": np.zeros((40, 5)), "Y": cell("y" * 100_000)})
    with h5py.File(tmp_path / "a.mat", "r+") as file:
        (ref,) = file["Y"][()].ravel()
        facts = dict(file["Y"].attrs)
        del file["Y"]
        file.create_dataset("Y", data=np.array([[ref] * 40], h5py.ref_dtype)).attrs.update(facts)
    assert len(read_views(tmp_path / "a.mat").labels) == 40
    monkeypatch.setattr(npy, "machine_memory", lambda: 2 * 20 * 12 * 100_000)  # half of them
    with pytest.raises(FileFormatError, match="must be at most half of the memory"):
        read_views(tmp_path / "a.mat")


def test_a_cell_of_a_v73_file_with_more_cells_than_any_is_not_followed(tmp_path, monkeypatch):
    write_v73(tmp_path / "a.mat", {"X": np.zeros((40, 5)), "Y": cell(*"y" * 40, column=True)})
    monkeypatch.setattr(matlab, "MOST_CELLS", 39)
    assert read_views(tmp_path / "a.mat").labels is None
    monkeypatch.setattr(matlab, "MOST_CELLS", 40)
    assert len(read_views(tmp_path / "a.mat").labels) == 40
