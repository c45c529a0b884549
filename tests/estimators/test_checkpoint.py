"""An interrupted fit resumes from its checkpoint to the same result, without repeating finished work."""

import numpy as np
import pytest
from planted_views import blobs, lacking

from bitmosaic import HSIC, pipeline
from bitmosaic.errors import (
    BitmosaicError,
    BusyFolderError,
    InvalidDataError,
    ParameterError,
    StaleCheckpointError,
)
from bitmosaic.estimators import checkpoint
from bitmosaic.estimators.model_file import read_model, write_model
from bitmosaic.estimators.parameters import drawn_seed
from bitmosaic.io.files import beside
from bitmosaic.solver import loop
from bitmosaic.views import Views, write_views

pytestmark = pytest.mark.filterwarnings("ignore:The objective still fell")
N = 3500
SMALL = {"n_clusters": 4, "n_bits": 32, "n_anchors": 40, "n_init": 2, "max_iter": 3, "tol": 0, "train_size": 1500}
SMALL["random_state"] = 0


class InterruptedFitError(Exception):
    pass


@pytest.fixture(autouse=True)
def write_at_every_step(monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)
    monkeypatch.setattr(checkpoint, "COST", 0.0)
    monkeypatch.setattr(loop, "PART_BLOCKS", 1)


@pytest.fixture(scope="module")
def views():
    views, _ = blobs(N, spread=0.7, seed=1)
    views["b"] = lacking(views["b"], slice(40, N, 7))
    return views


def interrupt_at(step):
    def interrupt(done, total):
        if done == step:
            raise InterruptedFitError

    return interrupt


class FailingView:
    """A view whose last rows cannot be read. It records the blocks that were read."""

    def __init__(self, values, last):
        self.values, self.shape, self.dtype, self.last, self.seen = values, values.shape, values.dtype, last, []

    def __getitem__(self, rows):
        if isinstance(rows, slice) and rows.stop - rows.start > checkpoint.LOOKED_AT:
            self.seen.append(rows.start)
            if rows.start >= self.last:
                raise InterruptedFitError
        return self.values[rows]


def with_a(views, array):
    return Views(tuple(views), (array, *list(views.values())[1:]))


