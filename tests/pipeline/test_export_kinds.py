"""Each kind of export is read back by its own program, or checked against its format."""

import json
import os
import shutil
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest
from image_kinds import write_images
from PIL import Image

from bitmosaic import pipeline
from bitmosaic.errors import MissingExtraError, ParameterError, UnwritableFileError
from bitmosaic.pipeline.export import KINDS, export, kind_of
from bitmosaic.pipeline.export.formats import RunImages, image_sizes
from bitmosaic.run.clusters import Clusters, ImageFacts

VIEWS = ("ch", "cm")


@pytest.fixture
def clusters(run):
    """As edited: cluster 0 is merged into 2, which has a name."""
    images = ImageFacts.of(run)
    images.log.append({"do": "merge", "clusters": [0, 2], "into": 2}, 0)
    images.log.append({"do": "name", "cluster": 2, "name": "Möbel"}, 1)
    return Clusters(images)


@pytest.fixture(scope="module")
def in_archive(tmp_path_factory):
    root = tmp_path_factory.mktemp("archive")
    folder = write_images(root / "images", 4)
    archive = shutil.make_archive(root / "images", "zip", folder)
    return Clusters(ImageFacts.of(pipeline.cluster(archive, root / "run", 3, views=VIEWS)))


def read(path):
    return json.loads(path.read_text("ascii"))


# ---- kinds


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", "csv"),
        ("a.PARQUET", "parquet"),
        ("a", "links"),
    ],
)
def test_the_suffix_selects_the_kind(name, kind):
    assert kind_of(Path(name)).name == kind


def test_a_named_kind_needs_no_suffix(tmp_path):
    assert kind_of(Path("a.json"), "fiftyone").name == "fiftyone"
    assert kind_of(Path("a.npy"), "labels").name == "labels"
    (tmp_path / "my.images").mkdir()
    assert kind_of(tmp_path / "my.images").name == "links"


@pytest.mark.parametrize(("name", "kind", "got"), [("a.xlsx", None, "a.xlsx"), ("a.csv", "excel", "--as excel")])
def test_the_error_of_an_unknown_kind_lists_all_kinds(name, kind, got):
    with pytest.raises(ParameterError, match=f"Unknown kind of export: {got}") as refused:
        kind_of(Path(name), kind)
    assert all(known in str(refused.value) for known in KINDS)


@pytest.mark.parametrize("kind", ["coco", "labels", "faiss"])
def test_a_file_is_written_whole_or_not_at_all(clusters, tmp_path, monkeypatch, kind):
    target = tmp_path / "file"
    target.write_text("the old one")
    monkeypatch.setattr(os, "replace", lambda *places: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UnwritableFileError, match=r"file cannot be written \(No space left on device"):
        export(clusters, target, kind)
    assert target.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]


# ---- COCO


def test_coco_has_a_category_per_cluster_and_an_annotation_per_image(clusters, tmp_path):
    done = export(clusters, tmp_path / "a.json")
    coco = read(tmp_path / "a.json")
    assert list(coco) == ["info", "licenses", "categories", "images", "annotations"]
    assert [(c["id"], c["name"], c["cluster"]) for c in coco["categories"]] == [(2, "Cluster 1", 1), (3, "Möbel", 2)]
    assert [image["id"] for image in coco["images"]] == list(range(1, 121))
    assert [a["image_id"] for a in coco["annotations"]] == list(range(1, 121))
    assert [a["category_id"] - 1 for a in coco["annotations"]] == clusters.labels.tolist()
    np.testing.assert_allclose([a["distance"] for a in coco["annotations"]], clusters.distances, atol=1e-4)
    assert [image["label"] for image in coco["images"]] == clusters.facts.run.views.labels.tolist()
    for image in coco["images"]:
        with Image.open(image["file_name"]) as opened:
            assert opened.size == (image["width"], image["height"])
    assert (done.facts, done.notes) == ({"images": 120, "clusters": 2, "without_size": 0}, [])


def test_coco_leaves_out_unknown_sizes(clusters, tmp_path):
    moved = shutil.copytree(clusters.facts.run.manifest.arguments["source"], tmp_path / "moved")
    (moved / "noise" / "0003.png").write_bytes(b"not an image")
    (moved / "noise" / "0004.png").unlink()
    done = export(clusters, tmp_path / "a.json", source=moved)
    images = {image["file_name"]: image for image in read(tmp_path / "a.json")["images"]}
    without = {name for name, image in images.items() if "width" not in image}
    assert without == {str(moved / "noise" / "0003.png"), "noise/0004.png"}
    assert all(("width" in image) == ("height" in image) for image in images.values())
    assert done.facts["without_size"] == 2
    assert "1 images are not files" in done.notes[0]
    assert done.notes[1] == "The size of 2 images is unknown and left out."


def test_images_in_an_archive_have_their_path_and_size(in_archive, tmp_path):
    done = export(in_archive, tmp_path / "a.json")
    images = read(tmp_path / "a.json")["images"]
    assert [image["file_name"] for image in images] == list(in_archive.facts.run.paths)
    assert all(image["width"] > 0 for image in images)
    assert done.notes == ["12 images are not files: their paths are those in their archive or array."]


