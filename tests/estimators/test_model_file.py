"""A model file is read back exactly as written, or raises a ModelFileError with one sentence."""

import base64
import hashlib
import json
import os
import pickle
import tracemalloc

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_disk import largest_file

from bitmosaic.errors import ModelFileError, UnwritableFileError
from bitmosaic.estimators.model_file import FORMAT_VERSION, complete, read_model, write_model

ARRAYS = {
    "centers": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "weights": np.array([0.25, 0.75]),
    "sizes": np.zeros((0, 3), np.int64),
    "flags": np.array([True, False, True]),
    "scale": np.array(1.5, np.float32),
}
FACTS = {"n_bits": 128, "views": ["color", "größe"], "limit": None, "params": {"λ": 0.001, "joint": True}}
DTYPES = ["uint64", "int64", "float64", "float32", "int32", "uint8", "bool"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
array_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__"
)
model_arrays = hnp.arrays(st.sampled_from(DTYPES).map(np.dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    write_model(path, "HSIC", ARRAYS, FACTS)
    return path


def assert_same_arrays(got, expected):
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert got[name].dtype == array.dtype.newbyteorder("=")
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.astype(got[name].dtype).tobytes()


def forge(path, **manifest):
    """Write a model file without arrays, with this manifest and its correct hash."""
    manifest = {
        "format": "bitmosaic-model",
        "version": 1,
        "kind": "HSIC",
        "written_by": "bitmosaic 0.1.0",
        "facts": {},
        "arrays": {},
    } | manifest
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    manifest.setdefault("sha256", hashlib.sha256(canonical.encode()).hexdigest())
    safetensors.numpy.save_file({}, path, {"bitmosaic": json.dumps(manifest)})
    return path


# ---- round trip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(
    arrays=st.dictionaries(array_names, model_arrays, max_size=4),
    facts=st.dictionaries(st.text(), json_values, max_size=4),
)
def test_any_arrays_and_facts_are_read_back_exactly(tmp_path, arrays, facts):
    write_model(tmp_path / "m", "Any kind", arrays, facts)
    got, got_facts = read_model(tmp_path / "m", "Any kind")
    assert_same_arrays(got, arrays)
    assert got_facts == facts


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(6, dtype=">f4").reshape(2, 3).T,
        np.broadcast_to(np.float32(2), (3, 2)),
    ],
)
def test_strides_and_byte_order_do_not_matter(tmp_path, array):
    write_model(tmp_path / "m", "K", {"a": array}, {})
    got = read_model(tmp_path / "m", "K")[0]["a"]
    np.testing.assert_array_equal(got, array)
    assert got.shape == array.shape
    assert got.dtype.isnative


def test_a_model_is_written_without_a_copy_of_its_arrays_and_read_into_one(tmp_path):
    arrays = {"codes": np.zeros((2_000_000, 16), np.uint8), "labels": np.zeros(2_000_000, np.int32)}  # 40 MB
    tracemalloc.start()
    write_model(tmp_path / "model", "HSIC", arrays, FACTS)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    read_model(tmp_path / "model", "HSIC")
    assert tracemalloc.get_traced_memory()[1] < 41 * 2**20
    tracemalloc.stop()


def test_safetensors_itself_reads_the_file(model):
    assert_same_arrays(safetensors.numpy.load_file(model), ARRAYS)
    with safetensors.safe_open(model, "numpy") as file:
        manifest = json.loads(file.metadata()["bitmosaic"])
    assert (manifest["format"], manifest["version"], manifest["kind"]) == ("bitmosaic-model", 1, "HSIC")
    assert manifest["arrays"]["centers"] == {"dtype": "uint8", "shape": [3, 4]}


# Written by bitmosaic 0.1.0, before it used the safetensors library: kind "K", array a = [0, 1, 2], fact n = 1.
OLD = (
    "WAEAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJiaXRtb3NhaWMiOiJ7XCJhcnJheXNcIjp7XCJhXCI6e1wiZHR5cGVcIjpcImZsb2F0"
    "NjRcIixcInNoYXBlXCI6WzNdfX0sXCJmYWN0c1wiOntcIm5cIjoxfSxcImZvcm1hdFwiOlwiYml0bW9zYWljLW1vZGVsXCIsXCJr"
    "aW5kXCI6XCJLXCIsXCJzaGEyNTZcIjpcImYzZTAzOWZiM2JjZjYxNzFjMzBiMGE0NWZmNTQ4MzI2YTYyYWZkNTdkZDNkYTUyY2Rj"
    "ZmVmMGNmY2RiY2E2MGNcIixcInZlcnNpb25cIjoxLFwid3JpdHRlbl9ieVwiOlwiYml0bW9zYWljIDAuMS4wXCJ9In0sImEiOnsi"
    "ZHR5cGUiOiJGNjQiLCJzaGFwZSI6WzNdLCJkYXRhX29mZnNldHMiOlswLDI0XX19ICAgIAAAAAAAAAAAAAAAAAAA8D8AAAAAAAAA"
    "QA=="
)


