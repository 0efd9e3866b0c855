"""The page, opened in a real browser that has no network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from report_cases import FACTORS, HOSTILE, METRICS, about, array, finding

from persona_mlflow.analyses.entry import Finding
from persona_mlflow.errors import UserError
from persona_mlflow.report import write_report
from persona_mlflow.report.write import PAGE, report_files
from servers import chromium_page

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

MODELS = ("llama8b", "a model with <b>&amp; and $x_1$ in its name")
SMALLEST = 9.0

SMALL_TEXTS = """() => [...document.querySelectorAll('figure svg')].flatMap(svg => {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return [...svg.querySelectorAll('text')]
    .map(text => [parseFloat(getComputedStyle(text).fontSize) * scale, text.textContent]);
})"""
OVERLAPS = """() => [...document.querySelectorAll('figure svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].filter(text => text.textContent.trim());
  const boxes = texts.map(text => text.getBoundingClientRect());
  const found = [];
  boxes.forEach((a, i) => {
    if (a.left < frame.left - 2 || a.right > frame.right + 2
        || a.top < frame.top - 2 || a.bottom > frame.bottom + 2)
      found.push(['outside', texts[i].textContent]);
    boxes.slice(i + 1).forEach((b, k) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const along = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 2 && along > 3) found.push([texts[i].textContent, texts[i + 1 + k].textContent]);
    });
  });
  return found;
})"""
SCROLLING = """() => [...document.querySelectorAll('.scroll')]
  .filter(box => box.scrollWidth > box.clientWidth + 1).length"""
WIDEST = """() => Math.max(...[...document.querySelectorAll('figure svg')]
  .map(svg => svg.getBoundingClientRect().width))"""
CONTRASTS = """() => {
  const channel = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const luminance = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(colour) && colour !== 'transparent') return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  // The numbers in cells stand on the cells' own colours.
  const own = new Set(['rgb(0, 0, 0)', 'rgb(255, 255, 255)']);
  const found = [];
  const words = 'p, li, h1, h2, h3, dt, dd, a, th, td span, code, caption, figcaption, summary, svg text';
  for (const e of document.querySelectorAll(words)) {
    const style = getComputedStyle(e);
    const colour = e.closest('svg') ? style.fill : style.color;
    if (e.closest('svg') && own.has(colour)) continue;
    const [a, b] = [luminance(colour), luminance(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push([ratio, colour, e.textContent.slice(0, 40)]);
  }
  return found;
}"""


def findings() -> list[Finding]:
    """Every kind of section."""
    model = {"model": list(MODELS)}
    quantities = ["accuracy, mean", "I_A accuracy", "I_Q question"]
    chance = array({**model, "metric": METRICS, "part": ["all settings", "ppf alone"]}, 2, 0.01, 0.1)
    chance = chance.assign(floor=chance["value"] / 2, p=chance["value"] / 1000)
    undefined = array({**model, "metric": METRICS, "factor": FACTORS}, 3)
    undefined["value"][0, 1, 1] = np.nan
    undefined["reason"] = undefined["value"].dims, np.full(undefined["value"].shape, "", dtype=object)
    undefined["reason"][0, 1, 1] = "one setting gives no pairs"
    claims = array({**model, "claim": ["Temperature 0 is the most stable"]}, 4)
    claims = claims.assign(verdict=(("model", "claim"), [["holds"], ["undecided"]]))
    size = [f"setting {i}" for i in range(40)]
    return [
        finding(
            "overview", array({**model, "quantity": quantities}), columns=("quantity",), title=HOSTILE[0]
        ),
        finding(
            "chance", chance, rows=("part",), columns=("metric",), figure="intervals", show={"floor": "floor"}
        ),
        finding(
            "single-factor",
            undefined,
            columns=("factor",),
            figure="heatmap",
            brighter="more stable",
            reasons={"third": "takes two levels or more"},
            notes={MODELS[0]: "The grid lacks temperature 1."},
        ),
        finding("claims", claims, rows=("claim",), columns=("model",), show={"verdict": "verdict"}),
        finding(
            "contrast",
            array({**model, "setting": ["τ 0", "τ 1"], "persona": HOSTILE}),
            rows=("persona",),
            columns=("model", "setting"),
            figure="distribution",
        ),
        finding(
            "pairs",
            array({"model": [MODELS[0]], "setting": size, "other": size}),
            rows=("setting",),
            columns=("other",),
            figure="heatmap",
            show={"p": "p"},
        ),
        finding(
            "repeat", None, reasons=dict.fromkeys(MODELS, "takes a repeat factor with two levels or more")
        ),
    ]


@dataclass
class Opened:
    """The page in the browser, with all that the browser asked for and complained of."""

    page: Page
    path: Path
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(
        findings(), about(MODELS, warnings=["<img src=x onerror=alert(1)>"]), tmp_path_factory.mktemp("r")
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium_page(1200, 900) as page:
        yield page


@pytest.fixture
def opened(browser: Page, written: Path) -> Iterator[Opened]:
    found = Opened(browser, written)

    def only_files(route: Route) -> None:
        found.asked.append(route.request.url)
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            route.abort()

    browser.context.set_offline(True)
    browser.context.route("**/*", only_files)
    handlers: dict[str, Any] = {
        "console": lambda message: found.said.append(message.text),
        "pageerror": lambda error: found.said.append(str(error)),
        "dialog": lambda dialog: (found.said.append("dialog"), dialog.dismiss()),
    }
    for event, handler in handlers.items():
        browser.on(event, handler)  # type: ignore[call-overload]
    browser.emulate_media(color_scheme="light", media="screen")
    browser.set_viewport_size({"width": 1200, "height": 900})
    browser.goto(written.as_uri())
    yield found
    for event, handler in handlers.items():
        browser.remove_listener(event, handler)
    browser.context.unroute("**/*", only_files)


@pytest.mark.slow
def test_it_opens_without_a_network_and_shows_every_analysis_in_its_place(opened: Opened) -> None:
    page = opened.page
    assert opened.asked == [opened.path.as_uri()]
    assert opened.said == []
    order = page.evaluate("() => [...document.querySelectorAll('section')].map(s => s.id)")
    assert order == ["claims", "overview", "chance", "single-factor", "contrast", "pairs", "repeat"]
    links = page.evaluate("() => [...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))")
    assert links == [f"#{key}" for key in order[1:]]
    for item in findings():
        section = page.locator(f"section#{item.entry.key}")
        assert section.locator("h2").inner_text() == item.entry.title
        assert item.entry.reference in section.inner_text()
        assert section.locator("figure svg").count() == (
            item.entry.figure is not None and item.data is not None
        )
    assert page.locator("h1").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("script, iframe, link[rel=stylesheet], img").count() == 0


@pytest.mark.slow
def test_it_says_what_is_undefined_impossible_or_to_be_known(opened: Opened) -> None:
    text = {key: opened.page.locator(f"#{key}").inner_text() for key in ("repeat", "single-factor", "pairs")}
    assert "Not possible on this grid: takes a repeat factor with two levels or more" in text["repeat"]
    assert "one setting gives no pairs" in text["single-factor"]
    assert "Not possible on this grid: third: takes two levels or more" in text["single-factor"]
    assert "llama8b: The grid lacks temperature 1." in text["single-factor"]
    assert "too large for a page" in text["pairs"]
    assert "tables/pairs.csv" in text["pairs"]
    top = opened.page.locator("header").inner_text()
    assert "<img src=x onerror=alert(1)>" in top
    assert "1,968" in top
    headline = opened.page.locator("#headline").inner_text()
    assert "by chance 0.0" in headline
    assert "p < 0.001" in headline


@pytest.mark.slow
def test_text_in_figures_is_read_at_nine_pixels_or_more_and_meets_no_other(opened: Opened) -> None:
    sizes = opened.page.evaluate(SMALL_TEXTS)
    assert len(sizes) > 100
    assert [item for item in sizes if item[0] < SMALLEST] == []
    assert opened.page.evaluate(OVERLAPS) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_it_does_not_scroll_sideways_but_its_wide_parts_do(opened: Opened, width: int) -> None:
    page = opened.page
    page.set_viewport_size({"width": width, "height": 780})
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    assert page.evaluate(SCROLLING) > (3 if width == 360 else -1)
    assert page.evaluate("() => [...document.querySelectorAll('.scroll')].every(b => b.tabIndex === 0)")
    # Unfolded tables, too.
    page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("() => document.documentElement.scrollWidth") == width


@pytest.mark.slow
def test_light_and_dark_differ_and_both_stand_out(opened: Opened) -> None:
    page = opened.page
    colours = {}
    page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRASTS) == []
        colours[scheme] = page.evaluate(
            "() => [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('figure svg text')).fill,"
            " getComputedStyle(document.querySelector('figure svg .none, figure svg path')).fill]"
        )
    assert all(a != b for a, b in zip(colours["light"], colours["dark"], strict=True)), colours


@pytest.mark.slow
def test_it_prints(opened: Opened, tmp_path: Path) -> None:
    page = opened.page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("() => getComputedStyle(document.body).color") == "rgb(27, 28, 31)"
    page.set_viewport_size({"width": 1032, "height": 720})
    assert page.evaluate(WIDEST) <= 1032
    page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_two_calls_write_the_same_bytes(written: Path, tmp_path: Path) -> None:
    again = write_report(findings(), about(MODELS, warnings=["<img src=x onerror=alert(1)>"]), tmp_path)
    first, second = (
        {p.relative_to(page.parent): p.read_bytes() for p in report_files(page)} for page in (written, again)
    )
    assert first == second
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()} == set(first)
    assert len(first) == 1 + 6 * 3 + 4 * 2


def test_an_interrupt_leaves_the_former_report(tmp_path: Path) -> None:
    some = findings()[:3]
    page = write_report(some, about(MODELS), tmp_path)
    before = {path: path.read_bytes() for path in report_files(page)}

    def interrupt(title: str) -> None:
        if title == some[2].entry.title:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_report([finding("overview", None), *some[1:]], about(MODELS), tmp_path, progress=interrupt)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_files_of_the_former_report_go_and_those_of_others_stay(tmp_path: Path) -> None:
    write_report(findings()[:3], about(MODELS), tmp_path)
    mine = tmp_path / "figures" / "mine.svg"
    mine.write_text("mine")
    page = write_report(findings()[:2], about(MODELS), tmp_path)
    assert not (tmp_path / "figures" / "single-factor.svg").exists()
    assert mine.read_text() == "mine"
    assert mine not in report_files(page)


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--output .*file.*name another folder"):
        write_report(findings()[:1], about(MODELS), tmp_path / "file")
    with pytest.raises(UserError, match="two analyses have this key"):
        write_report([findings()[0]] * 2, about(MODELS), tmp_path / "r")
    assert not (tmp_path / "r" / PAGE).exists()


def test_facts_that_all_models_share_stand_once(tmp_path: Path) -> None:
    facts = about(MODELS)
    facts[MODELS[1]]["questions"] = 77
    text = write_report(findings()[:1], facts, tmp_path).read_text()
    assert text.count("<dd>1,968</dd>") == 1
    assert "<dd>5,008</dd>" in text
    assert "<dd>77</dd>" in text
    assert "<h3>llama8b</h3>" in text
    alike = write_report(findings()[:1], about(MODELS), tmp_path).read_text()
    assert alike.count("<h3>") == 1
