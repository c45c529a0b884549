"""HDF5 files that mean harm, by hand: links out of them, and heaps of texts that hang or never end."""

import os
import struct
import subprocess

import h5py
import numpy as np
import pytest

from bitmosaic import npy
from bitmosaic.errors import FileFormatError
from bitmosaic.views import hdf5_texts, read_views
from mat_files import write_v73

MATRIX = np.random.default_rng(0).normal(size=(12, 5))


@pytest.mark.parametrize("name", ["a.h5", "a.mat"])
def test_an_hdf5_file_cannot_make_another_be_read(tmp_path, name):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["X"] = MATRIX
    MATRIX.tofile(tmp_path / "secret.bin")
    layout = h5py.VirtualLayout((12, 5), "f8")
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "X", (12, 5))
    for message, make in {
        "link that leads to another file": lambda file: file.__setitem__("X", h5py.ExternalLink("secret.h5", "/X")),
        "'X' is a link": lambda file: (
            file.__setitem__("o", h5py.ExternalLink("secret.h5", "/")),
            file.__setitem__("X", h5py.SoftLink("/o/X")),
        ),
        "lie in other files": lambda file: file.create_virtual_dataset("X", layout),
        "of /X lie in other": lambda file: file.create_dataset(
            "X", (12, 5), "f8", external=[(str(tmp_path / "secret.bin"), 0, 480)]
        ),
    }.items():
        with h5py.File(tmp_path / name, "w", userblock_size=512) as file:
            make(file)
        with pytest.raises(FileFormatError, match=message if "'X'" not in message else "is a link that leads"):
            read_views(tmp_path / name)


def test_links_within_an_hdf5_file_are_followed_and_circles_end(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["deep/hog"] = MATRIX
        file["hog"], file["loop"], file["self"] = h5py.SoftLink("/deep/hog"), file["/"], h5py.SoftLink("/self")
        del file["self"]
    assert read_views(tmp_path / "a.h5").names == ("hog",)


def test_the_folder_of_a_file_is_no_place_to_import_from(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["hog"], file["y"] = MATRIX, [b"cat", b"dog"] * 6
    for name in ("h5py", "numpy", "resource"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert read_views("a.h5").labels.tolist() == ["cat", "dog"] * 6
    assert not (tmp_path / "run").exists()


def test_a_heap_of_texts_on_which_hdf5_hangs_is_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["hog"], file["y"] = MATRIX, [b"cat", b"dog"] * 6
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL")
    free = heap + 16  # objects: number, count, and length, 16 bytes, then the text filled up to 8 bytes
    while struct.unpack_from("<H", content, free)[0]:
        free += 16 + (struct.unpack_from("<Q", content, free + 8)[0] + 7) // 8 * 8
    content[free + 8 : free + 16] = bytes(8)  # the free rest has no length: HDF5 does not get past it
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="text in /y cannot be read") as refused:
        read_views(path)
    if os.name == "posix":  # it used up its time of a core; we did not lose patience, as with a busy machine
        assert isinstance(refused.value.__cause__, subprocess.CalledProcessError)


def write_shared_text(path, n_rows, length):
    """Rows that all point to the same text: a file of its size that HDF5 unpacks to n_rows times as much."""
    with h5py.File(path, "w") as file:
        file["hog"] = np.ones((n_rows, 2), np.float32)
        file["path"] = ["x" * length, *["y"] * (n_rows - 1)]
        place = file["path"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[place : place + 16 * n_rows] = content[place : place + 16] * n_rows
    path.write_bytes(content)


def test_a_text_that_all_rows_of_an_hdf5_file_share_is_held_once(tmp_path):
    write_shared_text(tmp_path / "a.h5", 1000, 10**6)
    paths = read_views(tmp_path / "a.h5").paths
    assert paths == ("x" * 10**6,) * 1000
    assert len(set(map(id, paths))) == 1


def test_texts_of_hdf5_that_take_too_much_memory_are_refused(tmp_path, monkeypatch):
    write_shared_text(tmp_path / "a.h5", 1000, 10**6)
    monkeypatch.setattr(hdf5_texts, "_BLOCK_BYTES", 2**40)
    monkeypatch.setattr(hdf5_texts, "machine_memory", lambda: 2**30)
    with pytest.raises(FileFormatError, match="text in /path cannot be read"):
        read_views(tmp_path / "a.h5")


@pytest.mark.parametrize("kind", [h5py.vlen_dtype(np.float64), np.dtype([("a", h5py.string_dtype())])])
def test_lists_of_any_length_are_no_labels(tmp_path, kind):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["hog"] = MATRIX
        file.create_dataset("y", (12,), kind)
    with pytest.raises(FileFormatError, match="a number or a text for each row; it holds lists"):
        read_views(tmp_path / "a.h5")


def test_an_attribute_of_matlab_in_a_heap_is_passed_over(tmp_path):
    """HDF5 may never come back from a damaged heap; MATLAB itself keeps these attributes elsewhere."""
    write_v73(tmp_path / "a.mat", {"X": MATRIX})
    with h5py.File(tmp_path / "a.mat", "r+") as file:
        del file["X"].attrs["MATLAB_class"]
        file["X"].attrs["MATLAB_class"] = "double"
        file["X"].attrs["MATLAB_sparse"] = "many"
    assert read_views(tmp_path / "a.mat").arrays[0].shape == MATRIX.shape


def test_one_long_label_in_hdf5_is_refused_before_all_are_as_long(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["hog"], file["y"] = MATRIX, ["x" * 10**5, *"abcdefghijk"]
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**22)
    with pytest.raises(FileFormatError, match="must be at most half of the memory"):
        read_views(tmp_path / "a.h5")


@pytest.mark.parametrize("name", ["a.h5", "a.mat"])
def test_a_chunk_of_hdf5_that_takes_too_much_memory_is_refused(tmp_path, monkeypatch, name):
    """The file has a few kilobytes: of what a chunk holds, nothing need be there. With one row, all of it is read."""
    shape = (4096, 1024)
    with h5py.File(tmp_path / name, "w") as file:
        file.create_dataset("X", shape, "f4", chunks=shape, compression="gzip")
    assert (tmp_path / name).stat().st_size < 10**5
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**25)  # twice a chunk
    read_views(tmp_path / name)
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**25 - 2)
    with pytest.raises(FileFormatError, match="must be at most half of the memory"):
        read_views(tmp_path / name)
