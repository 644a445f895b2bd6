"""Show the causes and the effects of something."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from unstable_stream.api.place import Place
from unstable_stream.console import plain, plain_console
from unstable_stream.history.hindsight.why import Provenance, find_node, trace

if TYPE_CHECKING:
    from rich.console import RenderableType

_HOPS: Final = 2
# From a game it is one hop more to the checkpoints it fed: by steps and updates.
_HOPS_AHEAD_OF_A_GAME: Final = 3


@dataclass(frozen=True)
class Why:
    """The answer: nodes and the links between them; printed, it is a tree."""

    found: Provenance
    back: int
    """Hops towards causes."""
    ahead: int
    """Hops towards effects."""

    def show(self) -> None:
        """Print the tree."""
        plain_console(highlight=False).print(self.rendered())

    def rendered(self) -> "RenderableType":
        """Return the tree, ready to print with Rich."""
        from unstable_stream.history.hindsight.provenance_tree import render

        return render(self.found, self.back, self.ahead)

    def __repr__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=120, highlight=False, color_system=None).print(self.rendered())
        return plain(text.getvalue().rstrip())

    def to_json(self) -> bytes:
        """Return all of it, tokens included, as one JSON object."""
        return msgspec.json.encode(_content(self.found), enc_hook=str)


def find_why(
    place: Place, wanted: str, *, run: str = "", depth: int | None = None, limit: int | None = 3
) -> Why:
    """Walk over the archive from what ``wanted`` names.

    Args:
        place: where the archive is.
        wanted: an id, or its beginning, of a step, game, trajectory, run or event; a checkpoint's uid;
            ``update:N``; each with ``RUN:`` before it if need be.
        run: look only in this run: its id, the beginning of it, or its name.
        depth: hops in each direction; by default 2, and 3 ahead from a game or trajectory.
        limit: how many of each list are followed; ``None``: all.

    Raises:
        ArchiveError: nothing is called that, or several things are.
    """
    root = find_node(place.archive, wanted, run=run)
    back = depth or _HOPS
    ahead = depth or (_HOPS_AHEAD_OF_A_GAME if root.kind in ("game", "trajectory") else _HOPS)
    return Why(trace(place.archive, root, depth=back, ahead=ahead, most=limit), back, ahead)


def _content(found: Provenance) -> dict[str, object]:
    return {
        "root": str(found.root),
        "summary": found.summary,
        "nodes": [
            {
                "key": str(node.key),
                "kind": node.key.kind,
                "run_id": node.key.run_id,
                "id": node.key.id,
                "facts": node.facts,
                "links": [
                    {
                        "direction": link.direction.value,
                        "relation": link.relation,
                        "total": link.total,
                        "to": [{"key": str(end.key), "note": end.note} for end in link.ends],
                    }
                    for link in node.links
                ],
            }
            for node in found.nodes.values()
        ],
    }
