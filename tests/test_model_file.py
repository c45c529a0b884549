"""A model file comes back as it was written, or is refused in one sentence."""

import hashlib
import json
import os
import pickle
import stat
import sys
import tracemalloc

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitmosaic.errors import BitmosaicError, ModelFileError
from bitmosaic.model_file import FORMAT_VERSION, STORED_DTYPES, complete, read_model, require, write_model

ARRAYS = {
    "centers": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "weights": np.array([0.25, 0.75]),
    "sizes": np.zeros((0, 3), np.int64),
    "flags": np.array([True, False, True]),
    "scale": np.array(1.5, np.float32),
}
FACTS = {"n_bits": 128, "views": ["color", "größe"], "limit": None, "params": {"λ": 0.001, "joint": True}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
array_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__"
)
model_arrays = hnp.arrays(
    st.sampled_from(sorted(STORED_DTYPES)).map(np.dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0)
)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.bmm"
    write_model(path, "HSIC", ARRAYS, FACTS)
    return path


def assert_same_arrays(got, expected):
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert got[name].dtype == array.dtype.newbyteorder("=")
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.astype(got[name].dtype).tobytes()


def forge(path, manifest=None, entries=None, data=b"", text=None, header=None, metadata=None):
    """A hand-made file: a valid one-array model unless told otherwise, its hash right for what it holds."""
    forged = {
        "format": "bitmosaic-model",
        "version": 1,
        "kind": "HSIC",
        "written_by": "bitmosaic 0.1.0",
        "facts": {},
        "arrays": {},
    } | (manifest or {})
    canonical = json.dumps(forged, sort_keys=True, separators=(",", ":"))
    forged.setdefault("sha256", hashlib.sha256(canonical.encode() + data).hexdigest())
    text = json.dumps(forged, sort_keys=True, separators=(",", ":")) if text is None else text
    metadata = {"bitmosaic": text} if metadata is None else metadata
    if header is None:
        header = json.dumps(
            {"__metadata__": metadata} | (entries or {}), separators=(",", ":"), ensure_ascii=False
        ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def one_array(dtype="float64", shape=(2,), stored="F64", stored_shape=None, offsets=(0, 16)):
    """What forge() needs for a file with one array."""
    stored_shape = list(shape) if stored_shape is None else stored_shape
    return {
        "manifest": {"arrays": {"a": {"dtype": dtype, "shape": list(shape)}}},
        "entries": {"a": {"dtype": stored, "shape": stored_shape, "data_offsets": list(offsets)}},
    }


# --- what is written comes back --------------------------------------------------------------------------


def test_arrays_and_facts_come_back_as_they_were(model):
    arrays, facts = read_model(model, "HSIC")
    assert_same_arrays(arrays, ARRAYS)
    assert facts == FACTS


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    arrays=st.dictionaries(array_names, model_arrays, max_size=4),
    facts=st.dictionaries(st.text(), json_values, max_size=4),
)
def test_any_arrays_and_facts_come_back_as_they_were(tmp_path, arrays, facts):
    write_model(tmp_path / "m", "Any kind", arrays, facts)
    got, got_facts = read_model(tmp_path / "m", "Any kind")
    assert_same_arrays(got, arrays)
    assert got_facts == facts


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(12).reshape(3, 4).T,
        np.arange(24, dtype=np.int32)[::3],
        np.arange(5, dtype=">i8"),
        np.arange(6, dtype=">f4").reshape(2, 3).T,
        np.broadcast_to(np.float32(2), (3, 2)),
        np.array(7, dtype=">u8"),
    ],
)
def test_strides_and_byte_order_do_not_matter(tmp_path, array):
    write_model(tmp_path / "m", "K", {"a": array}, {})
    got = read_model(tmp_path / "m", "K")[0]["a"]
    np.testing.assert_array_equal(got, array)
    assert got.shape == array.shape
    assert got.dtype.isnative


