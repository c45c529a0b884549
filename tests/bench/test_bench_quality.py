"""`bitmosaic bench quality`: cases and methods, resuming an interrupted measurement, tables."""

import inspect
import sys
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from planted_views import TRUTH, VIEWS
from rich.console import Console
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from bitmosaic.bench import quality
from bitmosaic.bench.experiment import Run, load
from bitmosaic.bench.quality import (
    APART,
    METHODS,
    blob_cases,
    blob_centers,
    blob_table,
    cases_of,
    kmeans,
    methods_of,
    print_tables,
    quality_table,
    run_all,
    spoil_table,
    wrong_samples,
)
from bitmosaic.cli.options import choose_names
from bitmosaic.errors import FileFormatError, InvalidDataError, MissingExtraError, ParameterError, ViewMismatchError
from bitmosaic.views import as_views, write_views


@pytest.fixture
def folder(tmp_path):
    write_views(tmp_path / "images/views", VIEWS, labels=TRUTH)
    return tmp_path / "images/views"


@pytest.fixture
def fits(monkeypatch):
    """Replace all fits by instant ones that record their seeds."""
    seen = []

    def fit(X, n_clusters, seed, progress):
        seen.append(seed)
        return np.arange(len(TRUTH)) % n_clusters

    for name, (prepare, _) in METHODS.items():
        monkeypatch.setitem(quality.METHODS, name, (prepare, fit))
    return seen


def silent(stage, done, total):
    pass


def test_chosen_views_and_each_single_view_are_separate_cases(folder):
    cases = cases_of([str(folder), f"{folder}?views=c,a"], each_view=True)
    names = {case.name: case.views(0).names for case in cases}
    assert names == {
        "images": ("a", "b", "c"),
        "images[a]": ("a",),
        "images[b]": ("b",),
        "images[c]": ("c",),
        "images[c,a]": ("c", "a"),
    }
    assert [case.name for case in cases if case.compared] == ["images", "images[c,a]"]
    with pytest.raises(ViewMismatchError, match="no view 'z'; the views are a, b, c"):
        cases_of([f"{folder}?views=z"])
    with pytest.raises(InvalidDataError, match="got images twice"):
        cases_of([str(folder), str(folder)])


def test_a_single_view_that_is_also_given_is_compared(folder):
    for data in ([str(folder), f"{folder}?views=a"], [f"{folder}?views=a", str(folder)]):
        (alone,) = (case for case in cases_of(data, each_view=True) if case.name == "images[a]")
        assert alone.compared


def test_the_option_spoil_adds_one_useless_or_weak_view(folder):
    spoiled = {case.name: case.views(3) for case in cases_of([str(folder)], spoil=True) if case.spoiled == "images"}
    assert {name: views.names[-1] for name, views in spoiled.items()} == {
        "images + noise": "+noise",
        "images + narrow noise": "+noise",
        "images + constant": "+constant",
        "images + copy of a": "+copy",
        "images + copy of b": "+copy",
        "images + copy of c": "+copy",
        "images + weak view": "+weak",
    }
    assert {len(views) for views in spoiled.values()} == {4}
    noise = spoiled["images + noise"].arrays[-1]
    assert noise.shape == (600, 50)
    assert abs(noise.std() - 1) < 0.02
    assert np.ptp(spoiled["images + constant"].arrays[-1]) == 0
    np.testing.assert_array_equal(spoiled["images + copy of b"].arrays[-1], VIEWS["b"])


def test_a_weak_view_says_something_about_the_classes(folder):
    (case,) = (case for case in cases_of([str(folder)], spoil=True) if case.name == "images + weak view")
    weak = case.views(0).arrays[-1]
    labels = KMeans(4, n_init=10, random_state=0).fit_predict(weak)
    assert weak.dtype == np.float32
    assert 0.05 < normalized_mutual_info_score(TRUTH, labels) < 0.6


def test_the_option_spoil_compares_each_view_with_the_same_beside_noise(folder):
    cases = {case.name: case for case in cases_of([str(folder), f"{folder}?views=a"], spoil=True)}
    assert cases["images[b] + noise"].spoiled == "images[b]"
    assert cases["images[b] + noise"].views(0).names == ("b", "+noise")
    assert cases["images[b]"].views(0).names == ("b",)
    spoiled = {name: case.spoiled for name, case in cases.items() if case.spoiled}
    summary = {(name, "HSIC"): scores(0.5) for name in cases}
    firsts = [line.split("  ")[0].strip() for line in text(spoil_table(spoiled, summary)).splitlines()]
    assert firsts.count("images[a]") == 1  # one section, though its cases are not adjacent


