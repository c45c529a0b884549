"""Archives are read without extracting, and give the same images as the folder they were made from."""

import gzip
import io
import lzma
import os
import tarfile
import zipfile

import numpy as np
import pytest
from image_files import bad_files, encoded, good_files, sample_image

from bitmosaic.errors import FileFormatError, ImageError, InvalidDataError
from bitmosaic.images import open_images

PNG = encoded(sample_image())
KINDS = ["tar", "tar.xz", "tar.gz", "tar.bz2", "zip"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    good_files(folder, 60)
    (folder / "a" / "notes.txt").write_text("no image")
    (folder / "a" / "nameless").write_bytes(PNG)
    (folder / "b" / "cut.png").write_bytes(PNG[:200])
    (folder / "b" / "empty.jpg").write_bytes(b"")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.png").write_bytes(PNG)
    return folder


def pack(folder, archive):
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for name in names:
                packed.write(folder / name, name)
    else:
        fast = {".gz": {"compresslevel": 1}, ".bz2": {"compresslevel": 1}, ".xz": {"preset": 0}}.get(archive.suffix, {})
        with tarfile.open(archive, f"w:{archive.suffix[1:].replace('tar', '')}", **fast) as packed:
            for name in names:
                packed.add(folder / name, name)
    return archive


@pytest.fixture(scope="module")
def archives(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("archives")
    return {kind: pack(folder, place / f"images.{kind}") for kind in KINDS}


def everything(source, **options):
    seen = {}
    for batch in source.batches(**options):
        for i, image in zip(batch.positions, batch.images, strict=True):
            seen[source.paths[i]] = image.tobytes()
        seen |= {skipped.path: skipped.cause for _, skipped in batch.skipped}
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_gives_the_same_images_as_its_folder(archives, folder, kind):
    disguised = archives[kind].with_name(kind.replace(".", "-"))
    disguised.write_bytes(archives[kind].read_bytes())
    source = open_images(disguised)  # detected by its content
    assert source.paths == open_images(folder).paths
    assert source.labels().tolist() == open_images(folder).labels().tolist()
    assert everything(source) == everything(open_images(folder))


@pytest.mark.parametrize("kind", ["tar", "tar.xz", "zip"])
def test_a_later_start_gives_the_tail_of_a_full_pass(archives, kind):
    source = open_images(archives[kind])
    full = list(everything(source, n_threads=1).items())
    for start in (1, 30, 62, 63):
        tail = everything(source, start=start, n_threads=3, batch_size=20)
        assert tail == dict(item for item in full if source.paths.index(item[0]) >= start)


@pytest.mark.parametrize("kind", ["tar", "tar.xz"])
def test_progress_counts_the_megabytes_of_the_archive_as_they_are_read(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("bitmosaic.images.archive.megabytes", lambda n_bytes: n_bytes)
    monkeypatch.setattr("bitmosaic.images.archive.CHUNK", 2**15)
    noise = [encoded(np.random.default_rng(seed).integers(0, 256, (100, 100, 3), dtype=np.uint8)) for seed in range(12)]
    for number, content in enumerate(noise):
        (tmp_path / f"{number}.png").write_bytes(content)  # 360 KB in all, noise hardly compresses
    archive = pack(tmp_path, tmp_path / f"noise.{kind}")
    steps = []
    open_images(archive, lambda *step: steps.append(step))
    assert {stage for stage, _, _ in steps} == {"finding images (MB)"}
    size = archive.stat().st_size
    assert {total for _, _, total in steps} == {size}
    done = [done for _, done, _ in steps]
    assert done == sorted(done)
    assert done[-1] == size
    assert any(0 < step < size for step in done)


def test_thumbnails_report_progress(archives):
    steps = []
    assert len(open_images(archives["tar.gz"]).thumbnails(range(5, 35), 8, lambda *step: steps.append(step))) == 30
    assert steps == [("reading images", done, 30) for done in (0, 8, 16, 24, 30)]


@pytest.mark.parametrize("kind", ["tar", "tar.xz", "zip"])
def test_single_images_and_several_are_read_by_position(archives, folder, kind):
    source, files = open_images(archives[kind]), open_images(folder)
    np.testing.assert_array_equal(source.read(50), files.read(50))
    many = source.read_many([55, 3, 50])
    assert list(many) == [3, 50, 55]
    np.testing.assert_array_equal(many[3], files.read(3))
    with pytest.raises(ImageError, match=r"b/cut.png: truncated"):
        source.read(source.paths.index("b/cut.png"))


@pytest.mark.parametrize("kind", ["tar", "tar.xz", "zip"])
def test_the_signature_of_a_member_changes_with_its_content_or_date(folder, archives, kind, tmp_path):
    before = open_images(archives[kind])
    good_files(tmp_path, 60)
    changed = tmp_path / "a" / "000.png"
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    os.utime(changed, (1, 10**9))
    after = open_images(pack(tmp_path, tmp_path / f"other.{kind}"))
    i = before.paths.index("a/000.png")
    j = after.paths.index("a/000.png")
    assert before.image_signature(i) != after.image_signature(j)
    assert before.image_signature(i)[0] == after.image_signature(j)[0]


def test_a_tar_keeps_its_own_order(tmp_path):
    archive = make_tar(tmp_path, [("b.png", PNG), ("a.png", PNG), ("c/a.png", PNG)])
    assert open_images(archive).paths == ("b.png", "a.png", "c/a.png")


def make_tar(folder, members, kind="tar.xz", **options):
    """Members: (name, content) or a TarInfo."""
    path = folder / f"made.{kind}"
    with tarfile.open(path, f"w:{kind[4:]}", **options) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                header = tarfile.TarInfo(member[0])
                header.size = len(member[1])
                archive.addfile(header, io.BytesIO(member[1]))
    return path


def special(name, kind, target=""):
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, target
    return header


def causes(source):
    return {skipped.path: skipped.cause for batch in source.batches() for _, skipped in batch.skipped}


@pytest.mark.parametrize("kind", ["tar", "tar.xz"])
def test_links_and_devices_in_a_tar_are_refused_and_nothing_is_written(tmp_path, kind):
    members = [
        ("good.png", PNG),
        special("link.png", tarfile.SYMTYPE, "/etc/passwd"),
        special("hard.png", tarfile.LNKTYPE, "good.png"),
        special("device.png", tarfile.CHRTYPE),
        special("pipe.png", tarfile.FIFOTYPE),
        special("link-without-suffix", tarfile.SYMTYPE, "good.png"),
        special("folder.png", tarfile.DIRTYPE),
        ("../up.png", PNG),
        ("/tmp/absolute.png", PNG),
        ("./dot/inside.png", PNG),
    ]
    source = open_images(make_tar(tmp_path, members, kind))
    link = "a link inside an archive is not followed"
    special_file = "not a regular file"
    assert causes(source) == {
        "link.png": link,
        "hard.png": link,
        "device.png": special_file,
        "pipe.png": special_file,
        **dict.fromkeys(["../up.png", "/tmp/absolute.png"], "its name points outside the archive"),
    }
    assert source.paths[-3:] == ("../up.png", "/tmp/absolute.png", "dot/inside.png")
    assert source.labels()[-3:].tolist() == ["", "tmp", "dot"]
    assert [path.name for path in tmp_path.iterdir()] == [f"made.{kind}"]


@pytest.mark.parametrize("kind", ["tar", "tar.xz"])
def test_odd_names_in_a_tar_are_read(tmp_path, kind):
    names = ["n" * 250 + ".png", "two\nlines.png", "é日.png", os.fsdecode(b"\xff.png"), "d/" * 100 + "deep.png"]
    for tar_format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        source = open_images(make_tar(tmp_path, [(name, PNG) for name in names], kind, format=tar_format))
        assert list(source.paths) == names
        assert not causes(source)


@pytest.mark.parametrize("kind", ["tar", "tar.xz"])
def test_the_last_member_of_a_name_counts(tmp_path, kind):
    other = sample_image(5)
    source = open_images(make_tar(tmp_path, [("a.png", PNG), ("b.png", PNG), ("a.png", encoded(other))], kind))
    assert source.paths == ("b.png", "a.png")
    np.testing.assert_array_equal(source.read(1), other)


@pytest.mark.parametrize("kind", ["tar", "tar.xz", "zip"])
def test_a_member_above_the_largest_size_is_skipped_and_the_next_one_read(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("bitmosaic.images.archive.LARGEST_FILE", 3000)
    members = {"a.png": PNG, "bomb.png": bytes(3001), "bomb": b"GIF89a" + bytes(5000), "b.png": PNG}
    if kind == "zip":
        path = tmp_path / "made.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    else:
        path = make_tar(tmp_path, members.items(), kind)
    source = open_images(path)
    assert source.paths == ("a.png", "bomb.png", "b.png")
    assert causes(source) == {"bomb.png": "larger than 512 MB"}


def test_pieces_of_large_members_are_small(tmp_path, monkeypatch):
    monkeypatch.setattr("bitmosaic.images.archive.PIECE_BYTES", 5 * len(PNG))
    source = open_images(make_tar(tmp_path, [(f"{i}.png", PNG) for i in range(12)]))
    assert [len(piece) for piece in source._pieces(range(12), 64)] == [5, 5, 2]
    assert len(everything(source)) == 12


def test_a_sparse_member_is_skipped(tmp_path):
    header = tarfile.TarInfo("sparse.png")
    header.size = 512
    header.pax_headers = {"GNU.sparse.map": "0,512", "GNU.sparse.size": "100000"}
    path = tmp_path / "made.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(header, io.BytesIO(bytes(512)))
    assert causes(open_images(path)) == {"sparse.png": "stored as a sparse file, which is not supported"}


def with_header_size(path, at, size):
    """Rewrite the size in the header at a byte of a plain tar, in base 256, with a correct check sum."""
    content = bytearray(path.read_bytes())
    content[at + 124 : at + 136] = size.to_bytes(12, "big", signed=True)
    content[at + 124] |= 0x80
    content[at + 148 : at + 156] = b" " * 8
    content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
    path.write_bytes(content)


def test_a_negative_size_does_not_loop(tmp_path):
    path = make_tar(tmp_path, [("a.png", PNG), ("b.png", PNG)], "tar")
    with_header_size(path, 0, -512)
    with pytest.raises(FileFormatError, match=r"made.tar is truncated or damaged: its members overlap"):
        open_images(path)


@pytest.mark.parametrize("says", [{"size": "9" * 30}, {"mtime": "inf"}])
def test_an_invalid_extended_header_is_refused(tmp_path, says):
    header = tarfile.TarInfo("a.png")
    header.pax_headers = says
    path = make_tar(tmp_path, [header, ("b.png", PNG)], "tar", format=tarfile.PAX_FORMAT)
    with pytest.raises(FileFormatError, match="truncated or damaged: "):
        open_images(path)


@pytest.mark.parametrize("kind", ["tar", "tar.xz"])
def test_a_damaged_header_in_the_middle_is_not_treated_as_the_end(tmp_path, kind):
    path = make_tar(tmp_path, [("a.png", PNG), ("b.png", PNG)], "tar")
    content = bytearray(path.read_bytes())
    at = content.index(b"b.png")
    content[at : at + 5] = b"x.jpg"
    path.write_bytes(content)
    if kind == "tar.xz":
        path = tmp_path / "made.tar.xz"
        path.write_bytes(lzma.compress(content))
    with pytest.raises(FileFormatError, match="no valid header where the next member should begin"):
        open_images(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_archive_is_refused(archives, tmp_path, kind):
    content = archives[kind].read_bytes()
    path = tmp_path / f"cut.{kind}"
    path.write_bytes(content[: len(content) // 2 + 100])
    with pytest.raises(
        FileFormatError, match=rf"cut.{kind} is truncated or damaged: .+ Download or copy the archive again"
    ):
        open_images(path)


def test_a_compressed_file_that_is_not_an_archive_is_refused(tmp_path):
    (tmp_path / "letter.gz").write_bytes(gzip.compress(b"Dear diary" * 1000))
    with pytest.raises(FileFormatError, match=r"letter.gz is truncated or damaged: "):
        open_images(tmp_path / "letter.gz")


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_an_archive_without_images_is_refused(tmp_path, kind):
    path = tmp_path / f"made.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("notes.txt", "hello")
    else:
        make_tar(tmp_path, [("notes.txt", b"hello")], kind)
    with pytest.raises(InvalidDataError, match=rf"No images found in .*made.{kind}; looked for JPEG"):
        open_images(path)


@pytest.mark.parametrize("kind", ["tar", "tar.xz"])
def test_a_tar_that_changes_after_listing_is_not_misread(tmp_path, kind):
    path = make_tar(tmp_path, [("a.png", PNG), ("b.png", PNG)], kind)
    source = open_images(path)
    make_tar(tmp_path, [("other.png", encoded(sample_image(3, 50, 50)))], kind)
    with pytest.raises(FileFormatError, match=rf"made.{kind} changed while it was read: "):
        list(source.batches())
    path.unlink()
    with pytest.raises(FileFormatError, match="No such file"):
        source.read(0)


def zipped(folder, *members, **options):
    path = folder / "made.zip"
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_links_and_devices_in_a_zip_are_refused(tmp_path):
    link, device = zipfile.ZipInfo("link.png"), zipfile.ZipInfo("device.png")
    link.external_attr, device.external_attr = 0o120777 << 16, 0o020666 << 16
    odd = (link, "/etc/passwd"), (device, PNG)
    path = zipped(tmp_path, *odd, ("a.png", PNG), ("../up.png", PNG), ("folder.png/", b""))
    source = open_images(path)
    assert source.paths == ("link.png", "device.png", "a.png", "../up.png")
    assert causes(source) == {
        "link.png": "a link inside an archive is not followed",
        "device.png": "not a regular file",
        "../up.png": "its name points outside the archive",
    }


def test_an_encrypted_member_of_a_zip_is_skipped(tmp_path):
    path = zipped(tmp_path, ("secret.png", PNG), ("nameless", PNG))
    content = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := content.find(magic, at + 1)) >= 0:
            content[at + flags] |= 1
    path.write_bytes(content)
    assert causes(open_images(path)) == {"secret.png": "encrypted"}


def test_a_damaged_member_of_a_zip_is_skipped(tmp_path):
    path = zipped(tmp_path, ("a.png", PNG), ("b.png", PNG))
    content = path.read_bytes()
    path.write_bytes(content.replace(PNG, PNG[:300] + b"!!!!" + PNG[304:], 1))
    assert causes(open_images(path)) == {"a.png": "damaged: Bad CRC-32 for file 'a.png'"}


def test_a_zip_member_is_not_decompressed_beyond_its_stated_size(tmp_path):
    path = zipped(tmp_path, ("bomb.png", bytes(10**6)), ("a.png", PNG), compression=zipfile.ZIP_DEFLATED)
    lie = path.read_bytes().replace((10**6).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    path.write_bytes(lie)
    source = open_images(path)
    assert list(causes(source)) == ["bomb.png"]
    assert causes(source)["bomb.png"].startswith("damaged: Bad CRC-32")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_python_decompresses_without_a_limit_are_refused(tmp_path, method):
    path = zipped(tmp_path, ("bomb.png", bytes(10**6)), ("nameless", bytes(10**6)), compression=method)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a.png", PNG, zipfile.ZIP_DEFLATED)
    source = open_images(path)
    assert (source.paths, causes(source)) == (
        ("bomb.png", "a.png"),
        {"bomb.png": "compressed by a method other than deflate"},
    )


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_bad_files_have_the_same_causes_inside_an_archive(tmp_path, kind):
    bad_files(tmp_path / "bad")
    for name in ("huge.bmp", "dangling.jpg", "circle.jpg", "pipe.jpg"):
        (tmp_path / "bad" / name).unlink()
    archive = pack(tmp_path / "bad", tmp_path / f"bad.{kind}")
    assert len(causes(open_images(archive))) == 26
    assert causes(open_images(archive)) == causes(open_images(tmp_path / "bad"))
