"""The page in a real browser: every plot is drawn, nothing complains, and no attack comes through."""

import re
from pathlib import Path

import pytest

from tests.ui.web.browser import NEEDS_BROWSER, mouse, opened_tab
from unstable_stream.history.views.report import write_report

pytestmark = pytest.mark.longer


@NEEDS_BROWSER
def test_the_page_draws_itself(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(archive, ["run-a", "run-b"], path)
    with opened_tab(tmp_path / "profile") as tab:
        tab.go(path.as_uri())
        assert tab.ask("document.title") == "made up run-a, made up run-b: training report"
        lines, cells = (f"document.querySelectorAll('figure {part}')" for part in (".u-plot", "td"))
        assert tab.ask(f"{lines}.length") >= 15
        tab.ask("dispatchEvent(new Event('beforeprint'))")
        assert tab.ask(f"Array.from({lines}).every(place => place.querySelector('canvas'))")
        assert tab.ask(f"{cells}.length") > 64, "ladders and matrices"
        picture = "document.querySelector('figure .u-plot canvas').toDataURL()"
        tab.ask(f"(window.before = {picture}).length")
        tab.ask(
            "{ const slider = document.querySelector('[data-smoothing]'); slider.value = 0.5;"
            " slider.dispatchEvent(new Event('input')); }"
        )
        tab.wait(f"{picture} !== window.before")
        figure = "document.querySelector('figure[data-key=reward]')"
        tab.ask(mouse(figure, *((kind, 0.5) for kind in ("mousemove", "mousedown", "mouseup", "click"))))
        tab.wait(f"{figure}.querySelector('.games code') !== null")
        said = tab.ask(f"{figure}.querySelector('.games code').innerText")
        assert re.fullmatch(r"unstable-stream games --run run-[ab] --update '\d+'", said), said
        tab.ask("dispatchEvent(new Event('beforeprint'))")
        assert tab.ask("document.querySelectorAll('details.game:not([open])').length") == 0, (
            "all is read on paper"
        )
        assert tab.ask("document.documentElement.dataset.theme") == "light"
        tab.ask("dispatchEvent(new Event('afterprint'))")
        assert tab.ask("document.querySelectorAll('details.game:not([open])').length") > 0
        assert tab.ask("document.documentElement.dataset.theme ?? ''") == ""
        assert tab.complaints == []
