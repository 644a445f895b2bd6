"""Make docs/reference/archive.md from the declarations of views and tables; its prose stays."""

from collections.abc import Iterable
from typing import Final

from unstable_stream.archive.reference import EXAMPLES, ArchiveRelation, relations
from unstable_stream.archive.tables.declare import NOT_COLUMNS

MARK: Final = "<!-- What follows is written by make generated. -->\n"


def page(text: str) -> str:
    """Return the page with all that follows its mark written anew."""
    prose, _, _ = text.partition(MARK)
    lines = [*_lines_of_examples()]
    for kind, heading in (("view", "## Views"), ("table", "## Tables")):
        lines += [heading, ""]
        for relation in relations():
            if relation.kind == kind:
                lines += _lines_of_relation(relation)
    return f"{prose}{MARK}\n" + "\n".join([*lines, *_lines_of_fields_without_column()]).rstrip() + "\n"


def _lines_of_fields_without_column() -> Iterable[str]:
    yield from ("## Event fields that are no column", "", "Every other field is one.", "")
    yield from ("| field | reason |", "|---|---|")
    for struct, fields in NOT_COLUMNS.items():
        for field, reason in fields.items():
            yield f"| `{struct.__name__}.{field}` | {reason} |"


def _lines_of_examples() -> Iterable[str]:
    for example in EXAMPLES:
        yield from (example.question, "", "```sql", example.sql, "```", "")


def _lines_of_relation(relation: ArchiveRelation) -> Iterable[str]:
    yield from (f"### {relation.name}", "", relation.doc, "", "| column | meaning |", "|---|---|")
    for name, meaning in relation.columns.items():
        yield f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |"
    yield ""
    if relation.example:
        yield from ("```sql", relation.example, "```", "")
