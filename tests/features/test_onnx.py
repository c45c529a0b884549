"""ONNX encoders: small models made here, with known weights, against NumPy and Pillow."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from bitmosaic.errors import FileFormatError, MissingExtraError, MissingFileError, ParameterError
from bitmosaic.features.onnx import OnnxExtractor
from bitmosaic.features.registry import extract, extractor

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
WEIGHTS = np.random.default_rng(0).normal(size=(6, 3, 3, 3)).astype(np.float32)


def images(n=5, height=8, width=8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def write(path, nodes, shape, outputs, weights=(), pixel_type=TensorProto.FLOAT, metadata=None, domain=None):
    """One model file. outputs: name -> number of dimensions."""
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("images", pixel_type, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in dict(weights).items()],
    )
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path


def see_through(path, shape=("n", 3, 8, 8), **options):
    """A model whose output is its input, flattened: what the extractor feeds becomes visible."""
    return write(path, [helper.make_node("Flatten", ["images"], ["pixels"])], shape, {"pixels": 2}, **options)


def convolution(path, shape=("n", 3, "h", "w")):
    """Outputs: maps (n, 6, h-2, w-2), and embedding (n, 6), their average."""
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["maps"]),
        helper.make_node("GlobalAveragePool", ["maps"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["embedding"]),
    ]
    return write(path, nodes, shape, {"maps": 4, "embedding": 2}, {"w": WEIGHTS})


def attention(path):
    """Ops whose last bits are known to depend on the size of the batch and the number of threads."""
    tokens = np.array([-1, 49, 3])
    nodes = [
        helper.make_node("Reshape", ["images", "tokens"], ["t"]),
        helper.make_node("Elu", ["t"], ["e"]),
        helper.make_node("Softplus", ["e"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["embedding"], axes=[1], keepdims=0),
    ]
    return write(path, nodes, ("n", 3, 7, 7), {"embedding": 2}, {"tokens": tokens})


def averages(path):
    """Sums that even in batches of one size depend on the place of an image: 3 × 49 numbers end at no boundary."""
    node = helper.make_node("ReduceMean", ["images"], ["embedding"], axes=[2, 3], keepdims=0)
    return write(path, [node], ("n", 3, 7, 7), {"embedding": 2})


def normalized(batch):
    return (batch / 255 - MEAN) / STD


def convolved(batch):
    """The average of each map of `convolution`, by plain sums."""
    pixels = normalized(batch)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (3, 3), axis=(1, 2))  # (n, h, w, 3, 3, 3)
    return np.einsum("nhwcij,ocij->no", windows, WEIGHTS) / (windows.shape[1] * windows.shape[2])


def test_embedding_agrees_with_numpy(tmp_path):
    features = OnnxExtractor(convolution(tmp_path / "m.onnx"), size=8)
    batch = images()
    assert features.width == 6
    found = features(batch)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, convolved(batch), atol=1e-4)


def test_several_models_work_side_by_side_through_the_registry(tmp_path):
    one = extractor("onnx", path=convolution(tmp_path / "My net, v2.onnx"), size=8)
    two = OnnxExtractor(see_through(tmp_path / "other.onnx"), name="deep")
    assert (one.name, two.name) == ("My-net-v2", "deep")
    batch = images()
    views = extract([one, two], list(batch))
    np.testing.assert_allclose(views[0], convolved(batch), atol=1e-4)
    assert views[1].shape == (5, 192)


def test_channels_are_first_or_last_as_in_the_model(tmp_path):
    batch = images(height=8, width=6)
    first = OnnxExtractor(see_through(tmp_path / "first.onnx", ("n", 3, 8, 6)))(batch)
    last = OnnxExtractor(see_through(tmp_path / "last.onnx", ("n", 8, 6, 3)))(batch)
    np.testing.assert_allclose(first, normalized(batch).transpose(0, 3, 1, 2).reshape(5, -1), atol=1e-5)
    np.testing.assert_allclose(last, normalized(batch).reshape(5, -1), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "channels_last"),
    [
        (("n", "c", "h", "w"), False),
        (("n", "h", "w", 3), True),
        (("n", 16, 16, "c"), True),
        (("n", "c", 16, 16), False),
    ],
)
def test_the_layout_is_found_with_dynamic_sides(tmp_path, shape, channels_last):
    batch = images(height=16, width=16)
    found = OnnxExtractor(see_through(tmp_path / "m.onnx", shape), size=16)(batch)
    expected = normalized(batch) if channels_last else normalized(batch).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(found, expected.reshape(5, -1), atol=1e-5)


def test_uint8_models_get_the_pixels_as_they_are(tmp_path):
    cast = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["floats"], ["pixels"]),
    ]
    path = write(tmp_path / "m.onnx", cast, ("n", 8, 8, 3), {"pixels": 2}, pixel_type=TensorProto.UINT8)
    batch = images()
    np.testing.assert_array_equal(OnnxExtractor(path)(batch), batch.reshape(5, -1))
    with pytest.raises(ParameterError, match=r"takes uint8 pixels as they are; leave mean and std out"):
        OnnxExtractor(path, mean=0.5, std=0.5)


def test_images_are_resized_by_pillows_bicubic_filter(tmp_path):
    batch = images(height=20, width=11)
    found = OnnxExtractor(see_through(tmp_path / "m.onnx", ("n", 8, 6, 3)), mean=0, std=255)(batch)
    for row, image in zip(found, batch, strict=True):
        expected = np.asarray(Image.fromarray(image).resize((6, 8), Image.Resampling.BICUBIC)) / 255
        np.testing.assert_allclose(row, expected.ravel(), atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (300, 2)])
def test_images_of_any_shape_are_taken(tmp_path, shape):
    found = OnnxExtractor(convolution(tmp_path / "m.onnx"), size=12)(images(3, *shape))
    assert found.shape == (3, 6)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        (("n", 3, "h", "w"), None, (224, 224)),
        (("n", 3, "h", "w"), 16, (16, 16)),
        (("n", 3, "h", "w"), (16, 12), (16, 12)),
        (("n", 3, 8, 10), None, (8, 10)),
        (("n", 3, 8, 10), (8, 10), (8, 10)),
        (("n", 3, 8, "w"), 8, (8, 8)),
    ],
)
def test_size_is_the_models_or_the_given_or_224(tmp_path, shape, size, expected):
    assert OnnxExtractor(see_through(tmp_path / "m.onnx", shape), size=size).size == expected


def test_a_size_that_the_model_does_not_take_is_refused(tmp_path):
    path = see_through(tmp_path / "m.onnx", ("n", 3, 8, 10))
    with pytest.raises(ParameterError, match=r"The model takes only images of 8 × 10 pixels; got size=16"):
        OnnxExtractor(path, size=16)


@pytest.mark.parametrize("size", [0, (8,), "big"])
def test_an_invalid_size_is_refused(tmp_path, size):
    path = see_through(tmp_path / "m.onnx", ("n", 3, "h", "w"))
    with pytest.raises(ParameterError, match=r"size must be one integer of at least 1, or height and width; got"):
        OnnxExtractor(path, size=size)


@pytest.mark.parametrize(
    ("metadata", "given", "expected"),
    [
        ({}, {"mean": 0.5, "std": 0.25}, lambda pixels: (pixels / 255 - 0.5) / 0.25),
        ({}, {"mean": [100, 110, 120], "std": [50, 60, 70]}, lambda p: (p - [100, 110, 120]) / [50, 60, 70]),
        (
            {"mean": "[0.1, 0.2, 0.3]", "std": "[0.5, 0.5, 1]"},
            {},
            lambda p: (p / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.5, 1],
        ),
        ({"Image_Mean": "127.5", "image_std": "127.5"}, {}, lambda pixels: (pixels - 127.5) / 127.5),
        ({"norm_mean": "0, 0, 0", "norm_std": "1 1 1"}, {}, lambda pixels: pixels / 255),
        ({"mean": "0.1", "std": "0.1"}, {"mean": 0, "std": 1}, lambda pixels: pixels / 255),
    ],
)
def test_normalization_is_the_given_or_the_models(tmp_path, metadata, given, expected):
    path = see_through(tmp_path / "m.onnx", ("n", 8, 8, 3), metadata=metadata)
    batch = images()
    np.testing.assert_allclose(OnnxExtractor(path, **given)(batch), expected(batch).reshape(5, -1), atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mean": 0.5}, "mean and std must be given together; got only one"),
        ({"mean": 0.5, "std": 0}, r"std must be above 0; it is \[0.0, 0.0, 0.0\]"),
        ({"mean": [1, 2], "std": 1}, r"mean must be one number or three, one per channel; got \[1, 2\]"),
        ({"mean": 0, "std": float("nan")}, "std must be one number or three, one per channel; got nan"),
    ],
)
def test_an_invalid_normalization_is_refused(tmp_path, given, message):
    with pytest.raises(ParameterError, match=message):
        OnnxExtractor(see_through(tmp_path / "m.onnx"), **given)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"mean": "0.5"}, "must have both mean and std; it has only mean. Pass mean and std"),
        ({"mean": "half", "std": "1"}, "mean in the metadata of .*m.onnx must be one number or three"),
    ],
)
def test_invalid_metadata_are_refused(tmp_path, metadata, message):
    with pytest.raises(FileFormatError, match=message):
        OnnxExtractor(see_through(tmp_path / "m.onnx", metadata=metadata))


def test_maps_are_averaged_over_all_positions(tmp_path):
    path = convolution(tmp_path / "m.onnx")
    batch = images()
    maps = OnnxExtractor(path, size=8, output="maps")
    assert maps.width == 6
    np.testing.assert_allclose(maps(batch), OnnxExtractor(path, size=8)(batch), atol=1e-5)


def test_tokens_give_the_first_one(tmp_path):
    node = helper.make_node("Reshape", ["images", "shape"], ["tokens"])
    weights = {"shape": np.array([-1, 4, 48])}
    path = write(tmp_path / "m.onnx", [node], ("n", 8, 8, 3), {"tokens": 3}, weights)
    batch = images()
    np.testing.assert_allclose(OnnxExtractor(path)(batch), normalized(batch).reshape(5, 4, 48)[:, 0], atol=1e-5)


def test_a_missing_output_is_named(tmp_path):
    with pytest.raises(ParameterError, match=r"has no output 'logits'; its outputs are maps, embedding"):
        OnnxExtractor(convolution(tmp_path / "m.onnx"), size=8, output="logits")


def test_a_model_without_a_row_per_image_is_refused(tmp_path):
    node = helper.make_node("ReduceMean", ["images"], ["one"], keepdims=0)
    path = write(tmp_path / "m.onnx", [node], ("n", 3, 8, 8), {"one": 0})
    with pytest.raises(FileFormatError, match=r"must have an output of one row of numbers per image.*one: \(\)"):
        OnnxExtractor(path)


def test_a_model_of_fixed_batches_takes_any_number_of_images(tmp_path):
    fixed = OnnxExtractor(convolution(tmp_path / "m.onnx", (4, 3, 8, 8)))
    np.testing.assert_allclose(fixed(images(3)), convolved(images(3)), atol=1e-4)


def test_an_output_that_aggregates_the_batch_is_ignored(tmp_path):
    nodes = [
        helper.make_node("Flatten", ["images"], ["pixels"]),
        helper.make_node("ReduceMean", ["pixels"], ["of_all"], axes=[0]),
    ]
    path = write(tmp_path / "m.onnx", nodes, (4, 8, 8, 3), {"of_all": 2, "pixels": 2})
    with pytest.raises(FileFormatError, match=r"one row of numbers per image"):
        OnnxExtractor(path, output="of_all")
    np.testing.assert_allclose(OnnxExtractor(path)(images()), normalized(images()).reshape(5, -1), atol=1e-5)


@pytest.mark.parametrize("model", [attention, averages])
def test_an_image_has_the_same_features_alone_in_any_batch_and_with_any_threads(model, tmp_path):
    path = model(tmp_path / "m.onnx")
    batch = images(70, 7, 7)
    features = OnnxExtractor(path)
    together = features(batch)
    np.testing.assert_array_equal(np.concatenate([features(image[None]) for image in batch]), together)
    np.testing.assert_array_equal(features(batch[::-1]), together[::-1])
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(features, np.array_split(batch, 9))
    np.testing.assert_array_equal(np.concatenate(list(parts)), together)


def test_mirror_is_the_maximum_over_the_image_and_its_mirror_image(tmp_path):
    path = convolution(tmp_path / "m.onnx")
    batch = images(4, 10, 9)
    features = OnnxExtractor(path, size=9)
    expected = np.maximum(features(batch), features(batch[:, :, ::-1]))
    found = OnnxExtractor(path, size=9, mirror=True)(batch)
    np.testing.assert_allclose(found, expected, atol=0.02)  # Pillow's resizing rounds a mirror image its own way
    same_size = images(4, 9, 9)
    expected = np.maximum(features(same_size), features(same_size[:, :, ::-1]))
    np.testing.assert_array_equal(OnnxExtractor(path, size=9, mirror=True)(same_size), expected)


def test_without_onnxruntime_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"needs onnxruntime: pip install 'bitmosaic\[deep\]'"):
        OnnxExtractor(tmp_path / "m.onnx")


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"There is no ONNX model at .*nowhere.onnx"):
        OnnxExtractor(tmp_path / "nowhere.onnx")


@pytest.mark.parametrize("content", [b"hello, this is text\n", "cut"])
def test_an_invalid_model_file_is_refused_in_one_line(tmp_path, content, capfd):
    path = convolution(tmp_path / "m.onnx")
    path.write_bytes(path.read_bytes()[:300] if content == "cut" else content)
    with pytest.raises(FileFormatError, match=r"cannot load .*m.onnx: .* Is it a complete ONNX model") as e:
        OnnxExtractor(path)
    assert "\n" not in str(e.value)
    assert capfd.readouterr() == ("", "")


def test_a_session_is_opened_once_until_the_file_changes(tmp_path, monkeypatch):
    import onnxruntime

    opened = []
    session = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda *a, **options: opened.append(a) or session(*a, **options)
    )
    path = convolution(tmp_path / "m.onnx")
    expected = OnnxExtractor(path, size=8)(images())
    np.testing.assert_array_equal(OnnxExtractor(path, size=8)(images()), expected)
    assert len(opened) == 1
    see_through(path)
    assert OnnxExtractor(path).width == 192
    assert len(opened) == 2


def test_custom_operators_are_refused_in_one_line(tmp_path, capfd):
    node = helper.make_node("Sharpen", ["images"], ["embedding"], domain="my.company")
    path = write(tmp_path / "m.onnx", [node], ("n", 3, 8, 8), {"embedding": 2}, domain="my.company")
    with pytest.raises(
        FileFormatError, match=r"cannot load .*Sharpen.* Is it a complete ONNX model, without custom"
    ) as e:
        OnnxExtractor(path)
    assert "\n" not in str(e.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shape", [("n", 192), ("n", 1, 8, 8)])
def test_a_model_without_an_image_input_is_refused(tmp_path, shape):
    with pytest.raises(FileFormatError, match=r"must have one input, .*m.onnx has images: tensor\(float\)"):
        OnnxExtractor(see_through(tmp_path / "m.onnx", shape))


def test_a_model_that_fails_at_a_size_says_so_in_one_line(tmp_path, capfd):
    node = helper.make_node("Reshape", ["images", "shape"], ["y"])
    path = write(tmp_path / "m.onnx", [node], ("n", 3, "h", "w"), {"y": 2}, {"shape": np.array([1, 192])})
    assert OnnxExtractor(path, size=8).width == 192
    with pytest.raises(FileFormatError, match=r"failed on an image of 9 × 9 pixels: .* need another size\?") as e:
        OnnxExtractor(path, size=9)
    assert "\n" not in str(e.value)
    assert capfd.readouterr() == ("", "")
