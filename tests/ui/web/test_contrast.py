"""Every page can be read by who sees little, and told to who listens: contrast and names, in both themes."""

from pathlib import Path

import pytest

from tests.ui.web.browser import NEEDS_BROWSER, Tab
from tests.ui.web.conftest import visited
from unstable_stream.api.place import Place
from unstable_stream.events import game_id

pytestmark = [pytest.mark.longer, NEEDS_BROWSER]

_GAME = game_id("run-a", "eval", 12)
_PAGES = (
    "",
    "runs/run-a",
    "compare?run=run-a&run=run-b",
    "games",
    f"games/{_GAME}",
    f"games/{_GAME}?beside={game_id('run-a', 'eval', 4)}",
    "sql?q=FROM+runs",
    "why?of=run-a:update:3",
    "what-if?run=run-a",
    "play",
    "nothing",
)
# WCAG 2.2, success criterion 1.4.3: 4.5 for text, 3 for large text, by the relative luminance of the computed
# colours. Elements whose own text is not shown, or that are disabled, do not count.
_TOO_FAINT = """(() => {
  const parsed = (colour) => {
    const parts = colour.match(/[\\d.]+/g).map(Number);
    return parts.length < 4 ? [...parts, 1] : parts;
  };
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3]));
  const luminance = (colour) => colour.map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.push(parsed(getComputedStyle(each).backgroundColor));
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility()) { continue; }
    if (element.closest("svg, canvas, :disabled, .skip, .u-plot")) { continue; }
    const style = getComputedStyle(element), back = behind(element);
    const front = over(parsed(style.color), back);
    const [light, dark] = [luminance(front), luminance(back)].sort((one, other) => other - one);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < (large ? 3 : 4.5)) {
      const says = element.textContent.trim().slice(0, 40);
      found.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)} ${says}`);
    }
  }
  return [...new Set(found)];
})()"""
_NAMELESS = """(() => {
  const named = (element) => element.getAttribute("aria-label") || element.title || element.labels?.length
    || element.innerText?.trim() || element.querySelector?.("[aria-label]");
  const wanted = "button, a[href], input:not([type=hidden]), select, textarea, [role=img]";
  const found = [...document.querySelectorAll(wanted)]
    .filter((element) => element.checkVisibility() && !named(element))
    .map((element) => element.outerHTML.slice(0, 120));
  if (document.querySelectorAll("h1").length < 1) { found.push("no heading"); }
  if (!document.documentElement.lang || !document.title) { found.push("no language or title"); }
  for (const image of document.querySelectorAll("img:not([alt])")) { found.push(image.outerHTML); }
  return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_and_everything_has_a_name(browser: Tab, data: Path, scheme: str) -> None:
    browser.prefer(scheme)
    found = {}
    with visited(browser, Place.at(data)) as base:
        for path in _PAGES:
            browser.go(base + path)
            if problems := [*browser.ask(_TOO_FAINT), *browser.ask(_NAMELESS)]:
                found[path] = problems
    assert found == {}
