"""Steps of a run from turns of games that are played already, whoever played them.

SQL over the archive chooses the turns, and the log has what was played. A turn that a policy of the run's
own base model played with the run's own template keeps its recorded tokens. The tokens of any other are made
anew by the run's tokenizer and template: the prompt from what the player saw, which seed and moves of the
game make again where it was not recorded, and the answer from what it wrote, or from its action. They were
sampled by nobody, so that their log-probabilities are recorded as 0 and mean nothing.

A step's ``reward`` is the weight of its turn. The same turn has a step for each time that it is gone through.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from unstable_stream.archive import query
from unstable_stream.errors import ArchiveError, ConfigError, GameError
from unstable_stream.events import (
    ON_ENGINE,
    Event,
    GameOutcome,
    SeatResult,
    Step,
    Trajectory,
    Turn,
    event_id,
    now_ms,
    pack_floats,
    pack_tokens,
    trained_model,
    trajectory_id,
)
from unstable_stream.games.environments import Environment
from unstable_stream.games.templates import PromptTemplate, get_template
from unstable_stream.inference.policy_player import context_of, prompt_of, prompt_room
from unstable_stream.inference.tokenizer import FileTokenizer, load_tokenizer
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import read_to_end, readable_event
from unstable_stream.log.records import id_header
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.runs.base_model import ModelIdentity
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.history import RunHistory, read_history
from unstable_stream.runs.sections import ImitationConfig

_SPELLINGS: Final = ("{action}", "\\boxed{{{bare}}}", "[{bare}]", "\\boxed{{{action}}}")
_THOUGHTLESS: Final = ("", "</think>\n\n")
"""The text before an answer; the second ends thoughts that the prompt has begun."""


_PAIRS: Final = """
WITH named AS (
    SELECT DISTINCT * FROM (
{pairs}
    ) AS pairs(chosen_game, chosen_turn, rejected_game, rejected_turn)
)
SELECT
    format('{{}}, turn {{}}, and {{}}, turn {{}}', chosen_game, chosen_turn, rejected_game, rejected_turn),
    c.game_id, c.seat, c.turn_index, r.game_id, r.seat, r.turn_index
