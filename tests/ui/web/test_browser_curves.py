"""The toolbar and the buttons of plots in a real browser."""

import base64
import csv
import operator
import time
from pathlib import Path

import pytest

from tests.archive.history import START_MS, made_up_run, stored
from tests.builders import made
from tests.history.views.conftest import ATTACK
from tests.places import archived
from tests.ui.web.browser import NEEDS_BROWSER, Tab, mouse
from tests.ui.web.conftest import visited
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter
from unstable_stream.events import Metrics

pytestmark = [pytest.mark.longer, NEEDS_BROWSER]

_LOSS = "document.querySelector('figure[data-key=loss]')"
_PLOT = "plots.drawn.loss.plot"
_SEEN = "Array.from(document.querySelectorAll('figure:not([hidden]) h3'), each => each.innerText)"
_WRONG = "document.querySelector('[data-wrong]')"
_STORAGE_BLOCKED = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('blocked'); } })"


def _drawn(tab: Tab, address: str) -> None:
    tab.go(address)
    tab.wait(f"{_LOSS} !== null")
    tab.ask(f"{_LOSS}.scrollIntoView({{ behavior: 'instant' }})")
    tab.wait(f"{_LOSS}.dataset.drawn !== undefined")


def _choose(tab: Tab, control: str, value: object) -> None:
    tab.ask(
        f"{{ const control = document.querySelector('[data-{control}]'); control.value = {value!r};"
        "control.dispatchEvent(new Event('input')); control.dispatchEvent(new Event('change')); }"
    )


def _press(tab: Tab, key: str, text: str) -> None:
    tools = f"document.querySelectorAll('figure[data-key={key}] .tools > *')"
    tab.ask(f"Array.from({tools}).find(each => each.innerText === '{text}').click()")


