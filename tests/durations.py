"""Fail where a module of slow tests takes too much of the time of all: ``python -m tests.durations REPORT``.

It is a share, not seconds, since a machine may be slow or busy. What outgrows it is made smaller, shares its
run with other tests, or is marked ``long`` while something shorter proves the same.
"""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

LARGEST_SHARE: Final = 0.35
FEWEST_MODULES: Final = 20
"""A run of fewer is of a few chosen tests."""


def too_long(report: Path) -> list[str]:
    """Return a line for each module of tests in pytest's report that takes too large a share."""
    seconds = defaultdict[str, float](float)
    for case in ElementTree.parse(report).iter("testcase"):
        seconds[case.get("classname", "")] += float(case.get("time", "0"))
    total = sum(seconds.values())
    if len(seconds) < FEWEST_MODULES:
        return []
    return [
        f"{module} takes {taken:.0f} of {total:.0f} s, more than {LARGEST_SHARE:.0%}"
        for module, taken in seconds.items()
        if taken > LARGEST_SHARE * total
    ]


if __name__ == "__main__":
    sys.exit("\n".join(too_long(Path(sys.argv[1]))) or None)
