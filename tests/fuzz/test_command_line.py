"""Arguments of any kind: the command line ends with a message, never with a traceback."""

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.archive.history import made_up_run
from tests.places import append
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.errors import UnstableStreamError
from unstable_stream.ui.cli import app

# Not among them: commands that go on until they are stopped, and those that train.
COMMANDS = """
    audit verify why sql games game report replay rerate rederive fork runs export collapse topics log plan
"""
OPTIONS = """
    --help --csv --run --at --set --dry-run -x -- - run run-a ckpt-000001 * 0 -1 1e999 ../.. kafka:// kafka://[
    2024-13-45
"""
arguments = st.lists(
    st.one_of(
        st.sampled_from(OPTIONS.split()),
        st.text(alphabet=st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8),
    ),
    max_size=5,
)


@pytest.fixture(scope="module")
def in_a_data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Go to a data directory with a run in it, so that relative paths lead nowhere else."""

    directory = tmp_path_factory.mktemp("data")
    append(directory, made_up_run(updates=1))
    archive(Place.at(directory))
    with contextlib.chdir(directory), pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNSTABLE_STREAM_DATA", str(directory))
        yield


@settings(max_examples=100, deadline=None)
@pytest.mark.usefixtures("in_a_data_directory")
@given(command=st.sampled_from(COMMANDS.split()), rest=arguments)
def test_any_arguments(command: str, rest: list[str]) -> None:
    result = CliRunner().invoke(app, [command, *rest])
    assert result.exit_code in (0, 1, 2)
    assert isinstance(result.exception, UnstableStreamError | SystemExit | None), result.exception