FROM named AS n
LEFT JOIN moves AS c ON c.game_id = n.chosen_game AND c.game_turn = n.chosen_turn
LEFT JOIN moves AS r ON r.game_id = n.rejected_game AND r.game_turn = n.rejected_turn
ORDER BY ALL
"""


class Choice(NamedTuple):
    """A turn that is chosen."""

    game_id: str
    seat: int
    turn_index: int
    """0-based among the moves that the player of the seat decided on."""
    weight: float
    """The weight of the turn; of a preference pair 1 for the chosen answer, -1 for the rejected one."""
    pair: str | None = None


async def imitated_steps(
    log: EventLog, run: RunContext, model_path: str, first_update: int
) -> tuple[RunConfig, list[Step]]:
    """Return the steps of all updates of a run, and its configuration with what was chosen.

    Raises:
        ArchiveError: the SQL is wrong, or there is no archive.
        ConfigError: nothing is chosen, or something that cannot be trained on; says which turn and why.
    """
    run_id, config, data = run
    choices = choose(data.archive, config.imitation)
    maker = await StepMaker.read(log, config, model_path, choices)
    if missing := {choice.game_id for choice in choices} - maker.outcomes.keys():
        raise ConfigError(
            f"game {min(missing)} is in the archive and not in the log, which has what was played: "
            "choose turns of other games, by their run_id"
        )
    once = [maker.step(run_id, choice) for choice in choices]
    if config.imitation.pairs:
        _check_pairs(once)
    at_ms = now_ms()
    wanted = (config.learner.iterations - first_update) * config.learner.batch_size
    epochs = range(1, math.ceil(wanted / len(once)) + 1)
    steps = [numbered(step, epoch, at_ms) for epoch in epochs for step in once]
    chosen = {"turns": len(once), "made_anew": maker.made_anew, "steps": len(steps)}
    imitation = config.imitation.model_copy(update=chosen)
    return config.model_copy(update={"imitation": imitation}), steps


def choose(archive: ArchiveAddress, settings: ImitationConfig) -> list[Choice]:
    """Ask the archive for the turns that are wanted.

    Raises:
        ArchiveError: the SQL is wrong, or there is no archive.
        ConfigError: it chooses nothing, or gives a weight that is no number.
    """
    sql = (
        f"SELECT game_id, seat, turn_index, (\n{settings.weight}\n)::DOUBLE FROM moves WHERE (\n"
        f"{settings.where}\n) ORDER BY game_id, game_turn"
    )
    try:
        if settings.pairs:
            return _chosen_pairs(query(archive, _PAIRS.format(pairs=settings.pairs)).rows)
        choices = [Choice(*row) for row in query(archive, sql).rows]
    except ArchiveError as error:
        raise ArchiveError(f"SQL of [imitation]: {error}") from error
    if not choices:
        raise ConfigError(
            f"imitation.where = {settings.where!r} chooses no turn of {archive}: ask what is there with "
            'unstable-stream sql "SELECT run_id, model_uid, result, count(*) FROM moves GROUP BY ALL"'
        )
    for choice in choices:
        if choice.weight is None or not math.isfinite(choice.weight):
            raise ConfigError(
                f"imitation.weight = {settings.weight!r} is {choice.weight} for turn {choice.turn_index} of "
                f"seat {choice.seat} in game {choice.game_id}, expected a number"
            )
    return choices


def _chosen_pairs(rows: Sequence[tuple[Any, ...]]) -> list[Choice]:
    """``Any``: values of DuckDB, which :data:`_PAIRS` says."""
    if not rows:
        raise ConfigError("imitation.pairs chooses no pair: ask by the same SQL with unstable-stream sql")
    choices = []
    for number, (named, *moves) in enumerate(rows):
        if None in moves:
            raise ConfigError(f"imitation.pairs names a move that is not in the view moves: {named}")
        game, seat, turn, other_game, other_seat, other_turn = moves
        choices.append(Choice(game, seat, turn, 1.0, str(number)))
        choices.append(Choice(other_game, other_seat, other_turn, -1.0, str(number)))
    return choices


def _check_pairs(steps: Sequence[Step]) -> None:
    for chosen, rejected in zip(steps[::2], steps[1::2], strict=True):
        alike = chosen.prompt_token_ids == rejected.prompt_token_ids
        if not alike or chosen.completion_token_ids == rejected.completion_token_ids:
            first, second = (
                f"turn {each.turn_index} of seat {each.seat} in game {each.game_id}"
                for each in (chosen, rejected)
            )
            why = "have the same answer" if alike else "are not at one position: their prompts differ"
            raise ConfigError(f"imitation.pairs: {first} and {second} {why}")


def numbered(step: Step, epoch: int, at_ms: int) -> Step:
    """Return the step of a turn for the ``epoch``-th time that it is gone through, counted from 1.

    ``at_ms``: when the run starts, Unix time in milliseconds. A step as old as its game would be past its
    retention, and make the run look as old.
    """
    pair = None if step.pair is None else f"{epoch}/{step.pair}"
    key = (step.trajectory_id, step.turn_index, *([] if pair is None else [pair]))
    name = event_id(step.run_id, "imitated-step", epoch, *key)
    return msgspec.structs.replace(step, event_id=name, occurred_at_ms=at_ms, pair=pair)


@dataclass
class StepMaker:
    """Makes the steps of chosen turns, with what the log has of their games."""

    config: RunConfig
    tokenizer: FileTokenizer
    outcomes: Mapping[str, GameOutcome]
    """By game."""
    trajectories: Mapping[str, Trajectory]
    origins: Mapping[str, RunConfig]
    """By run, that of the games."""
    made_anew: int = 0
    _seen: tuple[str, list[str]] = ("", [])
    """The game that was made again last, and what its players saw, move for move."""
    _answers: dict[tuple[str, str, str | None], list[int]] = field(default_factory=dict)

    @classmethod
    async def read(
        cls, log: EventLog, config: RunConfig, model_path: str, choices: Iterable[Choice]
    ) -> "StepMaker":
        """Read the games of the choices from the log, those that it has."""
        games = {choice.game_id for choice in choices}
        views = {trajectory_id(choice.game_id, choice.seat) for choice in choices}
        outcomes: dict[str, GameOutcome] = {}
        trajectories: dict[str, Trajectory] = {}
        async for record in read_to_end(log, (GameOutcome.TOPIC, Trajectory.TOPIC)):
            if record.topic == Trajectory.TOPIC and id_header(record.headers) not in views:
                continue
            event: Event | None = readable_event(record)
            # Of a game that two workers finished, the first one counts.
            if isinstance(event, GameOutcome) and event.game_id in games:
                outcomes.setdefault(event.game_id, event)
            elif isinstance(event, Trajectory):
                trajectories.setdefault(event.event_id, event)
        history: RunHistory = await read_history(log)
        runs = {outcome.run_id for outcome in outcomes.values()}
        origins = {name: history.run(name).config() for name in sorted(runs)}
        tokenizer = load_tokenizer(model_path, config.chat_template_kwargs)
        return cls(config, tokenizer, outcomes, trajectories, origins)

    def is_gone(self, choice: Choice) -> bool:
        """Return whether the log has no longer all that the step of a turn was made from."""
        outcome = self.outcomes.get(choice.game_id)
        if outcome is None:
            return True
        sampled = any(seat.seat == choice.seat and seat.kind in ON_ENGINE for seat in outcome.seats)
        return sampled and trajectory_id(choice.game_id, choice.seat) not in self.trajectories

    def step(self, run_id: str, choice: Choice) -> Step:
        """Return the step of a turn, without an id.

        Raises:
            ConfigError: there is no such turn, the run does not play its environment, or knows no answer
                that says its action.
            GameError: the game cannot be made again.
        """
        outcome = self.outcomes[choice.game_id]
        made = outcome.position.moves if outcome.position else 0
        turns = [at for at, action in enumerate(outcome.actions) if at >= made and action.seat == choice.seat]
        where = f"turn {choice.turn_index} of seat {choice.seat} in game {choice.game_id}"
        seat = next((each for each in outcome.seats if each.seat == choice.seat), None)
        if seat is None or not 0 <= choice.turn_index < len(turns):
            raise ConfigError(f"{where}: there is none")
        at = turns[choice.turn_index]
        trajectory = self.trajectories.get(trajectory_id(choice.game_id, choice.seat))
        recorded = trajectory.turns if trajectory else ()
        # Not by turn_index: there are turns for those moves only of which more than the action is known.
        turn = next((each for each in recorded if each.game_turn == at), None)
        template = self._template(outcome, where)
        if trajectory and turn and self._keeps(outcome.run_id, trajectory, template):
            tokens = turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs, trajectory.temperature
        else:
            self.made_anew += 1
            seen = turn.observation if turn else self._observed(outcome)[at]
            _, prompt, _ = prompt_of(self.tokenizer, template, seen, self._room)
            answer = self._answer(template, outcome.actions[at].action, turn, where)
            tokens = (
                pack_tokens(prompt),
                pack_tokens(answer),
                pack_floats([0.0] * len(answer)),
                self.config.sampling.temperature or 1.0,
            )
        return Step(
            event_id="",
            run_id=run_id,
            occurred_at_ms=outcome.occurred_at_ms,
            trajectory_id=trajectory_id(choice.game_id, choice.seat),
            game_id=choice.game_id,
            game_index=outcome.game_index,
            env_id=outcome.env_id,
            seat=choice.seat,
            turn_index=choice.turn_index,
            num_turns=len(turns),
            model_uid=_player(outcome, seat),
            policy_version=0,
            prompt_token_ids=tokens[0],
            completion_token_ids=tokens[1],
            logprobs=tokens[2],
            temperature=tokens[3],
            raw_reward=seat.reward,
            final_reward=seat.reward,
            reward=choice.weight,
            pair=choice.pair,
        )

    @cached_property
    def _room(self) -> int | None:
        context = context_of(self.tokenizer, self.config.engine.max_model_len)
        return prompt_room(context, self.config.sampling.max_tokens)

    @cached_property
    def _templates(self) -> dict[str, PromptTemplate]:
        return {env.env_id: get_template(env.template) for env in self.config.train_envs}

    def _template(self, outcome: GameOutcome, where: str) -> PromptTemplate:
        found = self._templates.get(outcome.env_id)
        if found is None:
            raise ConfigError(
                f"imitation.where chooses {where}, of {outcome.env_id}, which is none of train_envs: add it "
                f"with its template, or add AND env_id <> '{outcome.env_id}'"
            )
        return found

    def _keeps(self, origin: str, trajectory: Trajectory, template: PromptTemplate) -> bool:
        """Return whether the recorded tokens are those that this run's policy would be given."""
        theirs = self.origins[origin]
        return (
            trajectory.template == template.name
            and theirs.chat_template_kwargs == self.config.chat_template_kwargs
            and ModelIdentity.of_run(theirs).matches(ModelIdentity.of_run(self.config))
        )

    def _observed(self, outcome: GameOutcome) -> list[str]:
        """Return what the players of a game saw, made again from its seed and moves."""
        if outcome.split == "imported":
            raise ConfigError(
                f"game {outcome.game_id} was imported without what its players saw, and without a seed by "
                "which it could be made again: add AND observation IS NOT NULL"
            )
        if outcome.game_id != self._seen[0]:
            rules = self.origins[outcome.run_id]
            start, where = outcome.position, f"game {outcome.game_id} of {outcome.env_id}"
            allowed = rules.collector.invalid_moves_allowed
            environment = Environment(outcome.env_id, invalid_moves_allowed=allowed, label=where)
            environment.reset(len(outcome.seats), start.seed if start else outcome.seed)
            seen: list[str] = []
            for action in outcome.actions:
                observed = environment.observe()
                seen.append(observed.text)
                if observed.seat != action.seat or environment.step(action.action).valid != action.valid:
                    raise GameError(
                        f"{where} cannot be made again: move {len(seen) - 1}, {action.action!r} of seat "
                        f"{action.seat}, is another one now. The environment does not follow its seed, or "
                        "has changed: choose turns of other games"
                    )
            self._seen = outcome.game_id, seen
        return self._seen[1]

    def _answer(self, template: PromptTemplate, action: str, turn: Turn | None, where: str) -> list[int]:
        """Return an answer that is read as the action: what was written, if it is, or the action alone."""
        written = turn.completion if turn else None
        key = (template.name, action, written)
        if key not in self._answers:
            bare = action.strip().removeprefix("[").removesuffix("]")
            spelled = [
                before + text.format(action=action, bare=bare)
                for before in _THOUGHTLESS
                for text in _SPELLINGS
            ]
            found = [
                (not feedback.get("correct_answer_format", True), place, tokens)
                for place, text in enumerate([written, *spelled])
                if text is not None and (tokens := self.tokenizer.encode_answer(text))
                for read, feedback in [template.extract(self.tokenizer.decode(tokens))]
                if read == action
            ]
            most = self.config.sampling.max_tokens
            if not found or len(min(found)[2]) > most:
                raise ConfigError(
                    f"imitation.where chooses {where}, whose action {action!r} cannot be said in "
                    f"sampling.max_tokens = {most} tokens that template {template.name} reads as it: leave "
                    "such turns out, or name another template or limit"
                )
            end = self.tokenizer.answer_end
            self._answers[key] = [*min(found)[2], *([] if end is None else [end])][:most]
        return self._answers[key]


def _player(outcome: GameOutcome, seat: SeatResult) -> str:
    """Return who moved: a checkpoint as ``RUN@UPDATE`` or ``RUN@MODEL/UPDATE``, as it is named anywhere.

    No name is that of a checkpoint of the run that imitates, whose learner would leave the step to another.
    """
    model = trained_model(seat.model_uid)
    if seat.kind != "checkpoint":
        return seat.model_uid if model is None else f"{outcome.run_id}@{seat.model_uid}"
    return f"{outcome.run_id}@{f'{model}/' if model else ''}{seat.policy_version}"
