"""Parquet files that mean harm: what they list contradicts what their pages hold, and Arrow would believe the worse."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bitmosaic import npy
from bitmosaic.errors import FileFormatError
from bitmosaic.views import parquet, parquet_pages, read_views
from bitmosaic.views.parquet import ParquetFile
from bitmosaic.views.parquet_pages import Chunk, _Compact, listed_chunks, unpacked_size

MATRIX = np.random.default_rng(0).normal(size=(12, 5))
TOO_LARGE = "must be at most half of the memory"
I16, I32, I64, TEXT, LIST, STRUCTURE = 4, 5, 6, 8, 9, 12  # kinds of fields


# ---- files whose list is changed


def written(tmp_path, columns, **options):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", **options)
    return tmp_path / "a.parquet"


def footer(path):
    content = path.read_bytes()
    return content[len(content) - 8 - int.from_bytes(content[-8:-4], "little") : -8]


def relist(path, change):
    """The file with its list changed; the pages stay."""
    before = footer(path)
    listed = change(before)
    assert listed != before
    pages = path.read_bytes()[: -8 - len(before)]
    path.write_bytes(pages + listed + len(listed).to_bytes(4, "little") + b"PAR1")


def claim_few_bytes(path):
    """A row group then says that it unpacks to two bytes."""
    size = pq.ParquetFile(path).metadata.row_group(0).total_byte_size
    relist(path, lambda listed: listed.replace(b"\x16" + number(size), b"\x16" + number(2)))
    assert pq.ParquetFile(path).metadata.row_group(0).total_byte_size == 2


def forbid_arrow_to_read(monkeypatch):
    def read(*arguments):
        raise AssertionError("Arrow was asked")

    monkeypatch.setattr(pq.ParquetFile, "read", read)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read)


def memory(monkeypatch, n_bytes):
    monkeypatch.setattr(npy, "machine_memory", lambda: n_bytes)


def test_a_column_that_has_another_name_in_its_row_group_is_refused(tmp_path, monkeypatch):
    path = written(tmp_path, {"hog": pa.array(list(MATRIX), pa.list_(pa.float64()))})
    relist(path, lambda listed: listed.replace(b"\x38\x03hog\x04list", b"\x38\x03zzz\x04list"))
    assert pq.read_table(path).num_rows == 12  # Arrow finds it by its place
    forbid_arrow_to_read(monkeypatch)
    with pytest.raises(FileFormatError, match="its row groups list other columns than the file"):
        read_views(path)


def test_a_list_of_other_row_groups_than_those_of_arrow_is_refused(tmp_path, monkeypatch):
    path = written(tmp_path, {"hog": list(MATRIX)})
    monkeypatch.setattr(parquet, "listed_chunks", lambda path: [])
    with pytest.raises(FileFormatError, match="its row groups list other columns than the file"):
        read_views(path)


@pytest.mark.parametrize("name", ["path", "y"])
def test_texts_that_take_too_much_memory_are_refused_before_arrow_reads_them(tmp_path, name, monkeypatch):
    texts = [f"{i:04d}" * 25_000 for i in range(40)]
    path = written(tmp_path, {"hog_0": np.zeros(40), name: texts}, use_dictionary=False, compression="zstd")
    claim_few_bytes(path)
    assert path.stat().st_size < 20_000
    memory(monkeypatch, 2**24)  # half of it would hold them once, but Arrow and Python have copies on their way
    forbid_arrow_to_read(monkeypatch)
    with pytest.raises(FileFormatError, match=TOO_LARGE):
        read_views(path)


def test_numbers_that_are_more_than_the_rows_are_refused_before_arrow_reads_them(tmp_path, monkeypatch):
    n = 2**18
    path = written(tmp_path, {"hog_0": np.zeros(n)}, compression="zstd")
    claim_few_bytes(path)
    many, one = b"\x16" + number(n), b"\x16" + number(1)

    def change(listed):  # the rows of the file come first, and those of the row group last
        first, middle, last = listed.partition(many)[0], many.join(listed.split(many)[1:-1]), listed.split(many)[-1]
        return first + one + middle + one + last

    relist(path, change)
    assert pq.ParquetFile(path).metadata.num_rows == 1
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).num_values == n
    memory(monkeypatch, 2**21)
    views = read_views(path)
    forbid_arrow_to_read(monkeypatch)
    with pytest.raises(FileFormatError, match=TOO_LARGE):
        views.arrays[0][:]


def test_texts_that_are_small_in_each_row_group_and_large_together_are_refused(tmp_path, monkeypatch):
    texts = [f"{i:04d}" * 500 for i in range(100)]
    path = written(tmp_path, {"hog_0": np.zeros(100), "path": texts}, row_group_size=10)
    memory(monkeypatch, 2 * 10**5)
    with pytest.raises(FileFormatError, match=TOO_LARGE):
        read_views(path)
    memory(monkeypatch, 10**6)
    assert read_views(path).paths == tuple(texts)


def test_numeric_labels_that_are_small_in_each_row_group_and_large_together_are_refused(tmp_path, monkeypatch):
    path = written(tmp_path, {"hog_0": np.zeros(10_000), "y": np.zeros(10_000, int)}, row_group_size=1000)
    memory(monkeypatch, 10**5)
    forbid_arrow_to_read(monkeypatch)
    with pytest.raises(FileFormatError, match=TOO_LARGE):
        read_views(path)


def test_a_row_group_that_lists_more_bytes_than_memory_is_refused_when_the_file_is_opened(tmp_path, monkeypatch):
    path = written(tmp_path, {"hog": list(np.random.default_rng(0).normal(size=(10, 10_000)))})
    memory(monkeypatch, 10**6)
    with pytest.raises(FileFormatError, match=TOO_LARGE):
        ParquetFile(path)


def test_memory_that_ends_while_arrow_reads_is_one_sentence(tmp_path, monkeypatch):
    def read(*arguments):
        raise pa.ArrowMemoryError("malloc of size 7 failed")

    views = read_views(written(tmp_path, {"hog_0": np.zeros(12)}))
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read)
    with pytest.raises(
        FileFormatError, match=r"columns hog_0 take more memory than there is \(malloc of size 7 failed"
    ):
        views.arrays[0][:]


@pytest.mark.parametrize(("of_file", "of_group"), [(13, 12), (-12, -12), (2**41, 2**41)])
def test_numbers_of_rows_that_cannot_be_are_refused(tmp_path, of_file, of_group):
    path = written(tmp_path, {"hog": list(MATRIX)})  # 60 values: the rows are listed twice
    first, middle, last = footer(path).split(b"\x16" + number(12))
    relist(path, lambda _: first + b"\x16" + number(of_file) + middle + b"\x16" + number(of_group) + last)
    with pytest.raises(FileFormatError, match="rows, which cannot be"):
        read_views(path)


def test_a_large_dictionary_of_few_values_is_counted(tmp_path):
    path = written(tmp_path, {"path": [letter * 10**5 for letter in "abc"] * 4})
    ((chunk,),) = listed_chunks(path)
    assert unpacked_size(path, [chunk]) == 3 * (4 + 10**5) + 12 * 8  # with their lengths, and the number of each row


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_columns_of_all_usual_forms_are_read(tmp_path, version, codec):
    n = 30
    lists = np.arange(5.0 * n).reshape(n, 5)
    columns = {
        "meta": [{"a": i, "b": [{"c": "x"}]} for i in range(n)],
        "hog": pa.array([*lists[:-1], None], pa.list_(pa.float64())),
        "a.b": pa.FixedSizeListArray.from_arrays(lists.ravel(), 5),
        "large": pa.array(list(lists), pa.large_list(pa.float32())),
        "y": pa.array(["a", "b", "c"] * 10).dictionary_encode(),
        "path": [f"{i}.png" for i in range(n)],
    }
    table = pa.table(columns)
    path = tmp_path / "a.parquet"
    options = {"write_page_index": True, "sorting_columns": [pq.SortingColumn(0)], "write_page_checksum": True}
    with pq.ParquetWriter(path, table.schema, data_page_version=version, compression=codec, **options) as writer:
        for piece in (table[:7], table[:0], table[7:]):
            writer.write_table(piece)
    views = read_views(path)
    assert views.names == ("hog", "a.b", "large")
    assert views.paths == tuple(f"{i}.png" for i in range(n))
    assert views.labels.tolist() == ["a", "b", "c"] * 10
    for array in views.arrays:
        np.testing.assert_array_equal(array[: n - 1], lists[:-1])


# ---- lists and heads of pages made by hand


def number(value):
    """As Thrift's compact form has it: the sign last, seven bits a byte."""
    return length(2 * value if value >= 0 else -2 * value - 1)


