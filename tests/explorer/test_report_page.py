"""The report in a real browser: from a file, without a network, in both themes, down to 360 pixels."""

import base64
import json
import re
import shutil

import numpy as np
import pytest

from bitmosaic.explorer.report import write_report
from bitmosaic.run.clusters import ImageFacts
from bitmosaic.run.folder import Run


@pytest.fixture(scope="module")
def report(finished_run, tmp_path_factory):
    place = tmp_path_factory.mktemp("report")
    run = Run(shutil.copytree(finished_run, place / "run"))
    name = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    own = {int(label) for path, label in zip(run.paths, run.column("labels"), strict=True) if "hacked" in path}
    ImageFacts.of(run).log.append({"do": "name", "cluster": min({0, 1, 2} - own), "name": name}, 0)
    write_report(run, place / "report.html")
    return place / "report.html"


@pytest.fixture
def opened(browser, report):
    """Open the report with browser options; at the end, fail on any console message, error or request."""
    contexts, seen = [], []

    def open_page(width=1280, height=800, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or seen.append(request.url))
        page.goto(report.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert seen == []


def titles(page):
    return page.locator(".card:visible h3 a").all_text_contents()


def test_names_are_text_images_are_visible_and_the_map_can_be_colored_by_label(opened):
    page = opened()
    assert page.evaluate("window.hacked") is None
    assert page.locator("h1", has_text="window.hacked=1").count() == 1
    tile = page.locator(".mosaic .pic").first
    assert "data:image/webp" in tile.evaluate("node => getComputedStyle(node).backgroundImage")
    box = tile.bounding_box()
    assert box["width"] > 40
    assert box["height"] == pytest.approx(box["width"], abs=2)
    assert page.locator("[data-legend=cluster] li").count() == 3
    page.get_by_label("Colors").select_option("label")
    assert not page.locator("[data-legend=cluster]").is_visible()
    assert "noise" in page.locator("[data-legend=label]").text_content()


def test_cards_can_be_sorted_and_searched(opened):
    page = opened()
    sizes = [int(card.get_attribute("data-size")) for card in page.locator(".card").all()]
    assert sizes == sorted(sizes, reverse=True)
    page.get_by_label("Order of the clusters").select_option("number")
    assert [card.get_attribute("data-number") for card in page.locator(".card").all()] == ["0", "1", "2"]
    assert page.locator("#sections > section").first.get_attribute("id") == "cluster-0"
    page.get_by_label("Search").fill("HACKED")
    assert len(titles(page)) == 2  # one by its name, one by its file names
    page.get_by_label("Search").fill("from center")
    assert titles(page) == []  # other texts of a card are not searched
    page.get_by_label("Search").fill("noise/0003")
    assert len(titles(page)) == 1
    assert page.locator("#sections > section:visible").count() == 1
    page.get_by_label("Search").fill("")
    assert len(titles(page)) == 3


def test_a_card_opens_its_cluster(opened):
    page = opened(reduced_motion="reduce")
    page.locator(".card h3 a").nth(1).click()
    number = re.search(r"#cluster-(\d)", page.url)[1]
    assert 0 <= page.locator(f"#title-{number}").bounding_box()["y"] < 200


def test_theme_follows_the_system_and_the_button(opened):
    color = "getComputedStyle(document.body).backgroundColor"
    dark, light = opened(color_scheme="dark"), opened(color_scheme="light")
    assert dark.evaluate(color) != light.evaluate(color)
    for _ in range(2):  # from auto to light, to dark
        light.locator("#theme").click()
    assert light.evaluate(color) == dark.evaluate(color)
    light.reload()
    assert light.evaluate(color) == dark.evaluate(color)


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_exceeds_the_width(opened, width):
    page = opened(width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    parts = ".facts div, .card, .card p, .toolbar > *, .panel, .histogram svg, .tiles, .group"
    boxes = page.locator(parts).evaluate_all("nodes => nodes.map((node) => node.getBoundingClientRect())")
    assert all(-1 <= box["left"] <= box["right"] <= width + 1 for box in boxes)


def test_map_shows_and_opens_the_cluster_under_the_mouse(opened):
    """The map is a centered square in its box."""
    page = opened(width=360)
    canvas = page.locator("#plot canvas")
    canvas.scroll_into_view_if_needed()
    data = json.loads(page.locator("#map-data").text_content())
    x, y, cluster_of = (np.frombuffer(base64.b64decode(data[key]), "<u2")[7] for key in ("x", "y", "cluster_of"))
    box, number = canvas.bounding_box(), data["clusters"][cluster_of]
    side = min(box["width"], box["height"])
    point = {
        "x": box["width"] / 2 + ((x + 1500) / 68535 - 0.5) * side,
        "y": box["height"] / 2 + (0.5 - (y + 1500) / 68535) * side,
    }
    canvas.hover(position=point)
    assert page.locator("#tip").is_visible()
    assert page.locator("#tip strong").text_content() == page.locator(f"#title-{number}").text_content()
    canvas.click(position=point)
    assert page.url.endswith(f"#cluster-{number}")


def test_the_wheel_zooms_the_map(opened):
    page = opened()
    canvas = page.locator("#plot canvas")
    canvas.scroll_into_view_if_needed()
    before = canvas.evaluate("node => node.toDataURL()")
    canvas.hover(position={"x": 200, "y": 200})
    canvas.hover(position={"x": 210, "y": 210})
    scrolled = page.evaluate("scrollY")
    page.mouse.wheel(0, -300)
    page.wait_for_function("(before) => document.querySelector('#plot canvas').toDataURL() !== before", arg=before)
    assert page.evaluate("scrollY") == scrolled
    page.get_by_role("button", name="Whole map").click()
    page.wait_for_function("(before) => document.querySelector('#plot canvas').toDataURL() === before", arg=before)


def test_content_is_complete_without_scripts(opened):
    page = opened(java_script_enabled=False)
    assert page.locator(".card").count() == 3
    assert page.locator("#plot svg").is_visible()
    assert page.locator("#cluster-0 .tiles .pic").count() > 20
    assert page.locator(".scripted:visible").count() == 0


def test_prints_on_white_without_controls(opened):
    page = opened(color_scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator("header.top").is_visible()
    assert not page.locator("#search").is_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
