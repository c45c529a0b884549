"""Views files that mean harm, by hand: what they claim is not believed, what they name is not read, nothing is run."""

import io
import json
import os
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from contextlib import suppress

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic import npy
from bitmosaic.errors import BitmosaicError, FileFormatError
from bitmosaic.views import Views, read_rows, read_views, write_views
from bitmosaic.views import mat5 as mat5_reader
from bitmosaic.views.parquet_pages import listed_chunks, unpacked_size
from bitmosaic.views.parts import part_path, write_part, write_parts_manifest
from mat_files import cell, write_v7, write_v73

MATRIX = np.random.default_rng(0).normal(size=(12, 5))


class Payload:
    """Unpickled, it leaves a trace."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def npy_claiming(descr, shape, data=b"\0" * 80):
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data


# ---- .npy and .npz


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_pickled_objects_are_refused_and_not_run(tmp_path, suffix):
    objects = np.array([[Payload(tmp_path / "trace")]], object)
    if suffix == "npy":
        np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    else:
        np.savez(tmp_path / "a.npz", a=objects)
    with pytest.raises(FileFormatError, match="pickled objects, and these are refused because they can run code"):
        read_views(tmp_path / f"a.{suffix}")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("descr", "shape"),
    [
        ("<U0", "(-1,)"),  # NumPy divides by its length
        ("<U0", "(3, 99999999999)"),
        ("<f8", "(4611686018427387904, 4)"),  # an overflow
        ("<f8", "(99999999999, 1)"),
        ("<f8", "(0, 9223372036854775807, 9)"),
        ("<f8", "(5.0, 20)"),
        ("<f8", "(" * 300),
        ("f8,f8", "(2, 2)"),
        ("(9999999,9999999)f8", "(1, 1)"),
        ("\\@", "(2, 5)"),
    ],
)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_header_that_lies_is_refused(tmp_path, suffix, descr, shape):
    content = npy_claiming(descr, shape)
    if suffix == "npz":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.npy", content)
        content = file.getvalue()
    (tmp_path / f"a.{suffix}").write_bytes(content)
    with pytest.raises(FileFormatError, match=f"is not a whole .{suffix} file"):
        read_views(tmp_path / f"a.{suffix}")


@pytest.mark.parametrize("header", ["{'shape':(12L, 5L) ,'fortran_order':False,'descr':'<f8'}", '{"descr": "<f8", %s}'])
def test_headers_of_other_writers_are_read(tmp_path, header):
    header = header.replace("%s", '"fortran_order": False, "shape": (12, 5)').encode() + b"   \n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\2\0" + struct.pack("<I", len(header)) + header + MATRIX.tobytes())
    np.testing.assert_array_equal(read_views(tmp_path / "a.npy")["view0"], MATRIX)


def test_what_would_not_fit_into_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros((1000, 1000)))
    scipy.io.savemat(tmp_path / "bomb.mat", {"X": np.zeros((1000, 1000))}, do_compression=True)
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**20)
    for name in ("bomb.npz", "bomb.mat"):
        assert (tmp_path / name).stat().st_size < 2**16
        with pytest.raises(FileFormatError, match="must be at most half of the memory"):
            read_views(tmp_path / name)


def test_text_of_numbers_that_are_no_characters_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", hog=MATRIX, y=np.full(12, 2**31, np.uint32).view("<U1"))
    with pytest.raises(FileFormatError, match="numbers that are no characters"):
        read_views(tmp_path / "a.npz")


def test_paths_in_bytes_that_are_no_utf8_are_read_as_the_system_reads_them(tmp_path):
    np.savez(tmp_path / "a.npz", hog=MATRIX, paths=np.array([b"\xff.png"] * 12))
    assert read_views(tmp_path / "a.npz").paths == ("\udcff.png",) * 12
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["hog"], file["paths"] = MATRIX, np.array([b"\xff.png"] * 12)
    assert read_views(tmp_path / "a.h5").paths == ("\udcff.png",) * 12


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_that_python_would_unpack_at_once_is_refused(tmp_path, method):
    np.save(tmp_path / "X.npy", MATRIX)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.write(tmp_path / "X.npy", "X.npy")
    with pytest.raises(
        FileFormatError, match=r"not a whole .npz file \(X.npy is packed by another method than deflate"
    ):
        read_views(tmp_path / "a.npz")


def test_an_npz_with_two_arrays_of_one_name_is_refused(tmp_path):
    np.save(tmp_path / "X.npy", MATRIX)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, warnings.catch_warnings(action="ignore"):
        archive.write(tmp_path / "X.npy", "X.npy")
        archive.write(tmp_path / "X.npy", "X.npy")
    with pytest.raises(FileFormatError, match="two of its arrays have the same name"):
        read_views(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_what_is_unpacked_is_in_memory_once(tmp_path, suffix):
    X = np.random.default_rng(0).normal(size=(1000, 10_000))
    path = tmp_path / f"a{suffix}"
    np.savez_compressed(path, X=X) if suffix == ".npz" else scipy.io.savemat(path, {"X": X}, do_compression=True)
    tracemalloc.start()
    read_views(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    file_bytes = 2 * path.stat().st_size if suffix == ".mat" else 0
    assert most < 1.2 * X.nbytes + file_bytes


def test_a_path_that_never_ends_is_refused(tmp_path):
    write_views(tmp_path, Views(("0",), (MATRIX,), None, tuple("abcdefghijkl")))
    os.truncate(tmp_path / "paths.jsonl", 2**40)  # takes no room on the disk
    with pytest.raises(FileFormatError, match=r"one JSON string a line .a line has more than 1,048,576 bytes"):
        read_views(tmp_path)


# ---- what is no file


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".mat", ".h5", ".parquet"])
def test_a_named_pipe_is_refused_at_once(tmp_path, suffix):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / f"a{suffix}").symlink_to("pipe")
    with pytest.raises(FileFormatError, match=f"Only regular files are read; .*a{suffix} is a folder, a pipe"):
        read_views(tmp_path / f"a{suffix}")


@pytest.mark.parametrize("name", ["manifest.json", "0.npy", "labels.npy", "paths.jsonl"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_named_pipe_in_a_views_folder_is_refused_at_once(tmp_path, name, listed):
    write_views(tmp_path, Views(("0",), (MATRIX,), np.arange(12), tuple("abcdefghijkl")))
    if not listed:
        (tmp_path / "manifest.json").unlink()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(FileFormatError, match=f"Only regular files are read; .*{name} is"):
        read_views(tmp_path)


# ---- .mat


def mat5(*elements):
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + b"".join(elements)


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def matrix(flags, dims, name, *parts):
    head = element(6, struct.pack("<II", flags, 0)) + element(5, struct.pack(f"<{len(dims)}i", *dims))
    return element(14, head + element(1, name) + b"".join(parts))


REAL = element(9, MATRIX.T.tobytes())


def test_a_mat_file_made_by_hand_is_read(tmp_path):
    (tmp_path / "a.mat").write_bytes(mat5(matrix(6, (12, 5), b"X", REAL)))
    np.testing.assert_array_equal(read_views(tmp_path / "a.mat")["view0"], MATRIX)


@pytest.mark.parametrize(
    "variable",
    [
        matrix(6, (2**31 - 1, 2**31 - 1), b"X", REAL),
        matrix(6, (-12, -5), b"X", REAL),
        matrix(6, (12, 5), b"X", struct.pack("<II", 9, 2**32 - 1)),
        matrix(6, (12, 5), b"X"),
        matrix(1, (2**20, 2**20), b"X", matrix(6, (12, 5), b"", REAL)),
        matrix(5, (9, 2), b"X", element(5, b"\xff\xff\xff\x7f" * 2), element(5, b"\0\0\0\0\1\0\0\0\2\0\0\0"), REAL),
        matrix(5, (9, 2), b"X", element(5, bytes(8)), element(5, b"\0\0\0\0\xff\xff\xff\x7f\2\0\0\0"), REAL),
        matrix(5, (2**31 - 1, 2), b"X", element(5, bytes(8)), element(5, bytes(12)), REAL),
        element(15, zlib.compress(b"\x0e\0\0\0\xff\xff\xff\xff" + bytes(80))),
        element(15, zlib.compress(matrix(6, (12, 5), b"X", REAL))[:-20]),
        b"\x0e\0\xff\xff" * 9,
    ],
)
def test_a_mat_file_that_lies_is_refused(tmp_path, variable, monkeypatch):
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**30)
    (tmp_path / "a.mat").write_bytes(mat5(variable))
    with pytest.raises(FileFormatError):
        read_views(tmp_path / "a.mat")


def compressed(content):
    packed = zlib.compress(content)
    return struct.pack("<II", 15, len(packed)) + packed  # not filled up


def long_text(n, rows=1):
    """A variable Y of n characters in a few bytes: bytes become four times as long, and more on their way."""
    return compressed(matrix(4, (rows, n // rows), b"Y", element(2, b"a" * n)))


def test_text_in_a_mat_file_takes_no_more_memory_than_is_counted(tmp_path, monkeypatch):
    n = 10**6
    for rows in (1, 2, n):
        (tmp_path / "a.mat").write_bytes(mat5(matrix(6, (12, 5), b"X", REAL), long_text(n, rows)))
        counted = []
        monkeypatch.setattr(mat5_reader, "refuse_larger_than_memory", lambda path, n_bytes: counted.append(n_bytes))  # noqa: B023
        tracemalloc.start()
        mat5_reader.read_mat5(tmp_path / "a.mat")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < counted[-1]


@pytest.mark.parametrize(
    "variable",
    [
        long_text(10**5),
        matrix(4, (2**31 - 1, 0), b"Y", element(2, b"")),  # rows of nothing
        b"".join(long_text(2 * 10**4) for _ in range(3)),  # each alone would do
        compressed(matrix(1, (5000, 1), b"Y", element(14, b"") * 5000)),  # an array of nothing takes memory too
    ],
)
def test_variables_of_a_mat_file_that_take_too_much_memory_together_are_refused(tmp_path, variable, monkeypatch):
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**20)
    (tmp_path / "a.mat").write_bytes(mat5(matrix(6, (12, 5), b"X", REAL), variable))
    with pytest.raises(FileFormatError, match="must be at most half of the memory"):
        read_views(tmp_path / "a.mat")


@pytest.mark.parametrize("write", [write_v7, write_v73])
def test_one_long_label_in_a_cell_is_refused_before_all_are_as_long(tmp_path, write, monkeypatch):
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**20)
    write(tmp_path / "a.mat", {"X": np.zeros((200, 1)), "Y": cell("x" * 10**3, *"y" * 199, column=True)})
    with pytest.raises(FileFormatError, match="must be at most half of the memory"):
        read_views(tmp_path / "a.mat")


def test_memory_that_ends_is_one_sentence_with_a_cause(tmp_path, monkeypatch):
    def no_memory(path):
        raise MemoryError

    (tmp_path / "a.mat").write_bytes(mat5(matrix(6, (12, 5), b"X", REAL)))
    monkeypatch.setattr("bitmosaic.views.matlab.read_mat5", no_memory)
    with pytest.raises(FileFormatError, match=r"not a whole .mat file \(MemoryError\)"):
        read_views(tmp_path / "a.mat")


def test_a_sparse_matrix_of_version_4_with_values_nowhere_is_refused_without_a_warning(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"X": MATRIX, "s": scipy.sparse.eye(12).tocsc()}, format="4")
    content = (tmp_path / "a.mat").read_bytes()
    place = content.index(np.arange(1.0, 13).tobytes())  # the rows of its values
    (tmp_path / "a.mat").write_bytes(content[:place] + struct.pack("<d", np.nan) + content[place + 8 :])
    with pytest.raises(FileFormatError, match=r"negative|exceeds matrix dimension"):
        read_views(tmp_path / "a.mat")


@pytest.mark.parametrize("write", [write_v7, write_v73])
def test_a_sparse_matrix_of_gigabytes_in_a_small_file_is_refused(tmp_path, write):
    sparse = scipy.sparse.csc_matrix(([1.0], ([0], [0])), (40_000, 1000))
    write(tmp_path / "a.mat", {"X": sparse})
    with pytest.raises(FileFormatError, match="40000 × 1000 in a file that is far too small for its values"):
        read_views(tmp_path / "a.mat")


@pytest.mark.parametrize("field", [1, 2, 4])  # rows, columns, and letters of the name
def test_a_mat_file_of_version_4_takes_no_more_memory_than_it_has_bytes(tmp_path, field):
    scipy.io.savemat(tmp_path / "a.mat", {"X": MATRIX}, format="4")
    content = bytearray((tmp_path / "a.mat").read_bytes())
    struct.pack_into("<i", content, 4 * field, 2**30)
    (tmp_path / "a.mat").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(FileFormatError, match=r"not a whole .mat file|X holds"):
        read_views(tmp_path / "a.mat")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10**7


def test_cells_that_hold_themselves_end(tmp_path):
    write_v73(tmp_path / "a.mat", {"Y": np.arange(12)})
    with h5py.File(tmp_path / "a.mat", "r+") as file:
        cell = file.create_dataset("X", (1, 1), h5py.ref_dtype)
        cell[0, 0] = cell.ref
        cell.attrs["MATLAB_class"] = np.bytes_("cell")
    with pytest.raises(FileFormatError, match="nested cell"):
        read_views(tmp_path / "a.mat")


# ---- Parquet and folders


def test_rows_of_a_parquet_file_that_point_past_its_list_of_texts_are_refused(tmp_path):
    table = pa.table({"hog": list(MATRIX), "y": list("abc") * 4})  # numbers of two bits: one too many
    pq.write_table(table, tmp_path / "a.parquet", compression="none")
    content = (tmp_path / "a.parquet").read_bytes()
    column = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(1)
    end = column.dictionary_page_offset + column.total_compressed_size
    refused = 0
    for place in range(column.data_page_offset, end):
        (tmp_path / "a.parquet").write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        try:
            read_views(tmp_path / "a.parquet")
        except FileFormatError:
            refused += 1
    assert refused


def test_a_parquet_file_whose_row_group_lacks_rows_is_refused(tmp_path):
    pq.write_table(pa.table({"hog": list(MATRIX)}), tmp_path / "a.parquet")
    views = read_views(tmp_path / "a.parquet")
    views["hog"]._file.starts = np.array([0, 100])
    with pytest.raises(FileFormatError, match="must have the 100 rows in row group 0"):
        read_rows(views["hog"], slice(0, 1))


def test_a_parquet_file_of_few_bytes_with_many_values_is_refused(tmp_path, monkeypatch):
    lists = pa.array([[0.0] * 1000] * 1000, pa.list_(pa.float64()))
    pq.write_table(pa.table({"a": lists}), tmp_path / "a.parquet", compression="zstd")
    assert read_views(tmp_path / "a.parquet").widths == (1000,)
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**23)
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with pytest.raises(FileFormatError, match=r"unpacks to 0\.0 GB"):
        read_views(tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")  # of the pages; then comes what the file lists
    million, one = b"\x80\x89\x7a", b"\x82\x80\x00"  # as they are written there, in as many bytes
    (tmp_path / "a.parquet").write_bytes(content[:end] + content[end:].replace(million, one))
    assert pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0).num_values == 1
    with pytest.raises(FileFormatError, match=r"unpacks to 0\.0 GB"):
        read_views(tmp_path / "a.parquet")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_what_the_pages_of_a_parquet_file_hold_is_read_as_it_was_written(tmp_path, version, codec, dictionary):
    rng = np.random.default_rng(0)
    rows = [None if i % 7 == 3 else row for i, row in enumerate(rng.integers(9, size=(3000, 12)).astype(float))]
    table = pa.table({"hog": pa.array(rows, pa.list_(pa.float64())), "label": [f"{i % 5:0900d}" for i in range(3000)]})
    path = tmp_path / "a.parquet"
    options = {"data_page_version": version, "compression": codec, "use_dictionary": dictionary}
    pq.write_table(table, path, row_group_size=1024, data_page_size=4096, write_page_checksum=True, **options)
    metadata, chunks = pq.ParquetFile(path).metadata, listed_chunks(path)
    assert len(chunks) == metadata.num_row_groups
    for group, listed in zip(map(metadata.row_group, range(metadata.num_row_groups)), chunks, strict=True):
        assert [chunk.column for chunk in listed] == ["hog.list.element", "label"]
        for column, chunk in zip((group.column(0), group.column(1)), listed, strict=True):
            assert (chunk.n_values, chunk.n_bytes) == (column.num_values, column.total_compressed_size)
            size = unpacked_size(path, [chunk])
            assert 8 * chunk.n_values <= size <= 8 * chunk.n_values + column.total_uncompressed_size
    assert read_views(path).widths == (12,)


def test_what_pyarrow_would_end_the_process_for_is_read_or_refused(tmp_path):
    """pyarrow's own description of a column may raise what nobody can catch, where its parts contradict each other."""
    lists = pa.array(list(MATRIX), pa.list_(pa.float64()))
    pq.write_table(pa.table({"hog": lists, "b": np.arange(12.0)}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for place in range(end, len(content) - 8):
        changed = bytes([content[place] ^ 0x10])
        (tmp_path / "a.parquet").write_bytes(content[:place] + changed + content[place + 1 :])
        with suppress(FileFormatError):
            for array in read_views(tmp_path / "a.parquet").arrays:
                read_rows(array, slice(0, 2))


@pytest.mark.parametrize(
    "head", [b"\xff" * 30, b"\x1c" * 30, b"\x15\x00" + b"\x19\xf1" + b"\xff" * 20, b"\x15\x01" * 9]
)
def test_pages_of_a_parquet_file_that_make_no_sense_are_refused(tmp_path, head):
    pq.write_table(pa.table({"hog": list(MATRIX)}), tmp_path / "a.parquet", use_dictionary=False)
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[:4] + head + content[4 + len(head) :])
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_views(tmp_path / "a.parquet").arrays[0][:1]


def test_a_parquet_file_with_a_row_group_larger_than_memory_is_refused(tmp_path, monkeypatch):
    pq.write_table(pa.table({"hog_0": np.zeros(2**16)}), tmp_path / "a.parquet")
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**19)
    with pytest.raises(FileFormatError, match="must be at most half of the memory"):
        read_views(tmp_path / "a.parquet")


