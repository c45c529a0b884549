"""The edit log: which edits are valid, what the log holds, and recovery from kills and full disks."""

import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_disk import largest_file

from bitmosaic.errors import BusyFolderError, FileFormatError, InvalidDataError, StaleEditError, UnwritableLogError
from bitmosaic.io.files import locked
from bitmosaic.run import edits
from bitmosaic.run.edits import EditLog, in_force, in_words

LABELS = np.array([0, 0, 1, 1, 2, 2], np.int32)


@pytest.fixture
def log(tmp_path):
    return EditLog(tmp_path, LABELS, 3)


def state(log):
    return log.replay(log.entries())


def edit(log, **what):
    log.append(what, len(log.entries()))


def test_a_merge_moves_all_images_and_removes_the_other_name(log):
    edit(log, do="name", cluster=1, name="cats")
    edit(log, do="merge", clusters=[2, 1], into=2)
    assert state(log).labels.tolist() == [0, 0, 2, 2, 2, 2]
    assert state(log).names == {}
    assert state(log).touched == {1, 2}


def test_moved_images_may_create_a_cluster_with_the_next_number(log):
    edit(log, do="move", rows=[5, 0], to=None)
    assert state(log).labels.tolist() == [3, 0, 1, 1, 2, 3]
    assert log.entries() == [{"do": "move", "rows": [0, 5], "to": 3}]
    edit(log, do="move", rows=[1], to=3)
    assert state(log).labels.tolist() == [3, 3, 1, 1, 2, 3]


def test_a_new_cluster_never_gets_the_number_of_a_cluster_without_images(tmp_path):
    log = EditLog(tmp_path, LABELS, 5)  # clusters 3 and 4 have lost their images
    edit(log, do="move", rows=[0], to=None)
    assert state(log).labels.tolist() == [5, 0, 1, 1, 2, 2]


def test_undo_reverts_one_edit_after_the_other_and_keeps_them_in_the_log(log):
    edit(log, do="name", cluster=0, name="dogs")
    edit(log, do="merge", clusters=[0, 1], into=0)
    edit(log, do="undo")
    assert state(log).labels.tolist() == LABELS.tolist()
    assert state(log).names == {0: "dogs"}
    edit(log, do="undo")
    assert state(log).names == {}
    assert len(log.entries()) == 4
    with pytest.raises(InvalidDataError, match="no edit to undo"):
        edit(log, do="undo")


def test_an_undone_cluster_number_is_free_again(log):
    edit(log, do="move", rows=[0], to=None)
    edit(log, do="undo")
    edit(log, do="move", rows=[1], to=None)
    assert state(log).labels.tolist() == [0, 3, 1, 1, 2, 2]


def test_an_edit_of_clusters_that_have_changed_is_refused(log):
    log.append({"do": "name", "cluster": 0, "name": "a"}, 0)
    with pytest.raises(StaleEditError, match="Somebody else edited"):
        log.append({"do": "name", "cluster": 0, "name": "b"}, 0)
    assert state(log).names == {0: "a"}


def test_an_edit_is_accepted_if_later_edits_affect_other_clusters(log):
    log.append({"do": "name", "cluster": 0, "name": "a"}, 0)
    log.append({"do": "merge", "clusters": [1, 2], "into": 1}, 0)
    assert state(log).names == {0: "a"}
    assert state(log).labels.tolist() == [0, 0, 1, 1, 1, 1]
    for stale in ({"do": "name", "cluster": 2, "name": "b"}, {"do": "move", "rows": [2], "to": 0}, {"do": "undo"}):
        with pytest.raises(StaleEditError):
            log.append(stale, 0)
    edit(log, do="undo")
    with pytest.raises(StaleEditError):
        log.append({"do": "name", "cluster": 0, "name": "c"}, 1)


def test_edits_of_many_threads_are_all_written(tmp_path):
    log = EditLog(tmp_path, np.arange(20, dtype=np.int32), 20)
    threads = [
        threading.Thread(target=log.append, args=({"do": "name", "cluster": i, "name": str(i)}, 0)) for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state(log).names == {i: str(i) for i in range(20)}


def test_a_folder_that_cannot_be_written_is_an_error_and_changes_nothing(log, monkeypatch):
    def refuse(entry):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(log, "_write", refuse)
    with pytest.raises(UnwritableLogError, match=r"cannot be written \(Permission denied\)\. The edit was not saved"):
        edit(log, do="name", cluster=0, name="a")


def test_a_partial_write_on_a_full_disk_leaves_the_log_unchanged(log):
    while not log.path.exists() or log.path.stat().st_size < 5000:  # the lock file must fit below the limit
        edit(log, do="name", cluster=0, name="a" * 120)
    before = log.path.read_bytes()
    with (
        largest_file(len(before) + 20),
        pytest.raises(UnwritableLogError, match=r"\(No space left on device\). The edit was not saved"),
    ):
        edit(log, do="name", cluster=1, name="b")
    assert log.path.read_bytes() == before
    edit(log, do="name", cluster=2, name="c")
    assert state(log).names == {0: "a" * 120, 2: "c"}


def test_a_log_without_read_permission_is_one_clear_error(log, monkeypatch):
    edit(log, do="name", cluster=0, name="a")

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(log.path), "read_bytes", refuse)
    with pytest.raises(
        FileFormatError, match=r"edits.jsonl cannot be read \(Permission denied\). Check its permissions"
    ):
        log.entries()


