"""The ancestor's package in ``benchmarks/peers/.ancestor``, a directory that git ignores.

It is no environment of its own: PyTorch, vLLM for a CPU, Ray, TextArena, transformers and PEFT are ours, so
both sides have the same versions of all that computes. Nothing is resolved when it is installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_DIRECTORY: Final = _HERE.parent / ".ancestor"
_STAMP: Final = _DIRECTORY / "installed.txt"
_LEFT_OUT: Final = _HERE / "left_out"
"""Holds the module that the ancestor's processes run first."""
REQUIREMENTS: Final = _HERE / "requirements.txt"


def ancestor_path() -> str:
    """Install the package unless it is there already; return what ``PYTHONPATH`` must begin with.

    Raises:
        subprocess.CalledProcessError: it could not be installed.
    """
    packages = _DIRECTORY / "packages"
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    if not _STAMP.is_file() or _STAMP.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(_DIRECTORY, ignore_errors=True)
        beside = Path(sys.executable).with_name("uv")
        uv = str(beside) if beside.is_file() else shutil.which("uv")
        install = [uv, "pip"] if uv is not None else [sys.executable, "-m", "pip"]
        options = ["--quiet", "--no-deps", "--target", str(packages), "--requirement", str(REQUIREMENTS)]
        subprocess.run([*install, "install", *options], check=True)
        _STAMP.write_text(wanted, encoding="utf-8")
    return f"{_LEFT_OUT}{os.pathsep}{packages}"