def test_a_parquet_file_with_lists_larger_than_memory_is_refused(tmp_path, monkeypatch):
    zeros = pa.FixedSizeListArray.from_arrays(np.zeros(2**20), 2**16)
    pq.write_table(pa.table({"hog": zeros}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 2**13
    monkeypatch.setattr(npy, "machine_memory", lambda: 2**20)
    with pytest.raises(FileFormatError, match="must be at most half of the memory"):
        read_views(tmp_path / "a.parquet")


def one_long_text(n):
    return ["x" * 10**6] + ["y"] * (n - 1)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_one_long_label_among_many_is_refused_before_all_are_as_long(tmp_path, kind):
    n = 10**6
    table = pa.table({"hog_0": np.zeros(n), "y": pa.array(one_long_text(n), pa.string()).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=n // 4)
    with pytest.raises(FileFormatError, match=r"unpacks to 4,000\.0 GB; that must be at most half of the memory"):
        read_views(tmp_path / "a.parquet")


def test_one_long_label_in_a_part_is_refused_before_all_are_as_long(tmp_path):
    n = 10**5
    (tmp_path / "parts").mkdir()
    write_part(part_path(tmp_path, 0), {"hog": np.zeros((n, 1), np.float32)}, ["a"] * n, one_long_text(n), {})
    write_parts_manifest(tmp_path, {"hog": 1}, [n], labels=True)
    with pytest.raises(FileFormatError, match=r"unpacks to 400\.0 GB"):
        read_views(tmp_path)


def test_a_long_path_of_many_rows_is_kept_once(tmp_path):
    n = 4000
    path = pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), pa.array(["x" * 10**6]))
    table = pa.table({"hog_0": np.zeros(n), "path": path})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=n // 4, store_schema=False, write_statistics=False)
    views = read_views(tmp_path / "a.parquet")
    assert len(set(map(id, views.paths))) <= 4  # one for each row group
    assert pa.default_memory_pool().max_memory() < 2 * 10**9  # Arrow has not expanded them either
    assert views.paths[-1] == "x" * 10**6


def test_labels_in_parquet_that_are_no_text_are_refused(tmp_path):
    pq.write_table(pa.table({"hog_0": [1.0], "y": ["label"]}), tmp_path / "a.parquet", use_dictionary=False)
    content = (tmp_path / "a.parquet").read_bytes().replace(b"label", b"\xff\xff\xff\xff\xff")
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"UTF-8|cannot be read"):
        read_views(tmp_path / "a.parquet")


def test_a_part_that_lost_its_notes_is_refused(tmp_path):
    (tmp_path / "parts").mkdir()
    write_part(part_path(tmp_path, 0), {"hog": MATRIX.astype(np.float32)}, ["a"] * 12, None, {})
    write_parts_manifest(tmp_path, {"hog": 5}, [12], labels=False)
    pq.write_table(pq.read_table(part_path(tmp_path, 0)).replace_schema_metadata({}), part_path(tmp_path, 0))
    with pytest.raises(FileFormatError, match="must have a path for each row"):
        read_views(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    kind=st.sampled_from(["views", "parts"]),
    key=st.sampled_from(["format", "version", "n_rows", "views", "labels", "paths", "parts"]),
    inside=st.sampled_from([None, "name", "file", "shape", "dtype", "width"]),
    value=VALUES,
)
def test_any_value_in_a_manifest_is_read_or_refused(tmp_path_factory, kind, key, inside, value):
    folder = tmp_path_factory.mktemp("views")
    if kind == "views":
        write_views(folder, Views(("hog",), (MATRIX,)))
    else:
        write_parts_manifest(folder, {"hog": 5}, [12], labels=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    if inside is None:
        manifest[key] = value
    else:
        manifest["views"][0][inside] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with suppress(BitmosaicError):
        read_views(folder, bare=True)
