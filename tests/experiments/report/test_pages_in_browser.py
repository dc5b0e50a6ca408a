"""Pages in a real browser: width, headings, texts for those who do not see, sorting, contrast, print."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
from experiments.studies.test_studies import FILE, STUDY_RUN, result
from experiments.synthetic_results import synthetic_rows, write_rows

from forktask.experiments.report import files
from forktask.experiments.studies.configuration import read_study
from forktask.experiments.studies.report import write_study_report
from forktask.experiments.studies.running import StudyResults

pytestmark = pytest.mark.browser
PAGES = ("compare", "sweep", "study")
WIDTHS = (400, 1280)
A4_WIDTH = 703  # CSS pixels between the margins of the printed page

# What sticks out of the page, though no box scrolls it.
STICKS_OUT = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter(e => !e.closest(".wide > *") && !e.closest("svg")
  && e.getBoundingClientRect().width && e.getBoundingClientRect().right > wide + 1).map(e => e.outerHTML.slice(0, 80));
"""
CUT_OFF = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll("td, th, svg")].filter(e => !e.closest("nav")
  && e.getBoundingClientRect().right > wide + 1).map(e => e.outerHTML.slice(0, 80));
"""
# First columns that go away where a table is scrolled sideways.
FIRST_MOVED = """
const wide = [...document.querySelectorAll(".wide")];
const boxes = wide.filter(e => e.scrollWidth > e.clientWidth && e.querySelector("td"));
boxes.forEach(e => e.scrollLeft = e.scrollWidth);
return boxes.filter(e => e.clientWidth && Math.abs(e.querySelector("td").getBoundingClientRect().left
  - e.getBoundingClientRect().left) > 1).map(e => e.ariaLabel);
"""
NAMELESS = """
return [...document.querySelectorAll("img, svg[role], canvas, iframe, body > * svg:not(svg svg)")].filter(e =>
  !(e.getAttribute("aria-label") || e.getAttribute("alt") || e.title || "").trim()).map(e => e.outerHTML.slice(0, 80));
"""
# Ratio of luminances of each text and what it stands on (WCAG 2.2).
FAINT = """
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const light = color => { const [r, g, b] = rgb(color).slice(0, 3).map(v => (v /= 255) <= 0.04045 ? v / 12.92
  : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if ((rgb(c)[3] ?? 1) > 0) return c; } return "rgb(255, 255, 255)"; };
const found = [];
for (const e of document.querySelectorAll("body *")) {
  if (e.closest("svg, script, style") || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) found.push(e.outerHTML.slice(0, 80));
}
return [getComputedStyle(document.body).backgroundColor, found];
"""


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    names = ("headless=new", "disable-gpu", "disable-dev-shm-usage", "disable-background-networking", "no-first-run")
    for name in (*names, *(["no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(f"--{name}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Path of each kind of page; the one of `compare` with a plan, the one of a sweep with four."""
    found = {}
    for name, axes in (("compare", {"failures": True}), ("sweep", {"batches": (16, 64), "granularities": (4, 16)})):
        folder = write_rows(tmp_path_factory.mktemp(name), synthetic_rows(**axes, profiles=1, repeats=7))
        found[name] = files.write_report(folder)
    folder = tmp_path_factory.mktemp("study")
    (folder / "small.toml").write_text(FILE)
    study = read_study(folder / "small.toml")
    runs = [run for run in study.trainings() if run.axes["batch"] == 32]
    write_study_report(StudyResults(study, [(run, result("a")) for run in runs], STUDY_RUN), folder)
    found["study"] = folder / "report.html"
    return found


def show(browser, page, width=1280, media="screen", scheme="light"):
    """Open a page at a width."""
    setting = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", setting)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.get(Path(page).as_uri())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_sticks_out_of_the_page(name, width, browser, pages):
    """Check that the page does not scroll sideways, and that tables and figures scroll in boxes of their own."""
    show(browser, pages[name], width)
    assert browser.execute_script(STICKS_OUT) == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    if width < 500:
        boxes = "return [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        assert browser.execute_script(boxes) > 0
        assert browser.execute_script(FIRST_MOVED) == []
    assert browser.execute_script("return document.querySelectorAll('table').length") == browser.execute_script(
        "return document.querySelectorAll('.wide > table').length"
    )


@pytest.mark.parametrize(("width", "height"), [(400, 800), (1280, 800)])
def test_answers_stand_on_the_first_screen(width, height, browser, pages):
    """Check that the table of answers comes first at any width, and is whole on a wide screen beside the figure."""
    show(browser, pages["compare"], width)
    place = "const b = document.querySelector('{}').getBoundingClientRect(); return [b.top, b.bottom];"
    top, bottom = browser.execute_script(place.format(".answers table"))
    figure = browser.execute_script(place.format(".answers > figure"))[0]
    assert top < height / 2 and (figure >= bottom if width < 500 else bottom <= height and figure < height / 2)


@pytest.mark.parametrize("name", PAGES)
def test_headings_and_images_can_be_read_aloud(name, browser, pages):
    """Check one first heading, no level left out, and a text for every picture, frame and table."""
    show(browser, pages[name])
    levels = browser.execute_script("return [...document.querySelectorAll('h1, h2, h3, h4')].map(e => +e.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert browser.execute_script(NAMELESS) == []
    assert browser.execute_script("return document.querySelectorAll('table:not([aria-label])').length") == 0
    assert browser.execute_script("return document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_text_has_contrast(name, scheme, browser, pages):
    """Check at least 4.5 to 1 between each text and what it stands on, and that dark is dark."""
    show(browser, pages[name], scheme=scheme)
    ground, found = browser.execute_script(FAINT)
    assert found == []
    brightness = max(int(value) for value in ground.removeprefix("rgb(").removesuffix(")").split(",")[:3])
    assert brightness < 80 if scheme == "dark" else brightness > 200


def test_tables_sort(browser, pages):
    """Check that a heading sorts its column by value, units included, and again the other way round."""
    show(browser, pages["compare"])
    table = "[...document.querySelectorAll('table')].find(t => t.tHead.textContent.includes('speedup'))"
    column = f"[...{table}.tHead.rows[0].cells].findIndex(c => c.textContent === 'time')"
    press = f"{table}.tHead.rows[0].cells[{column}].querySelector('button').click();"
    cells = f"[...{table}.tBodies[0].rows].map(r => r.cells[{column}].textContent)"
    read = f"return [{table}.tHead.rows[0].cells[{column}].ariaSort, {cells}]"
    units = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}

    def seconds(texts):
        return [float(text.split()[0]) * units[text.split()[1]] for text in texts]

    _, before = browser.execute_script(read)
    order, after = browser.execute_script(press + read)
    assert order == "ascending" and seconds(after) == sorted(seconds(before)) != seconds(before)
    order, after = browser.execute_script(press + read)
    assert order == "descending" and seconds(after) == sorted(seconds(before), reverse=True)


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_off_in_print(name, browser, pages):
    """Check that all columns of all tables lie on a printed page, folded parts included, and that it prints."""
    show(browser, pages[name], A4_WIDTH, media="print", scheme="dark")
    assert browser.execute_script(CUT_OFF) == []
    assert browser.execute_script("return getComputedStyle(document.body).color") in ("rgb(0, 0, 0)", "rgb(26, 26, 26)")
    hidden = "return [...document.querySelectorAll('td')].filter(e => !e.getBoundingClientRect().height).length"
    assert browser.execute_script(hidden) == 0
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert len(printed) > 10_000
