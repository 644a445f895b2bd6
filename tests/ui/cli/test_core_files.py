"""No crash of a command, or of what it starts, writes its memory to a file: keys are in the environment."""

import resource
import sys
from pathlib import Path

from tests.processes import completed

KEY = "sk-secret-0123456789abcdef"
_CRASH = "import os; os.abort()"
_COMMAND = f"""
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sys.argv[1:] = ["--version"]
from unstable_stream.ui.cli import main
try:
    main()
except SystemExit:
    pass
print(*resource.getrlimit(resource.RLIMIT_CORE), flush=True)
subprocess.run([sys.executable, "-c", {_CRASH!r}], check=False)
import os
os.abort()
"""


def test_a_crash_leaves_no_core_file_with_a_key(tmp_path: Path) -> None:
    environment = {"TEST_ENDPOINT_KEY": KEY, "PATH": "/usr/bin:/bin"}
    crashed = completed(sys.executable, "-c", _COMMAND, cwd=tmp_path, env=environment)
    assert crashed.returncode < 0, crashed.stderr
    assert crashed.stdout.split()[-2:] == ["0", str(resource.RLIM_INFINITY)]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
