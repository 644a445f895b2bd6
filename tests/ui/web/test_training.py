"""The pages in a real browser while a run really trains: they move with it, and it does not notice them."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ui.web.browser import NEEDS_BROWSER, opened_tab
from tests.ui.web.conftest import serving
from tests.whole_run.processes import CONFIG, DEADLINE_S, command_line, environment, run_command
from unstable_stream.api.place import Place

pytestmark = [pytest.mark.slow, NEEDS_BROWSER]

_PATIENCE_S = 120.0
_UPDATES = "Number(/([0-9,]+) of 5,000 updates/.exec(document.body.innerText)?.[1].replace(',', '') ?? -1)"
_POINTS = "document.querySelectorAll('figure[data-key=loss] tbody tr').length"
_UNFOLDED = """(() => {
    const found = document.querySelector('figure[data-key=loss] details');
    if (found) { found.open = false; found.open = true; }
    return found !== null;
})()"""


@contextlib.contextmanager
def _training(data: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Train without end until Ctrl-C."""
    settings = ("learner.batch_size=64", "learner.mini_batch_size=64", "collector.num_workers=24")
    games = ("first_last_games=4", "every=10", "max_eval_games_per_ckpt=4")
    evaluation = [f"evaluation.{each}" for each in games]
    chosen = (*settings, *evaluation, "learner.iterations=5000", "backend=inline", "name=shown")
    flags = [f"--set={one}" for one in chosen]
    with (data / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command_line("train", str(CONFIG), *flags, "--quiet", "--data", str(data)),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment("local"),
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.long
def test_pages_follow_a_run_that_trains(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with serving(Place.at(data)) as link, opened_tab(tmp_path / "profile") as tab, _training(data) as run:
        tab.go(link)
        tab.wait("document.body.innerText.includes('shown')", within_s=_PATIENCE_S)
        tab.wait("document.body.innerText.includes('running')")
        tab.wait(f"{_UPDATES} > 0", within_s=_PATIENCE_S)
        seen = tab.ask(_UPDATES)
        tab.wait(f"{_UPDATES} > {seen}")
        tab.ask("document.querySelector('table.runs a').click()")
        tab.wait(f"location.pathname.includes('/runs/shown') && {_UPDATES} > {seen}")
        tab.wait("document.querySelector('figure[data-key=loss]') !== null", within_s=_PATIENCE_S)
        tab.ask("document.querySelector('figure[data-key=loss]').scrollIntoView()")
        tab.wait(f"{_UNFOLDED} && {_POINTS} > 0")
        points = tab.ask(_POINTS)
        tab.wait(f"{_UNFOLDED} && {_POINTS} > {points}")
        assert run.poll() is None, (data / "output.txt").read_text(encoding="utf-8")
        run.send_signal(signal.SIGINT)
        run.wait(DEADLINE_S)
        tab.wait("document.querySelector('#facts .state-stopped') !== null", within_s=_PATIENCE_S)
        tab.go("about:blank")
        assert tab.complaints == []
    audit = run_command(data, "audit", "shown")
    assert audit.returncode == 0, audit.stdout + audit.stderr
