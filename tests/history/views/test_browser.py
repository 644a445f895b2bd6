"""The page in a real browser: every plot is drawn, nothing complains, and no attack comes through."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from unstable_stream.history.views.report import write_report

pytestmark = pytest.mark.longer

_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(_BROWSER is None, reason="no browser: apt-get install -y chromium")
def test_the_page_draws_itself(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(archive, ["run-a", "run-b"], path)
    assert _BROWSER is not None
    result = subprocess.run(
        [
            _BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    assert [line for line in result.stderr.splitlines() if ":CONSOLE" in line] == []
    assert "<title>made up run-a, made up run-b: training report</title>" in result.stdout
    plots = result.stdout.count(" data-figure=")
    assert plots >= 15
    # The class is put on a plot's place when it has been drawn.
    assert len(re.findall(r'<div class="plot js-plotly-plot"', result.stdout)) == plots
