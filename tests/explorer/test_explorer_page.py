"""The explorer as a person meets it: a real server, a real browser, real clicks."""

import re
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from bitmosaic import run_pictures
from bitmosaic.explorer.clusters import Pictures
from explored import HOSTILE, serving

LONG_NAME = "A" * 60 + "b" * 60
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 740}
PAGES = ("/", "/cluster/0", "/picture/7", "/map", "/duplicates", "/outliers")


@contextmanager
def visiting(browser, url, expected="", **options):
    """A page that notes every request that would leave the machine, every error but the one expected, every script of
    a stranger."""
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


def shown_pictures(page):
    """How many pictures on the screen have really been drawn."""
    return page.evaluate("[...document.images].filter((i) => i.src.includes('/thumb/') && i.naturalWidth > 0).length")


def wait_for_pictures(page, count):
    page.wait_for_function(
        "(n) => [...document.images].filter((i) => i.src.includes('/thumb/') && i.naturalWidth > 0).length >= n",
        arg=count,
    )


def name_clusters(run, *names):
    log = Pictures.of(run).log
    for number, name in enumerate(names):
        log.append({"do": "name", "cluster": number, "name": name}, number)


def test_the_overview_shows_a_card_for_each_cluster_with_its_pictures(page, run):
    on(page, "card").first.wait_for()
    assert on(page, "card").count() == 3
    wait_for_pictures(page, 24)
    text = page.locator("#main").inner_text()
    assert "stripes" in text
    assert "100" in text  # purity
    assert "NMI" in text
    assert "hog" in text


def test_the_name_of_the_run_is_there_before_any_script(page, url, run):
    assert f'<span id="run-name">{run.folder.name}</span>' in page.request.get(url).text()


def test_cards_are_sorted_and_searched(page):
    on(page, "card").first.wait_for()
    on(page, "sort").select_option("number")
    assert [card.get_attribute("data-cluster") for card in on(page, "card").all()] == ["0", "1", "2"]
    on(page, "search").fill("stripes")
    expect(on(page, "card").filter(visible=True)).to_have_count(1)
    on(page, "search").fill("noise/0012")
    page.locator("a[href^='/picture/']", has=page.locator("img")).first.wait_for()
    assert "noise/0012.png" in page.content()


def test_a_cluster_opens_from_its_card_and_its_gallery_goes_outwards(page, run):
    on(page, "card").first.locator("a").first.click()
    page.wait_for_url(re.compile(r"/cluster/\d+"))
    on(page, "tile").first.wait_for()
    number = int(page.url.rpartition("/")[2])
    rows = [int(tile.get_attribute("data-row")) for tile in on(page, "tile").all()]
    distances = run.column("distances")[rows]
    assert list(distances) == sorted(distances)
    assert set(run.column("labels")[rows]) == {number}
    on(page, "histogram").wait_for()
    assert on(page, "nearest").locator("a[href^='/cluster/']").count() >= 2
    on(page, "views").get_by_text("hog").wait_for()


def test_a_long_gallery_keeps_only_what_is_near_the_screen(browser, run):
    """Everything in one cluster, small screen: scrolling shows the last picture, and the page holds a part of them."""
    Pictures.of(run).log.append({"do": "merge", "clusters": [0, 1, 2], "into": 0}, 0)
    with serving(run) as url, visiting(browser, url, viewport={"width": 400, "height": 300}) as page:
        page.goto(f"{url}/cluster/0")
        on(page, "tile").first.wait_for()
        first = on(page, "tile").first.get_attribute("data-row")
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_function(
            "() => [...document.querySelectorAll('[data-testid=tile]')].some((t) => Number(t.dataset.index) === 119)"
        )
        assert on(page, "tile").count() < 60
        assert on(page, "gallery").locator(f"[data-row='{first}']").count() == 0
        wait_for_pictures(page, 5)


