"""The pages of the explorer in a real browser, with a real server."""

import re
from contextlib import contextmanager

import pytest
from explored import HOSTILE, serving
from playwright.sync_api import expect

from bitmosaic.run import images as run_images
from bitmosaic.run.clusters import ImageFacts

LONG_NAME = "A" * 60 + "b" * 60
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 740}
PAGES = {  # path -> a part that is there when the page is complete
    "/": "card",
    "/cluster/0": "tile",
    "/image/7": "neighbors",
    "/map": "map",
    "/duplicates": "groups",
    "/outliers": "tile",
}


@contextmanager
def visiting(browser, url, expected="", **options):
    """Open a page; at the end, fail on requests to other hosts, on unexpected errors and on injected scripts."""
    context = browser.new_context(**{"viewport": DESKTOP} | options)
    page = context.new_page()
    left, errors = [], []
    page.on("request", lambda r: None if r.url.startswith((url, "data:", "blob:")) else left.append(r.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    try:
        yield page
        assert left == []
        assert [error for error in errors if not expected or expected not in error] == []
        assert page.evaluate("window.hacked") is None
    finally:
        context.close()


@pytest.fixture
def page(browser, url):
    with visiting(browser, url) as visited:
        visited.goto(url)
        yield visited


def on(page, name):
    return page.locator(f"[data-testid={name}]")


def shown_images(page):
    """The number of thumbnails that are loaded."""
    return page.evaluate("[...document.images].filter((i) => i.src.includes('/thumb/') && i.naturalWidth > 0).length")


def wait_for_images(page, count):
    page.wait_for_function(
        "(n) => [...document.images].filter((i) => i.src.includes('/thumb/') && i.naturalWidth > 0).length >= n",
        arg=count,
    )


def name_clusters(run, *names):
    log = ImageFacts.of(run).log
    for number, name in enumerate(names):
        log.append({"do": "name", "cluster": number, "name": name}, number)


def test_overview_shows_a_card_with_images_for_each_cluster(page, url, served_run):
    assert f'<span id="run-name">{served_run.folder.name}</span>' in page.request.get(url).text()  # without scripts
    on(page, "card").first.wait_for()
    assert on(page, "card").count() == 3
    wait_for_images(page, 24)
    text = page.locator("#main").inner_text()
    assert "stripes" in text
    assert "100" in text  # purity
    assert "NMI" in text
    assert "hog" in text


def test_cards_can_be_sorted_and_searched(page):
    on(page, "card").first.wait_for()
    on(page, "sort").select_option("number")
    assert [card.get_attribute("data-cluster") for card in on(page, "card").all()] == ["0", "1", "2"]
    on(page, "search").fill("stripes")
    expect(on(page, "card").filter(visible=True)).to_have_count(1)
    on(page, "search").fill("noise/0012")
    page.locator("[alt*='noise/0012.png'], [title*='noise/0012.png']").first.wait_for()


def test_a_card_opens_its_cluster_with_images_sorted_by_distance(page, served_run):
    on(page, "card").first.locator("a").first.click()
    page.wait_for_url(re.compile(r"/cluster/\d+"))
    on(page, "tile").first.wait_for()
    number = int(page.url.rpartition("/")[2])
    rows = [int(tile.get_attribute("data-row")) for tile in on(page, "tile").all()]
    distances = served_run.column("distances")[rows]
    assert list(distances) == sorted(distances)
    assert set(served_run.column("labels")[rows]) == {number}
    on(page, "histogram").wait_for()
    assert on(page, "nearest").locator("a[href^='/cluster/']").count() >= 2
    on(page, "views").get_by_text("hog").wait_for()


def test_a_long_gallery_keeps_only_visible_tiles(browser, url, served_run):
    """All images in one cluster on a small screen: scrolling shows the last image; the DOM holds only some of them."""
    ImageFacts.of(served_run).log.append({"do": "merge", "clusters": [0, 1, 2], "into": 0}, 0)
    with visiting(browser, url, viewport={"width": 400, "height": 300}) as page:
        page.goto(f"{url}/cluster/0")
        on(page, "tile").first.wait_for()
        first = on(page, "tile").first.get_attribute("data-row")
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_function(
            "() => [...document.querySelectorAll('[data-testid=tile]')].some((t) => Number(t.dataset.index) === 119)"
        )
        assert on(page, "tile").count() < 60
        assert on(page, "gallery").locator(f"[data-row='{first}']").count() == 0
        wait_for_images(page, 5)


def test_image_page_shows_code_and_nearest_images(page, url, served_run):
    page.goto(f"{url}/image/60")
    on(page, "barcode").wait_for()
    assert served_run.column("codes")[60].tobytes().hex() in on(page, "barcode").get_attribute("aria-label")
    neighbours = on(page, "neighbors").locator("a[href^='/image/']")
    neighbours.first.wait_for()
    assert neighbours.count() >= 12
    page.wait_for_function("() => [...document.images].some((i) => i.src.includes('/large/60') && i.naturalWidth > 0)")
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(r"/image/(?!60$)\d+$"))


def test_merge_and_undo_survive_a_reload(page):
    cards = on(page, "card")
    cards.first.wait_for()
    for i in (0, 1):
        cards.nth(i).locator("input[type=checkbox]").check()
    on(page, "merge").first.click()
    expect(on(page, "card")).to_have_count(2)
    page.reload()
    cards.first.wait_for()
    assert cards.count() == 2
    on(page, "undo").click()
    expect(on(page, "card")).to_have_count(3)
    page.reload()
    cards.first.wait_for()
    assert cards.count() == 3
    assert on(page, "undo").is_disabled()


def test_a_cluster_name_with_html_is_shown_as_text(page, url):
    page.goto(f"{url}/cluster/1")
    on(page, "rename").click()
    page.keyboard.type("<img src=x onerror=window.hacked=1>")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="<img src=x onerror=window.hacked=1>").wait_for()
    page.goto(url)
    page.get_by_text("<img src=x onerror=window.hacked=1>").first.wait_for()


