"""Try each extension of a configuration on a small sample before anything of a run starts.

The sample is the recorded game of ``topics/golden``, the first turn of each configured environment, and the
arguments that a built-in would receive. Every exception of an extension becomes one line: the key, the
extension, the error, and the expected signature.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.algorithms.update_decisions import shaped_rewards
from unstable_stream.errors import ConfigError
from unstable_stream.events import Event, Step, StepTexts, Trajectory, decode_event, encode_event
from unstable_stream.extensions import KINDS, Reference, is_extension, load, needs_this_process
from unstable_stream.extensions.build import refuse
from unstable_stream.games.environments import Environment
from unstable_stream.games.opponents.scripted import scripted_player
from unstable_stream.games.templates import get_template
from unstable_stream.log.topics import TOPICS_DIR
from unstable_stream.model_pool import ModelPool
from unstable_stream.model_pool.systems import live_rating_system
from unstable_stream.reward_transformations import (
    RewardVector,
    TrajectoryView,
    build_final,
    build_sampling,
    build_step,
)
from unstable_stream.runs.config import EnvConfig, RunConfig
from unstable_stream.services.launch.first_turns import finish, first_turn
from unstable_stream.services.streams.plugins import load_plugin, metrics_of
from unstable_stream.services.streams.processors import rating_processor
from unstable_stream.services.streams.trackers import build_metrics_tracker

_TRIAL_TURNS: Final = 30
_METHODS_OF_AN_ENGINE: Final = ("generate", "stats", "close")


def try_extensions(config: RunConfig) -> None:
    """Try every extension that a configuration names, each reference once.

    Raises:
        ConfigError: an extension cannot work; one line about the first.
    """
    tried: set[tuple[str, str]] = set()
    for kind, key, reference in config.references():
        own = needs_this_process(reference.target)
        if own and config.backend != "inline":
            raise ConfigError(
                f"{key}: {reference.target!r} is an object of this process, which no process of Ray has: "
                'define it in a module or a file, or use backend = "inline"'
            )
        if (kind, reference.text) in tried or not (own or is_extension(KINDS[kind], reference)):
            continue
        tried.add((kind, reference.text))
        try_extension(kind, key, reference, config)


def try_extension(kind: str, key: str, reference: Reference, config: RunConfig) -> None:
    """Try one extension; raises :class:`ConfigError` in one line if it cannot work."""
    try:
        _TRIALS[kind](reference, config)
    except Exception as error:
        said = " ".join(str(error).split())
        expects = KINDS[kind].expects
        if isinstance(error, ConfigError) and said.endswith(expects):
            raise ConfigError(f"{key}: {said.removeprefix(f'{KINDS[kind].key}: ')}") from error
        raise refuse(
            KINDS[kind], reference, key, f"failed on a sample: {type(error).__name__}: {said}"
        ) from error


def recorded_sample() -> dict[str, Event]:
    """Return one recorded event of each type, by the name of the type."""
    found = {}
    for path in sorted((TOPICS_DIR / "golden").glob("*.json")):
        event = decode_event(path.read_bytes().strip())
        found[path.name.partition(".")[0]] = event
    return found


def _trajectory() -> Trajectory:
    event = recorded_sample()["trajectory"]
    assert isinstance(event, Trajectory)
    return event


def _steps() -> list[Step]:
    step = recorded_sample()["step"]
    assert isinstance(step, Step)
    turn = _trajectory().turns[0]
    texts = StepTexts(
        observation=turn.observation,
        completion=turn.completion,
        action=turn.action,
        format_feedback=turn.format_feedback,
        step_info=turn.step_info,
    )
    return [
        msgspec.structs.replace(
            step, event_id=f"{step.event_id[:-1]}{number}", reward=float(number - 1), texts=texts
        )
        for number in range(3)
    ]


def envs_of(config: RunConfig) -> list[EnvConfig]:
    """Return the environments that a run plays, each once."""
    return list(dict.fromkeys((*config.train_envs, *config.evaluated_envs)))


def _try_algorithm(reference: Reference, config: RunConfig) -> None:
    from unstable_stream.algorithms import build_algorithm  # loads torch
    from unstable_stream.algorithms.trial import try_algorithm

    try_algorithm(build_algorithm(reference.spec))


def _try_final(reference: Reference, config: RunConfig) -> None:
    stack = build_final([reference.spec])
    for env in envs_of(config):
        rewards = {seat: 1.0 - 2.0 * (seat % 2) for seat in range(env.num_players)}
        stack(RewardVector(rewards, frozenset((0,))), env.env_id)
    stack.load_state(stack.state())


def _try_step(reference: Reference, config: RunConfig) -> None:
    stack = build_step([reference.spec])
    stack(TrajectoryView(_trajectory()), 0, 1.0)
    stack.load_state(stack.state())


def _try_sampling(reference: Reference, config: RunConfig) -> None:
    steps = _steps()
    stack = build_sampling([reference.spec])
    shaped_rewards(steps, stack)
    # Checkpoints hold its state as JSON.
    stack.load_state(json.loads(json.dumps(stack.state())))


def _try_strategy(reference: Reference, config: RunConfig) -> None:
    buffer = StepBuffer(2, reference.spec)
    buffer.extend(_steps())
    buffer.get_batch(1, 1)


def _try_opponent_sampling(reference: Reference, config: RunConfig) -> None:
    import random

    rated_by = live_rating_system(config.model_pool.rating_system, config.model_pool.draw_probability)
    pool = ModelPool(reference.spec, max_active_lora=2, fixed=("somebody",), system=rated_by)
    for iteration in range(3):
        pool.add_checkpoint(None, iteration)
    for env in envs_of(config):
        pool.sample(pool.current_uid() or "", random.Random(0), env.env_id)


def _try_rating_system(reference: Reference, config: RunConfig) -> None:
    outcome = recorded_sample()["game-outcome"]
    processor = rating_processor(outcome.run_id, system=reference.spec)
    for event in processor.handle(outcome):
        encode_event(event)
    rating_processor(outcome.run_id, system=reference.spec).load_state(processor.state())


def _try_template(reference: Reference, config: RunConfig) -> None:
    template = get_template(reference.text)
    shown = [env for env in envs_of(config) if env.template == reference.text] or envs_of(config)
    for env in shown:
        with first_turn(env) as turn:
            prompt = template.format(turn.observation)
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError(f"format returned {prompt!r}, expected the prompt as text")
    action, feedback = template.extract("\\boxed{0}")
    if not isinstance(action, str) or not isinstance(feedback, Mapping):
        raise ConfigError(f"extract returned {(action, feedback)!r}, expected text and a table")


def _try_opponent(reference: Reference, config: RunConfig) -> None:
    for env in envs_of(config):
        if env.num_players > 1:
            player = scripted_player(reference.text, env.env_id)
            with first_turn(env) as turn:
                finish(player.move(turn))


def _try_environment(reference: Reference, config: RunConfig) -> None:
    for env in envs_of(config):
        if env.env_id != reference.text:
            continue
        environment = Environment(env.env_id, invalid_moves_allowed=1)
        environment.reset(env.num_players, seed=0)
        while not environment.done and environment.turn < _TRIAL_TURNS:
            environment.step(_listed_move(environment.observe().text))
        environment.close()


def _try_engine(reference: Reference, config: RunConfig) -> None:
    kind = KINDS["engine"]
    made = load(kind, reference)
    if not callable(made):
        raise refuse(kind, reference, kind.key, f"is a {type(made).__name__}")
    inspect.signature(made).bind("path/of/the/model", **reference.arguments)
    missing = [name for name in _METHODS_OF_AN_ENGINE if inspect.isclass(made) and not hasattr(made, name)]
    if missing:
        raise refuse(kind, reference, kind.key, f"has no {', '.join(missing)}")


def _try_consumer(reference: Reference, config: RunConfig) -> None:
    if reference.file is not None and not reference.file[1]:
        raise ConfigError(f"say which name in the file, {reference.target}:name")
    plugin = load_plugin(reference.target)
    events = list(recorded_sample().values())
    with ThreadPoolExecutor(max_workers=1) as thread:  # the caller may be in an event loop
        thread.submit(metrics_of, plugin, events).result()


def _try_tracker(reference: Reference, config: RunConfig) -> None:
    with TemporaryDirectory() as directory:
        tracker = build_metrics_tracker(reference.spec, Path(directory))
        if not reference.names_code:
            return  # one of ours works; it might begin to send the trial somewhere
        tracker.log({"learner/loss": 0.5}, run_id="trial", source="learner", step=1, time_ms=0)
        close = getattr(tracker, "close", None)
        if close is not None:
            close()


_TRIALS: Final[Mapping[str, Callable[[Reference, RunConfig], None]]] = {
    "algorithm": _try_algorithm,
    "final_transformation": _try_final,
    "step_transformation": _try_step,
    "sampling_transformation": _try_sampling,
    "buffer_strategy": _try_strategy,
    "opponent_sampling": _try_opponent_sampling,
    "rating_system": _try_rating_system,
    "template": _try_template,
    "opponent": _try_opponent,
    "environment": _try_environment,
    "engine": _try_engine,
    "consumer": _try_consumer,
    "tracker": _try_tracker,
}


def _listed_move(observation: str) -> str:
    from unstable_stream.errors import GameError
    from unstable_stream.games.opponents.legal_moves import listed_moves

    try:
        return listed_moves(observation)[0]
    except GameError:
        return "[0]"  # it lists none
