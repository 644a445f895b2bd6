"""Play a seat with a language model: our own policy, or a fixed one behind a chat endpoint."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence

from unstable_stream.errors import EngineError
from unstable_stream.events import storable_text
from unstable_stream.events.seeds import derive_seed
from unstable_stream.games.players import Move, SampledTokens, TurnContext
from unstable_stream.games.templates import PromptTemplate, open_thought
from unstable_stream.inference.engine import (
    Adapter,
    ChatEngine,
    Completion,
    Engine,
    GenerationRequest,
    SamplingSettings,
)
from unstable_stream.inference.tokenizer import FileTokenizer


class PolicyPlayer:
    """Plays one seat with a model, or an adapter of it, and records what was sampled, token by token."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: FileTokenizer,
        template: PromptTemplate,
        *,
        sampling: SamplingSettings | None = None,
        adapter: Adapter | None = None,
        policy_version: int | None = None,
        max_model_len: int | None = None,
        votes: int = 1,
        best_of: int = 1,
        recorded: bool = True,
    ) -> None:
        """Bind a seat to a policy.

        Args:
            engine: Generates; shared by all players.
            tokenizer: The one saved with the engine's model.
            template: Wording and action extraction.
            sampling: How to sample; its default where ``None``.
            adapter: The checkpoint that plays; ``None``: the base model.
            policy_version: Recorded with every move.
            max_model_len: The engine's context, if it was set below the model's own.
            votes: Answers to each turn. The action of most of them is played, and the first answer with it
                is recorded: self-consistency of Wang et al., 2023 (arXiv:2203.11171).
            best_of: Answers to each turn. The one whose tokens are the most probable on average is played and
                recorded: sample-and-rank of Adiwardana et al., 2020 (arXiv:2001.09977), with the
                log-probability per token, so that long answers are not at a disadvantage. One of ``votes``
                and this is 1.
            recorded: ``False``: nothing is recorded but the action and the answer's finish reason, because
                the tokens are those of another model than the run's.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._template = template
        self._sampling = sampling or SamplingSettings()
        self._adapter = adapter
        self._policy_version = policy_version
        self._votes = votes
        self._best_of = best_of
        self._recorded = recorded
        self._context = context_of(tokenizer, max_model_len)
        self._vocabulary_size = tokenizer.vocabulary_size
        # A chat template may open the thoughts: the model's turn, which is read, begins with them. Whatever
        # the observation says does not matter.
        self._opened = open_thought(tokenizer.decode(tokenizer.encode_chat("move"))) if template.chat else ""

    async def move(self, turn: TurnContext) -> Move:
        """Sample a completion, seeded by the turn, and read the action from it.

        A prompt that leaves no room for a completion loses its beginning, and the move says so in
        ``format_feedback["prompt_truncated"]``. Of a completion that was cut at the token limit it says in
        ``format_feedback["cut_off"]`` whether no action was found in it. Control tokens spelled in the
        observation, perhaps by an opponent, are broken up; those of the template count. Raises what the
        engine and the template raise.
        """
        room = prompt_room(self._context, self._sampling.max_tokens)
        prompt, prompt_ids, truncated = prompt_of(self._tokenizer, self._template, turn.observation, room)
        completions = await self._answers(prompt_ids, turn.seed)
        texts = [self._tokenizer.decode(completion.token_ids) for completion in completions]
        found = [self._template.extract(self._opened + text) for text in texts]
        chosen = _most_probable(completions, found) if self._best_of > 1 else _elected(found)
        completion, text, (action, feedback) = completions[chosen], texts[chosen], found[chosen]
        finish_reason = completion.finish_reason
        feedback = {**feedback, "prompt_truncated": truncated}
        if finish_reason == "length":
            # A template of a user's own may say nothing of the format.
            feedback["cut_off"] = not feedback.get("correct_answer_format", bool(action.strip()))
        if not self._recorded:
            return Move(action, feedback, finish_reason=finish_reason)
        # Engines give log-probabilities of greedy moves at temperature 1, without top-p.
        greedy = self._sampling.temperature == 0
        return Move(
            action,
            feedback,
            SampledTokens(
                prompt=prompt,
                prompt_token_ids=tuple(prompt_ids),
                completion=text,
                completion_token_ids=tuple(completion.token_ids),
                logprobs=tuple(completion.logprobs),
                finish_reason=finish_reason,
                policy_version=self._policy_version,
                temperature=1.0 if greedy else self._sampling.temperature,
                top_p=1.0 if greedy else self._sampling.top_p,
            ),
            finish_reason,
        )

    async def _answers(self, prompt_ids: Sequence[int], seed: int) -> list[Completion]:
        """Return the answers to choose from; the first has the turn's own seed."""
        count = max(self._votes, self._best_of)
        seeds = [seed, *(derive_seed(seed, "vote", number) for number in range(1, count))]
        requests = [
            GenerationRequest(prompt_ids, self._sampling, adapter=self._adapter, seed=each) for each in seeds
        ]
        return await asyncio.gather(*map(self._generate, requests))

    async def _generate(self, request: GenerationRequest) -> Completion:
        completion = await self._engine.generate(request)
        problem = _problem(completion, self._vocabulary_size)
        if problem is not None:
            # Recorded, it would stop the learner, also each time that the run is resumed.
            raise EngineError(f"the engine returned a completion with {problem}; look at the engine")
        return completion