def test_images_can_be_moved_to_another_cluster(page, url, served_run):
    page.goto(f"{url}/cluster/0")
    tile = on(page, "tile").first
    tile.wait_for()
    row = int(tile.get_attribute("data-row"))
    tile.locator("a").click(modifiers=["Control"])
    on(page, "move").first.click()
    page.locator("dialog [data-cluster='1']").click()
    expect(on(page, "gallery").locator(f"[data-row='{row}']")).to_have_count(0)
    assert page.request.get(f"{url}/api/image/{row}").json()["cluster"] == 1
    assert served_run.column("labels")[row] == 0


def test_each_quick_undo_reverts_one_edit(page, url, served_run):
    name_clusters(served_run, "one", "two", "three")
    page.reload()
    page.get_by_text("three").first.wait_for()
    press = "document.dispatchEvent(new KeyboardEvent('keydown', { key: 'u' }))"
    page.evaluate(f"() => {{ for (let i = 0; i < 5; i++) {press}; }}")  # two more than edits
    expect(on(page, "undo")).to_be_disabled()
    expect(page.get_by_role("heading", name=re.compile("^Cluster ."))).to_have_count(3)
    assert page.request.get(f"{url}/api/run").json()["edits"]["count"] == 0


def test_a_double_click_makes_one_edit(browser, url, served_run):
    # The page may still request the chart of the cluster that was just merged.
    with visiting(browser, url, expected="404") as page:
        page.goto(f"{url}/cluster/0")
        on(page, "rename").click()
        page.keyboard.type("twice?")
        twice = "(button) => { button.click(); button.click(); }"
        page.get_by_role("button", name="Save").evaluate(twice)
        page.get_by_role("heading", name="twice?").wait_for()
        on(page, "merge").first.evaluate(twice)
        page.wait_for_url(re.compile(r"/cluster/[12]$"))
        expect(on(page, "message")).to_be_visible()
        assert page.request.get(f"{url}/api/run").json()["edits"]["version"] == 2


def test_a_conflicting_edit_is_reported_and_the_page_updated(browser, url, served_run):
    with visiting(browser, url, expected="409") as page:
        page.goto(f"{url}/cluster/1")
        on(page, "rename").wait_for()
        ImageFacts.of(served_run).log.append({"do": "name", "cluster": 1, "name": "theirs"}, 0)
        on(page, "rename").click()
        page.keyboard.type("mine")
        with page.expect_response("**/api/edits") as answer:
            page.keyboard.press("Enter")
        assert answer.value.status == 409
        expect(on(page, "message")).to_contain_text("Your edit was not made.")
        expect(page.get_by_label("Name of the cluster")).to_have_value("mine")
        page.keyboard.press("Escape")
        page.get_by_role("heading", name="theirs").wait_for()


def test_map_has_all_images_and_the_lasso_selects_a_gallery(browser, url, served_run):
    name_clusters(served_run, LONG_NAME, LONG_NAME, LONG_NAME)
    with visiting(browser, url) as page:
        page.goto(f"{url}/map")
        page.wait_for_function("() => document.querySelector('[data-testid=map]')?.data?.length > 0")
        boxes = page.evaluate(
            "['.legend', '.legend .muted'].map((s) => document.querySelector(s).getBoundingClientRect())"
        )
        assert boxes[1]["right"] <= boxes[0]["right"]  # long names leave room for the counts
        points = page.evaluate(
            "document.querySelector('[data-testid=map]').data.reduce((sum, trace) => sum + trace.x.length, 0)"
        )
        assert points == 120
        on(page, "tool-lasso").click()
        box = on(page, "map").bounding_box()
        corners = [(0.02, 0.02), (0.98, 0.02), (0.98, 0.98), (0.02, 0.98), (0.02, 0.05)]
        places = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in corners]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=2)
        page.mouse.up()
        on(page, "tile").first.wait_for()
        wait_for_images(page, 10)
        assert "120" in page.locator(".map-chosen").inner_text()
        on(page, "color-label").click()
        page.get_by_text("stripes").first.wait_for()