def test_a_picture_shows_its_code_and_its_neighbours(page, url, run):
    page.goto(f"{url}/picture/60")
    on(page, "barcode").wait_for()
    assert run.column("codes")[60].tobytes().hex() in on(page, "barcode").get_attribute("aria-label")
    neighbours = on(page, "neighbours").locator("a[href^='/picture/']")
    neighbours.first.wait_for()
    assert neighbours.count() >= 12
    page.wait_for_function("() => [...document.images].some((i) => i.src.includes('/image/60') && i.naturalWidth > 0)")
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(r"/picture/(?!60$)\d+$"))


def test_clusters_are_merged_undone_and_still_so_after_a_reload(page):
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


def test_a_cluster_is_named_and_the_name_is_only_text(page, url):
    page.goto(f"{url}/cluster/1")
    on(page, "rename").click()
    page.keyboard.type("<img src=x onerror=window.hacked=1>")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="<img src=x onerror=window.hacked=1>").wait_for()
    page.goto(url)
    page.get_by_text("<img src=x onerror=window.hacked=1>").first.wait_for()


def test_pictures_are_moved_to_another_cluster(page, url, run):
    page.goto(f"{url}/cluster/0")
    tile = on(page, "tile").first
    tile.wait_for()
    row = int(tile.get_attribute("data-row"))
    tile.locator("a").click(modifiers=["Control"])
    on(page, "move").first.click()
    page.locator("dialog [data-cluster='1']").click()
    expect(on(page, "gallery").locator(f"[data-row='{row}']")).to_have_count(0)
    assert page.request.get(f"{url}/api/picture/{row}").json()["cluster"] == 1
    assert run.column("labels")[row] == 0


def test_undo_pressed_quickly_takes_back_an_edit_each_time(page, url, run):
    name_clusters(run, "one", "two", "three")
    page.reload()
    page.get_by_text("three").first.wait_for()
    press = "document.dispatchEvent(new KeyboardEvent('keydown', { key: 'u' }))"
    page.evaluate(f"() => {{ for (let i = 0; i < 5; i++) {press}; }}")  # two more than there are edits
    expect(on(page, "undo")).to_be_disabled()
    expect(page.get_by_role("heading", name=re.compile("^Cluster ."))).to_have_count(3)
    assert page.request.get(f"{url}/api/run").json()["edits"]["count"] == 0


def test_a_double_click_makes_an_edit_once(browser, url, run):
    # The page may still ask for the chart of the cluster that has just been merged into another.
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


def test_somebody_else_s_edit_is_told_and_shown(browser, url, run):
    with visiting(browser, url, expected="409") as page:
        page.goto(f"{url}/cluster/1")
        on(page, "rename").wait_for()
        Pictures.of(run).log.append({"do": "name", "cluster": 1, "name": "theirs"}, 0)
        on(page, "rename").click()
        page.keyboard.type("mine")
        with page.expect_response("**/api/edits") as answer:
            page.keyboard.press("Enter")
        assert answer.value.status == 409
        expect(on(page, "message")).to_contain_text("Somebody else")
        expect(page.get_by_label("Name of the cluster")).to_have_value("mine")
        page.keyboard.press("Escape")
        page.get_by_role("heading", name="theirs").wait_for()


def test_the_map_has_every_picture_and_the_lasso_makes_a_gallery(browser, url):
    with visiting(browser, url) as page:
        page.goto(f"{url}/map")
        page.wait_for_function("() => document.querySelector('[data-testid=map]')?.data?.length > 0")
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
            page.mouse.move(*place, steps=8)
        page.mouse.up()
        on(page, "tile").first.wait_for()
        wait_for_pictures(page, 10)
        assert "120" in page.locator(".map-chosen").inner_text()
        on(page, "colour-label").click()
        page.get_by_text("stripes").first.wait_for()


def test_near_duplicates_and_outliers_are_lists_of_pictures(page, url):
    page.goto(f"{url}/outliers")
    on(page, "tile").first.wait_for()
    wait_for_pictures(page, 20)
    page.goto(f"{url}/duplicates")
    on(page, "groups").wait_for()


