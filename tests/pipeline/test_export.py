"""Export of the edited clusters as tables, and as folders of links or copies."""

import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from image_kinds import make_image, write_images
from PIL import Image

from bitmosaic import pipeline
from bitmosaic.errors import (
    BitmosaicError,
    InvalidDataError,
    MissingFileError,
    ParameterError,
    UnwritableFileError,
)
from bitmosaic.images import open_images
from bitmosaic.pipeline.export import export
from bitmosaic.pipeline.export.links import safe_name
from bitmosaic.run.clusters import Clusters, ImageFacts

VIEWS = ("ch", "cm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), 12)


@pytest.fixture
def images_of(run):
    """The folder that the run has read its images from."""
    return Path(run.manifest.arguments["source"])


def edited(run, *edits):
    images = ImageFacts.of(run)
    for version, edit in enumerate(edits):
        images.log.append(edit, version)
    return Clusters(images)


def below(folder):
    """Everything in a folder, but for its manifest."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()} - {"manifest.json"}


# ---- tables


@pytest.mark.parametrize(("suffix", "read"), [(".csv", pd.read_csv), (".parquet", pd.read_parquet)])
def test_a_table_reads_back_with_the_same_clusters(run, tmp_path, suffix, read):
    clusters = edited(run)
    export(clusters, tmp_path / f"table{suffix}")
    table = read(tmp_path / f"table{suffix}")
    assert list(table) == ["path", "cluster", "distance", "label"]
    assert table["path"].tolist() == clusters.facts.paths
    assert table["cluster"].tolist() == run.column("labels").tolist()
    np.testing.assert_allclose(table["distance"], run.column("distances"), rtol=1e-3)
    assert table["label"].tolist() == run.views.labels.tolist()
    assert sorted(tmp_path.iterdir()) == sorted([run.folder, tmp_path / f"table{suffix}"])


@pytest.mark.parametrize(("suffix", "read"), [(".csv", pd.read_csv), (".parquet", pd.read_parquet)])
def test_a_table_has_the_names_and_merges_of_the_edits(run, tmp_path, suffix, read):
    merge, name = {"do": "merge", "clusters": [0, 2], "into": 2}, {"do": "name", "cluster": 2, "name": 'red, "discs"'}
    export(edited(run, merge, name), tmp_path / f"table{suffix}")
    table = read(tmp_path / f"table{suffix}")
    original = run.column("labels")
    assert list(table) == ["path", "cluster", "name", "original_cluster", "distance", "label"]
    assert table["original_cluster"].tolist() == original.tolist()
    assert table["cluster"].tolist() == np.where(original == 0, 2, original).tolist()
    named = table["cluster"] == 2
    assert set(table["name"][named]) == {'red, "discs"'}
    assert table["name"][~named].isna().all()


def test_a_table_is_written_whole_or_not_at_all(run, tmp_path, monkeypatch):
    target = tmp_path / "table.csv"
    target.write_text("the old one")
    monkeypatch.setattr(os, "replace", lambda *places: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UnwritableFileError, match=r"table\.csv cannot be written \(No space left on device"):
        export(edited(run), target)
    assert target.read_text() == "the old one"
    assert sorted(tmp_path.iterdir()) == sorted([run.folder, target])


def test_other_tables_are_refused(run, tmp_path):
    with pytest.raises(ParameterError, match=r"table\.xlsx\. .* csv \(\.csv\), parquet .* links \(a folder\)"):
        export(edited(run), tmp_path / "table.xlsx")
    with pytest.raises(UnwritableFileError, match=r"cannot be written \(No such file"):
        export(edited(run), tmp_path / "nowhere" / "table.csv")


# ---- links


def test_every_image_is_linked_in_the_folder_of_its_cluster(run, images_of, tmp_path):
    clusters = edited(run, {"do": "name", "cluster": 1, "name": "cats & dogs?"})
    seen = []
    done = export(clusters, tmp_path / "out", progress=lambda *step: seen.append(step))
    assert (done.facts["folders"], done.facts["links"], done.facts["copies"], done.facts["missing"]) == (3, 120, 0, 0)
    folders = {0: "000", 1: "001 cats & dogs_", 2: "002"}
    assert {place.name for place in (tmp_path / "out").iterdir()} == {*folders.values(), "manifest.json"}
    for number, name in folders.items():
        links = list((tmp_path / "out" / name).iterdir())
        assert all(link.is_symlink() for link in links)
        members = {(images_of / run.paths[row]).resolve() for row in clusters.members(number)}
        assert {link.resolve() for link in links} == members
    assert "noise__0003.png" in {link.name for link in (tmp_path / "out").glob("*/*")}
    assert seen[-1] == ("linking images", 120, 120)


def test_missing_images_are_counted(run, images_of, tmp_path):
    moved = shutil.copytree(images_of, tmp_path / "moved")
    (moved / "noise" / "0003.png").unlink()
    done = export(edited(run), tmp_path / "out", source=moved)
    assert (done.facts["links"], done.facts["missing"]) == (119, 1)
    assert all(os.path.exists(tmp_path / "out" / name) for name in below(tmp_path / "out"))


def test_exported_links_are_not_read_as_images(run, images_of, tmp_path):
    images = shutil.copytree(images_of, tmp_path / "images")
    export(edited(run), images / "by cluster", source=images)
    assert open_images(images).paths == run.paths


def test_links_need_a_new_or_empty_folder(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(InvalidDataError, match="out is not empty"):
        export(edited(run), tmp_path / "out")
    with pytest.raises(InvalidDataError, match=r"mine\.txt is not empty"):
        export(edited(run), tmp_path / "out" / "mine.txt", "links")
    assert below(tmp_path / "out") == {"mine.txt"}
    (tmp_path / "empty").mkdir()
    assert export(edited(run), tmp_path / "empty").facts["links"] == 120


def test_a_failed_export_leaves_nothing(run, tmp_path, monkeypatch):
    made, link = [], Path.symlink_to

    def fail_at_the_sixth(self, target):
        made.append(target)
        if len(made) == 6:
            raise OSError(28, "No space left on device")
        link(self, target)

    monkeypatch.setattr(Path, "symlink_to", fail_at_the_sixth)
    with pytest.raises(UnwritableFileError, match=r"out cannot be written \(No space left on device"):
        export(edited(run), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_links_of_a_run_without_images_are_refused(run, tmp_path):
    recipe = run.views_folder / "extraction.json"
    recipe.write_text(recipe.read_text().replace(run.manifest.arguments["source"], "/nowhere"))
    with pytest.raises(MissingFileError, match="Pass their folder: --source FOLDER"):
        export(edited(run), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- copies


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_images_of_an_archive_are_copied_byte_by_byte(folder, tmp_path, kind):
    archive = shutil.make_archive(tmp_path / "images", {"tar.gz": "gztar"}.get(kind, kind), folder)
    run = pipeline.cluster(archive, tmp_path / "run", 3, views=VIEWS)
    clusters = edited(run)
    done = export(clusters, tmp_path / "out")
    assert (done.facts["folders"], done.facts["links"], done.facts["copies"], done.facts["missing"]) == (3, 0, 36, 0)
    for row, path in enumerate(run.paths):
        copy = tmp_path / "out" / f"{clusters.labels[row]:03d}" / path.replace("/", "__")
        assert copy.read_bytes() == (folder / path).read_bytes()


def test_images_of_an_array_become_png_files(tmp_path):
    rng = np.random.default_rng(0)
    array = np.stack([make_image(kind, rng) for kind in ("disc", "noise", "stripes") for _ in range(4)])
    np.save(tmp_path / "images.npy", array)
    run = pipeline.cluster(tmp_path / "images.npy", tmp_path / "run", 3, views=VIEWS)
    done = export(edited(run), tmp_path / "out")
    assert (done.facts["copies"], done.facts["missing"]) == (12, 0)
    for file in (tmp_path / "out").rglob("*.png"):
        with Image.open(file) as copy:
            np.testing.assert_array_equal(np.asarray(copy), array[int(file.stem)])


def test_a_changed_archive_is_an_error(folder, tmp_path):
    archive = Path(shutil.make_archive(tmp_path / "images", "gztar", folder))
    run = pipeline.cluster(archive, tmp_path / "run", 3, views=VIEWS)
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(BitmosaicError):
        export(edited(run), tmp_path / "out")


# ---- hostile names

HOSTILE = [
    "../../x.png",
    "..",
    "/etc/passwd",
    "a\nb.png",
    "a\0b.png",
    "CON",
    "com1.png",
    "x" * 300 + ".png",
    "猫" * 200 + ".png",
    "\u202egnp.exe",
    "-rf.png",
    " . ",
    "",
    ".hidden",
    r"C:\windows\x.png",
    "a" + "." + "b" * 300,
    "\udcff.png",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_safe_name_stays_in_its_folder(name, tmp_path):
    safe = safe_name(name)
    (tmp_path / safe).write_bytes(b"")
    assert [path.name for path in tmp_path.iterdir()] == [safe]
    assert len(safe.encode()) <= 130
    assert safe.isprintable()
    assert not safe.startswith(".")
    assert not set(safe) & set('<>:"/\\|?*')
    assert safe.partition(".")[0].lower() not in ("con", "com1")
    assert not name.endswith(".png") or safe.endswith(".png")


def test_hostile_and_equal_names_lose_no_image_and_stay_in_the_folder(tmp_path):
    rng = np.random.default_rng(1)
    secret = tmp_path / "secret"
    secret.mkdir()
    names = [
        "a/1.png",
        "A/1.PNG",
        "a__1.png",
        "a\nb.png",
        "a\tb.png",
        "CON.png",
        f"{'n' * 240}1.png",
        f"{'n' * 240}2.png",
    ]
    names += ['"><script>alert(1)</script>.png', "\u202egnp.png", os.fsdecode(b"\xff.png")]
    for number, name in enumerate(names):
        place = tmp_path / "images" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(make_image(("disc", "stripes")[number % 2], rng)).save(place, "PNG")
    source = tmp_path / "list.txt"
    listed = [os.fsencode(f"secret/../images/{name}") for name in names]
    source.write_bytes(b"\0".join(listed))
    run = pipeline.cluster(source, tmp_path / "run", 2, views=VIEWS)
    everything = {path for path in tmp_path.rglob("*") if run.folder not in path.parents}
    clusters = edited(
        run, {"do": "merge", "clusters": [0, 1], "into": 0}, {"do": "name", "cluster": 0, "name": "../../x"}
    )
    done = export(clusters, tmp_path / "out" / "links")
    assert (done.facts["links"], done.facts["missing"]) == (len(names), 0)
    links = tmp_path / "out" / "links" / "000 .._.._x"
    assert {os.fsencode(os.path.realpath(link)) for link in links.iterdir()} == {
        os.fsencode(tmp_path.resolve()) + b"/images/" + os.fsencode(name) for name in names
    }
    assert len({link.name.casefold() for link in links.iterdir()}) == len(names)
    after = {path for path in tmp_path.rglob("*") if run.folder not in path.parents}
    assert {path for path in after - everything if tmp_path / "out" not in (path, *path.parents)} == set()


def test_members_of_an_archive_cannot_be_written_elsewhere(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for number, file in enumerate(sorted(folder.rglob("*.png"))):
            archive.write(file, f"{('/abs', '../..')[number % 2]}/../{number}.png" if number else "x\\..\\..\\y.png")
    run = pipeline.cluster(tmp_path / "images.zip", tmp_path / "run", 3, views=VIEWS)
    done = export(edited(run), tmp_path / "deep" / "out")
    assert done.facts["copies"] == len(run.paths) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "images.zip", "run"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert len(below(tmp_path / "deep" / "out")) == len(run.paths)