@pytest.mark.parametrize(
    "bad",
    [
        {"do": "merge", "clusters": [0], "into": 0},
        {"do": "merge", "clusters": [0, 7], "into": 0},
        {"do": "move", "rows": [], "to": 0},
        {"do": "move", "rows": [6], "to": 0},
        {"do": "move", "rows": [0], "to": 4},
        {"do": "move", "rows": [0, 1], "to": 0},
        {"do": "name", "cluster": 3, "name": "x"},
        {"do": "name", "cluster": 0, "name": "x" * 121},
        {"do": "name", "cluster": 0, "name": "\ud800"},
        {"do": "delete", "cluster": 0},
    ],
)
def test_an_invalid_edit_is_refused_and_not_written(log, bad):
    with pytest.raises(InvalidDataError):
        log.append(bad, 0)
    assert not log.path.exists()


def test_a_cluster_that_became_empty_cannot_be_edited(log):
    edit(log, do="merge", clusters=[0, 1], into=0)
    with pytest.raises(InvalidDataError, match="no cluster 1 with images"):
        edit(log, do="move", rows=[0], to=1)


def test_spaces_in_a_name_are_normalized_and_an_empty_name_removes_it(log):
    edit(log, do="name", cluster=0, name="  wild \n cats ")
    assert state(log).names == {0: "wild cats"}
    edit(log, do="name", cluster=0, name="")
    assert state(log).names == {}


def test_an_incomplete_last_line_is_ignored_and_overwritten(log):
    edit(log, do="name", cluster=0, name="a")
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + b'{"do": "merge", "clus')
    assert log.entries() == [{"do": "name", "cluster": 0, "name": "a"}]
    edit(log, do="name", cluster=1, name="b")
    assert state(log).names == {0: "a", 1: "b"}
    assert log.path.read_bytes().startswith(whole)


@pytest.mark.parametrize("cut", [0, 5])
def test_a_log_truncated_before_its_first_edit_is_empty(log, cut):
    edit(log, do="name", cluster=0, name="a")
    log.path.write_bytes(log.path.read_bytes()[:cut])
    assert log.entries() == []
    edit(log, do="name", cluster=1, name="b")
    assert state(log).names == {1: "b"}


def test_a_log_of_other_clusters_is_not_used(log, tmp_path):
    edit(log, do="merge", clusters=[0, 1], into=0)
    other = EditLog(tmp_path, LABELS[::-1].copy(), 3)
    with pytest.raises(FileFormatError, match="edits of other clusters"):
        other.entries()


@pytest.mark.parametrize("line", [b"{", b"[]"])
def test_a_damaged_log_gives_one_clear_error(log, line):
    edit(log, do="name", cluster=0, name="a")
    log.path.write_bytes(log.path.read_bytes() + line + b"\n")
    with pytest.raises(FileFormatError, match=r"edits\.jsonl must"):
        state(log)


def test_an_edit_is_refused_while_another_process_works_in_the_run(log, tmp_path, monkeypatch):
    monkeypatch.setattr(edits, "LOCK_WAIT", 0.1)
    with locked(tmp_path), pytest.raises(BusyFolderError, match="One process at a time"):
        edit(log, do="name", cluster=0, name="a")


def test_edits_as_text():
    assert in_words({"do": "merge", "clusters": [1, 2, 3], "into": 2}) == "clusters 1, 3 merged into cluster 2"
    assert in_words({"do": "move", "rows": [1], "to": 2}) == "1 image moved to cluster 2"
    assert in_words({"do": "name", "cluster": 1, "name": "x"}) == "cluster 1 is called “x”"


EDITS = st.one_of(
    st.builds(lambda a, b: {"do": "merge", "clusters": [a, b], "into": a}, st.integers(0, 4), st.integers(0, 4)),
    st.builds(
        lambda r, t: {"do": "move", "rows": r, "to": t}, st.lists(st.integers(0, 5)), st.none() | st.integers(0, 4)
    ),
    st.just({"do": "undo"}),
)


@settings(max_examples=10)  # each edit is synced to disk
@given(st.lists(EDITS, max_size=12))
def test_undoing_all_edits_restores_the_labels_of_the_run(tmp_path_factory, made):
    log = EditLog(tmp_path_factory.mktemp("log"), LABELS, 3)
    for one in made:
        try:
            log.append(one, len(log.entries()))
        except InvalidDataError:
            continue
        assert np.bincount(state(log).labels).sum() == len(LABELS)
    while in_force(log.entries()):
        edit(log, do="undo")
    assert state(log).labels.tolist() == LABELS.tolist()
    assert not state(log).touched
    if log.path.exists():
        assert all(isinstance(json.loads(line), dict) for line in log.path.read_bytes().splitlines())