def test_loaded_arrays_belong_to_the_caller(model):
    arrays, _ = read_model(str(model), "HSIC")
    for array in arrays.values():
        assert array.flags.writeable
        assert array.flags.owndata


@given(st.dictionaries(array_names, model_arrays, max_size=6))
def test_the_file_is_the_one_that_safetensors_would_write(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("model") / "model"
    write_model(path, "HSIC", arrays, FACTS)
    with safetensors.safe_open(path, "numpy") as file:
        assert path.read_bytes() == safetensors.numpy.save(
            {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}, file.metadata()
        )


def test_a_model_is_written_without_a_copy_of_its_arrays(tmp_path):
    arrays = {"codes": np.zeros((2_000_000, 16), np.uint8), "labels": np.zeros(2_000_000, np.int32)}  # 40 MB
    tracemalloc.start()
    write_model(tmp_path / "model", "HSIC", arrays, FACTS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_safetensors_itself_reads_the_file(model):
    assert_same_arrays(safetensors.numpy.load_file(model), ARRAYS)
    with safetensors.safe_open(model, "numpy") as file:
        manifest = json.loads(file.metadata()["bitmosaic"])
    assert (manifest["format"], manifest["version"], manifest["kind"]) == ("bitmosaic-model", 1, "HSIC")
    assert manifest["written_by"].startswith("bitmosaic ")
    assert manifest["arrays"]["centers"] == {"dtype": "uint8", "shape": [3, 4]}


def test_the_same_model_gives_the_same_bytes(model, tmp_path):
    again = tmp_path / "again"
    write_model(again, "HSIC", dict(reversed(ARRAYS.items())), dict(reversed(FACTS.items())))
    assert again.read_bytes() == model.read_bytes()


def test_a_hand_made_file_that_is_right_in_every_detail_is_read(tmp_path):
    data = np.array([1.0, 2.0]).tobytes()
    arrays, _ = read_model(forge(tmp_path / "m", **one_array(), data=data), "HSIC")
    assert arrays["a"].tolist() == [1.0, 2.0]


# --- damage ----------------------------------------------------------------------------------------------


def test_a_change_of_any_single_byte_is_refused(tmp_path):
    path = tmp_path / "m"
    write_model(path, "K", {"a": np.arange(3.0), "b": np.array([True])}, {"n": 1})
    whole = path.read_bytes()
    assert b"} " in whole, "the header should end in padding, so that it is tried as well"
    for position in range(len(whole)):
        # each single bit, and bytes that JSON might take for another way to write the same
        for value in {whole[position] ^ (1 << bit) for bit in range(8)} | set(b' \t\n0"{'):
            if value != whole[position]:
                path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
                with pytest.raises(ModelFileError):
                    read_model(path, "K")


def test_every_shorter_file_is_refused(model):
    whole = model.read_bytes()
    for size in range(len(whole)):
        model.write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match=r"is not a usable model: it (was cut short|is empty)"):
            read_model(model, "HSIC")


def test_bytes_added_anywhere_are_refused(model):
    whole = model.read_bytes()
    for position in [0, 8, 9, 100, len(whole) - 1, len(whole)]:
        model.write_bytes(whole[:position] + b" " + whole[position:])
        with pytest.raises(ModelFileError):
            read_model(model, "HSIC")
    model.write_bytes(whole + b"12345")
    with pytest.raises(ModelFileError, match=r"it has 5 bytes too many at the end"):
        read_model(model, "HSIC")


def test_changed_data_are_called_changed(model):
    whole = model.read_bytes()
    model.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ModelFileError, match=r"it was changed after it was written\. Copy it again"):
        read_model(model, "HSIC")


