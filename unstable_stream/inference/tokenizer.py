"""Turn text into token ids and back, without loading torch.

``tokenizer.json`` and the chat template are read directly (``tokenizers`` and ``jinja2`` load in 0.2 s, where
``transformers.AutoTokenizer`` takes seconds and a few hundred megabytes). Only a model without a
``tokenizer.json`` on disk, such as a hub name, goes through transformers.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import tokenizers

from unstable_stream.errors import ConfigError

__all__ = ["FileTokenizer", "Tokenizer", "load_tokenizer"]

_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer(Protocol):
    """The part of a tokenizer that players use."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a completion of the model it belongs to."""

    @property
    def context_tokens(self) -> int | None:
        """Most tokens the model was built for; ``None`` if its files do not say."""

    @property
    def vocabulary_size(self) -> int | None:
        """Token ids are below it; ``None`` if the model's files do not say."""

    def without_control_tokens(self, text: str) -> str:
        """Return ``text`` so that none of it is encoded as a control token (``<|im_end|>``, ``<eos>``)."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a whole prompt, with whatever the model wants in front of one (``<bos>``)."""

    def encode_chat(self, message: str) -> list[int]:
        """Return the ids of one user message in the chat template, up to where the answer begins.

        Raises:
            ConfigError: The model has no chat template, or the template failed.
        """

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text; without special tokens unless told otherwise."""


class FileTokenizer:
    """A :class:`Tokenizer` around ``tokenizers.Tokenizer``."""

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
        text_config = model_config.get("text_config") or model_config
        limit = text_config.get("max_position_embeddings")
        self.context_tokens: int | None = None if limit is None else int(limit)
        size = text_config.get("vocab_size")
        self.vocabulary_size: int | None = None if size is None else int(size)
        self.eos_token_ids = frozenset(
            token
            for found in (
                generation_config.get("eos_token_id"),
                text_config.get("eos_token_id"),
                backend.token_to_id(special_tokens.get("eos_token", "")),
            )
            for token in (found if isinstance(found, list) else [found])
            if token is not None
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
        """Return the ids of one user message in the chat template, up to where the answer begins."""
        if self._chat is None:
            raise ConfigError(
                f"{self._name} has no chat template; choose a prompt template that writes the markup itself "
                "(such as qwen3-zs or default), or add chat_template.jinja to the model directory"
            )
        try:
            text = self._chat.render(
                {
                    **self._special_tokens,
                    **self._chat_template_kwargs,
                    "messages": [{"role": "user", "content": message}],
                    "add_generation_prompt": True,
                }
            )
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the chat template of {self._name} failed on a user message: {error}"
            ) from error
        # The template writes <bos> itself where the model has one.
        return list(self._backend.encode(text, add_special_tokens=False).ids)

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
    config = _read_json(directory / "tokenizer_config.json")
    return FileTokenizer(
        str(model_path),
        backend,
        special_tokens=_special_tokens(config | _read_json(directory / "special_tokens_map.json")),
        chat_template=_chat_template(directory, config),
        model_config=_read_json(directory / "config.json"),
        generation_config=_read_json(directory / "generation_config.json"),
        chat_template_kwargs=chat_template_kwargs,
    )


def _load_with_transformers(
    model_path: str, chat_template_kwargs: Mapping[str, Any] | None = None
) -> FileTokenizer:
    if Path(model_path).is_dir() and not any(Path(model_path).glob("*token*")):
        raise ConfigError(f"{model_path} has no tokenizer files; expected tokenizer.json beside the model")
    import transformers

    try:
        loaded = transformers.AutoTokenizer.from_pretrained(model_path)
        config = transformers.AutoConfig.from_pretrained(model_path).get_text_config().to_dict()
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"the tokenizer of {model_path!r} cannot be loaded: {reason}; expected a model directory, "
            "or a hub name that is cached or reachable"
        ) from error
    return FileTokenizer(
        model_path,
        loaded.backend_tokenizer,
        special_tokens=_special_tokens(loaded.special_tokens_map),
        chat_template=_pick_template(loaded.chat_template),
        model_config=config,
        generation_config={},
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


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file, or an empty one if there is no file: all these files are optional."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Text by name; files hold either the text or an object around it."""
    found = {name: config.get(name) for name in _SPECIAL_NAMES}
    return {
        name: value["content"] if isinstance(value, dict) else str(value)
        for name, value in found.items()
        if value is not None
    }


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
