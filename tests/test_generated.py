"""Every file that ``make generated`` writes is what the code makes now."""

import pytest

from tools.generated import GENERATED, SLOW, made


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in GENERATED]
)
def test_the_file_is_what_the_code_makes(name: str) -> None:
    present, text = made(name)
    assert present == text, f"{name} is old: make generated"
