"""Small valid files of every kind that bitmosaic reads: what the mutants are made of."""

import gzip
import io
import shutil
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
import scipy.sparse
from image_files import SUFFIXES, encoded, picture
from PIL import Image

from bitmosaic import HSIC, BinaryKMeans, checkpoint, extraction, pipeline
from bitmosaic.edits import EditLog
from bitmosaic.explorer.duplicates import duplicates_of
from bitmosaic.explorer.pages import Pages
from bitmosaic.images import quiet
from bitmosaic.run import Run
from bitmosaic.views import Views, write_views
from bitmosaic.views.parts import part_path, write_part, write_parts_manifest
from mat_files import cell, write_v7, write_v73
from pictures import write_pictures
from python2_pickle import python2

RNG = np.random.default_rng(0)
N = 12
A, B = RNG.normal(size=(N, 5)).astype(np.float32), RNG.normal(size=(N, 3))
LABELS = np.arange(N) % 3
EXTRACTED = "pictures to extract"
PATHS = tuple(f"{'ab'[i % 2]}/{i}.png" for i in range(N))


def write_seeds(folder: Path) -> None:
    """Files by reader, in folders called as the readers are (see readers.py)."""
    for write in (_models, _run, _views_folder, _parts_folder, _views_files, _pictures, _archives, _others):
        write(folder)
    for write in (_checkpoint, _extraction, _stopped, _grown):
        write(folder)


def _models(folder):
    place = _new(folder, "model")
    HSIC(2, n_bits=16, n_anchors=4, random_state=0).fit({"a": A, "b": B}).save(place / "one.hsic.safetensors")
    HSIC("auto", n_bits=16, n_anchors=4, random_state=0).fit({"a": A}).save(place / "two.hsic.safetensors")
    codes = RNG.integers(256, size=(N, 2), dtype=np.uint8)
    BinaryKMeans(2, random_state=0).fit(codes).save(place / "one.kmeans.safetensors")


