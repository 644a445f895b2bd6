"""Hooks of mkdocs for the site: pages and links from outside ``docs/``, decisions, and ``llms.txt``."""

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
BROUGHT: Final = {
    "topics/README.md": "reference/topics.md",
    "benchmarks/README.md": "evidence/benchmarks.md",
    "examples/smollm2/README.md": "evidence/smollm2.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Pages that stand elsewhere in the repository, and their places in the site."""
_ORIGINS: Final = {place: origin for origin, place in BROUGHT.items()}
_LINK: Final = re.compile(
    r"^ *```.*?^ *```$|!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)", re.DOTALL | re.MULTILINE
)
"""A block of code, which stays as it is, or a link: its text, its target in the repository, its anchor."""
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_texts: Final[dict[str, str]] = {}
"""The pages of this build, as Markdown whose links are those of the site."""
_sections: Final[list[tuple[str | None, list[str]]]] = []
"""The site's navigation: titles, and paths of pages."""


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("*.md"))


def _title(text: str) -> str:
    found = _TITLE.search(text)
    return found[1] if found else ""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the decisions by their titles, in order."""
    _texts.clear()
    assert config.nav is not None
    for entry in config.nav:
        if entry.get("Decisions"):
            entry["Decisions"] = [
                {_title(page.read_text(encoding="utf-8")): f"decisions/{page.name}"} for page in _decisions()
            ]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Bring the pages that stand elsewhere."""
    for origin, place in BROUGHT.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / origin)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to a brought page there, and others that leave ``docs/`` to the repository.

    Where the repository has no address (``REPOSITORY_URL``), the link's text stands alone.

    Raises:
        PluginError: a link leads to a file that does not exist.
    """
    uri = page.file.src_uri
    origin = _ORIGINS.get(uri, f"docs/{uri}")

    def resolved(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if target is None:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if not (ROOT / path).exists():
            raise PluginError(f"{origin}: links to {path}, which does not exist: mend the link")
        if path == "docs/decisions":
            path += f"/{_decisions()[0].name}"
        place = BROUGHT.get(path) or path.removeprefix("docs/")
        file = files.get_file_from_path(place)
        if file is not None and file.inclusion is not InclusionLevel.EXCLUDED:
            image = "!" if found[0].startswith("!") else ""
            return f"{image}[{text}]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor})"
        return (
            f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})" if config.repo_url else text
        )

    _texts[uri] = _LINK.sub(resolved, markdown)
    return _texts[uri]


def _first_sentence(text: str) -> str:
    """Return the first sentence of a page's prose, without links."""
    prose = re.sub(r"^ *```(?s:.*?)^ *```$|<!--(?s:.*?)-->|^[#|!].*$", "", text, flags=re.MULTILINE).strip()
    paragraph = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split("\n\n")[0].split()))
    return re.split(r"(?<=[.:]) ", paragraph)[0].rstrip(":")


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> None:
    """Note the sections and the order of their pages."""
    _sections[:] = [
        (
            section.title,
            [page.file.src_uri for page in section.children or [section] if isinstance(page, Page)],
        )
        for section in nav.items
    ]


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write each page's Markdown beside it, and ``llms.txt``, which leads to them (https://llmstxt.org)."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for title, pages in _sections:
        lines += [f"## {title}", ""]
        for uri in pages:
            text = _texts[uri]
            lines.append(f"- [{_title(text)}]({config.site_url or ''}{uri}): {_first_sentence(text)}")
            (site / uri).parent.mkdir(parents=True, exist_ok=True)
            (site / uri).write_text(text, encoding="utf-8")
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
