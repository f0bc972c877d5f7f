"""The pages in a real browser: no error, no request, no text that cannot be read, everything by keyboard."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from ipexctl.act.context import Context
from ipexctl.act.page_server import serve_page
from ipexctl.act.ssh import Links
from ipexctl.decide.page.compare import compare_runs, overlay_figures
from ipexctl.model import events as e
from ipexctl.model.errors import Exit
from ipexctl.show.page.render import render_comparison, render_run
from ipexctl.store.masking import Masker
from ipexctl.verbs.common.known_errors import read_known_errors
from ipexctl.verbs.run.report import MaskedFold
from ipexctl.verbs.run.serve import LivePage
from tests.browser.driver import Browser, start_browser
from tests.unit.page.runs import KINDS, fold_page, make_doctor, make_run
from tests.unit.page.test_build import list_runs, read_recorded
from tests.unit.page.test_compare import make_other
from tests.unit.show.answers import ANSWERS
from tests.unit.show.streams import names

RECORDED = ("slow-host", "nan", "cable", "exception", "loader")  # runs on separate hosts, in tests/data/screens
# Text whose contrast with what is behind it is below WCAG's AA: 4.5, or 3 for large text. Of equal ones the first.
CONTRAST = """
document.querySelectorAll("details").forEach((each) => { each.open = true; });
const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return {r, g, b, a}; };
const linear = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const light = ({r, g, b}) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((m, n) => n - m); return (x + 0.05) / (y + 0.05); };
const behind = (element) => {
  if (element.matches("svg text") && /on-h/.test(element.className.baseVal))
    return parse(getComputedStyle(element.previousElementSibling).fill);
  for (let each = element; each; each = each.parentElement) {
    const colour = parse(getComputedStyle(each).backgroundColor);
    if (colour.a > 0) return colour;
  }
  return {r: 255, g: 255, b: 255, a: 1};
};
const seen = new Map(), bad = [];
for (const element of document.querySelectorAll("body *")) {
  const nodes = Array.from(element.childNodes).filter((node) => node.nodeType === 3);
  const text = nodes.map((node) => node.data).join("").trim();
  if (!text || element.matches("script, style, title") || !element.checkVisibility()) continue;
  const style = getComputedStyle(element), svg = element.matches("svg text");
  const colour = parse(svg ? style.fill : style.color), back = behind(element);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.6 && Number(style.fontWeight) >= 700);
  const key = JSON.stringify([colour, back, large]);
  if (seen.has(key)) continue;
  seen.set(key, true);
  const value = ratio(colour, back);
  const kind = element.className.baseVal ?? element.className;
  if (value < (large ? 3 : 4.5)) bad.push([element.tagName, kind, text.slice(0, 30), value]);
}
return {seen: seen.size, bad};
"""
# Lines and areas that carry a meaning, against the page: WCAG asks for 3.
GRAPHICS = """
const linear = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b); };
const back = light(getComputedStyle(document.body).backgroundColor);
const bad = [];
for (const [selector, property] of [[".plot polyline", "stroke"], ["rect.s-running", "fill"], ["rect.s-odd", "fill"],
                                    ["svg .m-failed", "fill"]])
  for (const element of document.querySelectorAll(selector)) {
    const front = light(getComputedStyle(element)[property]);
    const value = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (value < 3) bad.push([selector, element.className.baseVal, value]);
  }
