"""A fit that is stopped anywhere goes on from its checkpoint: the same result, and nothing is done twice."""

import numpy as np
import pytest

from bitmosaic import HSIC, checkpoint, pipeline
from bitmosaic.errors import (
    BitmosaicError,
    BusyFolderError,
    FileFormatError,
    InvalidDataError,
    ParameterError,
    StaleCheckpointError,
)
from bitmosaic.files import beside
from bitmosaic.model_file import read_model, write_model
from bitmosaic.parameters import drawn_seed
from bitmosaic.solver import loop
from bitmosaic.views import Views, write_views
from planted_views import blobs, lacking

pytestmark = pytest.mark.filterwarnings("ignore:The objective still fell")
N = 5000
SMALL = {"n_clusters": 4, "n_bits": 32, "n_anchors": 40, "n_init": 2, "max_iter": 4, "tol": 0, "train_size": 2000}
SMALL["random_state"] = 0


class StoppedError(Exception):
    pass


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)
    monkeypatch.setattr(checkpoint, "COST", 0.0)
    monkeypatch.setattr(loop, "PART_BLOCKS", 1)


@pytest.fixture(scope="module")
def views():
    views, _ = blobs(N, spread=0.7, seed=1)
    views["b"] = lacking(views["b"], slice(40, N, 7))
    return views


def stop_at(step):
    def stop(done, total):
        if done == step:
            raise StoppedError

    return stop


class Fragile:
    """A view of which some rows can be read so often only; it tells which blocks were."""

    def __init__(self, values, last):
        self.values, self.shape, self.dtype, self.last, self.seen = values, values.shape, values.dtype, last, []

    def __getitem__(self, rows):
        if isinstance(rows, slice) and rows.stop - rows.start > checkpoint.LOOKED_AT:
            self.seen.append(rows.start)
            if rows.start >= self.last:
                raise StoppedError
        return self.values[rows]


def with_a(views, array):
    return Views(tuple(views), (array, *list(views.values())[1:]))


