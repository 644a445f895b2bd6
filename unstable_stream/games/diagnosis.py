"""Explain an exception of a TextArena environment: why it cannot run here, and what helps."""

import re
import sys
from dataclasses import dataclass

from unstable_stream.events import storable_text

_PLAYER_COUNT = re.compile(r"player", re.IGNORECASE)
_NLTK_DOWNLOAD = re.compile(r"nltk\.download\('([^']+)'\)")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The reason and the remedy, for a person."""

    kind: str
    """``nltk-data``, ``python-3.12``, ``missing-files``, ``missing-package``, ``openrouter-key``,
    ``player-count``, ``broken-wrapper`` or ``error``."""
    reason: str
    remedy: str


def diagnose(env_id: str, error: BaseException) -> Diagnosis:
    """Explain the exception that making, resetting or first observing an environment raised."""
    text = storable_text(str(error)).strip()
    if isinstance(error, SyntaxError):
        return Diagnosis(
            "python-3.12",
            f"its source uses syntax that Python {sys.version_info.major}.{sys.version_info.minor} does not "
            f"accept ({error.msg})",
            "run on Python 3.12, or choose another environment",
        )
    if isinstance(error, LookupError) and "nltk" in text.lower():
        found = _NLTK_DOWNLOAD.search(text)
        resource = found.group(1) if found else "all"
        return Diagnosis(
            "nltk-data",
            f"it needs the nltk resource {resource!r}, which is not on this machine",
            f"run: python -m nltk.downloader {resource}",
        )
    if "OPENROUTER_API_KEY" in text:
        return Diagnosis(
            "openrouter-key",
            "it asks a language model on OpenRouter to judge or to answer",
            "set OPENROUTER_API_KEY (the games are then neither offline nor reproducible)",
        )
    if isinstance(error, FileNotFoundError):
        return Diagnosis(
            "missing-files",
            f"TextArena's package lacks a data file: {error.filename or text}",
            "install TextArena from its source repository, or choose another environment",
        )
    if isinstance(error, ImportError):
        return _diagnose_import(text)
    if isinstance(error, AssertionError) and _PLAYER_COUNT.search(text):
        return Diagnosis("player-count", text, "change the number of players")
    if "Missing required observation types" in text:
        return Diagnosis(
            "broken-wrapper",
            "its observation wrapper expects a board that the environment never sends",
            f"use {env_id.removesuffix('-train')!r}, which shows all messages",
        )
    return Diagnosis("error", f"{type(error).__name__}: {text[:300]}", "choose another environment")


def _diagnose_import(text: str) -> Diagnosis:
    missing = re.search(r"No module named '([^']+)'", text)
    name = missing.group(1) if missing else text
    if name.startswith("textarena"):
        return Diagnosis(
            "missing-files",
            f"TextArena registers it but its package lacks the module {name}",
            "install TextArena from its source repository, or choose another environment",
        )
    return Diagnosis("missing-package", f"it needs the package {name!r}", f"run: pip install {name}")
