"""Ask a checkpoint what it would play in the positions of a recorded game. Nothing of it is recorded."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from unstable_stream.api.branching import position_again
from unstable_stream.api.checkpoints import LOADING, find_policy, policy_at_work, template_in
from unstable_stream.api.games import load_transcript
from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import Place
from unstable_stream.api.run import open_run
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import confined

if TYPE_CHECKING:
    from unstable_stream.inference.exploitability import StatePolicy


def ask_moves(
    place: Place,
    game: str,
    policy: str,
    turns: Sequence[int] | None,
    take: "Callable[[int, StatePolicy], None]",
    *,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Compute a checkpoint's probabilities of the moves that are possible at turns of a finished game.

    The positions are made again from the game's seed and moves, as for
    :func:`~unstable_stream.api.branching.branch`.

    Args:
        place: where game and checkpoint are.
        game: the game's id.
        policy: ``RUN@UPDATE``, or ``RUN`` for the newest checkpoint.
        turns: of these; ``None``: of all.
        take: given each turn and what the checkpoint would play there, at temperature 1.
        on_progress: told how many parts are loaded or turns computed, and of how many.

    Raises:
        ArchiveError: no such game.
        RunError: no such checkpoint, or the game cannot be made again.
        ConfigError: no such turn, or the checkpoint's template reads none of the spellings of a move.
        GameError: the game lists no moves.
        EngineError: the weights are missing, or not those that were recorded.
    """
    found = find_policy(place, policy)
    if found is None:
        raise ConfigError(f"{policy!r} names a model; expected a checkpoint, RUN@UPDATE")
    fork, config = found
    played = load_transcript(place.archive, game)
    asked = range(len(played.moves)) if turns is None else turns
    recorded = open_run(played.run_id, **place.named).config
    with confined(place.allowed_code(played.run_id, [], recorded, recorded)):
        _, texts = position_again(place, played, recorded, max(asked, default=0))
    of = len(LOADING) + len(asked)

    async def ask() -> None:
        async with policy_at_work(place, fork, config, lambda parts: on_progress(parts, of)) as loaded:
            from unstable_stream.games.templates import get_template
            from unstable_stream.inference.exploitability import move_chances

            template = get_template(template_in(config, played.env_id or ""))
            for done, turn in enumerate(asked, start=len(LOADING) + 1):
                policy_there = await move_chances(
                    loaded.engine, loaded.tokenizer, template, texts[turn], loaded.adapter
                )
                take(turn, policy_there)
                on_progress(done, of)

    on_progress(0, of)
    wait_for(ask())
