"""The list of tests that ``make test-fast`` leaves out."""

from pathlib import Path

from tests.longer import LONGER_TESTS, longer_than

REPORT = """
<testsuites><testsuite>
  <testcase classname="tests.log.test_a" name="test_one" time="0.1"/>
  <testcase classname="tests.log.test_a" name="test_two[local-3]" time="0.5"/>
  <testcase classname="tests.log.test_a" name="test_two[a[b]" time="0.1"/>
  <testcase classname="tests.log.test_a" name="test_three[short]" time="0.0"/>
  <testcase classname="tests.log.test_a" name="test_three[long]" time="0.3"/>
</testsuite></testsuites>
"""


def test_a_function_is_longer_if_its_cases_are_on_average(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT, encoding="utf-8")
    assert list(longer_than(0.2, report)) == ["tests/log/test_a.py::test_two"]


def test_the_list_names_tests_that_exist() -> None:
    """One that was renamed would be a fast one; ``make longer-tests`` makes the list anew."""
    named = [test.split("::") for test in LONGER_TESTS.read_text(encoding="utf-8").splitlines()]
    root = Path(__file__).parents[1]
    texts = {path: (root / path).read_text(encoding="utf-8") for path, _ in named if (root / path).exists()}
    assert [f"{path}::{name}" for path, name in named if f"def {name}(" not in texts.get(path, "")] == []
