"""Turn text into token ids and back, without loading torch.

``tokenizer.json`` and the chat template are read directly (``tokenizers`` and ``jinja2`` load in 0.2 s, where
``transformers.AutoTokenizer`` takes seconds and a few hundred megabytes). Only a model without a
``tokenizer.json`` on disk, such as a hub name, goes through transformers.
"""

import contextlib
import datetime
import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import tokenizers

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError
from unstable_stream.inference.model_config import (
    context_tokens,
    read_config,
    read_json,
    text_config,
    token_ids,
    vocabulary_size,
)

_logger = get_logger(__name__)

_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_ANSWER: Final = "unstable-stream-answer"
"""Stands for an answer in a chat template, to see what follows one."""
_TURN_ENDS: Final = (
    *("<|im_end|>", "<end_of_turn>", "<turn|>", "<|eot_id|>", "<|eot|>", "<|end_of_turn|>", "<|endofturn|>"),
    *("<|END_OF_TURN_TOKEN|>", "<|end_of_text|>", "<|endoftext|>"),
)
"""Names of tokens that end a turn, where no chat template shows which one does."""


class FileTokenizer:
    """Gives players what they need of ``tokenizers.Tokenizer``, with the chat template of the model."""

    def __init__(
        self,
        name: str,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        chat_template: str | None,
        model_config: Mapping[str, Any],
        generation_config: Mapping[str, Any],
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenizer_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap ``backend``; ``name`` is for messages, the configs are those saved with the model."""
        self._name = name
        self._chat_template_kwargs = dict(chat_template_kwargs or {})
        self._backend = backend
        # Files saved after training may cut or pad; a recorded prompt must be all of it and nothing else.
        backend.no_truncation()
        backend.no_padding()
        self._special_tokens = dict(special_tokens)
        self._control = _control_tokens(backend)
        self._chat = None if chat_template is None else _compile(name, chat_template)
        self.context_tokens: Final = context_tokens(model_config, tokenizer_config)
        """Most tokens the model was built for; ``None`` if its files do not say."""
        self.vocabulary_size: Final = vocabulary_size(model_config)
        """Token ids are below it; ``None`` if the model's files do not say."""
        ends = _config_ends(model_config, generation_config) | self._own_ends(tokenizer_config or {})
        self.eos_token_ids: Final = frozenset(
            token for token in ends if self.vocabulary_size is None or token < self.vocabulary_size
        )
        """Ids that end an answer of the model, in every engine: see :func:`end_token_ids`."""

    def check_vocabulary(self) -> None:
        """Check that what text is encoded to are tokens of the model; control tokens may be more than it has.

        Raises:
            ConfigError: the tokenizer is larger than the model's embedding.
        """
        words = [id_ for id_, token in self._backend.get_added_tokens_decoder().items() if not token.special]
        size = max([self._backend.get_vocab_size(with_added_tokens=False) - 1, *words]) + 1
        if self.vocabulary_size is not None and size > self.vocabulary_size:
            raise ConfigError(
                f"the tokenizer of {self._name} has {size:,} tokens and the model {self.vocabulary_size:,} "
                "(vocab_size in config.json): use the tokenizer that the model was trained with, or resize "
                "its embedding (resize_token_embeddings of transformers)"
            )

    def without_control_tokens(self, text: str) -> str:
        """Return ``text`` so that none of it is encoded as a control token (``<|im_end|>``, ``<eos>``).

        Text of a game may be what an opponent wrote: it must not end our player's turn and begin another's. A
        blank after the first character makes ordinary text of it, which stays readable.
        """
        while self._control is not None and self._control.search(text):
            text = self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        return text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a whole prompt, with whatever the model wants in front of one (``<bos>``)."""
        return list(self._backend.encode(text).ids)

    def unknown_words(self, text: str) -> list[str]:
        """Return the pieces of a prompt that it has no token for, in order."""
        name = self._special_tokens.get("unk_token") or getattr(self._backend.model, "unk_token", None)
        unknown = None if name is None else self._backend.token_to_id(name)
        if unknown is None:
            return []
        found = self._backend.encode(text, add_special_tokens=False)
        pieces = [
            text[slice(*span)]
            for span, token in zip(found.offsets, found.ids, strict=True)
            if token == unknown
        ]
        return [
            piece for piece in pieces if piece != name
        ]  # in some models another token's work, such as an end

    def encode_answer(self, text: str) -> list[int]:
        """Return the ids of a completion of that text, with nothing in front of it or behind."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, message: str) -> list[int]:
        """Return the ids of one user message in the chat template, up to where the answer begins.

        Raises:
            ConfigError: The model has no chat template, or the template failed.
        """
        if self._chat is None:
            raise ConfigError(
                f"{self._name} has no chat template; choose a prompt template that writes the markup itself "
                "(such as qwen3-zs or default), or add chat_template.jinja to the model directory"
            )
        text = self._render([{"role": "user", "content": message}], add_generation_prompt=True)
        # The template writes <bos> itself where the model has one.
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def _render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = False) -> str:
        assert self._chat is not None
        try:
            return self._chat.render(
                {
                    **self._special_tokens,
                    **self._chat_template_kwargs,
                    "messages": messages,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        # A template is code of others: what it asks of a message may raise anything.
        except Exception as error:
            raise ConfigError(
                f"the chat template of {self._name} failed on a user message: {error}"
            ) from error

    def _own_ends(self, tokenizer_config: Mapping[str, Any]) -> set[int]:
        """Return the ids that end an answer as the tokenizer and its chat template have it."""
        named = [self._special_tokens.get("eos_token", ""), _text_of(tokenizer_config.get("eot_token"))]
        ends = {id_ for name in named if (id_ := self._backend.token_to_id(name)) is not None}
        return ends | (self._template_ends() or self._ends_by_name())

    def _template_ends(self) -> set[int]:
        """Return the id of the token that the chat template writes behind an answer; empty if none is there.

        Where it writes one between turns only, as GLM-4's, that one: the beginning of the next turn.
        """
        if self._chat is None:
            return set()
        user, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}
        added = {token.content: id_ for id_, token in self._backend.get_added_tokens_decoder().items()}
        for messages in ([user, answer], [user, answer, user]):
            with contextlib.suppress(ConfigError):  # it takes no answers: whoever plays with it is refused
                _, _, behind = self._render(messages).rpartition(_ANSWER)
                begins = [text for text in added if text.strip() and behind.lstrip().startswith(text)]
                if begins:
                    return {added[max(begins, key=len)]}
        return set()

    @functools.cached_property
    def answer_end(self) -> int | None:
        """The id that the model ends its own answer with; ``None``: it has none."""
        own = self._backend.token_to_id(self._special_tokens.get("eos_token", ""))
        ends = self._template_ends() or (self.eos_token_ids if own is None else {own})
        return min(ends & self.eos_token_ids, default=None)

    def _ends_by_name(self) -> set[int]:
        found = self._backend.get_added_tokens_decoder().items()
        return {id_ for id_, token in found if token.special and token.content in _TURN_ENDS}

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text; without special tokens unless told otherwise."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special)


def load_tokenizer(
    model_path: str | Path, chat_template_kwargs: Mapping[str, Any] | None = None
) -> FileTokenizer:
    """Read the tokenizer saved with a model.

    Args:
        model_path: A directory as transformers saves it, or a hub name (this loads transformers).
        chat_template_kwargs: Variables of the chat template, beside those that every prompt has.

    Raises:
        ConfigError: There is none, or its files cannot be read.
    """
    directory = Path(model_path)
    if not (directory / "tokenizer.json").is_file():
        return _load_with_transformers(str(model_path), chat_template_kwargs)
    try:
        backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:
        # The library's Rust side raises bare `Exception` for whatever is wrong with the file.
        raise ConfigError(f"{directory / 'tokenizer.json'} cannot be read: {error}") from error
    config = read_json(directory / "tokenizer_config.json")
    return FileTokenizer(
        str(model_path),
        backend,
        special_tokens=_special_tokens(config | read_json(directory / "special_tokens_map.json")),
        chat_template=_chat_template(directory, config),
        model_config=read_config(directory),
        generation_config=read_json(directory / "generation_config.json"),
        tokenizer_config=config,
        chat_template_kwargs=chat_template_kwargs,
    )


def end_token_ids(model_path: str | Path) -> frozenset[int]:
    """Return the ids at which every engine ends an answer of a model; warns if there is none.

    They come from ``config.json``, ``generation_config.json``, the tokenizer (its end and end-of-turn token)
    and the token that the chat template writes behind an answer. Files of fine-tuned models disagree: what
    one of them calls an end is one, for whatever a model writes behind it nobody has asked.

    Args:
        model_path: as for :func:`load_tokenizer`; a model without a tokenizer has the first two alone.
    """
    try:
        ends = load_tokenizer(model_path).eos_token_ids
    except ConfigError:
        directory = Path(model_path)
        own = _config_ends(read_config(directory), read_json(directory / "generation_config.json"))
        ends = frozenset(own)
    if not ends:
        _logger.warning(
            "the model names no token that ends an answer: each goes on to sampling.max_tokens; add "
            "eos_token_id to its generation_config.json",
            model=str(model_path),
        )
    return ends


def _config_ends(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> set[int]:
    sections = (generation_config, config, text_config(config))
    return set().union(*(token_ids(section.get("eos_token_id")) for section in sections))


def _load_with_transformers(
    model_path: str, chat_template_kwargs: Mapping[str, Any] | None = None
) -> FileTokenizer:
    directory = Path(model_path)
    if directory.is_dir() and not any(directory.glob("*token*")):
        raise ConfigError(f"{model_path} has no tokenizer files; expected tokenizer.json beside the model")
    import transformers

    try:
        loaded = transformers.AutoTokenizer.from_pretrained(model_path)
        config = transformers.AutoConfig.from_pretrained(model_path).to_dict()
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"the tokenizer of {model_path!r} cannot be loaded: {reason}; expected a model directory, "
            "or a hub name that is cached or reachable"
        ) from error
    generation: dict[str, Any] = {}
    with contextlib.suppress(OSError):  # it has none
        generation = transformers.GenerationConfig.from_pretrained(model_path).to_dict()
    return FileTokenizer(
        model_path,
        loaded.backend_tokenizer,
        special_tokens=_special_tokens(loaded.special_tokens_map),
        chat_template=_pick_template(loaded.chat_template),
        model_config=config,
        generation_config=generation,
        tokenizer_config=loaded.init_kwargs,
        chat_template_kwargs=chat_template_kwargs,
    )


def _control_tokens(backend: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Return a pattern of the control tokens' texts; ``None`` if there are none.

    A control token of a single character, such as a blank, could not be told from text; none is known.
    """
    texts = [
        token.content
        for token in backend.get_added_tokens_decoder().values()
        if token.special and len(token.content) > 1
    ]
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Text by name; files hold either the text or an object around it."""
    found = {name: config.get(name) for name in _SPECIAL_NAMES}
    return {name: _text_of(value) for name, value in found.items() if value is not None}


def _text_of(token: object) -> str:
    return str(token["content"]) if isinstance(token, dict) else "" if token is None else str(token)


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    return file.read_text(encoding="utf-8") if file.is_file() else _pick_template(config.get("chat_template"))


def _pick_template(found: object) -> str | None:
    """Return the default one of several: a list of named templates, or a mapping by name."""
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}
    if isinstance(found, dict):
        found = found.get("default")
    return found if isinstance(found, str) else None


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it marks nothing."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(name: str, template: str) -> jinja2.Template:
    """Compile as transformers does, so that a prompt is what the model was trained on, to the last blank."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template of {name} cannot be compiled: {error}") from error


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)
