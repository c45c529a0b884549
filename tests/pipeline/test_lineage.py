"""Clusters keep their numbers, and each change is reported."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from bitmosaic.pipeline.refitting import MOST, PART, Lineage, match_clusters

pairs = st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 6)), max_size=60)


def labels(*groups):
    """(how many images, old number, new index) … -> old and new labels."""
    return tuple(np.concatenate([np.full(n, group[side]) for n, *group in groups]) for side in (0, 1))


def event(lineage: Lineage, number: int) -> str:
    (change,) = (change for change in lineage.changes if change.number == number)
    return change.event


@given(st.integers(1, 30), st.randoms(use_true_random=False))
def test_permuted_labels_are_fully_recovered(n_clusters, random):
    numbers = random.sample(range(1000), n_clusters)
    order = random.sample(range(n_clusters), n_clusters)
    index = np.repeat(np.arange(n_clusters), 3)
    lineage = match_clusters(np.array(numbers)[index], np.array(order)[index])
    assert lineage.numbers[order].tolist() == numbers
    assert lineage.counts == {"kept": n_clusters, "split": 0, "merged": 0, "born": 0, "died": 0}
    assert all(change.overlap == 1 for change in lineage.changes)


@given(pairs, st.integers(0, 5))
def test_numbers_are_unique_and_fresh_ones_were_never_used(rows, gap):
    old, new = (np.array([row[side] for row in rows], int) for side in (0, 1))
    next_number = max(old, default=-1) + 1 + gap
    lineage = match_clusters(old, new, next_number=next_number, n_centers=9)
    numbers = lineage.numbers.tolist()
    assert len(numbers) == 9
    assert len(set(numbers)) == 9
    fresh = [number for number in numbers if number not in set(old)]
    assert fresh == list(range(next_number, lineage.next_number))
    assert lineage.next_number == next_number + len(fresh)


@given(pairs)
def test_the_table_accounts_for_every_cluster_and_every_image(rows):
    old, new = (np.array([row[side] for row in rows], int) for side in (0, 1))
    lineage = match_clusters(old, new)
    now = lineage.numbers[new]
    numbers = [change.number for change in lineage.changes]
    assert numbers == sorted((set(old) - {-1}) | set(now))
    for change, words in zip(lineage.changes, lineage.sentences(), strict=True):
        before, after = old == change.number, now == change.number
        assert (change.size_before, change.size_after) == (before.sum(), after.sum())
        assert change.images_kept == (before & after).sum()
        assert change.images_new == (after & (old < 0)).sum()
        either = (before | (after & (old >= 0))).sum()
        assert change.overlap == (change.images_kept / either if either else 0)
        assert set(change.came_from) == {
            a for a in set(old[after]) - {-1} if _share(old[after & (old >= 0)], a) >= PART
        }
        assert set(change.went_to) == {b for b in set(now[before]) if _share(now[before], b) >= PART}
        assert words.startswith(f"Cluster {change.number} ")
        assert (change.event == "died") <= (after.sum() == 0)
        assert (change.event == "born") <= (before.sum() == 0)


def _share(values, wanted):
    return np.mean(values == wanted)


@settings(deadline=None)
@given(pairs)
def test_no_other_matching_lets_more_images_keep_their_number(rows):
    old, new = (np.array([row[side] for row in rows], int) for side in (0, 1))
    kept = sum(change.images_kept for change in match_clusters(old, new).changes)
    counts = np.zeros((7, 7))
    np.add.at(counts, (old[old >= 0], new[old >= 0]), 1)
    with np.errstate(invalid="ignore"):
        of_old = counts / np.bincount(old[old >= 0], minlength=7)[:, None]
        of_new = counts / np.bincount(new, minlength=7)
    largest = (counts == counts.max(1, keepdims=True)) & (counts == counts.max(0)) & (counts > 0)
    allowed = np.where((of_old >= MOST) | ((of_old >= PART) & ((of_new >= MOST) | largest)), counts, 0)
    assert kept == allowed[linear_sum_assignment(allowed, maximize=True)].sum()


def test_the_order_of_the_images_does_not_matter():
    rng = np.random.default_rng(0)
    old, new = rng.integers(-1, 5, 300), rng.integers(0, 5, 300)
    order = rng.permutation(300)
    assert match_clusters(old, new).table() == match_clusters(old[order], new[order]).table()


def test_a_split_is_reported_and_the_larger_piece_keeps_the_number():
    lineage = match_clusters(*labels((40, 5, 0), (60, 5, 1), (50, 8, 2)), next_number=20)
    assert lineage.numbers.tolist() == [20, 5, 8]
    assert [event(lineage, number) for number in (5, 8, 20)] == ["split", "kept", "split"]
    assert lineage.sentences() == [
        "Cluster 5 was split: 60 of 100 images stayed, others went to 20.",
        "Cluster 8 was kept: 50 of 50 images stayed, 50 now.",
        "Cluster 20 was split off from 5: 40 images.",
    ]


def test_a_merge_is_reported_and_the_larger_part_keeps_the_number():
    lineage = match_clusters(*labels((40, 1, 0), (60, 2, 0), (30, -1, 0)), names={1: "cats", 2: "dogs"})
    assert lineage.numbers.tolist() == [2]
    assert lineage.sentences() == [
        "Cluster 1 (cats) was merged into 2: 40 images.",
        "Cluster 2 (dogs) was merged with 1: 130 images now.",
    ]


def test_a_birth_is_reported_even_if_old_images_joined():
    lineage = match_clusters(*labels((90, 0, 0), (80, 1, 1), (10, 0, 2), (8, 1, 2), (100, -1, 2)))
    assert lineage.numbers.tolist() == [0, 1, 2]
    assert [change.event for change in lineage.changes] == ["kept", "kept", "born"]
    assert lineage.changes[2].sentence() == "Cluster 2 was born: 118 images, 100 of them new, others from 0 and 1."


def test_a_death_is_reported():
    lineage = match_clusters(*labels((100, 0, 0), (100, 1, 1), (9, 2, 0), (1, 2, 1)))
    assert [change.event for change in lineage.changes] == ["kept", "kept", "died"]
    assert lineage.changes[2].sentence() == "Cluster 2 died: its 10 images went to 0."


def test_a_cluster_that_grew_tenfold_keeps_its_number():
    lineage = match_clusters(*labels((100, 3, 1), (900, -1, 1), (50, 4, 0), (450, -1, 0)))
    assert lineage.numbers.tolist() == [4, 3]
    assert lineage.changes[0].sentence() == "Cluster 3 was kept: 100 of 100 images stayed, 1,000 now, 900 of them new."


def test_clusters_that_exchange_images_are_kept_and_not_split_or_merged():
    lineage = match_clusters(*labels((70, 0, 0), (30, 0, 1), (70, 1, 1), (30, 1, 0)))
    assert lineage.counts == {"kept": 2, "split": 0, "merged": 0, "born": 0, "died": 0}
    assert lineage.changes[0].went_to == (0, 1)


def test_a_scattered_cluster_loses_its_number():
    crumbs = [(10, 9, new) for new in range(10)]
    lineage = match_clusters(*labels(*crumbs, *[(100, old, old) for old in range(9)]))
    assert lineage.numbers.tolist() == [*range(9), 10]
    assert event(lineage, 9) == "died"
    assert "scattered" in lineage.changes[9].sentence()


@pytest.mark.parametrize("swapped", [False, True])
def test_of_equal_halves_the_purer_one_keeps_the_number(swapped):
    old, new = labels((50, 7, 0), (20, -1, 0), (50, 7, 1))
    assert match_clusters(old, 1 - new if swapped else new).numbers.tolist() == ([7, 8] if swapped else [8, 7])


def test_of_equal_pieces_the_first_keeps_the_number():
    old, new = labels(*[(25, number, 4 * number + piece) for number in range(3) for piece in range(4)])
    assert match_clusters(old, new).numbers[::4].tolist() == [0, 1, 2]


def test_without_old_clusters_all_are_born():
    lineage = match_clusters([-1, -1, -1], [1, 0, 1])
    assert lineage.numbers.tolist() == [0, 1]
    assert lineage.counts["born"] == 2


def test_a_cluster_keeps_its_number_in_its_largest_part():
    old = np.repeat([0, 1, 2], 100)
    new = np.concatenate([np.repeat([0, 1, 2, 3], [40, 20, 20, 20]), np.repeat([1, 3], [70, 30]), np.repeat([2], 100)])
    found = match_clusters(old, new)
    assert found.numbers[:3].tolist() == [0, 1, 2]  # 40% of the first are together, without others
    mixed = match_clusters(old, np.where(new == 3, 0, new))  # half of that new cluster comes from elsewhere
    assert mixed.numbers.tolist() == [0, 1, 2]


def test_a_cluster_absorbed_by_a_larger_one_loses_its_number():
    lineage = match_clusters(*labels((40, 0, 0), (30, 0, 1), (30, 0, 2), (300, 1, 0), (100, 2, 1), (100, 3, 2)))
    assert lineage.numbers.tolist() == [1, 2, 3]
    assert event(lineage, 0) == "died"