# --- other files -----------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"There is no model file at .*none\. Check the path, or save"):
        read_model(tmp_path / "none", "HSIC")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"is a folder, not a model file\. Name the file inside it"):
        read_model(tmp_path, "HSIC")
    with pytest.raises(ModelFileError, match=r"cannot be written to .*, which is a folder\. Name a file"):
        write_model(tmp_path, "HSIC", {}, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"it is empty\. Copy it again"),
        (b"hello", r"it was cut short or never was a model \(it has 5 bytes\)"),
        (b"just some text, no model", r"it does not begin as a bitmosaic model does"),
        (pickle.dumps({"model": list(range(100))}), r"it does not begin as a bitmosaic model does"),
        (b"\xff" * 100, r"it does not begin as a bitmosaic model does"),
        (b"\x10" + bytes(100), r"its header is not JSON, so it was changed or never was a model"),
        (bytes(100), r"its header is not JSON"),
        ((1000).to_bytes(8, "little") + b'{"a":1}', r"it was cut short"),
        ((2).to_bytes(8, "little") + b"[]", r"bitmosaic did not write it"),
        (safetensors.numpy.save({"a": np.ones(2)}), r"bitmosaic did not write it"),
        (safetensors.numpy.save({"a": np.ones(2)}, {"bitmosaic": "{}"}), r"bitmosaic did not write it"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, content, message):
    path = tmp_path / "m"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        read_model(path, "HSIC")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match=r"it is no ordinary file"):
        read_model(tmp_path / "pipe", "HSIC")


@pytest.mark.parametrize("path", ["a\0b", "a\ud800"])
def test_an_impossible_path_is_refused(path):
    with pytest.raises(ModelFileError, match=r"needs a path of ordinary text"):
        read_model(path, "HSIC")
    with pytest.raises(ModelFileError, match=r"needs a path of ordinary text"):
        write_model(path, "HSIC", {}, {})


def test_an_unreadable_file_says_why(model, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(ModelFileError, match=r"cannot be read: Permission denied\. Check its permissions"):
        read_model(model, "HSIC")


def test_another_kind_of_model_says_who_loads_it(tmp_path):
    write_model(tmp_path / "m", "BinaryKMeans", {}, {})
    message = r"This file holds a 'BinaryKMeans' model, not 'HSIC'; load it with BinaryKMeans\.load\."
    with pytest.raises(ModelFileError, match=message):
        read_model(tmp_path / "m", "HSIC")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (
            {"version": FORMAT_VERSION + 1, "new": 0, "facts": 3},
            r"written by a newer bitmosaic.*Upgrade with: pip install",
        ),
        ({"version": 0}, r"its format has no known version"),
        ({"version": True}, r"its format has no known version"),
        ({"version": "1"}, r"its format has no known version"),
        ({"format": "other"}, r"bitmosaic did not write it"),
        ({"kind": 5}, r"it does not say what kind of model it is"),
        ({"kind": "not a name" * 50}, r"holds a 'not a name.{60,80} model, not 'HSIC'; it cannot be loaded"),
        ({"facts": []}, r"its manifest lacks a part or has one too many"),
        ({"arrays": []}, r"its manifest lacks a part or has one too many"),
        ({"extra": 1}, r"its manifest lacks a part or has one too many"),
        ({"facts": {"x": 1}, "sha256": "0" * 64}, r"it was changed after it was written"),
        ({"sha256": None}, r"it was changed after it was written"),
        ({"arrays": {"a": {"dtype": "float64", "shape": [1]}}}, r"its lists of arrays disagree"),
    ],
)
def test_a_manifest_that_is_not_right_is_refused(tmp_path, manifest, message):
    with pytest.raises(ModelFileError, match=message):
        read_model(forge(tmp_path / "m", manifest), "HSIC")


