"""The peers' packages in an environment of their own, ``benchmarks/peers/.venv``, which git ignores.

``requirements.txt`` names every package with its version, and nothing is resolved when it is installed. So
UnstableBaselines comes without vLLM, which its learner does not use. PyTorch, transformers and PEFT have the
versions of our own ``constraints.txt``.
"""

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_ENVIRONMENT: Final = _HERE / ".venv"
_STAMP: Final = _ENVIRONMENT / "installed.txt"
REQUIREMENTS: Final = _HERE / "requirements.txt"
PYTHON: Final = _ENVIRONMENT / "bin" / "python"


def pins(path: Path) -> dict[str, str]:
    """Return the version of every package that a file of requirements pins."""
    found = re.findall(r"^([\w.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {name.lower(): version for name, version in found}


def ensure() -> Path:
    """Install the packages unless they are there already; return the environment's Python.

    Raises:
        subprocess.CalledProcessError: a package could not be installed.
    """
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    if _STAMP.is_file() and _STAMP.read_text(encoding="utf-8") == wanted:
        return PYTHON
    print("installing the peers' packages into benchmarks/peers/.venv (5 GB, most of it PyTorch)", flush=True)
    venv.create(_ENVIRONMENT, clear=True, with_pip=True)
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is not None:
        install = [uv, "pip", "install", "--quiet", "--python", str(PYTHON)]
    else:
        install = [str(PYTHON), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--requirement", str(REQUIREMENTS)], check=True)
    _STAMP.write_text(wanted, encoding="utf-8")
    return PYTHON


if __name__ == "__main__":
    ensure()
