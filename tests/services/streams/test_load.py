"""Finding plug-ins: by module, by file, by entry point; each mistake is one clear line."""

import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes import python
from unstable_stream.errors import PluginError
from unstable_stream.services.streams.plugins import discovered_plugins, load_plugin, metrics_of

GOOD = """
    from __future__ import annotations
    from dataclasses import dataclass
    from unstable_stream import Context, consumer
    from unstable_stream.events import GameOutcome

    import neighbour

    @dataclass
    class State:
        n: int = 0

    @consumer(state=State)
    def first(event: GameOutcome, context: Context) -> None: ...

    @consumer(name="other", topics=["steps"])
    def second(event, context): ...

    def plain(event, context): ...
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of plug-ins; what is imported and searched is forgotten after the test."""
    files = {
        "good.py": GOOD,
        "neighbour.py": "",
        "single.py": GOOD.split("@consumer(name")[0],
        "broken.py": "import nothing_of_this_name",
        "misdeclared.py": "from unstable_stream import consumer\n@consumer(topics=[])\ndef f(a, b): ...",
        "unparsable.py": "def f(:",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("good", "neighbour", "single", "broken", "misdeclared"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def test_by_module_or_file_and_alone_without_a_name(directory: Path) -> None:
    assert load_plugin("good:second").name == "other"
    assert load_plugin("good.py:first").topics == ("game-outcomes",)
    assert load_plugin(f"{directory}/single.py").name == "first"
    assert load_plugin("single").name == "first"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("good", r"say which plug-in.*good:first, good:second"),
        ("good:third", r"good has no 'third'; it has good:first, good:second"),
        ("good:plain", r"good:plain is a function, not a plug-in: decorate it with @consumer"),
        ("good:State", r"is a type, not a plug-in"),
        ("nowhere.py:x", r"cannot load nowhere.py: no such file"),
        ("nowhere_to_be_found:x", r"cannot import nowhere_to_be_found: ModuleNotFoundError"),
        (
            "broken.py:x",
            r"cannot import broken.py: ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        ("unparsable.py:x", r"cannot import unparsable.py: SyntaxError"),
        ("misdeclared:f", r"misdeclared: plug-in 'f': name the topics"),
        ("not a name", r"expected module:name"),
    ],
)
def test_a_mistake_is_one_line(directory: Path, target: str, says: str) -> None:
    with pytest.raises(PluginError, match=says) as caught:
        load_plugin(target)
    assert "\n" not in str(caught.value).replace("(broken", "")


def test_installed_plugins_are_listed_and_loaded_by_name(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = directory / "pretend_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pretend-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[unstable_stream.consumers]\nnice = good:first\n")
    monkeypatch.syspath_prepend(directory)
    (found,) = discovered_plugins()
    assert found == ("nice", "good:first", "pretend-package")
    assert load_plugin("nice").name == "first"


def test_the_package_offers_the_decorator_without_loading_anything_for_it() -> None:
    program = (
        "import sys, unstable_stream; assert 'msgspec' not in sys.modules; "
        "from unstable_stream import consumer, Context; print(consumer.__module__)"
    )
    assert python(program).stdout.strip() == "unstable_stream.services.streams.plugins.declare"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        exec("import unstable_stream; unstable_stream.nonsense")
    assert metrics_of.__doc__