def _run(folder):
    place = _new(folder, "run")
    run = pipeline.cluster(
        write_pictures(folder / "pictures", N // 3), place, 3, views=("ch",), labels="folder", max_side=16
    )
    log = EditLog(place, np.asarray(run.column("labels")), 3)
    for version, edit in enumerate(
        (
            {"do": "name", "cluster": 0, "name": "cats"},
            {"do": "move", "rows": [0, 5], "to": None},
            {"do": "merge", "clusters": [1, 2], "into": 1},
            {"do": "undo"},
        )
    ):
        log.append(edit, version)
    pages = Pages(run)  # keeps a map, duplicates and thumbnails in the run
    pages._place(quiet)
    duplicates_of(run, run.column("codes"), quiet)
    pages.thumbnails.many(range(N))
    names = (line.split(",")[0] for line in (place / "clusters.csv").read_text().splitlines()[1:])
    labels = "".join(f"{name},{i % 2}\r\n" for i, name in enumerate(names))
    (place / "true.csv").write_bytes(b"path,label\r\n" + labels.encode())
    np.save(place / "true.npy", LABELS)


def _checkpoint(folder):
    with patch.multiple(checkpoint, EVERY=0.0, COST=0.0):
        fit_kept_in(_new(folder, "checkpoint"))


def fit_kept_in(place):
    HSIC(2, n_bits=16, n_anchors=4, max_iter=3, tol=0, random_state=0).fit({"a": A, "b": B}, checkpoint=place)


def _extraction(folder):
    """What is left of an extraction that was stopped after its second batch."""

    pictures = write_pictures(folder / EXTRACTED, N // 3, seed=3)
    (pictures / "bad.png").write_bytes(b"none")
    with patch.object(extraction, "BATCH", 4), suppress(KeyboardInterrupt):
        extract_from(pictures, folder / "extracted", stop_at(extraction.STAGE, 8))
    (folder / ".extracted.extracting").rename(folder / "extraction")
    (folder / "extraction" / ".lock").unlink(missing_ok=True)


def extract_from(pictures, out, progress=quiet):
    extraction.extract_views(pictures, out, ("ch", "cm"), max_side=16, progress=progress)


def _stopped(folder):
    """A run that was stopped after the second batch of its extraction."""
    with patch.object(extraction, "BATCH", 4), suppress(KeyboardInterrupt):
        cluster_into(folder / EXTRACTED, folder / "stopped run", stop_at(extraction.STAGE, 8))
    assert (folder / "stopped run" / ".views.extracting" / "state.json").exists()


def cluster_into(pictures, out, progress=quiet):
    pipeline.cluster(pictures, out, 2, views=("ch",), max_side=16, progress=progress)


def stop_at(wanted, least):
    def stop(stage, done, total):
        if stage == wanted and done >= least:
            raise KeyboardInterrupt

    return stop


def _grown(folder):
    """A run that has additions, before and after a refit, with a refit and an addition that were stopped."""
    place = folder / "grown run"
    run = pipeline.cluster(folder / "pictures", place, 2, views=("ch", "cm"), labels="folder", max_side=16)
    for seed in (1, 2):
        more = write_pictures(folder / f"more {seed}", 2, seed=seed)
        grown = pipeline.add(run, more, update=True).run
        labels = np.asarray(grown.column("labels"))
        log = EditLog(place, labels, int(grown.ids.max()) + 1, np.asarray(grown.fitted_column("labels")))
        moved = np.flatnonzero(labels == labels[0])[:2].tolist()
        version = len(log.entries())
        for edit in ({"do": "move", "rows": moved, "to": None}, {"do": "name", "cluster": 0, "name": "cats"}):
            log.append(edit, version)
            version += 1
        if seed == 1:
            run = pipeline.refit(grown).run
    with suppress(KeyboardInterrupt):
        pipeline.refit(Run(place), progress=stop_at("drawing clusters", 1))
    with suppress(KeyboardInterrupt):
        pipeline.add(Run(place), folder / EXTRACTED, progress=stop_at("encoding and assigning", 0))
    assert (place / ".refit" / "model.safetensors").exists()
    assert (place / "additions" / ".adding" / "views").exists()
    shutil.copytree(place, folder / "growing run")


def _views_folder(folder):
    write_views(_new(folder, "views folder"), Views(("a", "b"), (A, B), LABELS, PATHS))


def _parts_folder(folder):
    place = _new(folder, "parts folder")
    (place / "parts").mkdir()
    for number, rows in enumerate((slice(0, 7), slice(7, N))):
        views = {"a": A[rows], "b": B[rows].astype(np.float32)}
        names = [str(label) for label in LABELS[rows]]
        odd = ["\udcff.png", *PATHS[rows][1:]]
        write_part(part_path(place, number), views, odd, names, {"number": number})
    write_parts_manifest(place, {"a": 5, "b": 3}, [7, N - 7], labels=True)


def _views_files(folder):
    place = _new(folder, "views file")
    np.save(place / "one.npy", A)
    np.save(place / "two.npy", np.asfortranarray(B))
    np.savez(place / "one.npz", a=A, b=B, labels=LABELS, paths=np.array(PATHS))
    np.savez_compressed(place / "two.npz", a=A, y=np.array(["x", "y"] * (N // 2)))
    np.savez(place / "three.npz", a=A, paths=np.array([path.encode() for path in PATHS]))
    write_v7(place / "one.mat", {"X": cell(A, B), "Y": LABELS, "s": scipy.sparse.eye(N).tocsc()})
    scipy.io.savemat(place / "two.mat", {"X1": A, "X2": scipy.sparse.eye(N).tocsc(), "gt": LABELS}, do_compression=True)
    scipy.io.savemat(place / "three.mat", {"X": A, "X2": scipy.sparse.eye(N).tocsc(), "Y": LABELS}, format="4")
    write_v73(place / "one.v73.mat", {"X": cell(A, scipy.sparse.eye(N).tocsc()), "Y": LABELS})
    write_v73(place / "two.v73.mat", {"X1": A, "X2": B, "label": cell(*"abcabcabcabc", column=True)})
    with h5py.File(place / "one.h5", "w") as file:
        file["a"], file["y"] = A, LABELS
        file.create_dataset("views/b", data=B, chunks=(4, 3), compression="gzip", shuffle=True)
        file["paths"] = [path.encode() for path in PATHS]
    lists = [pa.array(list(A)), pa.array([*map(list, B[:-1]), None]), pa.array(LABELS), pa.array(PATHS)]
    pq.write_table(pa.table(lists, ["a", "b", "label", "path"]), place / "one.parquet", row_group_size=5)
    columns = {f"hog_{i}": A[:, i] for i in range(5)} | {"y": [f"c{i}" for i in LABELS]}
    pq.write_table(pa.table(columns), place / "two.parquet", compression="gzip")


def _pictures(folder):
    place = _new(folder, "picture")
    for name, suffix in SUFFIXES.items():
        (place / f"one.{suffix}").write_bytes(encoded(picture(0, 12, 16), name))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x9286] = b"comment"
    options = {"exif": exif, "icc_profile": RNG.bytes(200)}
    (place / "exif.jpg").write_bytes(encoded(picture(0, 12, 16), "JPEG", progressive=True, **options))
    (place / "exif.png").write_bytes(encoded(picture(0, 12, 16), "PNG", **options))
    (place / "exif.webp").write_bytes(encoded(picture(0, 12, 16), "WEBP", lossless=True, **options))
    (place / "lzw.tiff").write_bytes(encoded(picture(0, 12, 16), "TIFF", compression="tiff_lzw"))
    (place / "jpeg.tiff").write_bytes(encoded(picture(0, 12, 16), "TIFF", compression="jpeg"))
    grey = Image.fromarray(picture(0, 12, 16)).convert("P")
    frames = [grey.rotate(90, expand=True), grey]
    (place / "frames.gif").write_bytes(encoded(grey, "GIF", save_all=True, append_images=frames, transparency=3))
    (place / "palette.png").write_bytes(encoded(grey, "PNG", bits=8, transparency=bytes(range(9))))
    (place / "rle.bmp").write_bytes(encoded(grey, "BMP"))
    wide = Image.fromarray(RNG.integers(2**16, size=(9, 7), dtype=np.uint16))
    (place / "wide.png").write_bytes(encoded(wide, "PNG"))
    (place / "wide.ppm").write_bytes(encoded(wide, "PPM"))
    (place / "plain.ppm").write_bytes(b"P3 # comment\n2 2 255\n" + b"1 2 3 " * 4)
    (place / "float.ppm").write_bytes(b"Pf\n2 2\n-1.0\n" + A.tobytes()[:16])


def _archives(folder):
    place = _new(folder, "archive")
    members = {name: encoded(picture(0, 12, 16)) for name in ("a/1.png", "b/2.png", "3")}
    with zipfile.ZipFile(place / "one.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in members.items() | {"l" * 120 + ".png": members["3"]}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (place / "one.tar").write_bytes(made.getvalue())
    (place / "two.tar.gz").write_bytes(gzip.compress(made.getvalue()))
    np.save(place / "grey.npy", RNG.integers(256, size=(4, 8, 8), dtype=np.uint8))
    np.save(place / "colour.npy", RNG.random((4, 8, 8, 3)).astype(np.float32))
    (place / "list.txt").write_bytes(b"1.png\n../2.png\n/etc/3.png\n")


def _others(folder):
    from onnx import TensorProto, helper, numpy_helper, save

    place = _new(folder, "onnx")
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("GlobalAveragePool", ["c"], ["y"])]
    weights = numpy_helper.from_array(RNG.normal(size=(4, 3, 3, 3)).astype(np.float32), "w")
    inputs = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    outputs = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 1, 1])
    graph = helper.make_graph(nodes, "encoder", [inputs], [outputs], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"mean": "[0.5, 0.5, 0.5]", "std": "0.5"})
    save(model, place / "encoder.onnx")
    place = _new(folder, "pickle")
    batch = {b"labels": [1, 2], b"data": RNG.integers(256, size=(2, 3072), dtype=np.uint8)}
    (place / "data_batch_1").write_bytes(python2(batch | {b"filenames": [b"a.png", b"b.png"]}))
    (place / "test_batch.bin").write_bytes(RNG.integers(10, size=2 * 3073, dtype=np.uint8).tobytes())


def _new(folder, name):
    (folder / name).mkdir()
    return folder / name