def test_sizes_respect_the_exif_orientation(tmp_path):
    (tmp_path / "images").mkdir()
    for number, orientation in enumerate((1, 3, 6, 8)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        image = Image.fromarray(np.random.default_rng(number).integers(0, 255, (20, 30, 3), np.uint8))
        image.save(tmp_path / "images" / f"{number}.jpg", exif=exif)
    run = pipeline.cluster(tmp_path / "images", tmp_path / "run", 2, views=VIEWS)
    images = RunImages(run)
    assert image_sizes(images, 4).tolist() == [[30, 20], [30, 20], [20, 30], [20, 30]]
    shown = dict(images.each(range(4), lambda image: [image.shape[1], image.shape[0]]))
    assert [shown[row] for row in range(4)] == image_sizes(images, 4).tolist()


def test_sizes_are_read_from_headers_alone(run, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("an image was decoded"))
    steps = []
    sizes = image_sizes(RunImages(run), 120, lambda *step: steps.append(step))
    assert (sizes > 0).all()
    assert steps[-1] == ("reading sizes", 120, 120)


def test_a_note_says_that_images_were_not_found(run, tmp_path):
    recipe = run.views_folder / "extraction.json"
    recipe.write_text(recipe.read_text().replace(run.manifest.arguments["source"], "/nowhere"))
    done = export(Clusters(ImageFacts.of(run)), tmp_path / "a.json")
    assert "Pass their folder: --source FOLDER" in done.notes[0]
    assert read(tmp_path / "a.json")["images"][0]["file_name"] == run.paths[0]


def test_a_name_that_is_not_utf8_is_escaped(tmp_path):
    folder = os.fsencode(write_images(tmp_path / "images", 4))
    os.rename(folder + b"/disc/0000.png", folder + b"/disc/\xff.png")
    clusters = Clusters(ImageFacts.of(pipeline.cluster(os.fsdecode(folder), tmp_path / "run", 3, views=VIEWS)))
    for kind, key, name in (("coco", "images", "file_name"), ("fiftyone", "samples", "filepath")):
        export(clusters, tmp_path / kind, kind)
        names = [entry[name] for entry in read(tmp_path / kind)[key]]
        assert [name for name in names if name.endswith("disc/\\xff.png")]
        assert all(name.encode() for name in names)


# ---- FiftyOne


def test_fiftyone_has_the_type_of_each_field(clusters, tmp_path):
    export(clusters, tmp_path / "a.json", "fiftyone")
    dataset = read(tmp_path / "a.json")
    assert dataset["media_type"] == "image"
    assert dataset["name"] == "run"
    samples = dataset["samples"]
    assert all(set(sample) == {"filepath", "tags"} | set(dataset["sample_fields"]) for sample in samples)
    assert all(os.path.isabs(sample["filepath"]) and os.path.isfile(sample["filepath"]) for sample in samples)
    assert [sample["cluster_number"] for sample in samples] == clusters.labels.tolist()
    titles = [clusters.title(number) for number in clusters.labels.tolist()]
    assert [sample["cluster"]["label"] for sample in samples] == titles
    assert {"Cluster 1", "Möbel"} == set(titles)
    truth = clusters.facts.run.views.labels.tolist()
    assert [sample["ground_truth"]["label"] for sample in samples] == truth
    assert {sample["cluster"]["_cls"] for sample in samples} == {"Classification"}


def test_fiftyone_has_no_ground_truth_without_labels(in_archive, tmp_path):
    done = export(in_archive, tmp_path / "a.json", "fiftyone")
    dataset = read(tmp_path / "a.json")
    assert "ground_truth" not in dataset["sample_fields"]
    assert dataset["samples"][0]["filepath"] == in_archive.facts.run.paths[0]
    assert "rel_dir=FOLDER" in done.notes[1]


# ---- arrays


def test_codes_and_labels_are_those_of_the_run_as_edited(clusters, tmp_path):
    export(clusters, tmp_path / "codes.npy")
    export(clusters, tmp_path / "labels.npy", "labels")
    codes, labels = np.load(tmp_path / "codes.npy"), np.load(tmp_path / "labels.npy")
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(codes, clusters.facts.run.column("codes"))
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels, clusters.labels)
    assert 0 not in labels


def test_a_faiss_index_finds_the_nearest_codes(clusters, tmp_path):
    export(clusters, tmp_path / "codes.faiss")
    index = faiss.read_index_binary(str(tmp_path / "codes.faiss"))
    codes = np.array(clusters.facts.codes)
    assert (type(index), index.d, index.ntotal) == (faiss.IndexBinaryFlat, 8 * codes.shape[1], len(codes))
    distances, rows = index.search(codes[:5], 4)
    expected = np.bitwise_count(codes[:5, None] ^ codes[None]).sum(-1)
    np.testing.assert_array_equal(distances, np.sort(expected, axis=1)[:, :4])
    np.testing.assert_array_equal(np.take_along_axis(expected, rows, 1), distances)


def test_the_error_without_faiss_names_the_package(clusters, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bitmosaic\[bench\]'"):
        export(clusters, tmp_path / "codes.faiss")
    assert not (tmp_path / "codes.faiss").exists()