def test_the_dark_look_is_kept_and_follows_the_system_at_first(browser, url):
    background = "getComputedStyle(document.body).backgroundColor"
    with visiting(browser, url, color_scheme="dark") as page:
        page.goto(url)
        dark = page.evaluate(background)
        page.emulate_media(color_scheme="light")
        light = page.evaluate(background)
        assert light != dark
        while page.evaluate("document.documentElement.dataset.look") != "dark":
            on(page, "look").click()
        page.reload()
        assert page.evaluate(background) == dark


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_of_360_pixels_shows_every_page_without_scrolling_sideways(browser, url, path):
    with visiting(browser, url, viewport=PHONE) as page:
        page.goto(url + path)
        page.locator("#main > *").first.wait_for()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("path", PAGES)
def test_long_names_push_nothing_off_the_page(browser, url, run, path):
    name_clusters(run, LONG_NAME, LONG_NAME, LONG_NAME)
    with visiting(browser, url, viewport=PHONE) as page:
        page.goto(url + path)
        page.locator("#main > *").first.wait_for()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_long_names_leave_room_for_counts_and_thumbnails(browser, url, run):
    name_clusters(run, LONG_NAME, LONG_NAME, LONG_NAME)
    with visiting(browser, url) as page:
        page.goto(f"{url}/map")
        page.locator(".legend button").first.wait_for()
        boxes = page.evaluate(
            "['.legend', '.legend .muted'].map((s) => document.querySelector(s).getBoundingClientRect())"
        )
        assert boxes[1]["right"] <= boxes[0]["right"]
        page.goto(f"{url}/cluster/0")
        assert on(page, "nearest").locator(".near").first.bounding_box()["height"] < 150
        on(page, "tile").first.locator("a").click(modifiers=["Control"])
        on(page, "move").click()
        assert page.locator("dialog .shot").first.bounding_box()["width"] == 44


def test_a_message_stands_at_the_foot_above_the_bar_of_what_is_chosen(browser, url):
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


def test_a_lone_cluster_has_no_list_of_nearest_ones(browser, run):
    Pictures.of(run).log.append({"do": "merge", "clusters": [0, 1, 2], "into": 0}, 0)
    with serving(run) as url, visiting(browser, url) as page:
        page.goto(f"{url}/cluster/0")
        on(page, "tile").first.wait_for()
        assert page.get_by_text("Nearest clusters").count() == 0
        assert on(page, "gallery").bounding_box()["width"] > 1000


@pytest.mark.parametrize("path", PAGES)
def test_every_picture_has_words_for_those_who_cannot_see_it(browser, url, path):
    with visiting(browser, url) as page:
        page.goto(url + path)
        page.wait_for_load_state("networkidle")
        page.locator("#main > *").first.wait_for()
        assert page.evaluate("[...document.images].filter((i) => !i.hasAttribute('alt')).length") == 0


def test_hostile_names_are_plain_text_on_every_page(browser, url, run):
    with visiting(browser, url) as page:
        for name in HOSTILE:
            row = run.paths.index(f"stripes/{name}")
            page.goto(f"{url}/picture/{row}")
            page.get_by_text(name).first.wait_for()
            page.goto(f"{url}/cluster/{run.column('labels')[row]}")
            on(page, "tile").first.wait_for()
        page.goto(url)
        on(page, "search").fill(HOSTILE[1])
        page.locator("a[href^='/picture/']").first.wait_for()
        assert page.locator("img[src='x']").count() == 0


def test_the_keyboard_is_enough(page):
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


def test_a_run_whose_pictures_are_gone_shows_names_instead(browser, run, monkeypatch):
    monkeypatch.setattr(run_pictures, "find_source", lambda *_: None)
    with serving(run) as url:
        context = browser.new_context(viewport=DESKTOP)
        page = context.new_page()
        page.goto(f"{url}/cluster/0")
        on(page, "tile").first.wait_for()
        page.get_by_role("note").wait_for()
        assert shown_pictures(page) == 0
        context.close()