@pytest.mark.parametrize(
    "changes",
    [
        {"stored": "F32"},
        {"stored": 7},
        {"dtype": "float16", "stored": "F16"},
        {"dtype": "object"},
        {"dtype": ["float64"]},
        {"shape": (3,)},
        {"shape": (-2,)},
        {"shape": (2, True)},
        {"shape": (2.0,)},
        {"stored_shape": [2, 1]},
        {"stored_shape": [2.0]},
        {"shape": (1,) * 65 + (2,)},
        {"offsets": (0, 8)},
        {"offsets": (16, 0)},
        {"offsets": (0, 16, 16)},
        {"offsets": (-16, 0)},
        {"shape": (0, 2**62), "offsets": (0, 0)},
        {"shape": (10**400, 0), "offsets": (0, 0)},
    ],
)
def test_an_array_whose_description_is_wrong_is_refused(tmp_path, changes):
    path = forge(tmp_path / "m", **one_array(**changes), data=bytes(16))
    with pytest.raises(ModelFileError, match=r"the description of array 'a' is wrong"):
        read_model(path, "HSIC")


@pytest.mark.parametrize("entry", [None, [], {}, {"dtype": "F64", "shape": [2]}])
def test_an_array_without_a_full_description_is_refused(tmp_path, entry):
    parts = one_array()
    with pytest.raises(ModelFileError, match=r"the description of array 'a' is wrong"):
        read_model(forge(tmp_path / "m", parts["manifest"], {"a": entry}, bytes(16)), "HSIC")
    with pytest.raises(ModelFileError, match=r"the description of array 'a' is wrong"):
        read_model(forge(tmp_path / "m", {"arrays": {"a": entry}}, parts["entries"], bytes(16)), "HSIC")


@pytest.mark.parametrize(
    ("first", "second"), [((0, 8), (0, 8)), ((0, 8), (9, 17)), ((8, 16), (8, 16)), ((1, 9), (9, 17))]
)
def test_arrays_that_overlap_or_leave_a_gap_are_refused(tmp_path, first, second):
    manifest = {"arrays": {name: {"dtype": "float64", "shape": [1]} for name in "ab"}}
    entries = {
        name: {"dtype": "F64", "shape": [1], "data_offsets": offsets} for name, offsets in (("a", first), ("b", second))
    }
    with pytest.raises(ModelFileError, match=r"its arrays overlap or leave a gap"):
        read_model(forge(tmp_path / "m", manifest, entries, bytes(17)), "HSIC")


def test_swapped_arrays_of_one_size_are_refused(tmp_path):
    path = tmp_path / "m"
    write_model(path, "K", {"a": np.zeros(2), "b": np.ones(2)}, {})
    whole = path.read_bytes()
    swapped = whole.replace(b"[0,16]", b"[9,99]").replace(b"[16,32]", b"[0,16]").replace(b"[9,99]", b"[16,32]")
    assert len(swapped) == len(whole)
    path.write_bytes(swapped)
    with pytest.raises(ModelFileError, match=r"it was changed after it was written"):
        read_model(path, "K")


