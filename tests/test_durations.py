"""A module of slow tests that takes too large a share of the time of all is named."""

from pathlib import Path

import pytest

from tests.durations import FEWEST_MODULES, too_long


@pytest.mark.parametrize(
    ("others", "named"),
    [
        (FEWEST_MODULES, ["tests.test_long takes 40 of 100 s, more than 35%"]),
        (FEWEST_MODULES - 2, []),  # a few that were chosen
    ],
)
def test_a_module_with_too_large_a_share_is_named(tmp_path: Path, others: int, named: list[str]) -> None:
    report = tmp_path / "report.xml"
    cases = [f'<testcase classname="tests.test_{number}" time="{60 / others}"/>' for number in range(others)]
    cases += ['<testcase classname="tests.test_long" time="20"/>'] * 2
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    assert too_long(report) == named