def assert_same(model, expected):
    assert model.objective_history_ == expected.objective_history_
    for name in ("labels_", "codes_", "cluster_centers_", "view_weights_", "bit_weights_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(expected, name), err_msg=name)


VARIANTS = {
    "default": {},
    "two steps": {"joint": False, "norm": "frobenius"},
    "all rows": {"train_size": 1.0, "start": "rotation"},
    "auto": {"n_clusters": "auto", "train_size": 600},
}


@pytest.mark.filterwarnings("ignore:The number of clusters")
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_fit_interrupted_after_any_step_resumes_to_the_same_result(views, tmp_path, changes, monkeypatch):
    monkeypatch.setattr("bitmosaic.solver.n_clusters.ROWS", 200)
    parameters = SMALL | changes
    expected = HSIC(**parameters).fit(views)
    model = HSIC(**parameters)
    for step in (1, 4, 6):  # before the loop, in the loop, before the final codes
        with pytest.raises(InterruptedFitError):
            model.fit(views, progress=interrupt_at(step), checkpoint=tmp_path)
    assert_same(model.fit(views, checkpoint=tmp_path), expected)
    assert_same(model.fit(views, checkpoint=tmp_path), expected)  # from a finished checkpoint


def test_a_resumed_fit_stops_at_the_same_iteration(views, tmp_path):
    """The first iteration after the interruption is compared with the last one before it."""
    parameters = SMALL | {"max_iter": 6, "tol": 0.5}
    expected = HSIC(**parameters).fit(views)
    assert expected.n_iter_ == 2
    with pytest.raises(InterruptedFitError):
        HSIC(**parameters).fit(views, progress=interrupt_at(4), checkpoint=tmp_path)  # in the second iteration
    assert_same(HSIC(**parameters).fit(views, checkpoint=tmp_path), expected)


def test_saved_iterations_are_not_repeated(views, tmp_path, monkeypatch):
    n_done = []
    new_codes = loop.new_codes
    monkeypatch.setattr(loop, "new_codes", lambda *args: n_done.append(1) or new_codes(*args))
    with pytest.raises(InterruptedFitError):
        HSIC(**SMALL | {"max_iter": 4}).fit(
            views, progress=interrupt_at(5), checkpoint=tmp_path
        )  # in the third iteration
    assert len(n_done) == 1 + 3
    HSIC(**SMALL | {"max_iter": 4}).fit(views, checkpoint=tmp_path)
    assert len(n_done) == 1 + 3 + 2  # the third was not saved yet


def test_saved_codes_are_not_computed_again(views, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKED_BLOCKS", 0)  # otherwise some blocks are computed again as a check
    expected = HSIC(**SMALL).fit(views)
    broken = FailingView(views["a"], 3 * 1024)
    with pytest.raises(InterruptedFitError):
        HSIC(**SMALL | {"n_threads": 1}).fit(with_a(views, broken), checkpoint=tmp_path)
    whole = FailingView(views["a"], N)
    assert_same(HSIC(**SMALL).fit(with_a(views, whole), checkpoint=tmp_path), expected)
    assert broken.seen[-1] == min(whole.seen) == 3 * 1024


def test_codes_that_were_not_synced_are_computed_again(views, tmp_path):
    expected = HSIC(**SMALL).fit(views)
    with pytest.raises(InterruptedFitError):
        HSIC(**SMALL).fit(with_a(views, FailingView(views["a"], 3 * 1024)), checkpoint=tmp_path)
    with (tmp_path / "codes.unfinished").open("ab") as file:
        file.write(bytes(1000))
    assert_same(HSIC(**SMALL).fit(views, checkpoint=tmp_path), expected)


def test_threads_and_memory_may_change_when_a_fit_resumes(views, tmp_path):
    expected = HSIC(**SMALL).fit(views)
    with pytest.raises(InterruptedFitError):
        HSIC(**SMALL, n_threads=1).fit(views, progress=interrupt_at(5), checkpoint=tmp_path)
    assert_same(
        HSIC(**SMALL, n_threads=2, memory_limit="500MB", chunk_size=100).fit(views, checkpoint=tmp_path), expected
    )


def test_a_fit_without_a_seed_resumes_with_its_first_seed(views, tmp_path):
    parameters = SMALL | {"random_state": None}
    with pytest.raises(InterruptedFitError):
        HSIC(**parameters).fit(views, progress=interrupt_at(5), checkpoint=tmp_path)
    first, again = (HSIC(**parameters).fit(views, checkpoint=tmp_path) for _ in range(2))
    assert_same(again, first)


def test_a_checkpoint_of_other_data_or_parameters_raises_an_error(views, tmp_path):
    with pytest.raises(InterruptedFitError):
        HSIC(**SMALL).fit(views, progress=interrupt_at(5), checkpoint=tmp_path)
    with pytest.raises(InvalidDataError, match=r"has n_bits=32, n_clusters=4\. Delete the folder"):
        HSIC(**SMALL | {"n_clusters": 5, "n_bits": 64}).fit(views, checkpoint=tmp_path)
    with pytest.raises(InvalidDataError, match="has random_state=0"):
        HSIC(**SMALL | {"random_state": 1}).fit(views, checkpoint=tmp_path)
    with pytest.raises(InvalidDataError, match="has other data"):
        HSIC(**SMALL).fit({name: X[:-1] for name, X in views.items()}, checkpoint=tmp_path)
    changed = views["a"].copy()
    changed[1040:1100] += 1  # training rows that are not in the data signature
    with pytest.raises(InvalidDataError, match="has other rows"):
        HSIC(**SMALL).fit(views | {"a": changed}, checkpoint=tmp_path)
    assert_same(HSIC(**SMALL).fit(views, checkpoint=tmp_path), HSIC(**SMALL).fit(views))  # the checkpoint is unchanged


def test_codes_of_other_data_raise_an_error_even_if_the_training_rows_are_the_same(views, tmp_path):
    with pytest.raises(InterruptedFitError):
        HSIC(**SMALL).fit(with_a(views, FailingView(views["a"], 3 * 1024)), checkpoint=tmp_path)
    trained = np.random.default_rng(drawn_seed(0)).choice(N, 1500, replace=False)
    changed = views["a"].copy()
    changed[np.setdiff1d(np.arange(100, 3000), trained)] += 5
    with pytest.raises(StaleCheckpointError, match="has codes of other data"):
        HSIC(**SMALL).fit(views | {"a": changed}, checkpoint=tmp_path)


def test_a_checkpoint_of_other_versions_raises_an_error(views, tmp_path, monkeypatch):
    HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    monkeypatch.setattr(checkpoint, "__version__", "0.0.1")
    with pytest.raises(StaleCheckpointError, match="has other versions"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)


def test_a_changed_checkpoint_raises_an_error(views, tmp_path):
    HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    codes = tmp_path / "codes.unfinished"
    content = codes.read_bytes()
    for other in (content[:-1], content[:100] + b"?" + content[101:], b""):
        codes.write_bytes(other)
        with pytest.raises(StaleCheckpointError, match="has codes that were truncated or changed"):
            HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    codes.unlink()
    with pytest.raises(StaleCheckpointError, match="has codes that were truncated or changed"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    codes.write_bytes(content)
    (tmp_path / "loop.safetensors").write_bytes(b"no model")
    with pytest.raises(StaleCheckpointError, match="is not a usable model"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    HSIC(**SMALL).fit(views).save(tmp_path / "loop.safetensors")
    with pytest.raises(StaleCheckpointError, match="holds a 'HSIC' model"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)


def test_a_folder_with_other_files_is_not_a_checkpoint(views, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / ".bitmosaic-0.tmp").touch()
    with pytest.raises(InvalidDataError, match=r"A checkpoint needs its own folder; .* contains 'deep'"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    assert (tmp_path / "deep" / ".bitmosaic-0.tmp").exists()


def test_a_run_resumes_without_a_stale_checkpoint(views, tmp_path, monkeypatch):
    write_views(tmp_path / "views", {name: X[:600] for name, X in views.items()})

    def fit(progress):
        return pipeline.fit(tmp_path / "views", tmp_path / "run", 4, progress=progress)

    with pytest.raises(InterruptedFitError):
        fit(lambda stage, done, total: interrupt_at(6)(done, total))
    assert (tmp_path / "run" / "checkpoint" / "loop.safetensors").exists()
    monkeypatch.setattr(checkpoint, "__version__", "0.0.1")
    run = fit(lambda *step: None)
    assert run.complete
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_a_checkpoint_with_missing_or_wrong_arrays_raises_an_error(views, tmp_path):
    with pytest.raises(InterruptedFitError):
        HSIC(**SMALL).fit(views, progress=interrupt_at(5), checkpoint=tmp_path)
    arrays, facts = read_model(tmp_path / "loop.safetensors", checkpoint.KIND)
    for other in (arrays | {"codes": arrays["codes"][:-1]}, {"codes": arrays["codes"]}):
        write_model(tmp_path / "loop.safetensors", checkpoint.KIND, other, facts)
        with pytest.raises(BitmosaicError, match=r"has other arrays or values than|a part is missing"):
            HSIC(**SMALL).fit(views, checkpoint=tmp_path)


def test_two_fits_cannot_use_one_checkpoint(views, tmp_path):
    def meanwhile(done, total):
        if done == 3:
            with pytest.raises(BusyFolderError):
                HSIC(**SMALL).fit(views, checkpoint=tmp_path)

    assert_same(HSIC(**SMALL).fit(views, progress=meanwhile, checkpoint=tmp_path), HSIC(**SMALL).fit(views))


def test_a_bad_checkpoint_path_raises_an_error(views, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ParameterError, match=r"A checkpoint is a folder; got the file .*file'\. Choose an empty"):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path / "file")
    arrays = {name: pytest.importorskip("dask.array").from_array(X) for name, X in views.items()}
    from distributed import Client

    with (
        Client(processes=False, n_workers=1, dashboard_address="127.0.0.1:0") as _,
        pytest.raises(ParameterError, match="A checkpoint is for views on this machine; got Dask arrays"),
    ):
        HSIC(**SMALL).fit(arrays, checkpoint=tmp_path)


def test_temporary_files_of_a_killed_fit_are_removed_and_its_checkpoint_is_used(views, tmp_path):
    left = beside(tmp_path / "loop.safetensors")
    with pytest.raises(InterruptedFitError):
        HSIC(**SMALL).fit(views, checkpoint=tmp_path, progress=interrupt_at(3))
    left.write_bytes(b"half")
    model = HSIC(**SMALL).fit(views, checkpoint=tmp_path)
    assert not left.exists()
    np.testing.assert_array_equal(model.labels_, HSIC(**SMALL).fit(views).labels_)