def test_a_file_that_claims_to_be_huge_allocates_nothing(tmp_path):
    huge = 10**15
    array = forge(tmp_path / "array", **one_array(shape=(huge // 8,), offsets=(0, huge)), data=bytes(16))
    header = tmp_path / "header"
    header.write_bytes(huge.to_bytes(8, "little") + b"{}")
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=r"cut short: its arrays take 1000000000000000 bytes, and 16 are"):
        read_model(array, "HSIC")
    with pytest.raises(ModelFileError, match=r"it does not begin as a bitmosaic model does"):
        read_model(header, "HSIC")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


def test_a_model_that_does_not_fit_into_memory_says_so(model, monkeypatch):
    def no_memory(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(np, "empty", no_memory)
    with pytest.raises(ModelFileError, match=r"does not fit into memory\. Load it on a machine with more"):
        read_model(model, "HSIC")


def test_deeply_nested_json_is_refused(tmp_path):
    deep = "[" * 200_000 + "]" * 200_000
    with pytest.raises(ModelFileError, match=r"its header is nested too deeply"):
        read_model(forge(tmp_path / "m", header=deep.encode()), "HSIC")
    with pytest.raises(ModelFileError, match=r"its header is nested too deeply"):
        read_model(forge(tmp_path / "m", text=f'{{"facts":{deep}}}'), "HSIC")


@pytest.mark.parametrize("where", ["header", "text"])
def test_a_key_that_comes_twice_is_refused(tmp_path, where):
    twice = '{"kind":"HSIC","kind":"HSIC"}'
    forged = forge(tmp_path / "m", **{where: twice if where == "text" else twice.encode()})
    with pytest.raises(ModelFileError, match=r"its header has the key 'kind' twice"):
        read_model(forged, "HSIC")


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace(":", ": ", 1),
        lambda text: text.replace("HSIC", "\\u0048SIC"),
        lambda text: text.replace('"facts":{}', '"facts":{"x":1e999}'),
        lambda text: text.replace('"facts":{}', '"facts":{"x":NaN}'),
        lambda text: text.replace('"facts":{}', '"facts":{"x":1.50}'),
        lambda text: text[:-1] + " }",
    ],
)
def test_another_spelling_of_the_same_manifest_is_refused(tmp_path, edit):
    path = forge(tmp_path / "m")
    whole = path.read_bytes()
    text = json.loads(whole[8:])["__metadata__"]["bitmosaic"]
    assert edit(text) != text
    with pytest.raises(ModelFileError, match=r"its header was changed after it was written"):
        read_model(forge(path, text=edit(text)), "HSIC")


def test_metadata_of_other_tools_are_refused(tmp_path):
    path = forge(tmp_path / "m")
    metadata = json.loads(path.read_bytes()[8:])["__metadata__"]
    for other in ({"other": "x"}, {"number": 5}):
        with pytest.raises(ModelFileError, match=r"its header was changed after it was written"):
            read_model(forge(path, metadata=metadata | other), "HSIC")
    for wrong in (7, [], {"bitmosaic": 7}):
        with pytest.raises(ModelFileError, match=r"bitmosaic did not write it"):
            read_model(forge(path, metadata=wrong), "HSIC")


def test_a_manifest_that_is_no_text_is_refused(tmp_path):
    header = b'{"__metadata__":{"bitmosaic":"\\ud800"}}'
    with pytest.raises(ModelFileError, match=r"its manifest is not text"):
        read_model(forge(tmp_path / "m", header=header), "HSIC")


def test_an_integer_of_thousands_of_digits_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"its header is not JSON"):
        read_model(forge(tmp_path / "m", header=b"9" * 10_000), "HSIC")


def test_bytes_that_are_no_booleans_are_refused(tmp_path):
    parts = one_array("bool", (2,), "BOOL", offsets=(0, 2))
    with pytest.raises(ModelFileError, match=r"array 'a' holds bytes that are no booleans"):
        read_model(forge(tmp_path / "m", **parts, data=b"\x01\x02"), "HSIC")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(header=json_values, data=st.binary(max_size=20))
def test_any_json_in_the_header_is_refused_in_one_sentence(tmp_path, header, data):
    with pytest.raises(ModelFileError):
        read_model(forge(tmp_path / "m", header=json.dumps(header).encode(), data=data), "HSIC")


# --- writing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_the_old_model_survives_a_failed_write(model, monkeypatch, step):
    before = model.read_bytes()

    def disk_full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, disk_full)
    with pytest.raises(ModelFileError, match=r"cannot be written to .*: No space left on device\. Choose a"):
        write_model(model, "HSIC", {"other": np.ones(3)}, {})
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_model(tmp_path / "m", "HSIC", ARRAYS, FACTS)
    assert list(tmp_path.iterdir()) == []


