"""A deferred library is imported when it is first used, and works then."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.processes import python
from unstable_stream.archive.writer import ArchiveWriter
from unstable_stream.extensions.deferred_imports import deferring

pytestmark = pytest.mark.longer


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "heavy_library.py").write_text("def double(x): return 2 * x\nname = 'heavy'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    assert sys.modules.pop("heavy_library").name == "heavy", "it is imported in the end"


@pytest.mark.usefixtures("library")
def test_a_deferred_library_is_imported_when_a_function_is_called_or_the_module_looked_into() -> None:
    with deferring({"heavy_library": ("double",)}):
        import heavy_library  # type: ignore[import-not-found]
        from heavy_library import double

        assert "heavy_library" in sys.modules
    assert "heavy_library" not in sys.modules
    assert double(4) == 8
    assert heavy_library.name == "heavy"


@pytest.mark.usefixtures("library")
def test_other_names_are_the_librarys_own_at_once() -> None:
    with deferring({"heavy_library": ("double",)}):
        from heavy_library import name

        assert name == "heavy"


def test_a_library_that_is_missing_is_missing_at_once() -> None:
    with deferring({"no_such_library": ("anything",)}), pytest.raises(ModuleNotFoundError):
        import no_such_library  # type: ignore[import-not-found]  # noqa: F401


def test_a_library_that_is_loaded_is_left_alone() -> None:
    import json

    with deferring({"json": ("loads",)}):
        from json import loads
    assert loads is json.loads


def test_a_configuration_is_checked_without_torch() -> None:
    code = """
import sys
from unstable_stream.services.launch.preflight import check_config
from unstable_stream.runs.config import parse_config
env = {"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}
check_config(parse_config({"model": "tiny-player", "train_envs": [env]}))
assert "torch" not in sys.modules
"""
    assert (done := python(code)).returncode == 0, done.stderr


@pytest.mark.long
def test_games_are_checked_without_nltk_and_engines_loaded_without_scipy() -> None:
    code = """
import sys
from unstable_stream.games.environments import check_environment
check_environment("TicTacToe-v0-train", 2)
import unstable_stream.inference.transformers.engine
import unstable_stream.algorithms.learners
loaded = {"nltk", "scipy", "peft"} & sys.modules.keys()
assert not loaded, loaded
from textarena.envs.utils import word_lists
assert callable(word_lists.nltk.download) and "nltk" in sys.modules
from transformers.loss import loss_for_object_detection
assert loss_for_object_detection.linear_sum_assignment([[1.0, 0.0], [0.0, 1.0]])[1].tolist() == [1, 0]
"""
    assert (done := python(code)).returncode == 0, done.stderr


def test_a_question_in_sql_is_answered_without_what_only_runs_need(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path / "archive.duckdb").close()
    code = f"""
import sys
sys.argv = ["unstable-stream", "sql", "SELECT 40 + 2 AS answer", "--data", {str(tmp_path)!r}]
from unstable_stream.ui.cli import main
try:
    main()
except SystemExit:
    pass
loaded = {{"structlog", "torch", "ray", "unstable_stream.runs.config"}} & sys.modules.keys()
assert not loaded, loaded
"""
    done = python(code)
    assert done.stdout.split() == ["answer", "42"], done.stderr


def test_several_threads_may_use_a_package_and_its_module_first_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "heavy_package"
    package.mkdir()
    wait = "import time; time.sleep(0.05)\n"  # of the library: so long that the other thread is at it too
    (package / "__init__.py").write_text(f"{wait}from heavy_package.part import half\ndata = 'whole'\n")
    (package / "part.py").write_text(f"import heavy_package\n{wait}def half(): return heavy_package.data\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with deferring({"heavy_package": (), "heavy_package.part": ("half",)}):
        import heavy_package  # type: ignore[import-not-found]
        from heavy_package.part import half  # type: ignore[import-not-found]
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(half if n % 2 else lambda: heavy_package.data) for n in range(8)]
        assert {each.result(timeout=60) for each in asked} == {"whole"}
    for name in ("heavy_package", "heavy_package.part"):
        del sys.modules[name]
