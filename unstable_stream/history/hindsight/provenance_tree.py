"""Show the result of ``why`` as a tree on a terminal. Text of models is shown literally, including markup."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from unstable_stream.console import plain
from unstable_stream.history.hindsight.why import Direction, End, Link, Node, NodeKey, Provenance

_LONGEST_TEXT = 60
_SHORT_ID = 8
_MOST_COUNTED = 6
_HEADINGS = {Direction.BECAUSE: "because of", Direction.LED_TO: "led to"}


def render(found: Provenance, back: int, ahead: int) -> RenderableType:
    """Return the trees of both directions, ready to print, with as many hops as the walk."""
    root = found.nodes[found.root]
    about = [_title(root, full=True), *_about(root), *_summary(found)]
    if root.facts.get("path"):
        about.append(Text(plain(f"in {root.facts['path']}"), style="dim"))
    parts: list[RenderableType] = [*about]
    for direction, heading in _HEADINGS.items():
        tree = Tree(Text(heading, style="bold"), guide_style="dim")
        depth = back if direction is Direction.BECAUSE else ahead
        _Growth(found, direction, {found.root}).grow(tree, root, depth)
        if tree.children:
            parts += [Text(), tree]
    if len(parts) == len(about):
        parts.append(Text("The archive knows nothing that it came from or led to.", style="dim"))
    return Group(*parts)


class _Growth(NamedTuple):
    """The tree of one direction as it grows. A node is described once and only named after that."""

    found: Provenance
    direction: Direction
    told: set[NodeKey]

    def grow(self, tree: Tree, node: Node, depth: int) -> None:
        """Add the nodes that a node is linked to."""
        for link in node.links:
            if link.direction is not self.direction:
                continue
            if link.total == 1:
                self._add(tree, link.ends[0], depth, f"{link.relation} ")
                continue
            branch = tree.add(Text(f"{link.relation} {_plural(link)}", style="bold"))
            for end in link.ends:
                self._add(branch, end, depth)
            if link.total > len(link.ends):
                branch.add(Text(f"… {link.total - len(link.ends):,} more", style="dim"))

    def _add(self, tree: Tree, end: End, depth: int, words: str = "") -> None:
        node = self.found.nodes[end.key]
        label = Text(words, style="bold").append_text(_title(node))
        if end.note:
            label.append(f"  {end.note}", style="yellow")
        if end.key in self.told:
            tree.add(label.append("  (told above)", style="dim"))
            return
        self.told.add(end.key)
        branch = tree.add(Group(label, *_about(node)))
        if depth > 1:
            self.grow(branch, node, depth - 1)


def _plural(link: Link) -> str:
    kind = link.ends[0].key.kind
    return f"{link.total:,} {kind[:-1] + 'ies' if kind.endswith('y') else kind + 's'}"


def _title(node: Node, *, full: bool = False) -> Text:
    key = node.key
    named = key.kind in ("update", "checkpoint", "run")
    title = Text(f"{key.kind} ", style="cyan")
    title.append(key.id if named or full else key.id[:_SHORT_ID], style="bold cyan")
    if full and key.kind != "run":
        title.append(f"  of run {key.run_id}", style="dim")
    return title


# -- what is said of a node -----------------------------------------------------------------------------


def _about(node: Node) -> list[Text]:
    if not node.facts:
        return [Text("not in the archive", style="dim")]
    lines = _LINES.get(node.key.kind, _event)(node.facts)
    return [Text(plain(line), style="dim") for line in lines if line]


# ``Any`` in what follows: facts as the archive's columns hold them.


def _run(facts: Mapping[str, Any]) -> Iterable[str]:
    yield f"{facts['name']}, {facts['state']}, seed {facts['seed']}, started {_moment(facts['started_at'])}"
    if facts["parent_run_id"]:
        yield f"forked from {facts['parent_run_id']} at update {facts['parent_update']}"


def _checkpoint(facts: Mapping[str, Any]) -> Iterable[str]:
    base = facts["base_model"] or "the base model"
    if facts["path"] is None:
        yield f"{base} alone, as it was before training"
    else:
        weights = "all parameters, begun from" if facts["parameters"] == "all" else "adapter on"
        yield f"{weights} {base}, sha256 {(facts['sha256'] or '?')[:16]}…, {facts['size_bytes']:,} bytes"


def _update(facts: Mapping[str, Any]) -> Iterable[str]:
    yield (
        f"{_moment(facts['made_at'])}, {facts['trained_steps']:,} steps trained on, "
        f"{facts['dropped_steps']:,} dropped, loss {facts['loss']:.4g}"
    )


def _step(facts: Mapping[str, Any]) -> Iterable[str]:
    yield (
        f"{facts['env_id']} game {facts['game_index']}, seat {facts['seat']}, turn {facts['turn_index']}, "
        f"{facts['model_uid']}"
    )
    tokens, logprobs = facts["completion_token_ids"], facts["logprobs"]
    if tokens is not None:
        mean = f", mean log-probability {sum(logprobs) / len(logprobs):.3f} nats" if logprobs else ""
        said, played = _short(facts["completion"]), _short(facts["action"])
        yield f"wrote {said} ({len(tokens):,} tokens{mean}), played {played}"
    game, final, step = facts["raw_reward"], facts["final_reward"], facts["reward"]
    yield f"reward: game {game:+.4g}, final {final:+.4g}, step {step:+.4g}"


def _trajectory(facts: Mapping[str, Any]) -> Iterable[str]:
    yield (
        f"{facts['env_id']} {facts['split']} game {facts['game_index']}, seat {facts['seat']}, "
        f"{facts['model_uid']} against {', '.join(facts['opponents']) or 'nobody'}"
    )
    yield (
        f"{facts['num_turns']} turns, {facts['completion_tokens']:,} tokens, reward {facts['reward']:+.4g} "
        f"({facts['reason']})"
    )


def _game(facts: Mapping[str, Any]) -> Iterable[str]:
    yield f"{facts['env_id']} {facts['split']} game {facts['game_index']}, seed {facts['seed']}"
    moves = "" if facts["num_turns"] is None else f" in {facts['num_turns']} moves"
    yield " – ".join(map(_seat, facts["seats"] or [])) + f": {facts['reason'] or facts['state']}{moves}"


def _seat(seat: Mapping[str, Any]) -> str:
    digest = f" [{seat['sha256'][:8]}]" if seat["sha256"] else ""
    reward = "" if seat["reward"] is None else f" {seat['reward']:+g}"
    return f"{seat['model_uid']}{digest}{reward}"


def _rating(facts: Mapping[str, Any]) -> Iterable[str]:
    yield (
        f"{facts['model_uid']} in {'all environments' if facts['env_id'] == '*' else facts['env_id']}: "
        f"mu {facts['mu']:.2f}, sigma {facts['sigma']:.2f} after {facts['games']:,} games"
    )


def _event(facts: Mapping[str, Any]) -> Iterable[str]:
    yield f"{facts['type']} at {facts['topic']}[{facts['partition']}]@{facts['offset']}"
    yield _short(facts["value"] or "")


_LINES = {
    "run": _run,
    "checkpoint": _checkpoint,
    "update": _update,
    "step": _step,
    "trajectory": _trajectory,
    "game": _game,
    "rating": _rating,
}


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _short(text: str) -> str:
    one_line = repr(text)
    return one_line if len(one_line) <= _LONGEST_TEXT else one_line[: _LONGEST_TEXT - 2] + "…" + one_line[0]


# -- what is said of the whole ----------------------------------------------------------------------------


def _summary(found: Provenance) -> Sequence[Text]:
    facts = found.summary
    lines: list[str] = []
    if facts.get("steps") and found.root.kind == "update":
        lines.append(
            f"made of {facts['steps']:,} steps from {facts['trajectories']:,} seats in {facts['games']:,} "
            f"games; {facts['completion_tokens']:,} sampled tokens, {facts['prompt_tokens']:,} of prompts"
        )
    elif facts.get("steps"):
        lines.append(
            f"{facts['steps']:,} steps: {facts['trained']:,} trained on, {facts['dropped']:,} dropped, "
            f"{facts['pending']:,} pending"
        )
    if found.root.kind == "checkpoint":
        lines.append(f"played {facts.get('seats', 0):,} seats in {facts.get('games', 0):,} finished games")
    counted = ("policies", "opponents", "results")
    lines += [f"{name}: {_counts(facts[name])}" for name in counted if facts.get(name)]
    if facts.get("ratings"):
        rated = [f"{row['model_uid']} {row['mu']:.2f} ± {row['sigma']:.2f}" for row in facts["ratings"]]
        lines.append(f"ratings given for it: {', '.join(dict.fromkeys(rated))}")
    return [Text(plain(line)) for line in lines]


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{name} {count:,}" for name, count in ordered[:_MOST_COUNTED])
    return shown + (f", {len(ordered) - _MOST_COUNTED} more" if len(ordered) > _MOST_COUNTED else "")
