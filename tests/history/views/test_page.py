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

from tests.archive.history import made_up_run
from tests.history.views.conftest import ATTACK
from tests.places import archived
from tests.tiers import chosen
from unstable_stream.errors import ReportError
from unstable_stream.history.views.report import Proof, write_report
from unstable_stream.history.views.report import page as page_module
from unstable_stream.history.views.written import named_items
from unstable_stream.runs.sections import LearnerConfig

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

    def charts(self) -> list[dict[str, Any]]:
        (text,) = [text for attributes, text in self.scripts if attributes.get("id") == "numbers"]
        return [chart for section in json.loads(text)["sections"] for chart in section["charts"]]


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
    (text,) = running
    assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in page.policy
    assert page.handlers == []
    assert "unsafe-inline" not in page.policy.split("style-src")[0]


def test_what_a_model_wrote_is_text(html: str, page: _Page) -> None:
    assert ATTACK not in html
    assert "<b>JSON" not in html
    text = "".join(page.text)
    assert ATTACK in text
    assert "EventDecodeError: malformed <b>JSON</b>" in text


def test_the_page_holds_the_numbers_and_words_of_every_plot(page: _Page) -> None:
    charts = {chart["key"]: chart for chart in page.charts()}
    assert [(line["name"], line["y"]) for line in charts["loss"]["series"]] == [
        ("made up run-a", [1.0, 0.5, 1 / 3, 0.25, 0.2, 1 / 6]),
        ("made up run-b", [1.0, 0.5]),
    ]
    assert charts["win-rate"]["series"][0]["low"]
    assert all(len(chart["title"] + chart["says"]) > 40 for chart in charts.values())


def test_the_summary_and_the_games_are_there(page: _Page) -> None:
    text = re.sub(r"\s+", " ", " ".join(page.text))
    warning = "update 5, begun with 3: 60% of the answers are legal moves, down from 97% (fork at 2)"
    for shown in (
        "38 (24 to train on, 14 to evaluate)",
        "40 of 46",
        "0.0 % 0.0 % to 65.8 % 0 won, 0 drawn of 2; update 0",
        "A win of the last checkpoint",
        "The longest game",
        "The turning point: from update 0 to 1 the win rate against random rose from 0.0 % to 50.0 %",
        "unstable-stream report run-a --verify",
        "trained on in update",
        "What differs",
        "learner.iterations 6 2",
        "steps[1]@5",
        f"Signs of a collapse {warning} none",  # the second run has none
        "rollout-1 lost on gpu-3 (preempted) not recorded",
    ):
        assert shown in text
    assert "First checkpoint: the same game before training, lost" not in text  # seeds differ in this history


def test_keys_that_are_not_at_their_default_come_first(html: str) -> None:
    """Of what the made-up run recorded; what it did not record is no difference."""
    shown = html[html.index("made up run-a: not at the default") : html.index("Resolved configuration of")]
    changed = re.findall(
        r'<code>([^<]*)</code></th><td><code>([^<]*)</code></td><td class="quiet"><code>([^<]*)',
        shown,
    )
    assert changed == [("learner.iterations", "6", str(LearnerConfig().iterations))]


def test_a_list_of_opponents_is_told_by_names() -> None:
    assert named_items('[{"name": "a", "kind": "x"}, {"env_id": "b"}, {"type": "c"}]') == "a, b, c"
    assert named_items('["a"]') == '["a"]'
    assert named_items("not set") == "not set"


def test_the_result_of_a_verification_stands_on_the_page(archive: Path, tmp_path: Path) -> None:
    proof = Proof(False, "1 difference(s)", f"steps {ATTACK}", [f"steps: {ATTACK}"], "a1" * 32)
    write_report(archive, ["run-b"], tmp_path / "report.html", samples=0, proofs={"run-b": proof})
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ATTACK not in html
    text = "".join(_Page(html).text)
    for shown in (
        "1 difference(s)",
        f"steps: {ATTACK}",
        "a1" * 32,
        "unstable-stream verify run-b --json | sha256sum",
    ):
        assert shown in text
    assert "--verify" not in text


def test_moves_in_the_middle_make_room_where_a_page_gets_too_large(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    whole = write_report(archive, ["run-a"], path)
    assert whole < page_module.MOST_BYTES == 3_000_000
    assert "moves left out" not in path.read_text(encoding="utf-8")
    monkeypatch.setattr(page_module, "MOST_BYTES", whole - 2_000)
    assert write_report(archive, ["run-a"], path) <= whole - 2_000
    assert "moves left out" in path.read_text(encoding="utf-8")
    monkeypatch.setattr(page_module, "MOST_BYTES", 1)  # what cannot be is not waited for
    assert write_report(archive, ["run-a"], path) > 1


def test_paper_is_white_and_has_no_controls(html: str) -> None:
    style = html[html.index("<style>") : html.index("</style>")]
    assert "@media screen and (prefers-color-scheme: dark)" in style
    assert "@media (prefers-color-scheme" not in style
    printed = style[style.index("@media print") :]
    assert "#theme, nav, label:has([data-smoothing])" in printed
    assert "break-before: page" in printed


def test_a_run_without_evaluations_has_a_report(tmp_path: Path) -> None:
    events = [event for event in made_up_run() if getattr(event, "split", "train") == "train"]
    archive = archived(tmp_path, events)
    write_report(archive, ["run-a"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No policy was evaluated twice, so there is no before and after." in text
    assert "The first game" in text
    assert "of the last checkpoint against" not in text


def test_tokens_are_shaded_and_explained(html: str) -> None:
    # exp(-0.5) is 60.7 %; the made-up model's tokenizer is nowhere, so tokens have numbers.
    assert '<span class="t0" title="-0.500 nats, 60.7 %, token 100">#100</span>' in html


@chosen("samples", [1], [0])
def test_so_many_games_are_shown_as_are_wanted(archive: Path, tmp_path: Path, samples: int) -> None:
    write_report(archive, ["run-b"], tmp_path / "report.html", samples=samples)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<details class="game"') == samples


def test_a_place_that_cannot_be_written_is_said(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"cannot write the report to .*: Is a directory"):
        write_report(archive, ["run-b"], tmp_path, samples=0)


def test_a_light_installation_is_told_what_is_missing(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ReportError, match=r"pip install 'unstable_stream\[analytics\]'"):
        write_report(archive, ["run-b"], tmp_path / "x.html", samples=0)
