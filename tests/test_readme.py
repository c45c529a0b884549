"""The Python examples of the README run and give the documented result."""

import re
from pathlib import Path

from image_kinds import write_images

README = Path(__file__).parent.parent / "README.md"


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_python_example_runs_and_finds_the_clusters(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example, _, baseline = examples()
    names: dict = {}
    exec(example, names)
    assert "(3000, 16)" in capsys.readouterr().out
    assert names["clustering_scores"](names["truth"], names["model"].labels_)["nmi"] > 0.95
    loaded = names["HSIC"].load("model.safetensors")
    assert (loaded.labels_ == names["model"].labels_).all()
    exec(baseline, names)
    assert names["clustering_scores"](names["truth"], names["labels"])["nmi"] > 0.8


def test_the_pipeline_example_runs_on_a_folder_of_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "photos", 10)
    _, example, _ = examples()
    exec(example, names := {})
    assert sum(names["run"].manifest.sizes) == 30


def test_the_image_files_exist():
    for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README.read_text()):
        assert (README.parent / target).is_file()
