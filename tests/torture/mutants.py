"""Valid files -> broken and lying ones: bytes changed anywhere, and parts changed so that what is around still fits.

A reader that checks a length, a checksum or a header first never sees what damage behind it would do. Hence formats are
taken apart here, changed inside, and put together again.
"""

import base64
import gzip
import io
import json
import re
import struct
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

from bitmosaic.model_file import read_model, write_model

INTEGERS = (0, 1, 2, 7, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
DEEP = "[" * 100_000
# What stands where something else should; the last two are not values but texts.
VALUES = (
    *(None, True, False, 0, -1, 1, 2, 3.5, -0.0, 1e300, 1e-300, float("nan"), float("inf"), -float("inf")),
    *(
        2**31,
        2**63,
        2**64,
        10**30,
        10**400,
        "",
        "0",
        "x",
        "../../etc/passwd",
        "/etc/passwd",
        "\x00",
        "\ud800",
        "é" * 300,
    ),
    *([], {}, [[]], [None], [0, 1], {"": 0}, {"name": "x"}, ["x"] * 50),
)
TEXTS = (DEEP, "[" * 500 + "]" * 500, "9" * 5000, '{"a":' * 2000)
SHAPES = (
    *("()", "(0,)", "(1,)", "(-1,)", "(2,)", "(0, 0)", "(0, 5)", "(20, 0)", "(-1, 5)", "(5, -20)", "(20, 5, 1)"),
    *("(2**62, 4)", "(4611686018427387904, 4)", "(99999999999, 1)", "(1, 9999999999)", "(10000000000000000000000, 1)"),
    *("None", "5", "(5.0, 20)", "('a', 1)", "(True, 5)", "(20, 5", "(((((", "[20, 5]", "(1,) * 99"),
)
DTYPES = (
    *("O", "|O", "<f8", ">f8", "<f4", "<f2", "<f16", "<c16", "|b1", "|u1", "<i8", ">u8", "<U0", "<U9", "|S0", "|S7"),
    *("|V0", "|V8", "<M8[s]", "<m8", "<M8", "", "x", "f8,f8", "(2,3)f4", "(9999999,9999999)f8", "<U999999999"),
)
ARRAY_DTYPES = (  # of arrays that are whole
    *("?", "i1", "u1", "<i2", ">u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8", ">u8", "<f2", ">f2", "<f4", ">f4"),
    *("<f8", ">f8", "f16", "<c8", ">c16", "<U9", ">U9", "S9", "<M8[s]", ">M8[s]", "<m8[s]"),
)

# 2 GB of zeros, which bzip2 unpacks at once.
BOMB = zlib.decompress(
    base64.b85decode(
        "c-nJ{%CIzaj8qGb<l}sFpE17Af#CoH1BU{GL4&WG(*o6%Tn*Dl<wxa5<wxa5<p;BT!-f|;j3P@N8i4XFU=?RrHJ5ozRNM%}kKTDK=Ms`GPBnG_0"
        "F05!yZ"
    )
)


def mutant(rng, name, contents):
    """One of `contents`, which are valid files of this name, changed in one way or several."""
    content = contents[rng.integers(len(contents))]
    suffixes = ("".join(Path(name).suffixes[-2:]), Path(name).suffix)
    inside = next((INSIDE[suffix] for suffix in suffixes if suffix in INSIDE), None)
    if inside is not None and rng.random() < 0.7:
        with suppress(Exception):  # what cannot be taken apart, or put together again, is changed as bytes
            content = inside(rng, content)
            if rng.random() < 0.8:
                return content
    return changed_bytes(rng, content, contents)


# ---- bytes


def changed_bytes(rng, content, others=()):
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at = _place(rng, len(content))
        match rng.integers(9):
            case 0 | 1 if content:
                content[at % len(content)] ^= 1 << int(rng.integers(8))
            case 2 if content:
                content[at % len(content)] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))]))
            case 3 | 4:
                size, order = int(rng.choice([2, 4, 8])), str(rng.choice(["little", "big"]))
                number = INTEGERS[rng.integers(len(INTEGERS))] % 256**size
                content[at : at + size] = number.to_bytes(size, order)
            case 5:
                stop = len(content) if rng.random() < 0.5 else at + int(rng.integers(1, 64))
                del content[at:stop]
            case 6:
                content[at:at] = rng.bytes(int(rng.integers(1, 16)))
            case 7:
                stop = at + int(rng.integers(1, 256))
                content[at:at] = content[at:stop]
            case 8 if others:
                other = others[rng.integers(len(others))]
                content[at:] = other[_place(rng, len(other)) :]
    return bytes(content)


def _place(rng, size):
    """Anywhere, with a liking for both ends, where formats keep their lengths and lists."""
    near = min(size, 256)
    return int(rng.choice([rng.integers(size + 1), rng.integers(near + 1), size - rng.integers(near + 1)]))


# ---- JSON