def test_file_and_folder_are_synced_around_the_rename(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor):
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def watched_replace(source, target):
        assert os.path.dirname(source) == os.path.dirname(target)
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_model(tmp_path / "m", "HSIC", ARRAYS, FACTS)
    assert calls == (["file", "rename", "folder"] if os.name == "posix" else ["file", "rename"])
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_new_model_replaces_the_old_one(model):
    write_model(model, "HSIC", {"a": np.ones(2)}, {"new": True})
    assert read_model(model, "HSIC")[1] == {"new": True}
    assert list(model.parent.iterdir()) == [model]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_others_may_read_the_model_as_the_umask_says(tmp_path):
    previous = os.umask(0o022)
    try:
        write_model(tmp_path / "m", "HSIC", {}, {})
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o644


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"no/m: No such file or directory\. Choose a folder that exists"):
        write_model(tmp_path / "no" / "m", "HSIC", {}, {})
    (tmp_path / "file").touch()
    with pytest.raises(ModelFileError, match=r"Not a directory"):
        write_model(tmp_path / "file" / "m", "HSIC", {}, {})


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_says_why(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ModelFileError, match=r"Permission denied\. Choose a folder .* may be written to"):
            write_model(tmp_path / "m", "HSIC", {}, {})
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    "array", [np.ones(2, np.float16), np.array(["a"]), np.array([None]), np.ones(1, complex), np.zeros(1, "M8[s]")]
)
def test_other_dtypes_are_refused_before_anything_is_written(tmp_path, array):
    with pytest.raises(ModelFileError, match=r"holds arrays of uint64, .*; got 'a' of .* Convert it with"):
        write_model(tmp_path / "m", "HSIC", {"a": array}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "__metadata__", "\ud800"])
def test_impossible_array_names_are_refused(tmp_path, name):
    with pytest.raises(ModelFileError, match=r"needs a name of ordinary text"):
        write_model(tmp_path / "m", "HSIC", {name: np.ones(1)}, {})


def nested(depth):
    inner = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"x": float("nan")}, r"Out of range float"),
        ({"x": float("inf")}, r"Out of range float"),
        ({"x": np.int64(3)}, r"int64 is not JSON serializable"),
        ({"x": b"bytes"}, r"bytes is not JSON serializable"),
        ({1: "a"}, r"they would come back changed"),
        ({1: "a", "b": 2}, r"not supported"),
        ({"x": (1, 2)}, r"they would come back changed \(a tuple, or a key that is no string\?\)"),
        ([], r"they would come back changed"),
    ],
)
def test_facts_that_are_no_json_are_refused_before_anything_is_written(tmp_path, facts, problem):
    with pytest.raises(ModelFileError, match=rf"must be plain JSON: .*{problem}.*\. Convert them first"):
        write_model(tmp_path / "m", "HSIC", {}, facts)
    assert list(tmp_path.iterdir()) == []


def test_facts_nested_too_deeply_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"must be plain JSON"):
        write_model(tmp_path / "m", "HSIC", {}, {"x": nested(sys.getrecursionlimit() * 3)})


def test_facts_too_long_to_be_read_again_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"must take less than 4194304 characters .*Store long lists as"):
        write_model(tmp_path / "m", "HSIC", {}, {"x": "a" * 2**22})
    longest = {"x": '"' * (2**21 - 1000)}  # every character is escaped, and escaped once more in the header
    write_model(tmp_path / "m", "HSIC", {}, longest)
    assert read_model(tmp_path / "m", "HSIC")[1] == longest


def test_require_refuses_with_what_is_wrong():
    require(True, "never said", "m")
    with pytest.raises(ModelFileError, match=r"^m is not a usable model: 3 weights for 2 views\. Copy it") as caught:
        require(False, "3 weights for 2 views", "m")
    assert isinstance(caught.value, BitmosaicError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("mistake", [lambda: {}["codes"], lambda: int("x"), lambda: [][0], lambda: None + 1])
def test_complete_turns_a_missing_part_into_a_refusal(mistake):
    with (
        pytest.raises(ModelFileError, match=r"^m is not a usable model: a part is missing or of the wrong kind"),
        complete("m"),
    ):
        mistake()


def test_complete_lets_a_refusal_through_as_it_is():
    with pytest.raises(ModelFileError, match=r"3 weights for 2 views"), complete("m"):
        require(False, "3 weights for 2 views", "m")