def length(value):
    high, low = divmod(value, 128)
    return bytes([low]) if not high else bytes([low | 128]) + length(high)


def structure(*fields):
    """Of (number, kind, content), each number in full."""
    return b"".join(bytes([kind]) + number(field) + content for field, kind, content in fields) + b"\0"


def listing(kind, *contents):
    return bytes([0xF0 | kind]) + length(len(contents)) + b"".join(contents)


def read(content, held=parquet_pages._HELD):
    return _Compact(content, 0, len(content), held).structure()


def page(kind=0, unpacked=80, packed=0, n_values=3, head=5, extra=()):
    sizes = [(i, I32, number(size)) for i, size in ((1, kind), (2, unpacked), (3, packed))]
    return structure(*sizes, (head, STRUCTURE, structure((1, I32, number(n_values)))), *extra) + bytes(max(packed, 0))


def size_of(tmp_path, *pages, n_values=3):
    content = b"PAR1" + b"".join(pages)
    (tmp_path / "pages").write_bytes(content)
    return unpacked_size(tmp_path / "pages", [Chunk("hog", n_values, 4, len(content) - 4)])


COLUMN = {
    2: (LIST, listing(I32, number(0))),
    3: (LIST, listing(TEXT, b"\x03hog", b"\x01x")),
    5: (I64, number(7)),
    7: (I64, number(90)),
    9: (I64, number(44)),
    11: (I64, number(4)),
}


