"""Data sets from small files in their real formats; invalid, truncated and malicious ones give one clear error."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from bitmosaic.bench import datasets
from bitmosaic.bench.datasets import BATCHES, Choice, prepare
from bitmosaic.errors import BitmosaicError, FileFormatError, InvalidDataError, MissingFileError, ParameterError
from bitmosaic.pipeline import extract
from bitmosaic.views import read_views

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
N = 5  # images per batch
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(6 * N, 32, 32, 3), dtype=np.uint8)
CLASSES = np.arange(6 * N) % 10


def open_dataset(path, kind="auto", concepts=None, **choice):
    return datasets.open_dataset(path, kind, choice=Choice(**choice), concepts=concepts)


ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(6 * N, 3072)  # red, green, blue, as CIFAR-10 stores them


# ---- CIFAR-10


def binary_files():
    files = {}
    for i, batch in enumerate(BATCHES):
        rows = slice(N * i, N * (i + 1))
        files[batch] = np.column_stack([CLASSES[rows].astype(np.uint8), ROWS[rows]]).tobytes()
    return files | {"batches.meta.txt": "\n".join(NAMES).encode() + b"\n\n", "readme.html": b"<html>"}


FILES = binary_files()


def write_files(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def assert_is_cifar(source):
    assert source.labels().tolist() == [NAMES[i] for i in CLASSES]
    for position, image in source.read_many(range(len(source))).items():
        assert np.array_equal(image, IMAGES[position])


def test_cifar_folder_gives_every_image_with_its_class(tmp_path):
    write_files(tmp_path / "cifar-10-batches-bin", FILES)
    assert_is_cifar(open_dataset(tmp_path / "cifar-10-batches-bin"))
    assert_is_cifar(open_dataset(tmp_path, "cifar-10"))  # the folder above


def test_cifar_archive_is_read_without_extracting(tmp_path):
    archive = write_tar(tmp_path / "any.tar.gz", {f"cifar-10-batches-bin/{name}": c for name, c in FILES.items()})
    assert_is_cifar(open_dataset(archive))


def test_a_truncated_batch_of_cifar_is_refused(tmp_path):
    write_files(tmp_path, FILES | {"data_batch_3.bin": b"\x01" * (3073 * N - 10)})
    with pytest.raises(FileFormatError, match=r"is truncated or damaged: cannot reshape"):
        open_dataset(tmp_path)


def test_a_missing_batch_is_named(tmp_path):
    write_files(tmp_path, FILES)
    next(tmp_path.glob("data_batch_4*")).unlink()
    with pytest.raises(InvalidDataError, match=r"lacks data_batch_4.bin"):
        open_dataset(tmp_path)


def test_the_pickles_of_the_python_version_are_not_read(tmp_path):
    python_version = {name.removesuffix(".bin"): b"(dp0\n." for name in FILES}
    archive = write_tar(tmp_path / "cifar-10-python.tar.gz", python_version)
    for path in (archive, write_files(tmp_path / "cifar-10-batches-py", python_version)):
        with pytest.raises(InvalidDataError, match=r"Python version uses pickles and is not read: download"):
            open_dataset(path)


def test_a_truncated_archive_of_cifar_is_refused(tmp_path):
    archive = write_tar(tmp_path / "cifar.tar.gz", FILES)
    archive.write_bytes(archive.read_bytes()[:60_000])
    with pytest.raises(FileFormatError, match="is truncated or damaged"):
        open_dataset(archive)


# ---- class folders


SYNSETS = {"n01440764": 6, "n02084071": 9, "n03000684": 3, "n04252077": 7}


def jpeg(seed):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(256, size=(16, 20, 3), dtype=np.uint8)).save(file, "JPEG")
    return file.getvalue()


IMAGENET = {f"{s}/{s}_{i}.JPEG": jpeg(i) for s, n in SYNSETS.items() for i in range(n)}


def write_tree(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def tar_bytes(files):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def tar_of_tars():
    inner = {s: {n.partition("/")[2]: c for n, c in IMAGENET.items() if n.startswith(s)} for s in SYNSETS}
    return {f"{s}.tar": tar_bytes(files) for s, files in inner.items()}


@pytest.fixture(params=["folder", "tar.xz", "tar of tars"])
def imagenet(request, tmp_path):
    match request.param:
        case "folder":
            return write_tree(tmp_path / "train", IMAGENET)
        case "tar of tars":
            return write_tar(tmp_path / "ILSVRC2012_img_train.tar", tar_of_tars(), "w:")
    return write_tar(tmp_path / "x.tar.xz", IMAGENET, "w:xz")


def test_class_folders_are_read_from_folders_and_archives(imagenet):
    source = open_dataset(imagenet, per_class=2, at_least=6, seed=3)
    assert source.labels().tolist() == np.repeat(["n01440764", "n02084071", "n04252077"], 2).tolist()
    decoded = source.read_many(range(6))
    for position, path in enumerate(source.paths):
        synset, name = path.split("/")[-2:]
        expected = Image.open(io.BytesIO(IMAGENET[f"{synset}/{name}"])).convert("RGB")
        assert np.array_equal(decoded[position], np.array(expected))
    batches = list(source.batches(batch_size=4, start=1))
    assert np.concatenate([batch.positions for batch in batches]).tolist() == [1, 2, 3, 4, 5]
    assert np.array_equal(batches[-1].images[-1], decoded[5])


def test_the_seed_chooses_classes_and_images(tmp_path):
    write_tree(tmp_path, IMAGENET)

    def paths(seed):
        return open_dataset(tmp_path, classes=2, per_class=5, seed=seed).paths

    assert paths(0) == paths(0)
    assert len({paths(seed) for seed in range(20)}) > 10
    classes = {tuple(sorted({path.split("/")[0] for path in paths(seed)})) for seed in range(30)}
    assert len(classes) == 3  # every pair of the three classes with five images or more
    assert not any("n03000684" in pair for pair in classes)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"classes": 5}, "at most the number of classes with 1 images or more, 4 in .*; got 5"),
        ({"per_class": 4}, "n03000684 of .* has 3 images; got 4"),
        ({"at_least": 8}, "4 classes, 1 of them that large, the largest with 9"),
        ({"kind": "imagenet"}, "kind must be auto, cifar-10, class-folders.*; got 'imagenet'"),
    ],
)
def test_an_impossible_choice_is_refused(tmp_path, choices, message):
    write_tree(tmp_path, IMAGENET)
    with pytest.raises((ParameterError, InvalidDataError), match=message):
        open_dataset(tmp_path, **choices)


def test_a_truncated_tar_of_tars_is_refused(tmp_path):
    inner = tar_of_tars()
    path = write_tar(tmp_path / "whole.tar", inner, "w:")
    path.write_bytes(path.read_bytes()[:-15_000])
    with pytest.raises(FileFormatError, match="truncated or damaged"):
        open_dataset(path)
    first = next(iter(inner))
    path = write_tar(tmp_path / "inner.tar", inner | {first: inner[first][:1536]}, "w:")
    with pytest.raises(FileFormatError, match="truncated or damaged"):
        open_dataset(path)


# ---- YouTube Faces


FRAMES = {
    f"{person}/{video}/aligned_detect_{video}.{frame}.jpg": jpeg(frame)
    for person, n in {"Aaron_Eckhart": 4, "Al_Leiter": 2, "Zhang_Ziyi": 5}.items()
    for video in (0, 3)
    for frame in range(100, 100 + n)
}


def test_the_class_of_a_face_is_the_person(tmp_path):
    write_tree(tmp_path / "aligned_images_DB", FRAMES)
    write_tree(tmp_path / "frame_images_DB", {name.replace("aligned_detect_", ""): c for name, c in FRAMES.items()})
    for path in (tmp_path, tmp_path / "aligned_images_DB"):
        source = open_dataset(path, at_least=8)
        assert source.labels().tolist() == ["Aaron_Eckhart"] * 8 + ["Zhang_Ziyi"] * 10
        assert all("aligned_detect_" in name for name in source.paths)
    archive = write_tar(tmp_path / "faces.tar.gz", {f"aligned_images_DB/{name}": c for name, c in FRAMES.items()})
    assert sorted(open_dataset(archive, at_least=4).labels()) == sorted(open_dataset(tmp_path, at_least=4).labels())


def test_people_with_few_images_are_left_out_as_in_the_paper(tmp_path):
    write_tree(tmp_path, FRAMES)
    with pytest.raises(
        InvalidDataError, match=r"two classes with 1,201 images or more.* the largest with 10. Lower at"
    ):
        open_dataset(tmp_path)


def test_folders_of_digits_are_not_treated_as_videos(tmp_path):
    write_tree(tmp_path, {f"train/{digit}/{i}.jpg": jpeg(i) for digit in range(3) for i in range(2)})
    assert open_dataset(tmp_path).labels().tolist() == ["0", "0", "1", "1", "2", "2"]


# ---- NUS-WIDE


CONCEPTS = ["airport", "animal", "beach", "clouds", "sky"]
FLAGS = np.array(
    [  # airport, animal, beach, clouds, sky
        [0, 0, 0, 0, 1],
        [0, 0, 0, 1, 1],
        [1, 0, 0, 0, 0],  # only a rare concept
        [0, 1, 0, 0, 1],
        [0, 0, 0, 0, 0],  # no concept
        [0, 0, 1, 1, 1],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1],
        [0, 1, 0, 1, 1],
        [0, 0, 1, 0, 1],
        [0, 1, 0, 0, 1],
    ]
)
# The three most frequent are sky (8), animal and clouds (4 each); the later of the two in the list counts as rarer.
OF_THREE = ["sky", "clouds", "animal", "clouds", "animal", "clouds", "clouds", "sky", "animal"]
KEPT = [0, 1, 3, 5, 6, 7, 8, 9, 10]
FEATURES = {
    name: np.random.default_rng(width).normal(size=(len(FLAGS), width)) for name, width in datasets.WIDTHS.items()
}
TRAIN, TEST = np.arange(0, 11, 2), np.arange(1, 11, 2)


def features_text(X):
    """Space after every number, as in the real files."""
    return "".join("".join(f"{x:.6g} " for x in row) + "\n" for row in X).encode()


def flags_text(column):
    return "".join(f"{flag}\n" for flag in column).encode()


def nus_files(parts, features="Low_Level_Features/{_part}Normalized_{name}.dat"):
    files = {"ImageList/Imagelist.txt": b"a.jpg\n"}
    for part, rows in parts.items():
        for name, X in FEATURES.items():
            files[features.format(_part=f"{part}_" if part else "", part=part, name=name)] = features_text(X[rows])
        folder = "TrainTestLabels" if part else "AllLabels"
        for i, concept in enumerate(CONCEPTS):
            label_file = f"Groundtruth/{folder}/Labels_{concept}{f'_{part}' if part else ''}.txt"
            files[label_file] = flags_text(FLAGS[rows, i])
    return files


WHOLE = nus_files({"": np.arange(11)})
SPLIT = nus_files({"Train": TRAIN, "Test": TEST})


def test_nus_wide_gives_five_views_and_the_rarest_of_the_frequent_concepts(tmp_path):
    views = open_dataset(write_tree(tmp_path, WHOLE), concepts=3)
    assert dict(zip(views.names, views.widths, strict=True)) == {"ch": 64, "cm": 225, "corr": 144, "edh": 73, "wt": 128}
    assert views.labels.tolist() == OF_THREE
    for array, X in zip(views.arrays, FEATURES.values(), strict=True):
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, X[KEPT], rtol=1e-5)


def test_train_and_test_are_concatenated(tmp_path):
    views = open_dataset(write_tree(tmp_path, SPLIT), concepts=3)
    rows = [row for row in (*TRAIN, *TEST) if row in KEPT]
    assert views.labels.tolist() == [OF_THREE[KEPT.index(row)] for row in rows]
    np.testing.assert_allclose(views["wt"], FEATURES["WT"][rows], rtol=1e-5)


CH, SKY = "Low_Level_Features/Normalized_CH.dat", "Groundtruth/AllLabels/Labels_sky.txt"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({CH: WHOLE[CH][:-100]}, r"Normalized_CH.dat may be truncated, .*: the number of columns changed"),
        ({CH: WHOLE[CH.replace("CH", "WT")]}, r"expected 11 lines of 64 numbers, got \(11, 128\)"),
        ({SKY: b"0\n1\n"}, r"Labels_sky.txt .* expected 11 lines of 1 numbers, got \(2, 1\)"),
    ],
)
def test_an_invalid_file_of_nus_wide_is_refused(tmp_path, files, message):
    write_tree(tmp_path, WHOLE | files)
    with pytest.raises(BitmosaicError, match=message):
        open_dataset(tmp_path, concepts=3)


def test_missing_files_of_nus_wide_are_named(tmp_path):
    names = [name for name in WHOLE if "EDH" not in name and "AllLabels" not in name]
    write_tree(tmp_path / "whole", {name: WHOLE[name] for name in names})
    with pytest.raises(
        MissingFileError, match=r"lacks Normalized_EDH.dat, Labels_CONCEPT.txt. Extract the missing files"
    ):
        open_dataset(tmp_path / "whole")
    names = [name for name in SPLIT if "Test_Normalized_WT" not in name]
    write_tree(tmp_path / "split", {name: SPLIT[name] for name in names})
    with pytest.raises(MissingFileError, match=r"lacks Test_Normalized_WT.dat."):
        open_dataset(tmp_path / "split")


# ---- views, and what is none of these


def test_mat_files_are_opened_as_data_sets(tmp_path):
    X, Y = RNG.normal(size=(20, 4)), np.arange(20) % 4
    savemat(tmp_path / "set.mat", {"X1": X, "X2": X[:, :2], "Y": Y + 1.0})
    views = open_dataset(tmp_path / "set.mat")
    assert (views.names, views.labels.tolist()) == (("X1", "X2"), (Y + 1).tolist())
    some = open_dataset(tmp_path / "set.mat", per_class=2)
    assert np.bincount(some.labels).tolist() == [0, 2, 2, 2, 2]
    for row, label in zip(some["X1"], some.labels, strict=True):
        assert Y[np.flatnonzero((row == X).all(axis=1))].tolist() == [label - 1]


def test_other_files_are_refused(tmp_path):
    (tmp_path / "notes.doc").write_bytes(b"nothing")
    for path in (tmp_path, tmp_path / "notes.doc"):
        with pytest.raises((FileFormatError, InvalidDataError), match=r"none of these|No images found"):
            open_dataset(path)
    with pytest.raises(MissingFileError, match=r"no data set at .*/away"):
        open_dataset(tmp_path / "away")


# ---- prepare


def test_prepared_images_give_the_same_views_as_extract(tmp_path):
    write_files(tmp_path / "cifar", FILES)
    for i, (image, label) in enumerate(zip(IMAGES, CLASSES, strict=True)):
        place = tmp_path / "png" / NAMES[label] / f"{i:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    views = prepare(tmp_path / "cifar", tmp_path / "views", features=("lbp", "hog"))
    by_hand = extract(tmp_path / "png", tmp_path / "by-hand", ("lbp", "hog"), labels="folder")
    order = [int(path[-6:-4]) for path in by_hand.paths]
    assert views.labels[order].tolist() == by_hand.labels.tolist()
    for ours, theirs in zip(views.arrays, by_hand.arrays, strict=True):
        np.testing.assert_array_equal(ours[order], theirs)


def test_an_interrupted_preparation_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr("bitmosaic.pipeline.extraction.BATCH", 4)
    write_tree(tmp_path / "imagenet", IMAGENET)
    choices = {"features": ("lbp",), "choice": Choice(per_class=3, seed=1)}

    def stop(stage, done, total):
        if (stage, done) == ("extracting features", 8):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "imagenet", tmp_path / "views", progress=stop, **choices)
    seen = []
    views = prepare(tmp_path / "imagenet", tmp_path / "views", progress=lambda *told: seen.append(told), **choices)
    assert [done for stage, done, _ in seen if stage == "extracting features"] == [8, 12]
    assert views.labels.tolist() == np.repeat(sorted(SYNSETS), 3).tolist()
    whole = prepare(tmp_path / "imagenet", tmp_path / "at-once", **choices)
    np.testing.assert_array_equal(views["lbp"], whole["lbp"])
    with pytest.raises(InvalidDataError, match="views"):
        prepare(tmp_path / "imagenet", tmp_path / "views", features=("lbp",), choice=Choice(per_class=3, seed=2))


def test_prepared_features_are_written_once(tmp_path, monkeypatch):
    write_tree(tmp_path / "nus", WHOLE)
    views = prepare(tmp_path / "nus", tmp_path / "views", concepts=3)
    assert read_views(tmp_path / "views").labels.tolist() == views.labels.tolist() == OF_THREE
    monkeypatch.setattr(datasets, "read_nus_wide", None)  # would be called
    again = prepare(tmp_path / "nus", tmp_path / "views", concepts=3)
    np.testing.assert_array_equal(again["wt"], views["wt"])
    (tmp_path / "views" / "manifest.json").unlink()  # as after a kill: the manifest is written last
    monkeypatch.undo()
    np.testing.assert_array_equal(prepare(tmp_path / "nus", tmp_path / "views", concepts=3)["wt"], views["wt"])
    with pytest.raises(InvalidDataError, match="made from another data set or with other options"):
        prepare(tmp_path / "nus", tmp_path / "views", concepts=4)


def test_a_folder_with_other_content_is_not_written_to(tmp_path):
    write_tree(tmp_path / "nus", WHOLE)
    write_tree(tmp_path / "out", {"thesis.txt": b"precious"})
    with pytest.raises(InvalidDataError, match=r"Choose|folder"):
        prepare(tmp_path / "nus", tmp_path / "out", concepts=3)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
