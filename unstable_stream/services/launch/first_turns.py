"""Word the first turn of an environment for a model that is to play it, before anything is recorded.

What makes a run train for nothing shows there: a template for another game, a tokenizer without the words of
the prompt, an answer that the model cannot write or that the environment does not take.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from unstable_stream.errors import ConfigError, GameError, UnstableStreamError
from unstable_stream.games.environments import Environment
from unstable_stream.games.opponents.scripted import scripted_names, scripted_player
from unstable_stream.games.players import TurnContext
from unstable_stream.games.templates import PromptTemplate, get_template
from unstable_stream.inference.tokenizer import FileTokenizer
from unstable_stream.runs.config import EnvConfig

T = TypeVar("T")

_SHOWN_WORDS: Final = 5
MOST_UNKNOWN: Final = 0.25
"""Share of a prompt that may be words without a token, such as the name of a game above its board."""


@contextmanager
def first_turn(env: EnvConfig) -> Iterator[TurnContext]:
    """Yield the first turn of a game of the environment, which is closed afterwards."""
    environment = Environment(env.env_id)
    environment.reset(env.num_players, seed=0)
    seen = environment.observe()
    yield TurnContext(
        env_id=env.env_id,
        seat=seen.seat,
        num_players=env.num_players,
        turn_index=0,
        game_turn=0,
        seed=0,
        observation=seen.text,
        accepts=environment.accepts,
        plain=seen.plain,
    )
    with suppress(
        GameError
    ):  # one of a user's own may know no result before its first move, which nobody needs
        environment.close()


def check_first_turn(where: str, env: EnvConfig, template_name: str, tokenizer: FileTokenizer | None) -> None:
    """Refuse a model that cannot play an environment with a template.

    The tokenizer must have most words of the first turn's prompt, and a legal move, answered in the form that
    the template asks for, must come through tokenizer and template as a move that the environment accepts.
    Where no legal move is known (:func:`~unstable_stream.games.opponents.scripted.scripted_names`),
    only the prompt is tried; behind an endpoint (``tokenizer`` is ``None``) no tokens are.

    Raises:
        ConfigError: one line that begins with ``where`` and says what to change.
    """
    template = get_template(template_name)
    about = f"{where}: template {template_name!r} on the first turn of {env.env_id}"
    with first_turn(env) as turn:
        shown = turn.observation if tokenizer is None else tokenizer.without_control_tokens(turn.observation)
        try:
            prompt = template.format(shown)
            tokens = None
            if tokenizer is not None:
                tokens = (tokenizer.encode_chat if template.chat else tokenizer.encode)(prompt)
        except UnstableStreamError as error:
            raise ConfigError(f"{about}: {error}") from error
        except Exception as error:  # a template of a user's own may raise anything
            raise ConfigError(f"{about}: {type(error).__name__}: {error}") from error
        if not prompt.strip() or tokens == []:
            raise ConfigError(f"{about} gives an empty prompt; choose another template")
        if tokenizer is not None:
            _check_words(about, tokenizer, prompt)
        _check_answer(about, env, template, tokenizer, turn)


def _check_words(about: str, tokenizer: FileTokenizer, prompt: str) -> None:
    unknown = tokenizer.unknown_words(prompt)
    if len(unknown) <= MOST_UNKNOWN * len(tokenizer.encode_answer(prompt)):
        return
    words = ", ".join(map(repr, list(dict.fromkeys(unknown))[:_SHOWN_WORDS]))
    raise ConfigError(
        f"{about}: the tokenizer has no token for {len(unknown)} words of the prompt ({words}), so the model "
        "would not see them; choose a template made for this model, or another model"
    )


def _check_answer(
    about: str, env: EnvConfig, template: PromptTemplate, tokenizer: FileTokenizer | None, turn: TurnContext
) -> None:
    if "first-legal" not in scripted_names(env.env_id) or turn.accepts is None:
        return
    try:
        legal = finish(scripted_player("first-legal", env.env_id).move(turn)).action
    except GameError:
        return  # an environment of the user's own need not list its moves
    forms = (legal, f"\\boxed{{{legal.strip('[]')}}}", f"\\boxed{{{legal}}}")
    thought = [f"</think>{form}" for form in forms]  # of templates that open the thoughts
    read = {answer: _read(template, answer) for answer in (*forms, *thought)}
    known = {answer: action for answer, action in read.items() if action is not None}
    if not known:
        return  # the template asks for a form that we do not know
    accepted = [answer for answer, action in known.items() if action == legal or turn.accepts(action)]
    if not accepted:
        answer, action = next(iter(known.items()))
        raise ConfigError(
            f"{about}: the answer {answer!r} is read as {action!r}, which the environment calls invalid; it "
            f"takes {legal!r}: choose another template"
        )
    if tokenizer is None:
        return
    written = {answer: tokenizer.decode(tokenizer.encode_answer(answer)) for answer in accepted}
    if all(_read(template, text) != known[answer] for answer, text in written.items()):
        answer = accepted[0]
        raise ConfigError(
            f"{about}: the tokenizer cannot write the answer {answer!r}: it becomes {written[answer]!r}; "
            "choose a template made for this model, or another model"
        )


def _read(template: PromptTemplate, answer: str) -> str | None:
    """Return the action of an answer that has the form which the template asks for."""
    try:
        action, form = template.extract(answer)
    except Exception:  # noqa: BLE001  (a template of a user's own need not take a form that it did not ask for)
        return None
    return action if form.get("correct_answer_format", False) else None  # what says nothing is not judged


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns; the caller may be in an event loop, which cannot run another."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()
