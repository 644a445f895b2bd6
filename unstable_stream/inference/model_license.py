"""The license of a base model, as its own files state it."""

import json
import re
from pathlib import Path
from typing import Final

_IN_CARD: Final = re.compile(r"^license:[ \t]*[\"']?([\w.\-]+)", re.MULTILINE)
_TEXTS: Final = (
    (re.compile(r"Apache License\s+Version 2\.0"), "apache-2.0"),
    (re.compile(r"MIT License|Permission is hereby granted, free of charge"), "mit"),
)
"""The licenses that are known by their text, by Hugging Face's names."""


def find_license(name: str, directory: Path | None) -> str | None:
    """Return Hugging Face's name of a base model's license; ``None``: its files state none that is known.

    The model card's front matter counts first, then the text of a license file, then ``config.json``.

    Args:
        name: the model as a configuration names it.
        directory: its files; ``None``: they are not on this machine.
    """
    if name == "tiny-player":
        return "mit"  # it is part of the package
    if directory is None:
        return None
    card = _text(directory / "README.md")
    front, opened, _ = card.removeprefix("---").partition("\n---")
    if card.startswith("---") and opened and (stated := _IN_CARD.search(front)):
        return stated[1]
    for file in ("LICENSE", "LICENSE.txt", "LICENSE.md"):
        text = _text(directory / file)
        for pattern, license_name in _TEXTS:
            if pattern.search(text):
                return license_name
    try:
        config = json.loads(_text(directory / "config.json") or "{}")
    except ValueError:
        return None
    value = config.get("license") if isinstance(config, dict) else None
    return value if isinstance(value, str) and value else None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