def assert_same(model, expected):
    assert model.objective_history_ == expected.objective_history_
    for name in ("labels_", "codes_", "cluster_centers_", "view_weights_", "bit_weights_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(expected, name), err_msg=name)


VARIANTS = {
    "default": {},
    "frobenius": {"norm": "frobenius"},
    "two steps": {"joint": False},
    "all rows": {"train_size": 1.0},
    "rotation": {"start": "rotation"},
    "auto": {"n_clusters": "auto"},
}


@pytest.mark.filterwarnings("ignore:The number of clusters")
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_fit_that_is_stopped_after_any_step_goes_on_to_the_same_result(views, tmp_path, changes):
    parameters = SMALL | changes
    expected = HSIC(**parameters).fit(views)
    model = HSIC(**parameters)
    for step in (1, 3, 4, 5, 6):  # some stop before the loop, some in it, one before the last codes
        with pytest.raises(StoppedError):
            model.fit(views, progress=stop_at(step), checkpoint=tmp_path)
    assert_same(model.fit(views, checkpoint=tmp_path), expected)
    assert_same(model.fit(views, checkpoint=tmp_path), expected)  # and once more from its end


def test_iterations_that_are_kept_are_not_done_again(views, tmp_path, monkeypatch):
    n_done = []
    new_codes = loop.new_codes
    monkeypatch.setattr(loop, "new_codes", lambda *args: n_done.append(1) or new_codes(*args))
    with pytest.raises(StoppedError):
        HSIC(**SMALL).fit(views, progress=stop_at(5), checkpoint=tmp_path)  # in the third iteration
    assert len(n_done) == 1 + 3
    HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    assert len(n_done) == 1 + 3 + 2  # the third was not kept yet


def test_codes_that_are_kept_are_not_made_again(views, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKED_BLOCKS", 0)  # but some are, to see that they are the same
    expected = HSIC(**SMALL).fit(views)
    broken = Fragile(views["a"], 3 * 1024)
    with pytest.raises(StoppedError):
        HSIC(**SMALL | {"n_threads": 1}).fit(with_a(views, broken), checkpoint=tmp_path)
    whole = Fragile(views["a"], N)
    assert_same(HSIC(**SMALL).fit(with_a(views, whole), checkpoint=tmp_path), expected)
    assert broken.seen[-1] == min(whole.seen) == 3 * 1024


def test_codes_that_were_not_safe_yet_are_made_again(views, tmp_path):
    expected = HSIC(**SMALL).fit(views)
    with pytest.raises(StoppedError):
        HSIC(**SMALL).fit(with_a(views, Fragile(views["a"], 3 * 1024)), checkpoint=tmp_path)
    with (tmp_path / "codes.unfinished").open("ab") as file:
        file.write(bytes(1000))
    assert_same(HSIC(**SMALL).fit(views, checkpoint=tmp_path), expected)


def test_threads_and_memory_may_be_others_when_it_goes_on(views, tmp_path):
    expected = HSIC(**SMALL).fit(views)
    with pytest.raises(StoppedError):
        HSIC(**SMALL, n_threads=1).fit(views, progress=stop_at(5), checkpoint=tmp_path)
    assert_same(
        HSIC(**SMALL, n_threads=2, memory_limit="500MB", chunk_size=100).fit(views, checkpoint=tmp_path), expected
    )


def test_a_fit_without_a_seed_goes_on_with_the_one_it_had(views, tmp_path):
    parameters = SMALL | {"random_state": None}
    with pytest.raises(StoppedError):
        HSIC(**parameters).fit(views, progress=stop_at(5), checkpoint=tmp_path)
    first, again = (HSIC(**parameters).fit(views, checkpoint=tmp_path) for _ in range(2))
    assert_same(again, first)


def test_a_checkpoint_of_something_else_is_refused(views, tmp_path):
    with pytest.raises(StoppedError):
        HSIC(**SMALL).fit(views, progress=stop_at(5), checkpoint=tmp_path)
    with pytest.raises(InvalidDataError, match=r"has n_bits=32, n_clusters=4\. Delete it"):
        HSIC(**SMALL | {"n_clusters": 5, "n_bits": 64}).fit(views, checkpoint=tmp_path)
    with pytest.raises(InvalidDataError, match="has random_state=0"):
        HSIC(**SMALL | {"random_state": 1}).fit(views, checkpoint=tmp_path)
    with pytest.raises(InvalidDataError, match="has other data"):
        HSIC(**SMALL).fit({name: X[:-1] for name, X in views.items()}, checkpoint=tmp_path)
    changed = views["a"].copy()
    changed[1040:1100] += 1  # rows that are not looked at, but learned from
    with pytest.raises(InvalidDataError, match="has other rows"):
        HSIC(**SMALL).fit(views | {"a": changed}, checkpoint=tmp_path)
    assert_same(HSIC(**SMALL).fit(views, checkpoint=tmp_path), HSIC(**SMALL).fit(views))  # it is still there


def test_codes_of_other_data_are_refused_although_the_training_rows_are_the_same(views, tmp_path):
    with pytest.raises(StoppedError):
        HSIC(**SMALL).fit(with_a(views, Fragile(views["a"], 3 * 1024)), checkpoint=tmp_path)
    trained = np.random.default_rng(drawn_seed(0)).choice(N, 2000, replace=False)
    changed = views["a"].copy()
    changed[np.setdiff1d(np.arange(100, 3000), trained)] += 5
    with pytest.raises(StaleCheckpointError, match="has codes of other data"):
        HSIC(**SMALL).fit(views | {"a": changed}, checkpoint=tmp_path)


def test_other_versions_are_told(views, tmp_path, monkeypatch):
    HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    monkeypatch.setattr(checkpoint, "__version__", "0.0.1")
    with pytest.raises(StaleCheckpointError, match="has other versions"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)


def test_a_checkpoint_that_was_changed_is_refused(views, tmp_path):
    HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    codes = tmp_path / "codes.unfinished"
    content = codes.read_bytes()
    for other in (content[:-1], content[:100] + b"?" + content[101:], b""):
        codes.write_bytes(other)
        with pytest.raises(StaleCheckpointError, match="has codes that were cut or changed"):
            HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    codes.unlink()
    with pytest.raises(StaleCheckpointError, match="has codes that were cut or changed"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    codes.write_bytes(content)
    facts = read_model(tmp_path / "codes.safetensors", checkpoint.KIND)[1]
    for change in ({"n_bytes": -4}, {"n_bytes": 2**50}, {"n_bytes": "3"}, {"n_bytes": None}, {"n_bytes": 3}):
        write_model(tmp_path / "codes.safetensors", checkpoint.KIND, {}, facts | change)
        with pytest.raises(StaleCheckpointError, match="has codes that were cut or changed"):
            HSIC(**SMALL).fit(views, checkpoint=tmp_path)
        codes.write_bytes(content)
    (tmp_path / "loop.safetensors").write_bytes(b"no model")
    with pytest.raises(StaleCheckpointError, match="is not a usable model"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    HSIC(**SMALL).fit(views).save(tmp_path / "loop.safetensors")
    with pytest.raises(StaleCheckpointError, match="This file holds a 'HSIC' model"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)


def test_a_folder_with_other_things_is_no_checkpoint(views, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / ".bitmosaic-0.tmp").touch()
    with pytest.raises(InvalidDataError, match=r"A checkpoint has a folder of its own; .* holds 'deep'"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    assert (tmp_path / "deep" / ".bitmosaic-0.tmp").exists()


def test_a_run_goes_on_without_a_checkpoint_that_is_stale(views, tmp_path, monkeypatch):
    write_views(tmp_path / "views", views)

    def fit(progress):
        return pipeline.fit(tmp_path / "views", tmp_path / "run", 4, progress=progress)

    with pytest.raises(StoppedError):
        fit(lambda stage, done, total: stop_at(6)(done, total))
    assert (tmp_path / "run" / "checkpoint" / "loop.safetensors").exists()
    monkeypatch.setattr(checkpoint, "__version__", "0.0.1")
    run = fit(lambda *step: None)
    assert run.complete
    assert not (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.parametrize("name", ["codes.unfinished", "codes.safetensors", "loop.safetensors"])
def test_a_checkpoint_does_not_cut_what_a_link_leads_to(views, tmp_path, name):
    (tmp_path / "dear").write_bytes(bytes(10**5))
    with pytest.raises(StoppedError):
        HSIC(**SMALL).fit(with_a(views, Fragile(views["a"], 3 * 1024)), checkpoint=tmp_path / "kept")
    (tmp_path / "kept" / name).unlink()
    (tmp_path / "kept" / name).symlink_to(tmp_path / "dear")
    with pytest.raises(FileFormatError, match=rf"{name} is a link"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path / "kept")
    assert (tmp_path / "dear").stat().st_size == 10**5


@pytest.mark.parametrize("name", ["codes", "labels", "centers", "S", "alpha", "bit_weights", "ZtB1", "ZtB2"])
def test_a_checkpoint_that_was_made_by_hand_is_refused(views, tmp_path, name):
    with pytest.raises(StoppedError):
        HSIC(**SMALL).fit(views, progress=stop_at(5), checkpoint=tmp_path)
    arrays, facts = read_model(tmp_path / "loop.safetensors", checkpoint.KIND)
    others = [arrays | {name: arrays[name][:-1]}, {key: array for key, array in arrays.items() if key != name}]
    if name == "labels":
        others.append(arrays | {name: arrays[name] + 1})
    for other in others:
        write_model(tmp_path / "loop.safetensors", checkpoint.KIND, other, facts)
        with pytest.raises(BitmosaicError, match=r"has other arrays or values than|a part is missing"):
            HSIC(**SMALL).fit(views, checkpoint=tmp_path)


def changed(state, **parts):
    return {"state": state | parts}


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, state: ({"alpha": arrays["alpha"] * 2}, {}),
        lambda arrays, state: ({"alpha": arrays["alpha"] * [-1, 3, 1]}, {}),
        lambda arrays, state: ({"ZtB0": arrays["ZtB0"] * 1e300}, {}),
        lambda arrays, state: ({"S": arrays["S"] + 2**40}, {}),
        lambda arrays, state: ({"sizes": arrays["sizes"] + 1}, {}),
        lambda arrays, state: ({"bit_weights": -arrays["bit_weights"]}, {}),
        lambda arrays, state: ({}, changed(state, before="x")),
        lambda arrays, state: ({}, changed(state, before=[0])),
        lambda arrays, state: ({}, changed(state, before=1.5)),
        lambda arrays, state: ({}, changed(state, history=[[1, "P", "x"]])),
        lambda arrays, state: ({}, changed(state, history=[[1, 2, 3.0]])),
        lambda arrays, state: ({}, changed(state, history=[[1, "P", 10**400]])),
        lambda arrays, state: ({}, changed(state, clustering=["x", 1, True])),
        lambda arrays, state: ({}, changed(state, n_iter=99)),
    ],
)
def test_values_of_a_checkpoint_that_no_fit_would_have_are_refused(views, tmp_path, change):
    with pytest.raises(StoppedError):
        HSIC(**SMALL).fit(views, progress=stop_at(5), checkpoint=tmp_path)
    arrays, facts = read_model(tmp_path / "loop.safetensors", checkpoint.KIND)
    other_arrays, other_facts = change(arrays, facts["state"])
    write_model(tmp_path / "loop.safetensors", checkpoint.KIND, arrays | other_arrays, facts | other_facts)
    with pytest.raises(StaleCheckpointError, match=r"has other arrays or values than|a part is missing"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)


def test_two_fits_cannot_have_the_same_checkpoint(views, tmp_path):
    def meanwhile(done, total):
        if done == 3:
            with pytest.raises(BusyFolderError):
                HSIC(**SMALL).fit(views, checkpoint=tmp_path)

    assert_same(HSIC(**SMALL).fit(views, progress=meanwhile, checkpoint=tmp_path), HSIC(**SMALL).fit(views))


def test_places_that_cannot_be_a_checkpoint_are_refused(views, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ParameterError, match=r"A checkpoint is a folder; got .*file'\. Name an empty"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path / "file")
    with pytest.raises(ParameterError, match=r"A checkpoint must be a path of ordinary text; got 'a\\x00b'\. Choose"):
        HSIC(**SMALL).fit(views, checkpoint="a\0b")
    arrays = {name: pytest.importorskip("dask.array").from_array(X) for name, X in views.items()}
    from distributed import Client

    with (
        Client(processes=False, n_workers=1, dashboard_address="127.0.0.1:0") as _,
        pytest.raises(ParameterError, match="A checkpoint is for views on this machine; got Dask arrays"),
    ):
        HSIC(**SMALL).fit(arrays, checkpoint=tmp_path)


def test_a_short_fit_writes_no_state(views, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY", 60.0)
    HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_what_a_killed_fit_left_unfinished_goes_and_its_checkpoint_is_taken_up(views, tmp_path):
    left = beside(tmp_path / "loop.safetensors")
    with pytest.raises(StoppedError):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path, progress=stop_at(3))
    left.write_bytes(b"half")
    model = HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    assert not left.exists()
    np.testing.assert_array_equal(model.labels_, HSIC(**SMALL).fit(views).labels_)
