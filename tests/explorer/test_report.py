"""The report is one file that loads nothing else, runs only its own script and keeps its size limit."""

import base64
import hashlib
import io
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from explored import HOSTILE
from PIL import Image

from bitmosaic.errors import MissingExtraError, ParameterError, UnwritableFileError
from bitmosaic.explorer import report as report_module
from bitmosaic.explorer.report import COLORS, HERE, Plan, write_report
from bitmosaic.run.clusters import Clusters, ImageFacts


class Page(HTMLParser):
    """The elements of a page with attributes, the text inside each id, and the contents of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.raw, self.texts, self._open = [], [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if tag not in ("meta", "link", "input", "img", "br", "path", "rect"):
            self._open.append((tag, attributes))

    def handle_endtag(self, tag):
        assert not self._open or self._open.pop()[0] == tag, tag

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self._open and self._open[-1][0] in ("script", "style"):
            self.raw.append((*self._open[-1], data))
            return
        for _, attributes in self._open:
            if "id" in attributes:
                self.texts[attributes["id"]] = self.texts.get(attributes["id"], "") + data

    def all(self, tag=None, **wanted):
        return [a for t, a in self.elements if tag in (None, t) and all(a.get(k) == v for k, v in wanted.items())]

    def classes(self):
        return [a["class"].split() for _, a in self.elements if a.get("class")]


def written(run, path, **options):
    done = write_report(run, path, **options)
    assert done.n_bytes == path.stat().st_size
    return done, Page(path.read_text())


@pytest.fixture(scope="module")
def made(finished_run, tmp_path_factory):
    """A report of the run whose file names contain HTML."""
    import shutil

    from bitmosaic.run.folder import Run

    place = tmp_path_factory.mktemp("report")
    run = Run(shutil.copytree(finished_run, place / "run"))
    done, page = written(run, place / "report.html")
    return run, done, page, (place / "report.html").read_text()


def test_report_refers_to_no_other_file(made):
    _, _, page, text = made
    assert not page.all("img")
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form"), tag
        assert not {"src", "srcset", "style", "action"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#").startswith("#")
    assert all(url.startswith("data:image/") for url in re.findall(r"url\(([^)]*)\)", text))
    assert "@import" not in text


def test_links_have_targets(made):
    _, _, page, _ = made
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in page.all("a")} <= set(ids)
    assert {f"cluster-{number}" for number in range(3)} <= set(ids)


def test_security_policy_allows_only_our_script_and_styles(made):
    _, _, page, _ = made
    (policy,) = [a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    hashes = {tag: [] for tag in ("script", "style")}
    for tag, attributes, text in page.raw:
        if attributes.get("type") != "application/json":
            hashes[tag].append(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert rules["script-src"].split() == hashes["script"]
    assert rules["style-src"].split() == hashes["style"]
    assert len(hashes["script"]) == 1


def test_file_names_with_html_are_shown_as_text(made):
    _, _, page, text = made
    titles = " ".join(a.get("title", "") for _, a in page.elements)
    for name in HOSTILE:
        assert name.replace("\u202e", "\\u202e") in titles
    assert "\u202e" not in text
    assert [a.get("type") for a in page.all("script")] == [None, "application/json"]
    assert not page.all("b")
    assert "<b>disc<\u2215b>" in page.texts["cards"]


def test_cluster_names_with_html_are_shown_as_text(run, tmp_path):
    facts = ImageFacts.of(run)
    names = ["</script><script>alert(1)</script>", "</style>{{7*7}}{% x %}", "<!--<script>"]
    for number, name in enumerate(names):
        facts.log.append({"do": "name", "cluster": number, "name": name}, number)
    _, page = written(run, tmp_path / "report.html")
    for number, name in enumerate(names):
        assert page.texts[f"title-{number}"] == name
        assert name in page.texts["cards"]
        assert name in page.texts["map"]
    assert len(page.all("script")) == 2
    (data,) = [text for _, attributes, text in page.raw if attributes.get("type") == "application/json"]
    assert "<" not in data
    assert list(json.loads(data)["names"].values()) == [
        json.loads(data)["names"][str(n)] for n in json.loads(data)["clusters"]
    ]
    assert set(json.loads(data)["names"].values()) == set(names)


def test_each_shown_image_is_stored_once(made):
    _, done, page, text = made
    rules = re.findall(r"\.p(\d+)\{background-image:url\(data:image/webp;base64,([^)]*)\)\}", text)
    rows = [row for row, _ in rules]
    assert len(rows) == len(set(rows)) == done.images
    shown = {name[1:] for names in page.classes() for name in names if re.fullmatch(r"p\d+", name)}
    assert shown == set(rows)
    with Image.open(io.BytesIO(base64.b64decode(rules[0][1]))) as image:
        assert image.size == (24, 24)


def test_images_have_titles_and_are_sorted_by_distance(made):
    run, _, page, _ = made
    clusters = Clusters(ImageFacts.of(run))
    described = [a for names_of, a in page.elements if "pic" in a.get("class", "").split() and a.get("title")]
    assert all(a.get("role") == "img" for a in described)
    (number,) = [n for n in range(3) if clusters.members(n)[0] == int(described[0]["class"].split("p")[-1])]
    assert number == np.argmax(clusters.sizes)
    path = ImageFacts.of(run).paths[clusters.members(number)[0]].replace("\u202e", "\\u202e")
    assert described[0]["title"].startswith(f"{path}\n")


def test_report_shows_the_summary_of_the_run(made):
    run, _, page, _ = made
    text = page.texts["main"]
    assert "120" in text
    assert f"{100 * run.manifest.scores['nmi']:.1f}\u00a0%" in text
    assert all(view in text for view in ("hog", "ch"))
    for number, size in enumerate(run.manifest.sizes):
        assert f"{size} images" in page.texts[f"cluster-{number}"]
        assert "Nearest clusters" in page.texts[f"cluster-{number}"]


def test_report_shows_the_edited_clusters(run, tmp_path):
    facts = ImageFacts.of(run)
    facts.log.append({"do": "merge", "clusters": [0, 1], "into": 1}, 0)
    facts.log.append({"do": "name", "cluster": 1, "name": "discs and more"}, 1)
    _, page = written(run, tmp_path / "report.html")
    assert {a["data-number"] for a in page.all("article")} == {"1", "2"}
    assert page.texts["title-1"] == "discs and more"
    assert "cluster-0" not in page.texts
    sizes = run.manifest.sizes
    assert f"{sizes[0] + sizes[1]} images" in page.texts["cluster-1"]
    assert "was 100.0\u00a0%" in page.texts["main"]


def test_map_has_all_points(made):
    run, _, page, _ = made
    (data,) = [json.loads(text) for _, a, text in page.raw if a.get("type") == "application/json"]
    assert data["points"] == 120
    cluster_of = np.frombuffer(base64.b64decode(data["cluster_of"]), "<u2")
    assert np.array(data["clusters"])[cluster_of].tolist() == run.column("labels").tolist()
    labels = np.array(data["labels"])[np.frombuffer(base64.b64decode(data["label_of"]), "<u2")]
    assert labels.tolist() == run.views.labels.tolist()
    drawn = [a for a in page.all("path") if a.get("class", "").startswith("k")]
    assert sum(a["d"].count("M") for a in drawn) == 120


def test_colors_equal_those_of_the_explorer():
    legend = (HERE / "static" / "legend.js").read_text()
    assert tuple(re.findall(r'"(#[0-9a-f]{6})"', legend)) == COLORS


@pytest.mark.parametrize("max_bytes", [200_000, 90_000])
def test_a_report_keeps_its_size_limit(run, tmp_path, max_bytes):
    done, page = written(run, tmp_path / "report.html", max_bytes=max_bytes)
    assert done.n_bytes <= max_bytes
    assert done.clusters == len(page.all("article")) == 3


def test_a_too_small_limit_is_refused(run, tmp_path):
    with pytest.raises(ParameterError, match=r"bytes, got max_bytes=10,000"):
        write_report(run, tmp_path / "report.html", max_bytes=10_000)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("n_clusters", "n_rows", "shown"), [(10, 60_000, 10), (1000, 1_000_000, 1000), (50_000, 10**6, 1410)]
)
def test_runs_of_any_size_have_a_plan_within_the_limit(n_clusters, n_rows, shown):
    class Large:
        numbers, image_bytes = range(n_clusters), {96: 2500, 64: 1400}

        class api:
            images = range(n_rows)

    plan = Plan.within(0.97 * report_module.MAX_BYTES, Large)
    each = plan.central + plan.far
    size = plan.clusters * report_module.CLUSTER_BYTES + plan.points * report_module.POINT_BYTES
    size += (plan.clusters * each + 2 * plan.listed) * (Large.image_bytes[plan.side] + report_module.TILE_BYTES)
    assert size < report_module.MAX_BYTES
    assert plan.clusters == shown
    assert plan.points == 50_000
    assert each >= 4


def test_file_names_are_shown_if_images_are_missing(run, tmp_path):
    recipe = run.views_folder / "extraction.json"
    recipe.write_text(recipe.read_text().replace(run.manifest.arguments["source"], "/nowhere"))
    done, page = written(run, tmp_path / "report.html")
    assert done.images == 0
    assert "were not found" in page.texts["main"]
    assert "0003.png" in page.texts["main"]


def test_an_unwritable_report_gives_one_sentence(run, tmp_path):
    with pytest.raises(UnwritableFileError, match=r"report\.html cannot be written \(No such file"):
        write_report(run, tmp_path / "nowhere" / "report.html")


def test_missing_jinja_is_reported_with_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bitmosaic\[web\]'"):
        write_report(run, tmp_path / "report.html")


def test_the_map_without_scripts_has_the_margins_of_the_other_map():
    """static/map.js shows coordinates from -1,500 to 67,035. A point is drawn at the nearest of 1,000 places."""
    x, y = np.array([0, 65535, 34 * 68.535 - 1500 - 34]), np.array([65535, 0, 500 * 68.535 - 1500 + 34])
    assert report_module.drawn_points(x, y, np.array([0, 1, 1])) == [(0, "M22 22h0"), (1, "M978 978h0M34 500h0")]