def test_a_model_of_version_0_1_0_is_read(tmp_path):
    (tmp_path / "m").write_bytes(base64.b64decode(OLD))
    arrays, facts = read_model(tmp_path / "m", "K")
    assert arrays["a"].tolist() == [0.0, 1.0, 2.0]
    assert facts == {"n": 1}


# ---- damage


def test_a_changed_byte_raises_an_error_or_changes_nothing(tmp_path):
    """Some bytes of the header, such as its padding, do not change the content. Every seventh byte is tried."""
    path = tmp_path / "m"
    arrays = {"a": np.arange(3.0), "b": np.array([True])}
    write_model(path, "K", arrays, {"n": 1})
    whole = path.read_bytes()
    n_refused = 0
    positions = range(0, len(whole), 7)
    for position in positions:
        for value in (whole[position] ^ 1, whole[position] ^ 64, ord(" ")):
            path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
            try:
                got, facts = read_model(path, "K")
            except ModelFileError:
                n_refused += 1
            else:
                assert_same_arrays(got, arrays)
                assert facts == {"n": 1}
    assert n_refused > 2.7 * len(positions)


# ---- other files


def test_the_error_names_a_missing_file_or_a_folder(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ModelFileError, match=rf"There is no model file at {path}\. Check the path, or save"):
            read_model(path, "HSIC")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"just some text, no model", r"it is damaged or not a safetensors file"),
        (pickle.dumps({"model": list(range(100))}), r"it is damaged or not a safetensors file"),
        (safetensors.numpy.save({"a": np.ones(2)}), r"bitmosaic did not write it"),
        (safetensors.numpy.save({"a": np.ones(2)}, {"bitmosaic": "{}"}), r"bitmosaic did not write it"),
    ],
)
def test_a_foreign_file_raises_an_error(tmp_path, content, message):
    path = tmp_path / "m"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        read_model(path, "HSIC")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read anything")
def test_the_error_says_why_a_file_is_unreadable(model):
    model.chmod(0)
    with pytest.raises(ModelFileError, match=r"cannot be read: .*Permission denied.*\. Check its permissions"):
        read_model(model, "HSIC")


def test_the_error_for_another_kind_of_model_says_which_class_loads_it(tmp_path):
    write_model(tmp_path / "m", "BinaryKMeans", {}, {})
    message = r"m holds a 'BinaryKMeans' model, not 'HSIC'; load it with BinaryKMeans\.load\."
    with pytest.raises(ModelFileError, match=message):
        read_model(tmp_path / "m", "HSIC")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"version": FORMAT_VERSION + 1, "facts": 3}, r"written by a newer bitmosaic.*Upgrade with: pip install"),
        ({"format": "other"}, r"bitmosaic did not write it"),
        ({"facts": {"x": 1}, "sha256": "0" * 64}, r"it was changed after it was written"),
        ({"arrays": {"a": {"dtype": "float64", "shape": [1]}}}, r"it was changed after it was written"),
    ],
)
def test_a_wrong_manifest_raises_an_error(tmp_path, manifest, message):
    assert read_model(forge(tmp_path / "m"), "HSIC") == ({}, {})
    with pytest.raises(ModelFileError, match=message):
        read_model(forge(tmp_path / "m", **manifest), "HSIC")


# ---- writing


def test_the_old_model_survives_a_failed_write(model, monkeypatch):
    before = model.read_bytes()

    def disk_full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(UnwritableFileError, match=r"cannot be written \(No space left on device\)\. Free some"):
        write_model(model, "HSIC", {"other": np.ones(3)}, {})
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


def test_the_old_model_survives_a_disk_that_is_full_while_the_library_writes(model):
    before = model.read_bytes()
    with (
        largest_file(1000),
        pytest.raises(UnwritableFileError, match=r"The model cannot be written to .*File too large"),
    ):
        write_model(model, "HSIC", {"other": np.ones(3000)}, {})
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


def test_the_error_names_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(UnwritableFileError, match=r"no/m cannot be written \(No such file or directory\)"):
        write_model(tmp_path / "no" / "m", "HSIC", {}, {})
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableFileError, match=r"Not a directory"):
        write_model(tmp_path / "file" / "m", "HSIC", {}, {})


# ---- checks of the caller


@pytest.mark.parametrize("mistake", [lambda: {}["codes"], lambda: int("x")])
def test_complete_turns_a_missing_part_into_a_model_file_error(mistake):
    with (
        pytest.raises(ModelFileError, match=r"^m is not a usable model: a part is missing or of the wrong kind"),
        complete("m"),
    ):
        mistake()