def context_of(tokenizer: FileTokenizer, max_model_len: int | None) -> int | None:
    """Return the tokens of prompt and completion together; ``None``: any number."""
    limits = [limit for limit in (max_model_len, tokenizer.context_tokens) if limit is not None]
    return min(limits, default=None)


def prompt_room(context: int | None, max_tokens: int) -> int | None:
    """Tokens a prompt may have: what the completion leaves, but never less than half of the context."""
    return None if context is None else max(context - max_tokens, (context + 1) // 2)


def prompt_of(
    tokenizer: FileTokenizer, template: PromptTemplate, observation: str, room: int | None
) -> tuple[str, list[int], bool]:
    """Return a prompt as text and tokens, and whether it lost its beginning because there is no room."""
    prompt = storable_text(template.format(tokenizer.without_control_tokens(observation)))
    prompt_ids = (tokenizer.encode_chat if template.chat else tokenizer.encode)(prompt)
    if room is None or len(prompt_ids) <= room:
        return prompt, prompt_ids, False
    # The end is kept: there stand the latest events and the place where the answer begins.
    prompt_ids = prompt_ids[-room:]
    return tokenizer.decode(prompt_ids, skip_special=False), prompt_ids, True


def _problem(completion: Completion, vocabulary_size: int | None) -> str | None:
    """Return what is wrong with a completion that no learner could train on, if anything is."""
    tokens, logprobs = completion.token_ids, completion.logprobs
    if len(tokens) != len(logprobs):
        return f"{len(tokens)} tokens but {len(logprobs)} log-probabilities"
    if not all(map(math.isfinite, logprobs)):
        return "a log-probability that is not finite"
    if tokens and not (min(tokens) >= 0 and (vocabulary_size is None or max(tokens) < vocabulary_size)):
        return f"a token id that the model does not have ({min(tokens)} to {max(tokens)})"
    return None


def _elected(answers: Sequence[tuple[str, dict[str, bool]]]) -> int:
    """Return the place of the first answer with the action of most; of equally many, the first given.

    Answers without the form that the template asks for vote only if all are without it.
    """
    places = _formed(answers)
    votes = Counter(answers[at][0] for at in places)  # in the order of the first answer with each action
    action = max(votes, key=lambda each: votes[each])
    return next(at for at in places if answers[at][0] == action)


def _most_probable(completions: Sequence[Completion], answers: Sequence[tuple[str, dict[str, bool]]]) -> int:
    """Return the place of the answer with the largest mean log-probability per token; of equals, the first.

    Answers without the form that the template asks for stand back as in :func:`_elected`; one without tokens
    is the last choice.
    """

    def per_token(at: int) -> float:
        logprobs = completions[at].logprobs
        return sum(logprobs) / len(logprobs) if logprobs else -math.inf

    return max(_formed(answers), key=per_token)


def _formed(answers: Sequence[tuple[str, dict[str, bool]]]) -> Sequence[int]:
    """Return the places of answers of the right form, or of all if none has it."""
    formed = [at for at, (_, feedback) in enumerate(answers) if feedback.get("correct_answer_format", True)]
    return formed or range(len(answers))


class ChatPlayer:
    """Plays one seat through a chat endpoint; recorded are the action and the answer's finish reason."""

    def __init__(
        self, engine: ChatEngine, template: PromptTemplate, sampling: SamplingSettings | None = None
    ) -> None:
        """Bind a seat to an endpoint; it applies its own chat template, so choose ours without markup."""
        self._engine = engine
        self._template = template
        self._sampling = sampling or SamplingSettings()

    async def move(self, turn: TurnContext) -> Move:
        """Ask for a reply and read the action from it. Raises what the engine and the template raise."""
        prompt = storable_text(self._template.format(turn.observation))
        reply = await self._engine.reply(prompt, self._sampling)
        action, feedback = self._template.extract(reply.text)
        return Move(action, feedback, finish_reason=reply.finish_reason, no_answers=reply.no_answers)