def test_a_chosen_view_outlives_a_refresh_and_a_link_restores_it(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored(made_up_run("run-c", updates=12))
    state = (
        "JSON.stringify(['smoothing', 'filter'].map(each => document.querySelector(`[data-${each}]`).value)"
        f".concat([{_PLOT}.scales.x.min, {_PLOT}.scales.x.max, {_PLOT}.scales.y.distr, {_SEEN},"
        f" {_LOSS}.querySelector('.legend-line').ariaPressed]))"
    )
    with visited(tab, place) as base, ArchiveWriter(place.archive) as writer:
        writer.write(events[: len(events) // 2])
        _drawn(tab, base + "runs/run-c")
        every = tab.ask(f"{_SEEN}.length")
        tab.ask(f"window.before = {_LOSS}.querySelector('canvas').toDataURL(), true")
        _choose(tab, "smoothing", 0.5)
        tab.wait(f"{_LOSS}.querySelector('canvas').toDataURL() !== window.before")
        lines = tab.ask(f"[{_PLOT}.data[1], {_PLOT}.data[4]]")
        raw = lines[1]
        for at in range(len(raw)):  # each weighs twice as much as the one before it
            weights = [2.0**number for number in range(at + 1)]
            assert lines[0][at] == pytest.approx(sum(map(operator.mul, weights, raw)) / sum(weights))
        assert raw == pytest.approx([1 / update for update in range(1, len(raw) + 1)])
        tab.ask("document.querySelector('[data-log]').click()")
        tab.wait(f"{_PLOT}.scales.y.distr === 3")
        tab.ask(mouse(_LOSS, ("mousemove", 0.3), ("mousedown", 0.3), ("mousemove", 0.7), ("mouseup", 0.7)))
        tab.wait("location.search.includes('zoom=')")
        tab.ask(f"{_LOSS}.querySelector('.legend-line').click()")
        _choose(tab, "filter", "^(loss|gradient)")
        tab.wait(f"{_SEEN}.length < {every}")
        tab.wait("location.search.includes('filter=')")
        seen = tab.ask(_SEEN)
        assert all(name.startswith(("Loss", "Gradient", "loss", "gradient")) for name in seen)
        assert tab.ask("document.querySelector('[data-shown]').innerText").startswith(f"{len(seen)} of ")
        chosen = tab.ask(state)
        link = tab.ask("document.querySelector('[data-link]').href")
        writer.write(events[len(events) // 2 :])
        tab.wait(f"{_LOSS}.dataset.last === '12'")
        assert tab.ask(state) == chosen
        tab.go("about:blank")
        _drawn(tab, link)
        tab.wait(f"{state} === {chosen!r}")
        tab.ask("document.querySelector('[data-reset]').click()")
        tab.wait(f"{_PLOT}.scales.x.max === 12 && !location.search.includes('zoom=')")


def test_pinned_plots_come_first_in_their_order_and_are_remembered(tab: Tab, data: Path) -> None:
    keys = "Array.from(document.querySelectorAll('#pinned figure'), each => each.dataset.key).join()"
    with visited(tab, Place.at(data)) as base:
        _drawn(tab, base + "runs/run-a")
        for key in ("loss", "reward"):
            _press(tab, key, "Pin")
        _press(tab, "reward", "Earlier")
        assert tab.ask(keys) == "reward,loss"
        assert tab.ask("document.activeElement.closest('figure').dataset.key") == "reward"
        _drawn(tab, base + "runs/run-b")  # an address without them
        assert tab.ask(keys) == "reward,loss"
        _press(tab, "reward", "Unpin")
        assert tab.ask(keys) == "loss"
        script = tab.call("Page.addScriptToEvaluateOnNewDocument", source=_STORAGE_BLOCKED)
        try:
            _drawn(tab, base + "runs/run-a")
            assert tab.ask("document.getElementById('pinned')") is None
            _press(tab, "loss", "Pin")
            assert tab.ask(f"{keys} + location.search") == "loss?pin=loss"
        finally:
            tab.call("Page.removeScriptToEvaluateOnNewDocument", **script)


def test_an_expression_that_is_wrong_or_endless_says_so_and_names_stay_text(tab: Tab, tmp_path: Path) -> None:
    values = {"a" * 40 + "!": 1.0, ATTACK: 1.0}
    fields = {"event_id": "hostile", "run_id": "run-c", "source": ATTACK, "occurred_at_ms": START_MS}
    hostile = made(Metrics, values=values, **fields)
    archived(tmp_path / "data", [*made_up_run("run-c", updates=2), hostile])
    with visited(tab, Place.at(tmp_path / "data")) as base:
        _drawn(tab, base + "runs/run-c")
        every = tab.ask(f"{_SEEN}.length")
        wrong = {"(": "Invalid regular expression", "a" * 201: "At most 200", "^(a+)+$": "too long"}
        for pattern, says in wrong.items():
            _choose(tab, "filter", pattern)
            tab.wait(f"{_WRONG}.innerText.includes('{says}')")
            assert tab.ask(f"{_SEEN}.length") == every
        _choose(tab, "filter", "<script>")
        tab.wait(f"{_SEEN}.length === 1 && {_WRONG}.hidden")
        assert tab.ask(f"{_SEEN}[0]") == ATTACK
        assert tab.ask("document.querySelectorAll('main img, main script').length") == 0
        tab.ask("document.querySelector('figure:not([hidden]) .tools button').click()")
        assert tab.ask("document.querySelectorAll('#pinned figure').length") == 1
        odd = '&pin=constructor&zoom=1~2~__proto__&hide=["constructor",1]&hide={'
        _drawn(tab, tab.ask("document.querySelector('[data-link]').href") + odd)
        tab.wait(f"document.querySelectorAll('#pinned figure').length === 1 && {_SEEN}.length === 1")
        assert tab.ask("document.title") == "made up run-c"


def test_a_plot_is_saved_as_picture_and_as_numbers(tab: Tab, data: Path, tmp_path: Path) -> None:
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    with visited(tab, Place.at(data)) as base:
        _drawn(tab, base + "compare?run=run-a&run=run-b&by=games&smoothing=0.9")
        for kind in ("png", "csv"):
            _press(tab, "loss", kind.upper())
            deadline = time.monotonic() + 30
            while not (tmp_path / f"loss.{kind}").exists():
                assert time.monotonic() < deadline, f"no loss.{kind} was downloaded"
                time.sleep(0.03)
        tab.ask("document.querySelector('#choice button').click()")  # other runs, the same view
        tab.wait("location.search.includes('baseline=') && location.search.includes('smoothing=0.9')")
        tab.wait(f"{_LOSS} !== null")
        tab.ask(f"{_LOSS}.querySelector('details').open = true")
        tab.wait(f"{_LOSS}.querySelector('tbody') !== null")
        cells = tab.ask(
            f"Array.from({_LOSS}.querySelectorAll('tr'),"
            " row => Array.from(row.children, each => each.innerText))"
        )
        picture = tab.ask(
            "new Promise(done => { const image = new Image(); image.onload = () => {"
            "  const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');"
            "  canvas.width = image.width; canvas.height = image.height; pen.drawImage(image, 0, 0);"
            "  const bytes = pen.getImageData(0, 0, image.width, image.height).data;"
            "  const colours = new Set(new Uint32Array(bytes.buffer));"
            "  done([image.width, image.height, colours.size]); };"
            f"image.src = 'data:image/png;base64,{_base64(tmp_path / 'loss.png')}'; }})"
        )
        width, height, colours = picture
        assert width > 300
        assert height > 250
        assert colours > 20  # of the lines, of text, and what is between them and the background
    columns, *rows = csv.reader((tmp_path / "loss.csv").read_text(encoding="utf-8").splitlines())
    assert columns == cells[0]
    assert [row[0] for row in rows] == [row[0] for row in cells[1:]]
    for row, shown in zip(rows, cells[1:], strict=True):
        assert list(map(float, row[1:])) == pytest.approx(list(map(float, shown[1:])), rel=1e-3)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