def test_near_duplicates_show_progress_and_then_groups(page, url):
    answers = iter([("finding images", 1000, 0), ("reading images", 30, 120)])

    def answer(route):
        state = next(answers, None)
        if state is None:
            return route.continue_()
        return route.fulfill(status=202, json=dict(zip(("stage", "done", "total"), state, strict=True)))

    page.route("**/api/duplicates*", answer)
    page.goto(f"{url}/duplicates")
    page.get_by_text("Finding images: 1,000", exact=True).wait_for()
    page.get_by_text("Reading images: 30 of 120", exact=True).wait_for()
    on(page, "groups").wait_for(state="attached")
    page.get_by_text("perceptual hashes differ in at most 12 bits").wait_for()


def test_theme_follows_the_system_until_it_is_set(browser, url):
    background = "getComputedStyle(document.body).backgroundColor"
    with visiting(browser, url, color_scheme="dark") as page:
        page.goto(url)
        dark = page.evaluate(background)
        page.emulate_media(color_scheme="light")
        light = page.evaluate(background)
        assert light != dark
        while page.evaluate("document.documentElement.dataset.theme") != "dark":
            on(page, "theme").click()
        page.reload()
        assert page.evaluate(background) == dark


def test_each_page_fits_a_phone_with_long_names_and_describes_its_images(browser, url, served_run):
    name_clusters(served_run, LONG_NAME, LONG_NAME, LONG_NAME)
    with visiting(browser, url, viewport=PHONE) as page:
        for path, part in PAGES.items():
            page.goto(url + path)
            on(page, part).first.wait_for(state="attached")
            if part == "tile":
                wait_for_images(page, 9)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
            assert page.evaluate("[...document.images].filter((i) => !i.hasAttribute('alt')).length") == 0, path


def test_long_names_leave_room_for_thumbnails(browser, url, served_run):
    name_clusters(served_run, LONG_NAME, LONG_NAME, LONG_NAME)
    with visiting(browser, url) as page:
        page.goto(f"{url}/cluster/0")
        assert on(page, "nearest").locator(".near").first.bounding_box()["height"] < 150
        on(page, "tile").first.locator("a").click(modifiers=["Control"])
        on(page, "move").click()
        assert page.locator("dialog .shot").first.bounding_box()["width"] == 44


def test_messages_are_above_the_selection_bar(browser, url):
    with visiting(browser, url, viewport=PHONE, reduced_motion="reduce") as page:
        page.goto(f"{url}/cluster/0")
        on(page, "rename").click()
        page.keyboard.type("named")
        page.keyboard.press("Enter")
        expect(on(page, "message")).to_be_visible()
        alone = on(page, "message").bounding_box()
        assert alone["y"] + alone["height"] == pytest.approx(PHONE["height"] - 20, abs=1)
        page.get_by_role("button", name="Select", exact=True).click()
        on(page, "tile").first.click()
        bar, message = on(page, "selection").bounding_box(), on(page, "message").bounding_box()
        assert message["y"] + message["height"] <= bar["y"]
        assert bar["height"] < 60  # one line


def test_a_single_cluster_has_no_list_of_nearest_clusters(browser, url, served_run):
    ImageFacts.of(served_run).log.append({"do": "merge", "clusters": [0, 1, 2], "into": 0}, 0)
    with visiting(browser, url) as page:
        page.goto(f"{url}/cluster/0")
        on(page, "tile").first.wait_for()
        assert page.get_by_text("Nearest clusters").count() == 0
        assert on(page, "gallery").bounding_box()["width"] > 1000


def test_file_names_with_html_are_shown_as_text(browser, url, served_run):
    with visiting(browser, url) as page:
        rows = [served_run.paths.index(f"stripes/{name}") for name in HOSTILE]
        for row, name in zip(rows, HOSTILE, strict=True):
            page.goto(f"{url}/image/{row}")
            page.get_by_text(name).first.wait_for()
        for number in {int(served_run.column("labels")[row]) for row in rows}:
            page.goto(f"{url}/cluster/{number}")
            on(page, "tile").first.wait_for()
        page.goto(url)
        on(page, "search").fill(HOSTILE[1])
        page.locator("a[href^='/image/']").first.wait_for()
        assert page.locator("img[src='x']").count() == 0


def test_pages_can_be_used_by_keyboard(page):
    on(page, "card").first.wait_for()
    page.keyboard.press("?")
    on(page, "help").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/cluster/\d+"))
    on(page, "tile").nth(2).wait_for()
    for key in "jjjk":
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.closest('.tile').dataset.index") == "1"
    page.keyboard.press("g")
    page.keyboard.press("m")
    page.wait_for_url(re.compile(r"/map$"))


def test_file_names_are_shown_if_images_are_missing(browser, run, monkeypatch):
    monkeypatch.setattr(run_images, "find_source", lambda *_: None)
    with serving(run) as url:
        context = browser.new_context(viewport=DESKTOP)
        page = context.new_page()
        page.goto(f"{url}/cluster/0")
        on(page, "tile").first.wait_for()
        page.get_by_role("note").wait_for()
        assert shown_images(page) == 0
        context.close()
