"""Commands as a user gives them, in the process of the tests: a new one would load everything again."""

import contextlib
import io
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from unstable_stream.ui import cli

PROGRAM = "import sys; sys.argv[0] = 'unstable-stream'; from unstable_stream.ui.cli import main; main()"
"""The same command line for ``python -c``, where a command needs a process of its own."""


def run_command(*arguments: str, cwd: Path, **environment: str) -> CompletedProcess[str]:
    """Run ``unstable-stream`` in a directory, as a new process without modules of the user would."""
    loaded, status = set(sys.modules), 0
    output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", ["unstable-stream", *arguments]),
        mock.patch.object(sys, "path", ["", *sys.path]),
        mock.patch.object(cli, "_write_no_core_files"),  # this process may have some
    ):
        try:
            cli.main()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            for name in set(sys.modules) - loaded:
                file = getattr(sys.modules[name], "__file__", None)
                if file is not None and Path(file).is_relative_to(cwd):
                    del sys.modules[name]
    said = [stream.buffer.getvalue().decode() for stream in (output, errors)]
    return CompletedProcess(arguments, status, *said)
