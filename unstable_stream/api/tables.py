"""The answer to a question in SQL, as rows, Arrow or pandas."""

import html
import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

from unstable_stream.errors import ConfigError

_SHOWN_ROWS: Final = 20
_SHOWN_WIDTH: Final = 160
_LONGEST_CELL: Final = 60


class Table:
    """The rows of a query. ``len()``, iteration and indexing give rows; a notebook shows a table."""

    def __init__(self, arrow: Any) -> None:
        """``arrow``: a ``pyarrow.Table``; ``Any`` since only the archive imports Arrow."""
        self._arrow = arrow
        self._rows: list[tuple[Any, ...]] | None = None

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._arrow.column_names)

    def arrow(self) -> Any:
        """Return a ``pyarrow.Table``."""
        return self._arrow

    def df(self) -> Any:
        """Return a ``pandas.DataFrame``.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            return self._arrow.to_pandas()
        except ModuleNotFoundError as error:
            raise ConfigError(
                "a data frame needs pandas: pip install 'unstable_stream[analytics]'; rows() does not"
            ) from error

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows as tuples of Python values; times are UTC without a time zone."""
        if self._rows is None:
            columns = [column.to_pylist() for column in self._arrow.columns]
            self._rows = list(zip(*columns, strict=True))
        return self._rows

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as column name to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows()]

    def __len__(self) -> int:
        return int(self._arrow.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows())

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        return self.rows()[place]

    def __repr__(self) -> str:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in self.columns:
            shown.add_column(Text(name), overflow="fold")
        for cells in self._shown_cells():
            shown.add_row(*map(Text, cells))
        text = io.StringIO()
        Console(file=text, width=_SHOWN_WIDTH, color_system=None).print(shown)
        return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines()) + self._rest()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
            for cells in self._shown_cells()
        )
        rest = html.escape(self._rest().strip())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def _shown_cells(self) -> Iterator[Sequence[str]]:
        for row in Table(self._arrow.slice(0, _SHOWN_ROWS)).rows():
            yield [_cell(value) for value in row]

    def _rest(self) -> str:
        more = len(self) - _SHOWN_ROWS
        return f"\n{len(self):,} rows, {_SHOWN_ROWS} shown" if more > 0 else f"\n{len(self):,} rows"


def _cell(value: Any) -> str:
    """``Any``: a column's value. What models write may hold control characters: they are shown as unknown."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"