def chunks_of(tmp_path, changes=None, group=None, tail=b""):
    column = {**COLUMN, **(changes or {})}
    facts = structure(*((field, *what) for field, what in column.items() if what))
    group = group or (1, LIST, listing(STRUCTURE, structure((3, STRUCTURE, facts))))
    listed = structure((4, LIST, listing(STRUCTURE, structure(group))))
    (tmp_path / "a").write_bytes(b"PAR1" + listed + (tail or len(listed).to_bytes(4, "little")) + b"PAR1")
    return listed_chunks(tmp_path / "a")


def test_a_list_made_by_hand_is_read(tmp_path):
    assert chunks_of(tmp_path) == [[Chunk("hog.x", 7, 4, 90)]]


@pytest.mark.parametrize("dictionary", [None, (I32, number(4)), (I64, number(0)), (I64, number(-9)), (I64, number(50))])
def test_a_dictionary_where_arrow_would_not_look_for_it_is_not_believed(tmp_path, dictionary):
    assert chunks_of(tmp_path, {11: dictionary}) == [[Chunk("hog.x", 7, 44, 90)]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tail": bytes(4)}, "its list does not begin in the file"),
        ({"tail": b"\xff\xff\xff\0"}, "its list does not begin in the file"),
        ({"changes": {9: None}}, r"its list lacks field \(9, 6\)"),
        ({"changes": {5: (I32, number(7))}}, r"its list lacks field \(5, 6\)"),  # Arrow passes over it
        ({"group": (2, I64, number(3))}, r"its list lacks field \(1, 9\)"),
        ({"group": (1, LIST, listing(I32, number(3)))}, "its list in field 1 holds values of kind 5"),
        ({"changes": {2: (LIST, listing(TEXT, b"\x03abc"))}}, "its list in field 2 holds values of kind 8"),
        ({"changes": {3: (LIST, listing(I64, number(3)))}}, "its list in field 3 holds values of kind 6"),
        ({"changes": {3: (LIST, listing(TEXT, b"\x01\xff"))}}, "can't decode byte 0xff"),
        ({"changes": {5: (I64, number(-7))}}, "column hog.x has a place or size below zero"),
        ({"changes": {7: (I64, number(-7))}}, "column hog.x has a place or size below zero"),
        ({"changes": {9: (I64, number(-7))}}, "column hog.x has a place or size below zero"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        chunks_of(tmp_path, **changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (structure((1, I32, number(1)), (1, I32, number(1))), "it has field 1 twice"),
        (structure((1, I32, number(1)), (1, I64, number(1))), "it has field 1 twice"),  # Arrow passes over the second
        (structure((1, I32, number(1)), (1, 1, b"")), "it has field 1 twice"),
        (structure((2**15, I32, number(1))), "does not fit into 16 bits"),
        (structure((2**15 - 1, I32, number(1)))[:-1] + b"\x15\x02\0", "a field whose number is too large"),
        (structure((1, I16, number(2**15))), "does not fit into 16 bits"),
        (structure((1, I32, number(2**31))), "does not fit into 32 bits"),
        (structure((1, I64, number(-(2**63) - 1))), "does not fit into 64 bits"),
        (b"\x1c" * 40 + bytes(40), "it is nested too deeply"),
        (b"\x19" * 40 + bytes(40), "it is nested too deeply"),
        (b"\x19\xf5" + length(9) + b"\0" * 8, "a list or text that goes past its end"),
        (b"\x18" + length(9) + b"\0" * 8, "a list or text that goes past its end"),
        (b"\x1b\0\0", "it has a field of kind 11"),  # a map
        (b"\x10\0", "it has a field of kind 0"),  # Arrow takes it for the end
        (b"\x15\x02", "it goes on where it should end"),
        (b"\x17\0\0\0\0", "it goes on where it should end"),
        (b"\x16" + b"\xff" * 10 + b"\0\0", "one of its numbers has no end"),
    ],
)
def test_what_arrow_might_read_otherwise_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        read(content, {})


def test_all_kinds_of_fields_are_passed_over_as_they_are_long():
    fields = [(1, 1, b""), (2, 2, b""), (3, 3, b"\x07"), (4, 7, b"\x07" * 8), (5, I16, number(-(2**15)))]
    lists = [(6, LIST, b"\x21\x01\x02"), (7, 10, b"\x23\x07\x07"), (8, LIST, b"\x17" + b"\x07" * 8)]
    found = read(structure(*fields, *lists, (9, TEXT, b"\x02ab")), {})
    assert found[5, I16] == -(2**15)
    assert found[9, TEXT] == b"ab"
    assert len(found) == 9


def test_a_page_takes_what_it_unpacks_to_or_what_its_values_take(tmp_path):
    assert size_of(tmp_path, page(unpacked=10**6)) == 10**6
    assert size_of(tmp_path, page(n_values=10**6, kind=3, head=8)) == 8 * 10**6
    assert size_of(tmp_path, page(kind=2, head=7, packed=5), page()) == 160  # values of a dictionary are not of a row
    assert size_of(tmp_path, page(), page()) == 80  # Arrow would not read the second


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (page(n_values=2), "the pages of column hog hold 2 values, not 3"),
        (page(packed=-1), "a page has a size below zero"),
        (page(unpacked=-1), "a page has a size below zero"),
        (page(n_values=-1), "a page has a size below zero"),
        (structure((1, I32, number(0)), (5, STRUCTURE, b"\x15\x06\0")), "a page does not say how large it is"),
        (page(kind=3), r"a page of kind 3 has the heads of fields \[5\]"),
        (page(kind=1, head=6), r"a page of kind 1 has the heads of fields \[6\]"),
        (page(extra=[(8, STRUCTURE, structure((1, I32, number(1))))]), r"kind 0 has the heads of fields \[5, 8\]"),
        (page(extra=[(5, STRUCTURE, structure((1, I32, number(1))))]), "it has field 5 twice"),
        (page(extra=[(9, TEXT, length(2**20) + bytes(2**20))]), "a list or text that goes past its end"),
        (
            page(extra=[(i, TEXT, length(2**19) + bytes(2**19)) for i in (9, 10)]),
            "a list or text that goes past its end",
        ),
    ],
)
def test_a_page_that_makes_no_sense_is_refused(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        size_of(tmp_path, wrong)
