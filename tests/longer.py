"""Which tests ``make test-fast`` leaves out because they take long, by a measurement.

``make longer-tests`` measures and writes ``longer_tests.txt``; ``python -m tests.longer REPORT.xml`` makes it
from a report of pytest's (``--junitxml``). A test that is not in it, such as a new one, is a fast one.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Final
from xml.etree import ElementTree

import pytest

LONGER_TESTS: Final = Path(__file__).with_name("longer_tests.txt")


def mark_longer(items: list[pytest.Item]) -> None:
    """Mark the tests that the list names."""
    named = set(LONGER_TESTS.read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.nodeid.partition("[")[0] in named:
            item.add_marker("longer")


def longer_than(limit_s: float, report: Path) -> Iterator[str]:
    """Yield the test functions of the report whose cases took longer than so many seconds on average."""
    seconds = defaultdict[str, list[float]](list)
    for case in ElementTree.parse(report).iter("testcase"):
        path = case.attrib["classname"].replace(".", "/")
        seconds[f"{path}.py::{case.attrib['name'].partition('[')[0]}"].append(float(case.attrib["time"]))
    return (test for test, taken in seconds.items() if fmean(taken) > limit_s)


def main() -> None:
    """Write the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="of a run of the tests that are not slow")
    parser.add_argument(
        "--over", type=float, default=0.2, help="seconds of a test on average (default: %(default)s)"
    )
    options = parser.parse_args()
    longer = sorted(longer_than(options.over, options.report))
    LONGER_TESTS.write_text("".join(f"{test}\n" for test in longer), encoding="utf-8")
    print(f"{len(longer)} test functions take longer than {options.over} s: {LONGER_TESTS}")


if __name__ == "__main__":
    main()