def test_blobs_are_well_separated():
    for c, d in ((3, 4), (12, 8), (20, 30)):
        centers = blob_centers(c, d, np.random.default_rng(1))
        distances = np.linalg.norm(centers[:, None] - centers, axis=-1)[~np.eye(c, dtype=bool)]
        assert distances.min() >= APART
    cases = blob_cases()
    assert len({case.name for case in cases}) == len(cases) == 40
    assert not np.array_equal(cases[0].views(0).arrays[0], cases[0].views(1).arrays[0])


def test_only_applicable_methods_are_run(folder):
    together, alone = cases_of([str(folder), f"{folder}?views=a"])
    assert methods_of(together, list(METHODS)) == list(METHODS)
    assert set(METHODS) - set(methods_of(alone, list(METHODS))) == {"KMeans-balanced"}
    assert choose_names("hsic, kmeans-l2", METHODS) == ["KMeans-L2", "HSIC"]
    with pytest.raises(ParameterError, match="got 'dbscan'"):
        choose_names("hsic,dbscan", METHODS)


def test_kmeans_is_the_best_of_ten_starts():
    X, parts = VIEWS["a"][:, :3], []
    labels = kmeans(X, 7, 5, lambda *part: parts.append(part))
    expected = KMeans(7, n_init=10, random_state=5).fit_predict(X)
    assert adjusted_rand_score(expected, labels) == 1
    assert parts == [(i, 10) for i in range(10)]


def test_kmeans_gets_prepared_views():
    views = as_views(VIEWS)
    total = [
        [part.var(0).sum() for part in np.split(METHODS[name][0](views), [12, 19], axis=1)]
        for name in ("KMeans", "KMeans-balanced")
    ]
    np.testing.assert_allclose(total, [[12, 7, 20], [1, 1, 1]], rtol=1e-3)
    np.testing.assert_array_equal(METHODS["KMeans-raw"][0](views), np.hstack(list(VIEWS.values())))
    for part in np.split(METHODS["KMeans-L2"][0](views), [12, 19], axis=1):
        np.testing.assert_allclose(np.linalg.norm(part, axis=1), 1, rtol=1e-5)
    lacking = as_views({"a": np.full((3, 2), np.nan)})
    with pytest.raises(InvalidDataError, match="--methods HSIC"):
        METHODS["KMeans"][0](lacking)


def test_an_interrupted_measurement_is_resumed(folder, fits, tmp_path):
    cases, out = cases_of([str(folder)]), tmp_path / "runs.jsonl"
    run_all(cases, ["KMeans", "HSIC"], 2, silent, out)
    assert fits == [0, 1, 0, 1]
    out.write_bytes(out.read_bytes()[:-40])  # killed while it wrote the last run
    fits.clear()
    steps: list = []
    runs = run_all(cases, ["KMeans", "HSIC"], 3, lambda *step: steps.append(step), out)
    assert fits == [2, 1, 2]
    assert steps[0] == ("KMeans", 1200, 1800)  # stored runs count from the start
    assert [(run.data, run.method, run.seed) for run in runs] == [
        ("images", method, seed) for method in ("KMeans", "HSIC") for seed in range(3)
    ]
    assert {run.key for run in load(out)} == {run.key for run in runs}
    np.testing.assert_array_equal(load(out)[0].truth, TRUTH)


def test_runs_of_other_code_are_repeated_and_other_data_is_refused(folder, fits, tmp_path, monkeypatch):
    out = tmp_path / "runs.jsonl"
    run_all(cases_of([str(folder)]), ["KMeans", "HSIC"], 2, silent, out)
    fits.clear()
    monkeypatch.setattr(quality, "_source_hash", lambda: "changed")
    run_all(cases_of([str(folder)]), ["KMeans", "HSIC"], 2, silent, out)
    assert fits == [0, 1]  # HSIC's: scikit-learn is the same
    assert len(load(out)) == 4
    write_views(folder, VIEWS | {"a": VIEWS["a"] + 1}, labels=TRUTH)
    with pytest.raises(InvalidDataError, match="contains runs on other data with the name 'images'"):
        run_all(cases_of([str(folder)]), ["HSIC"], 2, silent, out)


