"""The page as a file: it loads nothing, holds the numbers, and shows what models wrote without obeying it."""

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.history.views.conftest import ATTACK
from unstable_stream.errors import ReportError
from unstable_stream.history.views.report import write_report

pytestmark = pytest.mark.longer

_LOADING = {"src", "href", "srcset", "data", "action", "poster", "formaction", "background"}


class _Page(HTMLParser):
    """Collects what matters of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str, str]] = []
        self.tags: dict[str, int] = {}
        self.handlers: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.policy = ""
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.links += [(tag, name, value or "") for name, value in attrs if name in _LOADING]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        found = dict(attrs)
        if tag == "script":
            self.scripts.append((found, ""))
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif not self._open or self._open[-1] != "style":
            self.text.append(data)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def traces(self, key: str) -> list[dict[str, Any]]:
        (text,) = [text for attributes, text in self.scripts if attributes.get("id") == f"figure-{key}"]
        return list(json.loads(text)["data"])


@pytest.fixture(scope="module")
def html(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert write_report(archive, ["run-a", "run-b"], path) == path.stat().st_size
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> _Page:
    return _Page(html)


def test_nothing_is_loaded_and_only_our_own_scripts_may_run(page: _Page) -> None:
    assert page.links
    assert [link for link in page.links if not link[2].startswith("#") and link[2] != "data:,"] == []
    assert page.policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in page.policy
    assert not {"img", "iframe"} & page.tags.keys()
    running = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    assert len(running) == 2
    for text in running:
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in page.policy
    assert page.handlers == []
    assert "unsafe-inline" not in page.policy.split("style-src")[0]


def test_what_a_model_wrote_is_text(html: str, page: _Page) -> None:
    assert ATTACK not in html
    assert "<b>JSON" not in html
    text = "".join(page.text)
    assert ATTACK in text
    assert "EventDecodeError: malformed <b>JSON</b>" in text


def test_plots_hold_the_numbers(page: _Page) -> None:
    lines = [trace for trace in page.traces("loss") if "name" in trace]
    assert [(trace["name"], trace["y"]) for trace in lines] == [
        ("made up run-a", [1.0, 0.5, 1 / 3, 0.25, 0.2, 1 / 6]),
        ("made up run-b", [1.0, 0.5]),
    ]
    band = page.traces("win-rate")[:2]
    assert [trace["line"] for trace in band] == [{"width": 0}] * 2
    assert band[1]["fill"] == "tonexty"


def test_every_plot_has_its_place_words_and_table(html: str, page: _Page) -> None:
    plots = re.findall(r'<div class="plot" role="img" aria-label="([^"]+)" style="height:(\d+)px"', html)
    assert (
        len(plots) == page.tags["figure"] == sum(a.get("type") == "application/json" for a, _ in page.scripts)
    )
    assert all(len(words) > 40 and int(height) >= 150 for words, height in plots)
    assert html.count('<details class="numbers">') == len(plots)


def test_the_summary_and_the_games_are_there(page: _Page) -> None:
    text = re.sub(r"\s+", " ", " ".join(page.text))
    warning = "update 5, begun with 3: 60% of the answers are legal moves, down from 97% (fork at 2)"
    for shown in (
        "38 (24 to train on, 14 to evaluate)",
        "40 of 46",
        "0.0 % 0.0 % to 65.8 % 0 won, 0 drawn of 2; update 0",
        "A win of the last checkpoint",
        "The longest game",
        "trained on in update",
        "What differs",
        "learner.iterations 6 2",
        "steps[1]@5",
        f"Signs of a collapse {warning} none",  # the second run has none
        "rollout-1 lost on gpu-3 (preempted) not recorded",
    ):
        assert shown in text
    assert "First checkpoint: the same game before training, lost" not in text  # seeds differ in this history


def test_tokens_are_shaded_and_explained(html: str) -> None:
    # exp(-0.5) is 60.7 %; the made-up model's tokenizer is nowhere, so tokens have numbers.
    assert '<span class="t0" title="-0.500 nats, 60.7 %, token 100">#100</span>' in html


@pytest.mark.parametrize("samples", [0, 1])
def test_so_many_games_are_shown_as_are_wanted(archive: Path, tmp_path: Path, samples: int) -> None:
    write_report(archive, ["run-b"], tmp_path / "report.html", samples=samples)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<details class="game"') == samples


def test_a_place_that_cannot_be_written_is_said(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"cannot write the report to .*: Is a directory"):
        write_report(archive, ["run-b"], tmp_path, samples=0)


@pytest.mark.parametrize("missing", ["plotly", "jinja2"])
def test_a_light_installation_is_told_what_is_missing(
    missing: str, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ReportError, match=r"pip install 'unstable_stream\[analytics\]'"):
        write_report(archive, ["run-b"], tmp_path / "x.html", samples=0)