return bad;
"""


# axe-core, without what needs a person to judge.
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
FINDINGS = """
const done = arguments[arguments.length - 1];
const shorten = (each) => [each.id, each.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))];
axe.run(document, {resultTypes: ["violations"]})
  .then((found) => done(found.violations.map(shorten)), (error) => done(String(error)));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with start_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of all kinds of runs, with 2 ranks, of a failed and a good one with 64, and of real ones."""
    directory = tmp_path_factory.mktemp("pages")
    made = {}
    for kind, ranks, hosts in [*((kind, 2, 2) for kind in KINDS), ("good", 64, 8), ("failed", 64, 8)]:
        page = fold_page(make_run(kind, ranks, hosts), make_doctor(names(hosts)))
        made[f"{kind}-{ranks}"] = directory / f"{kind}-{ranks}.html"
        made[f"{kind}-{ranks}"].write_text(render_run(page), encoding="utf-8")
    for name in RECORDED:
        made[name] = directory / f"{name}.html"
        made[name].write_text(render_run(fold_page(read_recorded(name))), encoding="utf-8")
    study = next(answer for name, _, _, answer in ANSWERS if name == "tune")
    made["study"] = directory / "study.html"
    made["study"].write_text(render_run(replace(fold_page(list_runs()), study=study)), encoding="utf-8")
    runs = [("a", fold_page(make_run("good"))), ("b", fold_page(make_other()))]
    made["comparison"] = directory / "comparison.html"
    made["comparison"].write_text(render_comparison(compare_runs(runs), overlay_figures(runs)), encoding="utf-8")
    return made


def check_page(browser: Browser, url: str) -> None:
    """What holds of every page that was just opened."""
    errors = [entry["message"] for entry in browser.read_log("browser")]
    assert not errors
    asked = [request for request in browser.list_requests() if not request.startswith("data:")]
    assert asked == [url]
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    contrast: Any = browser.run(CONTRAST)
    assert contrast["seen"] > 2
    assert not contrast["bad"]
    assert not browser.run(GRAPHICS)
    assert browser.run("return document.querySelectorAll('script').length") == 1


def test_the_launches_of_a_study_are_lines_and_no_areas(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["study"].as_uri())
    fills = browser.run("return [...document.querySelectorAll('polyline.launch')].map(e => getComputedStyle(e).fill)")
    assert set(fills) == {"none"}


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1400, True)], ids=["narrow-light", "wide-dark"])
@pytest.mark.parametrize(
    "name", [*(f"{kind}-2" for kind in KINDS), "good-64", "failed-64", "comparison", "study", *RECORDED]
)
def test_a_page_is_whole_readable_and_asks_for_nothing(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.show(pages[name].as_uri(), width=width, dark=dark)
    check_page(browser, pages[name].as_uri())
    if not name.endswith("-64"):  # which has more of the same: 20 s of work
        browser.run(AXE)
        assert browser.wait_for(FINDINGS) == []


def test_the_checks_see_what_they_look_for(browser: Browser, tmp_path: Path) -> None:
    planted = tmp_path / "planted.html"
    wide = '<p style="width: 3000px; color: #999; background: #fff">pale</p>'
    planted.write_text(f'<body>{wide}<img src="http://127.0.0.1:9/x.png"><script>console.error("planted")</script>')
    browser.show(planted.as_uri())
    assert [entry for entry in browser.read_log("browser") if "planted" in entry["message"]]
    assert "http://127.0.0.1:9/x.png" in browser.list_requests()
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") > 0
    contrast: Any = browser.run(CONTRAST)
    assert [words for _, _, words, _ in contrast["bad"]] == ["pale"]
    browser.run(AXE)
    assert "image-alt" in [name for name, _ in browser.wait_for(FINDINGS)]


def test_the_page_is_used_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["good-64"].as_uri())
    browser.run("document.getElementById('find').focus()")
    browser.press(*"UserWarning")
    assert browser.run("return document.getElementById('hits').textContent") == "1 lines"
    shown = "return [...document.querySelectorAll('.log')].filter((log) => !log.hidden).map((log) => log.id)"
    assert browser.run(shown) == ["rank-0"]
    browser.press("Escape")
    assert len(browser.run(shown)) == 64
    assert browser.run("return document.activeElement.tagName") == "BODY"
    browser.run("document.querySelector('.plot').focus()")
    browser.press("ArrowRight")
    readout = "return document.querySelector('.plot').closest('figure').querySelector('.readout').textContent"
    first = browser.run(readout)
    assert "rank" in first
    browser.press(*["ArrowRight"] * 10)
    assert browser.run(readout) != first
    assert not browser.read_log("browser")


def test_tab_reaches_every_part_and_what_has_the_focus_is_marked(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["hang-2"].as_uri())
    reached = []
    for _ in range(80):
        browser.press("Tab")
        reached.append(browser.run("return document.activeElement.tagName + '.' + document.activeElement.className"
                                   " + document.activeElement.id"))  # fmt: skip
        if reached[-1].startswith("BODY"):
            break
        assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
    names = " ".join(str(name) for name in reached)
    for part in ("A.", "SUMMARY.", "DIV.scroll", "INPUT.find", "svg.", "INPUT.harmless"):
        assert part in names


def test_a_click_on_the_time_axis_opens_the_ranks_log_at_that_moment(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["good-64"].as_uri())
    box = browser.run("const box = document.querySelector('.rows').getBoundingClientRect();"
                      "return [box.left, box.top, box.width]")  # fmt: skip
    browser.click(box[0] + box[2] / 2, box[1] + 3 * 20 + 10)
    assert browser.run("return document.querySelector('.current').closest('details').id") == "rank-3"
    moment = browser.run("return document.querySelector('.current').dataset.t")
    assert "00:00:30.0" <= moment <= "00:00:33.0"


WINDOW = "return document.querySelector('.window:not([hidden])')?.innerText ?? ''"
TICKS = "return [...document.querySelectorAll('.axis text')].map((each) => each.textContent)"
BOX = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.left, box.top, box.width]"
LOSS = "return document.querySelector('#figures .plot svg').getAttribute('viewBox')"


def test_the_time_axis_is_zoomed_by_keys_on_all_drawings_at_once(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["good-64"].as_uri())
    places = (
        "return [...document.querySelectorAll('.rows rect')].map((r) => r.getAttribute('x') + r.getAttribute('width'))"
    )
    before = browser.run(places)
    whole = browser.run(TICKS)
    assert browser.run(WINDOW) == ""
    browser.run("document.querySelector('#figures .plot').focus()")
    browser.press("+", "+")
    assert browser.run(WINDOW).startswith("00:00:2")
    assert browser.run(LOSS) == "375 -3 250 126"
    assert (
        browser.run("return document.querySelector('#resources .plot svg').getAttribute('viewBox')") == "375 -3 250 126"
    )
    assert browser.run(TICKS) != whole
    readout = browser.run("return document.querySelector('#figures .readout').textContent")
    browser.press(*["ArrowRight"] * 60)  # beyond the right edge: the window goes along
    assert browser.run(LOSS) != "375 -3 250 126"
    assert browser.run("return document.querySelector('#figures .readout').textContent") > readout
    browser.press(*["+"] * 30)
    assert len(browser.run(TICKS)) > 1  # a hundredth of a second
    browser.press("-")
    browser.press("0")
    assert browser.run(WINDOW) == ""
    assert (browser.run(LOSS), browser.run(TICKS)) == ("0 -3 1000 126", whole)
    rounded = "return arguments[0].map((text) => text.split('%').map((each) => Math.round(each * 1e4)).join(' '))"
    assert browser.run(rounded, browser.run(places)) == browser.run(rounded, before)
    browser.run("document.querySelector('.scroll').focus()")
    browser.press("+")
    assert browser.run(LOSS).split()[2] == "500"
    assert not browser.read_log("browser")


def test_the_time_axis_is_zoomed_by_drawing_over_a_part_of_it(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["good-64"].as_uri())
    left, top, width = browser.run(BOX, ".rows")
    browser.drag((left + width / 4, top + 30), (left + width / 2, top + 30))
    assert browser.run("return document.querySelectorAll('.log[open], .select').length") == 0  # no click, no area left
    begin, _, extent, _ = map(float, browser.run(LOSS).split())
    assert [begin, extent] == pytest.approx([250, 250], abs=2)
    browser.click(left + width - 2, top + 30)  # a click is that moment of the window
    assert "00:00:29.0" <= browser.run("return document.querySelector('.current').dataset.t") <= "00:00:33.0"
    check_page(browser, pages["good-64"].as_uri())
    browser.run("document.querySelector('.window button').focus()")
    browser.press("Enter")
    assert browser.run(LOSS) == "0 -3 1000 126"
    assert browser.run("return document.activeElement.className") == "scroll"
    left, top, width = browser.run("document.querySelector('#figures .plot').scrollIntoView();" + BOX, "#figures .plot")
    browser.drag((left + width / 2, top + 60), (left + width + 50, top + 60))  # beyond the chart
    assert float(browser.run(LOSS).split()[0]) == pytest.approx(500, abs=2)


def test_without_its_script_a_page_still_says_everything(browser: Browser, pages: dict[str, Path]) -> None:
    browser.send_command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.show(pages["failed-2"].as_uri())
        text = browser.run("return document.body.textContent")
    finally:
        browser.send_command("Emulation.setScriptExecutionDisabled", value=False)
    assert "rank 1 on xeon02 exited with code 1" in text
    assert re.search(r"loss \d\.\d{4} \d\.\d\d it/s", text)


def wait_for(browser: Browser, script: str, wanted: object) -> None:
    """Until the script returns what is wanted; the test's own limit ends the wait."""
    while browser.run(script) != wanted:
        time.sleep(0.1)


def test_a_page_that_is_served_renews_itself_to_the_end_of_the_run(browser: Browser, tmp_path: Path) -> None:
    page = LivePage(MaskedFold(Masker({}), read_known_errors), Context(Links(), tmp_path, tmp_path))
    stream = [stamped.event for stamped in make_run("good")]
    for event in stream[:200]:
        page.handle_event(event)
    with serve_page(("127.0.0.1", 0), page.draw) as url:
        browser.show(url)
        assert "running" in browser.run("return document.querySelector('.head').textContent")
        for event in [*stream[200:], e.Ended("run", Exit.OK)]:
            page.handle_event(event)
        wait_for(browser, "return document.body.dataset.renew ?? ''", "")
        assert "ended well" in browser.run("return document.querySelector('.head').textContent")
        assert not browser.read_log("browser")
        assert set(browser.list_requests()) == {url}
        assert not browser.run(CONTRAST)["bad"]
        browser.run("location = 'about:blank'")