def changed_json(rng, content):
    value = json.loads(content)
    for _ in range(rng.choice([1, 1, 2, 3])):
        value = changed_value(rng, value)
    text = json.dumps(value)
    # A text that no value gives: too deep, too long, or the same key twice.
    if rng.random() < 0.1 and (places := [match.span() for match in re.finditer(r"\d+|\"[^\"]*\"|null|true", text)]):
        start, end = places[rng.integers(len(places))]
        text = text[:start] + TEXTS[rng.integers(len(TEXTS))] + text[end:]
    return text.encode("utf-8", "surrogatepass")


def changed_value(rng, value):
    """A JSON value with one part replaced, taken away, doubled or under another name."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        value = dict(value) if isinstance(value, dict) else list(value)
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = keys[rng.integers(len(keys))]
        match rng.integers(12):
            case 0:
                del value[key]
            case 1 if isinstance(value, list):
                value.append(value[key])
            case 1:
                value[str(VALUES[rng.integers(len(VALUES))])] = value.pop(key)
            case 2:
                value[key] = value[keys[rng.integers(len(keys))]]
            case _:
                value[key] = changed_value(rng, value[key])
        return value
    if isinstance(value, int) and rng.random() < 0.5:
        return value + int(rng.choice([-1, 1, 2**31, -(2**31)]))
    return VALUES[rng.integers(len(VALUES))]


def changed_lines(rng, content):
    lines = content.splitlines()
    i = rng.integers(len(lines))
    lines[i : i + 1] = [changed_json(rng, lines[i])] * int(rng.choice([1, 1, 1, 0, 2]))
    return b"\n".join(lines) + b"\n"


def changed_csv(rng, content):
    rows = [line.split(b",") for line in content.splitlines()]
    row = rows[rng.integers(len(rows))]
    odd = (b"", b'"', b"\0", b"\xff", b"a" * 200_000, b"nan", b"1e999", b"\n", b'"a\n', b"path", b"label", b"x,y")
    row[rng.integers(len(row))] = odd[rng.integers(len(odd))]
    return b"\r\n".join(b",".join(row) for row in rows)


# ---- arrays and archives


def changed_npy(rng, content):
    if rng.random() < 0.2:
        others = list(other_arrays(content))
        return others[rng.integers(len(others))]
    size = int.from_bytes(content[8:10], "little")
    header, data = content[10 : 10 + size].decode("latin1"), content[10 + size :]
    if rng.random() < 0.7:
        header = re.sub(r"'shape': \([^)]*\)", f"'shape': {rng.choice(SHAPES)}", header)
    if rng.random() < 0.5:
        header = re.sub(r"'descr': '[^']*'", f"'descr': {str(rng.choice(DTYPES))!r}", header)
    if rng.random() < 0.2:
        header = header.replace("False", str(rng.choice(["True", "None", "'x'", "1" * 5000, "(" * 300, "-" * 3000])))
    if rng.random() < 0.2:
        data = data[: rng.integers(len(data) + 1)]
    return content[:8] + struct.pack("<H", len(header)) + header.encode("latin1") + data


def other_arrays(content):
    """The array of a .npy file in every other type, order and shape, and with values at the edge: all are valid files.

    What was changed in its bytes alone is mostly refused where it is read. These go further.
    """
    array = np.load(io.BytesIO(content))
    for dtype in ARRAY_DTYPES:
        yield _npy(_as_type(array, dtype))
    flat = array.reshape(-1)
    yield from map(_npy, (flat, flat[:0], flat[:, None], flat[None], np.asfortranarray(array)))
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        yield from (_npy(np.full_like(array, value)) for value in (limits.min, limits.max, min(limits.max, 2**31 - 1)))
    if array.dtype.kind in "if":
        yield _npy(-array)
    if array.dtype.kind == "f":
        yield from (_npy(np.full_like(array, value)) for value in (np.nan, np.inf, -np.inf, 1e30, 0))


def _as_type(array, dtype):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return array.astype(dtype)
        except (TypeError, ValueError):
            return np.zeros(array.shape, dtype)


def _npy(array):
    np.lib.format.write_array(file := io.BytesIO(), array, allow_pickle=False)
    return file.getvalue()


def changed_zip(rng, content):
    """A member changed, renamed or lying about its size; checksums are right as often as not."""
    files = zipfile.ZipFile(io.BytesIO(content))
    members = {info.filename: files.read(info) for info in files.infolist()}
    names = list(members)
    chosen = names[rng.integers(len(names))]
    if rng.random() < 0.7:
        members[chosen] = mutant(rng, chosen, [members[chosen]])
    if rng.random() < 0.2:
        members[str(rng.choice(["../up.npy", "/etc/x.png", "labels.npy", "paths.npy", "\x00.npy", ""]))] = members[
            chosen
        ]
    if bomb := rng.random() < 0.03:
        members = {chosen: BOMB}
    out = io.BytesIO()
    packed = zipfile.ZIP_STORED if bomb or rng.random() < 0.5 else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(out, "w", packed) as made:
        for name, data in members.items():
            made.writestr(name, data)
    content = bytearray(out.getvalue())
    if bomb:
        _say_bzip2(content)
    elif rng.random() < 0.5:  # sizes in the central directory, of which there is one entry for each member
        entry = [match.start() for match in re.finditer(rb"PK\x01\x02", content)][rng.integers(len(members))]
        field = entry + int(rng.choice([8, 10, 16, 20, 24, 28, 30, 38, 42]))
        content[field : field + 4] = (INTEGERS[rng.integers(len(INTEGERS))] % 2**32).to_bytes(4, "little")
    return bytes(content)


def _say_bzip2(content):
    """Let the only member of a .zip, which is stored, be one of bzip2, and of a size that nobody minds."""
    for mark, method, size in ((b"PK\x03\x04", 8, 22), (b"PK\x01\x02", 10, 24)):
        at = content.find(mark)
        content[at + method : at + method + 2] = zipfile.ZIP_BZIP2.to_bytes(2, "little")
        content[at + size : at + size + 4] = (1000).to_bytes(4, "little")


def changed_tar(rng, content):
    """A field of a header changed, with the checksum put right."""
    content = bytearray(content)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        at = (members := archive.getmembers())[rng.integers(len(members))].offset
    start, size = [(0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155)][
        rng.integers(8)
    ]
    if start == 156:
        content[at + 156] = int(rng.choice(list(b"0123456789LKxgSXVMD\0\xff")))
    else:
        odd = (b"../../x.png", b"/etc/x.png", b"77777777777", b"\xff" * 12, b"\x80" + b"\xff" * 11, b"-1", b"")
        new = odd[rng.integers(len(odd))][:size]
        content[at + start : at + start + size] = new.ljust(size, b"\0")
    header = content[at : at + 512]
    header[148:156] = b" " * 8
    content[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    return bytes(content)


def changed_tar_gz(rng, content):
    tar = gzip.decompress(content)
    return gzip.compress(changed_tar(rng, tar) if rng.random() < 0.6 else changed_bytes(rng, tar), 1)


def changed_mat(rng, content):
    """MATLAB 5: a header of 128 bytes, then elements, of which some are compressed; these are changed inside."""
    parts, at = [content[:128]], 128
    while at + 8 <= len(content):
        kind, size = struct.unpack("<II", content[at : at + 8])
        data = content[at + 8 : at + 8 + size]
        if kind == 15:  # compressed
            inner = zlib.decompress(data)
            data = zlib.compress(changed_bytes(rng, inner) if rng.random() < 0.6 else inner, 1)
        elif rng.random() < 0.6:
            data = changed_bytes(rng, data)
        parts.append(struct.pack("<II", kind, len(data)) + data)
        at += 8 + size
    return b"".join(parts)


def changed_png(rng, content):
    """Chunks changed, doubled and moved, with their checksums put right."""
    chunks, at = [], 8
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        chunks.append(content[at + 4 : at + 8 + size])
        at += 12 + size
    i = rng.integers(len(chunks))
    kind, data = chunks[i][:4], chunks[i][4:]
    if kind == b"IDAT" and rng.random() < 0.5:
        data = zlib.compress(changed_bytes(rng, zlib.decompress(data)))
    else:
        data = changed_bytes(rng, data)
    chunks[i : i + 1] = [kind + data] * int(rng.choice([1, 1, 1, 0, 2]))
    if rng.random() < 0.2:
        rng.shuffle(chunks)
    packed = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    return content[:8] + b"".join(packed)


def changed_model(rng, content):
    """Facts and arrays changed, and signed again: what a hand that means harm would do."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(content)
        kind = re.search(rb'\\"kind\\":\\"([^"\\]+)\\"', content)[1].decode()
        arrays, facts = read_model(path, kind)
        if rng.random() < 0.6:
            facts = changed_value(rng, facts)
        if arrays and rng.random() < 0.6:
            name = list(arrays)[rng.integers(len(arrays))]
            arrays[name] = _changed_array(rng, arrays[name])
        write_model(path, kind, arrays, json.loads(json.dumps(facts)))
        return path.read_bytes()


def _changed_array(rng, array):
    match rng.integers(6):
        case 0:
            return array[:-1]
        case 1:
            return array.reshape(-1)
        case 2:
            return array.astype(rng.choice(["float32", "float64", "int32", "uint8"]))
        case 3:
            return np.concatenate([array, array])
    array = array.copy()
    with np.errstate(all="ignore"):
        odd = np.array([np.nan, np.inf, 0, -1, 1e300, 1e-300, 2**31 - 1, 255])[rng.integers(8)].astype(array.dtype)
    array.reshape(-1)[rng.integers(array.size, size=int(rng.choice([1, array.size])))] = odd
    return array


INSIDE = {
    ".json": changed_json,
    ".jsonl": changed_lines,
    ".csv": changed_csv,
    ".npy": changed_npy,
    ".npz": changed_zip,
    ".zip": changed_zip,
    ".tar": changed_tar,
    ".tar.gz": changed_tar_gz,
    ".mat": changed_mat,
    ".v73.mat": None,
    ".png": changed_png,
    ".safetensors": changed_model,
}
