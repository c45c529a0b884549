"""Tables of artificial runs with known values."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest

from bitmosaic.bench import tables as paper
from bitmosaic.bench.baselines import METHODS
from bitmosaic.bench.experiment import Run
from bitmosaic.bench.tables import (
    Cell,
    multiview_table,
    table1,
    table2,
    table3,
    table4,
    table5,
    write,
)
from bitmosaic.errors import InvalidDataError
from bitmosaic.estimators.metrics import clustering_scores

TOGETHER = ("lbp", "gist", "hog")
EACH = [("lbp",), ("gist",), ("hog",), TOGETHER]
TRUTH = np.repeat(np.arange(4), 25)
CIFAR = np.repeat(np.arange(10), 6000)
SIZES = {
    "k-means": {"data": 60_000 * 3626 * 4, "centroids": 10 * 3626 * 4},
    "HSIC": {"data": 960_000, "centroids": 160, "projection": 1_000_000, "encoder": 10_000_000},
}


def labels_with(n_wrong, truth=TRUTH):
    """The first rows of each class moved to the next one."""
    labels = truth.copy()
    for start in np.flatnonzero(np.diff(truth, prepend=-1)):
        labels[start : start + n_wrong] = (truth[start] + 1) % (truth.max() + 1)
    return labels


def run(method="k-means", views=TOGETHER, seed=0, n_wrong=1, seconds=8.0, cut_off="", truth=TRUTH, **more):
    return Run(
        **{
            "data": "small",
            "method": method,
            "seed": seed,
            "seconds": None if cut_off else seconds,
            "made_by": "hand",
            "labels": None if cut_off else labels_with(n_wrong, truth),
            "truth": truth,
            "views": views,
            "n_clusters": len(np.unique(truth)),
            "cut_off": cut_off,
        }
        | more
    )


def large(method, views=TOGETHER, **more):
    return run(method, views, truth=CIFAR, **{"data": "cifar10", "n_wrong": 600, "sizes": SIZES.get(method, {})} | more)


def lines_of(table):
    return list(csv.DictReader(io.StringIO(table.csv())))


def figure(table, method, column, quantity):
    (line,) = (
        line
        for line in lines_of(table)
        if (line["method"], line["column"], line["quantity"]) == (method, column, quantity)
    )
    return line


def test_figures_are_mean_and_standard_deviation_over_seeds():
    table = table1([run(views=views, seed=seed, n_wrong=seed) for views in EACH for seed in range(4)])
    for score, heading in (("acc", "ACC"), ("nmi", "NMI"), ("purity", "purity"), ("f_score", "F-score")):
        values = [clustering_scores(TRUTH, labels_with(seed))[score] for seed in range(4)]
        line = figure(table, "k-means", "GIST", heading)
        assert float(line["mean"]) == pytest.approx(np.mean(values))
        assert float(line["std"]) == pytest.approx(np.std(values))
        assert line["runs"] == "4"
    assert "| k-means |" + 4 * " **0.940±.045** |" in table.markdown()
    assert "Mean ± standard deviation over 4 seeds." in table.markdown()


def test_rows_are_in_the_order_of_the_registry_and_in_its_groups():
    names = ["HSIC", "newcomer", "MLAN", "LSC-K", "CKM", "k-means", "AMGL"]
    table = table1([run(name) for name in names])
    rows = [(group, method) for group, method, _ in table.blocks[0].rows]
    assert rows == [
        ("single-view", "k-means"),
        ("single-view", "LSC-K"),
        ("multi-view", "AMGL"),
        ("multi-view", "MLAN"),
        ("binary", "CKM"),
        ("binary", "HSIC"),
        ("other", "newcomer"),
    ]
    assert table.markdown().index("*multi-view*") < table.markdown().index("AMGL")


def test_single_views_come_in_order_before_all_views_together():
    runs = [run(views=views) for views in (TOGETHER, ("hog",), ("lbp",), ("gist",), ("deep",))]
    assert table1(runs).blocks[0].columns == ("LBP", "GIST", "HOG", "deep", "MulView")
    assert table1([*runs, run(views=(*TOGETHER, "deep"))]).blocks[0].columns[-2:] == (
        "LBP+GIST+HOG",
        "LBP+GIST+HOG+deep",
    )


def test_the_best_of_each_column_is_bold_most_of_scores_and_least_of_seconds():
    runs = [
        *(run("k-means", views, n_wrong=3, seconds=9.0) for views in EACH),
        *(run("LSC-K", views, n_wrong=0 if views == ("hog",) else 5, seconds=2.0) for views in EACH),
    ]
    best = {(column, method) for *_, column, method in _best(table1(runs))}
    assert best == {("LBP", "k-means"), ("GIST", "k-means"), ("HOG", "LSC-K"), ("MulView", "k-means")}
    assert {method for *_, method in _best(table2(runs))} == {"LSC-K"}
    assert "**1.000**" in table1(runs).markdown()


def _best(table):
    for block in table.blocks:
        for _, method, cells in block.rows:
            for column, cell in zip(block.columns, cells, strict=True):
                if cell.best:
                    yield block.quantity, column, method


def test_cut_off_runs_are_marked():
    runs = [
        *(run("k-means", seed=seed) for seed in range(3)),
        run("AMGL", cut_off="memory"),
        *(run("MLAN", seed=seed, n_wrong=0) for seed in range(2)),
        run("MLAN", seed=2, cut_off="time"),
        run("MVSC", cut_off="time"),
        run("OMVC", cut_off="failed: x_y is 0 & <b> 5%"),
    ]
    for table in (table1(runs), table2(runs)):
        text = table.markdown()
        assert "| AMGL | out of memory |" in text
        assert "| MVSC | over time |" in text
        assert "| OMVC | failed |" in text
        assert re.search(r"\| MLAN \| \S.*† \|", text.replace("**", ""))
        assert "the value is the mean of the others: MLAN on MulView (1 of 3 over time)." in text
        assert "OMVC failed: x\\_y is 0 & \\<b\\> 5%" in text
        assert "over 2 to 3 seeds" in text


def test_speed_ups_are_over_k_means_on_the_same_views():
    runs = [run("k-means", ("lbp",), seconds=10.0), run("k-means", seconds=40.0), run("HSIC", seconds=2.0)]
    table = table2(runs)
    assert "| k-means | **10.0 (1.00×)** | 40.0 (1.00×) |" in table.markdown()
    assert "| HSIC | – | **2.0 (20.0×)** |" in table.markdown()
    assert "(" not in table2([run("HSIC")]).markdown().partition("| HSIC |")[2].partition("\n")[0]
    assert (
        float(figure(table2([run(cpu_seconds=3.5)], "cpu_seconds"), "k-means", "MulView", "seconds (speed-up)")["mean"])
        == 3.5
    )


def test_values_of_the_paper_are_shown_on_all_of_cifar10():
    runs = [
        large(method, views) for method in ("k-means", "HSIC", "HSIC.paper", "BMVC") for views in (("lbp",), TOGETHER)
    ]
    quality, times = table3(runs), table4(runs)
    assert quality.blocks[0].texts()[0] == ["LBP", "paper", "MulView", "paper"]
    assert "| HSIC | **0.900** | 0.2681 | **0.900** | 0.3951 |" in quality.markdown()
    assert "| HSIC.paper | **0.900** | 0.2681 |" in quality.markdown()
    assert "| BMVC | **0.900** | – |" in quality.markdown()
    assert (
        "| CKM | – | 0.2225 | – | 0.2703 |" in quality.markdown()
    )  # the value of the paper, although we did not run it
    assert "| HSIC | **8.0 (1.00×)** | 10 (40.9×) | **8.0 (1.00×)** | 17 (57.5×) |" in times.markdown()
    assert "LSC-K | – | 112 (3.65×) | – | 1,877 (0.52×) |" in times.markdown()
    for other in (table1(runs), table2(runs)):
        assert "paper" not in other.markdown().replace("HSIC.paper", "")


def test_values_of_the_paper_are_not_shown_on_a_part_of_cifar10_or_other_views():
    part = table3([run(data="cifar10"), run("HSIC", data="cifar10")])
    assert "paper" not in part.markdown()
    other = table3([large("HSIC", ("deep",)), large("HSIC", (*TOGETHER, "deep"))])
    assert "paper" not in other.markdown()
    assert [method for _, method, _ in other.blocks[0].rows] == ["HSIC"]


def test_the_published_figures_agree_with_each_other():
    kept = {method: sum(parts.values()) for method, parts in paper.CIFAR10_BYTES.items()}
    assert round(kept["k-means"] / kept["HSIC"]) == paper.CIFAR10_REDUCTION["HSIC"]
    assert paper.CIFAR10_BYTES["k-means"]["data"] == pytest.approx(60_000 * (1450 + 1024 + 1152) * 8, rel=0.005)
    scores, seconds = paper.published("cifar10_scores"), paper.published("cifar10_seconds")
    assert {*scores, *seconds} <= set(METHODS)
    for figures in scores.values():
        assert all(0.03 < figure < 0.5 for figure in figures.values())
        assert all(figures["purity", view] > figures["f_score", view] for view in (*TOGETHER, "MulView"))
    speedup = seconds["k-means"]["seconds", "MulView"] / seconds["HSIC"]["seconds", "MulView"]
    assert speedup == pytest.approx(57.47, abs=0.01)


def test_memory_is_split_and_reduced_against_k_means():
    runs = [large("k-means", peak_bytes=2**30), large("HSIC", peak_bytes=3 * 2**20), large("HSIC", ("lbp",))]
    table = table5(runs)
    text = table.markdown()
    assert "| k-means | 830 MiB | 1.62 GiB | 0.138 MiB | 0.28 MiB | – | – | 1.00× | 1.00× |" in text
    assert "| HSIC | 0.916 MiB | 0.92 MiB | 160 B | 157 B | 0.954 MiB | 2.53 MiB | 444× | 481× |" in text
    assert "| HSIC | 9.54 MiB | 72.8× | 3 MiB |" in text
    reduction = float(figure(table, "HSIC", "reduction", "memory")["mean"])
    assert reduction == pytest.approx((60_000 + 10) * 3626 * 4 / 1_960_160)


def test_a_table_of_data_sets_takes_all_views_of_each():
    runs = [
        *(run(method, ("a", "b"), data="one", n_wrong=n) for method, n in (("k-means", 5), ("HSIC", 2))),
        run("HSIC", ("a",), data="one", n_wrong=0),
        run("HSIC", ("x", "y", "z"), data="two"),
        run("MLAN", ("x", "y", "z"), data="two", cut_off="memory"),
    ]
    table = multiview_table(runs)
    assert [block.quantity for block in table.blocks] == ["ACC", "NMI"]
    assert "| HSIC | **0.920** | **0.960** | **1.0** |" in table.markdown()
    assert "| k-means | 0.800 | – | 2.2 |" in table.markdown()
    assert "| MLAN | – | out of memory | 2.8 |" in table.markdown()
    assert "one (100 rows), 2 views; two (100 rows), 3 views." in table.markdown()


def test_several_data_sets_have_separate_blocks():
    table = table3([run(data="one"), run(data="two", n_wrong=0), run(data="two", truth=TRUTH[:50])])
    assert table.headings()[::4] == ["one (100 rows): ACC", "two (100 rows): ACC", "two (50 rows): ACC"]
    assert table.caption == "Quality on one (100 rows), two (100 rows), two (50 rows)."


@pytest.mark.parametrize(
    ("table", "name", "experiment"),
    [
        (table1, "Table 1", "middle"),
        (table2, "Table 2", "middle"),
        (table3, "Table 3", "large"),
        (table4, "Table 4", "large"),
        (table5, "Table 5", "large"),
        (multiview_table, "The table of multi-view data sets", "multiview"),
    ],
)
def test_without_runs_the_error_names_the_experiment(table, name, experiment):
    with pytest.raises(
        InvalidDataError, match=rf"^{name} needs runs; .* Run `bitmosaic bench run {experiment}` first\.$"
    ):
        table([])


def test_memory_needs_k_means_and_hsic():
    with pytest.raises(InvalidDataError, match="Table 5 needs runs of k-means and of HSIC on all views"):
        table5([large("HSIC"), large("k-means", sizes={})])


def test_other_code_lengths_and_numbers_of_clusters_are_not_mixed_in():
    runs = [run("HSIC", n_bits=128), run("HSIC", n_bits=16, n_wrong=9), run("k-means"), run("k-means", n_clusters=9)]
    table = table1(runs)
    assert figure(table, "HSIC", "MulView", "ACC")["runs"] == "1"
    assert float(figure(table, "HSIC", "MulView", "ACC")["mean"]) == pytest.approx(0.96)
    assert figure(table, "k-means", "MulView", "ACC")["runs"] == "1"
    assert "Codes of 128 bits." in table.markdown()
    assert "Codes of 32 bits." in table1([run("HSIC", n_bits=bits) for bits in (16, 32)]).markdown()


@pytest.fixture(scope="module")
def tables():
    small = [
        run(method, views, seed) for method in ("k-means", "ITQ+bk-means", "HSIC") for views in EACH for seed in (0, 1)
    ]
    small.append(run("AMGL", cut_off="memory"))
    big = [large(method, views) for method in ("k-means", "HSIC") for views in EACH]
    return [
        table1(small),
        table2(small),
        table3(big),
        table4(big),
        table5(big),
        multiview_table(small),
    ]


def test_every_format_of_every_table_is_well_formed(tables):
    for table in tables:
        for block in re.split(r"\n\n", table.markdown()):
            assert len({line.count("|") for line in block.splitlines() if line.startswith("|")}) <= 1
        assert len(lines_of(table)) == sum(len(block.rows) * len(block.columns) for block in table.blocks)


@pytest.mark.parametrize(
    ("cell", "kind", "text"),
    [
        (Cell(0.12345, 0.01234, 3), "score", "0.123±.012"),
        (Cell(0.5, None, 1), "score", "0.500"),
        (Cell(0.456, 0.123, 2), "seconds", "0.46±0.12"),
        (Cell(1234.5, 12.3, 2, ratio=0.0372), "seconds", "1,234±12 (0.037×)"),
        (Cell(1023 * 2**20, 5e6, 2), "bytes", "1023 MiB"),
        (Cell(150.0, None, 1), "bytes", "150 B"),
        (Cell(None, note="over time"), "score", "over time"),
        (Cell(), "score", "–"),
    ],
)
def test_values_have_their_significant_digits(cell, kind, text):
    assert cell.ours(kind) == text


def test_files_are_written_whole(tmp_path):
    table = table1([run()])
    paths = write(table, tmp_path / "new", "table1")
    assert [path.name for path in paths] == ["table1.md", "table1.csv"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["table1.csv", "table1.md"]
    assert paths[0].read_text(encoding="utf-8") == table.markdown()


def test_a_run_without_a_number_of_clusters_has_as_many_as_there_are_classes():
    assert "0.960" in table1([replace(run(), n_clusters=None)]).markdown()