@pytest.mark.parametrize("content", ["a table", "a table\n", '{"truth": 1}\n', '{"data": "x"}\n', "[1]\n"])
def test_another_file_is_refused_and_kept(content, folder, fits, tmp_path):
    (tmp_path / "notes").write_text(content)
    with pytest.raises(FileFormatError, match="notes is not a file of runs"):
        run_all(cases_of([str(folder)]), ["HSIC"], 1, silent, tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == content


def test_progress_counts_rows_and_the_table_shows_fewer_seeds_of_kmeans(folder, fits, capsys):
    steps: list = []
    cases = cases_of([str(folder)])
    runs = run_all(cases, ["KMeans", "HSIC"], 2, lambda *step: steps.append(step), kmeans_seeds=1)
    assert [step for step in steps if step[0] == "KMeans"][-1] == ("KMeans", 600, 600)
    assert [step for step in steps if step[0] == "HSIC"][-1] == ("HSIC", 1200, 1200)
    print_tables(cases, runs)
    assert "over 2 seeds (KMeans 1)" in capsys.readouterr().out


def text(table):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def scores(nmi, seconds=1.0):
    return dict.fromkeys(("acc", "purity", "f_score"), (0.5, 0.01)) | {"nmi": (nmi, 0.01), "seconds": (seconds, 0.1)}


def test_the_table_compares_with_the_best_kmeans_and_fits_100_columns():
    methods = {"KMeans": 0.2, "KMeans-balanced": 0.25, "HSIC": 0.3, "HSIC.paper": 0.1}
    table = {("cifar[lbp,gist,hog]", method): scores(nmi, 1234.5) for method, nmi in methods.items()}
    lines = text(quality_table(table | {("cifar[deep]", "HSIC"): scores(0.5)})).splitlines()
    assert "1.200" in next(line for line in lines if " HSIC " in line)
    assert any(line.split()[:3] == ["cifar[lbp,gist,hog]", "KMeans", "0.500±.010"] for line in lines)
    assert next(line for line in lines if "cifar[deep]" in line).split()[-2:] == ["0.500±.010", "1.0±0.1"]
    assert max(map(len, lines)) <= 100


def test_the_loss_is_shown_in_percent():
    summary = {("set", "HSIC"): scores(0.5), ("set + noise", "HSIC"): scores(0.49)}
    assert "2.0%" in text(spoil_table({"set + noise": "set"}, summary))


def test_samples_in_a_wrong_cluster_are_counted():
    assert wrong_samples(Run("", "", 0, 0, "", np.array([1, 1, 0, 0, 0]), np.array([0, 0, 1, 1, 0]))) == 1


def test_blobs_are_counted_by_pairs_of_maps():
    truth = np.repeat([0, 1], 5)
    right = Run("blobs", "HSIC", 0, 1.0, "", 1 - truth, truth)
    wrong = Run("blobs", "HSIC", 1, 1.0, "", np.arange(10) // 6, truth)
    lines = text(blob_table([("x, exp(x/8)", right), ("x, exp(x/8)", wrong), ("x, linear", right)])).splitlines()
    rows = [line.split()[-4:] for line in lines if line.strip()[:2] in ("x,", "al")]
    assert rows == [["2", "1", "20", "1"], ["1", "0", "10", "0"], ["3", "1", "30", "1"]]


def standing_cases():
    """(NMI, ACC) of HSIC, KMeans, KMeans-L2 and LSC-K on four cases; on the last, only HSIC ran."""
    values = {
        "a": ((0.9, 0.9), (0.8, 0.7), (0.7, 0.95), (0.5, 0.5)),
        "b": ((0.8, 0.8), (0.809, 0.7), (0.1, 0.1), (0.9, 0.7)),
        "c": ((0.5, 0.5), (0.4, 0.4), (0.6, 0.5), (0.5, 0.3)),
        "d": ((0.5, 0.5),),
    }
    methods = ("HSIC", "KMeans", "KMeans-L2", "LSC-K")
    return {
        (data, method): {"nmi": (nmi, 0.0), "acc": (acc, 0.0)}
        for data, row in values.items()
        for method, (nmi, acc) in zip(methods, row, strict=False)
    }


def test_hsic_is_counted_against_the_best_kmeans_and_each_method():
    table, line = quality.standing_tables(standing_cases())
    rows = {row[:14].strip(): row[14:].split() for row in text(table).splitlines()}
    assert rows["best KMeans"] == ["1", "1", "1", "1", "1", "1"]
    assert rows["best peer"] == ["1", "0", "2", "1", "1", "1"]
    assert rows["KMeans"] == ["2", "1", "0", "3", "0", "0", "2.67"]  # ranks 2, 2, 4
    assert rows["LSC-K"] == ["1", "1", "1", "3", "0", "0", "2.50"]  # 4, 1, 2.5
    assert rows["HSIC"] == ["2.17"]  # 1, 3, 2.5
    assert line == (
        "HSIC against the best KMeans, 3 cases: NMI 1 ahead, 1 level, 1 behind; ACC 1 ahead, 1 level, 1 behind"
    )


def test_scores_within_the_joint_spread_are_level():
    cases = {"a": {"HSIC": {"nmi": (0.5, 0.03)}, "LSC-K": {"nmi": (0.549, 0.04)}}}
    assert quality.standings(cases, ["LSC-K"], "nmi") == {"ahead": 0, "level": 1, "behind": 0}
    cases["a"]["LSC-K"]["nmi"] = (0.551, 0.04)
    assert quality.standings(cases, ["LSC-K"], "nmi") == {"ahead": 0, "level": 0, "behind": 1}


def test_nothing_is_counted_without_hsic_or_without_peers():
    summary = standing_cases()
    for kept in ("HSIC", "KMeans"):
        assert list(quality.standing_tables({key: s for key, s in summary.items() if key[1] == kept})) == []


def test_evoc_is_asked_for_the_number_of_clusters_and_its_noise_is_one_more(folder, monkeypatch):
    asked = {}

    class EVoC:
        def __init__(self, **parameters):
            asked.update(parameters)

        def fit_predict(self, X):
            asked["lengths"] = [np.linalg.norm(part, axis=1) for part in np.split(X, [12, 19], axis=1)]
            return np.where(TRUTH == 3, -1, TRUTH)

    monkeypatch.setitem(sys.modules, "evoc", SimpleNamespace(EVoC=EVoC))
    monkeypatch.setattr(quality, "version", lambda name: "9.9")
    (run,) = run_all(cases_of([str(folder)]), ["EVoC"], 1, silent)
    np.testing.assert_allclose(asked.pop("lengths"), 1, rtol=1e-5)
    assert asked == {"approx_n_clusters": 4, "random_state": 0}
    assert (run.made_by, run.scores["acc"]) == ("evoc 9.9", 1)


def test_a_missing_evoc_is_reported_before_any_run(folder, fits, monkeypatch):
    monkeypatch.setitem(sys.modules, "evoc", None)
    with pytest.raises(MissingExtraError, match=r"needs evoc: pip install 'bitmosaic\[bench\]'"):
        run_all(cases_of([str(folder)]), ["KMeans", "EVoC"], 1, silent)
    assert fits == []


@pytest.fixture
def quick_evoc(monkeypatch, cache):
    """The package evoc, with kernels that are compiled when they are called and for one thread.

    Its import compiles all kernels for all types of data, most of them for several threads: 80 s instead of 33 s. The
    kernels are stored apart, since Numba would read those of one thread for later users of evoc.
    """
    compiled = numba.njit

    def njit(*signature_or_function, **options):
        return compiled(*filter(inspect.isfunction, signature_or_function), **options | {"parallel": False})

    with monkeypatch.context() as patch:
        patch.setattr(numba, "njit", njit)
        patch.setattr(numba.config, "CACHE_DIR", str(cache.mkdir("evoc")))
        pytest.importorskip("evoc")


@pytest.mark.parametrize("method", ["LSC-K", "MVSC"])
def test_other_methods_find_planted_clusters(folder, method):
    (run,) = run_all(cases_of([str(folder)]), [method], 1, silent)
    assert adjusted_rand_score(TRUTH, run.labels) > 0.95


def test_evoc_finds_planted_clusters(folder, quick_evoc):
    (run,) = run_all(cases_of([str(folder)]), ["EVoC"], 1, silent)
    assert adjusted_rand_score(TRUTH, run.labels) > 0.95
