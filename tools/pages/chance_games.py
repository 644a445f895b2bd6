"""Play chance against chance in every environment for two or more; ``make generated`` makes a page of it.

    python -m tools.pages.chance_games --jobs 2
    python -m tools.pages.chance_games --games 2 --families Snake Tak --rows /tmp/rows.jsonl

Each environment's row is appended to a file of rows, by default those of the committed page, once its games
are played. Rows that are there already are not played again: stopped, the command goes on where it was, and
after a change of an environment's players its rows are to be deleted first.

Each game is played again from its seed and its actions by an environment that nothing was tried on. It must
show every player the same texts and end the same way; otherwise trying a move changed the game.
"""

import argparse
import asyncio
import hashlib
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from tools.pages.chance import Row
from unstable_stream.events import GameOutcome, GameStarted, Seat
from unstable_stream.games.environments import Environment, list_environments, probe
from unstable_stream.games.opponents.scripted import scripted_names, scripted_player
from unstable_stream.games.play import play_game
from unstable_stream.games.players import Move, Player, TurnContext

MAX_TURNS: Final = 200
GAMES: Final = 200

ROWS: Final = Path(__file__).parents[2] / "docs" / "data" / "chance-games.jsonl"


@dataclass
class Watched:
    """A player, the texts it was shown, and how often it asked what is legal."""

    player: Player
    shown: list[tuple[int, str]] = field(default_factory=list)
    tries: int = 0
    stuck: list[bool] = field(default_factory=list)
    """For each move, whether the environment accepted none of those it was asked about."""

    async def move(self, turn: TurnContext) -> Move:
        self.shown.append((turn.seat, turn.observation))
        answers: list[bool] = []
        accepts = turn.accepts
        assert accepts is not None

        def noted(action: str) -> bool:
            answers.append(accepts(action))
            return answers[-1]

        move = await self.player.move(replace(turn, accepts=noted))
        self.tries += len(answers)
        self.stuck.append(bool(answers) and not any(answers))
        return move


def chance_games(env_id: str, num_players: int, games: int, *, max_turns: int = MAX_TURNS) -> Row:
    """Play ``games`` games of `random-legal` against itself, seeds from 0, and each once more."""
    invalid = stuck = unlike = over = moves = tries = 0
    first = ""
    for seed in range(games):
        watched = Watched(scripted_player("random-legal", env_id))
        outcome = asyncio.run(_play(env_id, num_players, seed, watched, max_turns))
        refused = [no for action, no in zip(outcome.actions, watched.stuck, strict=True) if not action.valid]
        invalid += not all(refused)
        stuck += bool(refused) and all(refused)
        unlike += not _the_same_again(outcome, watched.shown)
        over += outcome.reason != "truncated"
        moves += outcome.num_turns
        tries += watched.tries
        first = first or _digest(outcome)
    return Row(
        env_id=env_id,
        players=num_players,
        games=games,
        max_turns=max_turns,
        invalid=invalid,
        stuck=stuck,
        unlike=unlike,
        over=over,
        moves=moves,
        tries=tries,
        first=first,
    )


def _digest(outcome: GameOutcome) -> str:
    told = msgspec.json.encode(
        (outcome.actions, outcome.reason, outcome.reason_text, [seat.reward for seat in outcome.seats])
    )
    return hashlib.sha256(told).hexdigest()[:16]


async def _play(env_id: str, num_players: int, seed: int, player: Player, max_turns: int) -> GameOutcome:
    started = GameStarted(
        event_id=f"{env_id}-{seed}",
        run_id="chance",
        occurred_at_ms=0,
        game_id=f"{env_id}-{seed}",
        game_index=seed,
        split="train",
        env_id=env_id,
        seed=seed,
        seats=tuple(
            Seat(seat=seat, model_uid="random-legal", kind="scripted") for seat in range(num_players)
        ),
    )
    played = await play_game(
        started, dict.fromkeys(range(num_players), player), max_turns=max_turns, now_ms=lambda: 0
    )
    return played.outcome


def _the_same_again(outcome: GameOutcome, shown: list[tuple[int, str]]) -> bool:
    environment = Environment(outcome.env_id)
    environment.reset(len(outcome.seats), outcome.seed)
    for action, (seat, text) in zip(outcome.actions, shown, strict=True):
        seen = environment.observe()
        if (seen.seat, seen.text) != (seat, text) or seen.seat != action.seat:
            return False
        environment.step(action.action)
    again = environment.close().rewards
    recorded = {seat.seat: seat.reward for seat in outcome.seats}
    return outcome.reason == "truncated" if again is None else again == recorded


def environments_for_several(families: list[str]) -> Iterator[tuple[str, int]]:
    """Yield id and number of players of what runs offline with two or more; of the families given, if any."""
    for env_id in list_environments():
        if families and env_id.partition("-v0")[0] not in families:
            continue
        num_players, _ = probe(env_id)
        if num_players is not None and num_players > 1:
            yield env_id, num_players


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file, one JSON object a line; none if there is no such file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]


def main() -> None:
    """Play what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--games", type=int, default=GAMES, help="in each environment; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play at once; default: 1")
    parser.add_argument("--families", nargs="*", default=[], help="e.g. Snake Tak; all if left out")
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of rows; default: %(default)s")
    arguments = parser.parse_args()
    several = environments_for_several(arguments.families)
    wanted = [(env_id, players) for env_id, players in several if scripted_names(env_id)]
    rows = {row.env_id: row for row in read_rows(arguments.rows) if row.games == arguments.games}
    missing = [(env_id, players) for env_id, players in wanted if env_id not in rows]
    # Fresh processes: one forked from this would share its locks, one used twice its imported modules.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn) as pool:
        playing = [pool.submit(chance_games, *environment, arguments.games) for environment in missing]
        for number, played in enumerate(as_completed(playing), start=1):
            row = played.result()
            rows[row.env_id] = row
            with arguments.rows.open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
            print(f"{number} of {len(missing)}: {row.env_id}", flush=True)
    if not arguments.families:  # all: leave the file in the page's order
        ordered = [rows[env_id] for env_id, _ in wanted]
        arguments.rows.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in ordered))


if __name__ == "__main__":
    main()
