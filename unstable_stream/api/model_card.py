"""The model card of a pushed checkpoint: training, results, how to load it, where it is from, and its run's
configuration as it may be published.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from unstable_stream.api.trained_on import Result, TrainedOn
from unstable_stream.errors import ConfigError
from unstable_stream.events import Checkpoint
from unstable_stream.inference.vllm.client import VLLM_LORA_RANKS
from unstable_stream.runs.config import RunConfig
from unstable_stream.version import __version__

Form = Literal["adapter", "merged", "whole"]
"""``adapter``: LoRA weights; ``merged``: base model and adapter in one; ``whole``: all are trained."""

CONFIG_FILE: Final = "unstable_stream.json"

_WHAT: Final = {
    "adapter": "A LoRA adapter of {base}",
    "merged": "{base} with a LoRA adapter merged into it",
    "whole": "{base} with all parameters trained",
}
_SETTINGS: Final = ("algorithm", "rewards", "learner", "lora", "sampling")

LEFT_OUT: Final = "(left out)"
"""In place of a value whose key names a secret."""

_SECRET_WORDS: Final = frozenset({"password", "passwd", "secret", "token", "key", "apikey", "credentials"})
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LOOKS_LIKE_A_KEY: Final = re.compile(
    r"(sk|pk|gsk|hf|xai|r8|ghp)_\w{8,}|[0-9a-f]{24,}|(?=.*[a-z])(?=.*[A-Z])(?=.*\d).{24,}"
)
_LOGIN: Final = re.compile(r"(?<=://)[^/@\s]+@")
_ARGUMENT: Final = re.compile(
    r"(\w*(?:password|secret|token|api_?key)\s*=\s*)(\"[^\"]*\"|'[^']*'|[^,)&\s]+)", re.IGNORECASE
)
"""In a reference to an extension that is one string, ``module:Name(token='…')``, or in an address."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The content of a model card, and of the file ``unstable_stream.json`` beside it."""

    name: str
    """The directory's name, or ``owner/name`` on the Hub."""
    form: Form
    run_id: str
    checkpoint: Checkpoint
    base_is_on_hub: bool
    """Whether the base model's name is an id of the Hub, and not a directory."""
    base_license: str | None
    """Hugging Face's name of the base model's license; ``None``: it is not known."""
    log_id: str
    trained_with: str
    """The version of the package that began the run; empty: not recorded."""
    weights: Mapping[str, str]
    """Digest by weight file."""
    training: TrainedOn
    config: Mapping[str, Any]
    """The run's configuration, without secrets."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``unstable_stream.json``."""
        checkpoint = self.checkpoint
        return {
            "format": 1,
            "package_version": __version__,
            "trained_with": self.trained_with,
            "form": self.form,
            "run_id": self.run_id,
            "log_id": self.log_id,
            "checkpoint": {
                "model_uid": checkpoint.model_uid,
                "event_id": checkpoint.event_id,
                "iteration": checkpoint.iteration,
                "sha256": checkpoint.sha256,
                "base_model": checkpoint.base_model,
                "parameters": checkpoint.parameters,
            },
            "weights": dict(self.weights),
            "config": dict(self.config),
        }

    def render(self) -> str:
        """Return the content of ``README.md``."""
        parts = [
            self._front_matter(),
            f"# {self.name}",
            self._what(),
            "## Training",
            self._training(),
            "## Results",
            self._results(),
            "## Load it",
            self._loading(),
            "## Provenance",
            self._provenance(),
            "## Settings",
            f"The whole configuration is in [{CONFIG_FILE}]({CONFIG_FILE}).",
            f"```json\n{json.dumps({name: self.config[name] for name in _SETTINGS}, indent=2)}\n```",
        ]
        return "\n\n".join(parts) + "\n"

    @property
    def _base(self) -> str:
        return self.checkpoint.base_model

    def _front_matter(self) -> str:
        lines = []
        if self.base_is_on_hub:  # the Hub refuses a card that names a directory
            relation = "adapter" if self.form == "adapter" else "finetune"
            lines = [f"base_model: {json.dumps(self._base)}", f"base_model_relation: {relation}"]
        tags = ["unstable-stream", "self-play", "reinforcement-learning", "text-games"]
        if self.checkpoint.parameters == "lora":
            tags.append("lora")
        lines += [
            f"library_name: {'peft' if self.form == 'adapter' else 'transformers'}",
            "pipeline_tag: text-generation",
            f"license: {json.dumps(self.base_license or 'other')}",
            "tags:",
            *(f"- {tag}" for tag in tags),
        ]
        return "\n".join(["---", *lines, "---"])

    def _what(self) -> str:
        base = f"`{self._base}`"
        if self._base == "tiny-player":
            base = "tiny-player (shipped with unstable_stream)"
        unknown = "; its files state none that is known, so look there"
        return (
            f"{_WHAT[self.form].format(base=base)}, trained by self-play reinforcement learning on text "
            f"games with unstable_stream: update {self.checkpoint.iteration:,} of run `{self.run_id}`. The "
            f"license is that of the base model{f', {self.base_license}' if self.base_license else unknown}."
        )

    def _training(self) -> str:
        training = self.training
        games = sum(played.games for played in training.environments)
        steps = sum(played.steps for played in training.environments)
        others = [f"`{name}`" for name in training.opponents if name]
        own = ["itself and its earlier checkpoints"] if "" in training.opponents else []
        templates = {env["env_id"]: env["template"] for env in self.config["train_envs"]}
        rows = [
            (
                f"`{played.env_id}`",
                f"`{templates[played.env_id]}`" if played.env_id in templates else "–",
                f"{played.games:,}",
                f"{played.steps:,}",
                f"{played.completion_tokens:,}",
            )
            for played in training.environments
        ]
        told = (
            f"{self.checkpoint.iteration:,} updates on {steps:,} steps (turns) of {games:,} games. "
            f"Opponents: {', '.join([*own, *others]) or 'none'}."
        )
        table = _table(("environment", "prompt template", "games", "steps", "sampled tokens"), rows)
        return f"{told}\n\n{table}" if rows else told

    def _results(self) -> str:
        results = self.training.results
        if not results:
            return "No evaluation game of this checkpoint is in the archive."
        rows = [self._row(result) for result in results]
        headings = (
            *("environment", "opponent", "met in training", "games", "won/drawn/lost"),
            *("win rate", "95 % interval", "before training", "played in"),
        )
        told = [_setting(run, *self.training.settings[run]) for run in sorted(self.training.settings)]
        return "\n\n".join(
            [
                "All seats together. The interval is Wilson's; *before training* is the initial policy in "
                "the same run, on the same seeds.",
                _table(headings, rows),
                "\n".join(told),
            ]
        ).rstrip()

    def _row(self, result: Result) -> Sequence[str]:
        before = "–"
        if result.games_before:
            share = result.wins_before / result.games_before
            before = f"{share:.1%} ({_interval(result.interval_before)}, {result.games_before} games)"
        return (
            f"`{result.env_id}`",
            f"`{result.opponent}`" if result.opponent else "none",
            "yes" if result.met_in_training else "no",
            f"{result.games}",
            f"{result.wins}/{result.draws}/{result.losses}",
            f"{result.wins / result.games:.1%}",
            _interval(result.interval),
            before,
            f"`{result.run_id}`",
        )

    def _loading(self) -> str:
        name = json.dumps(self.name)
        if self.form != "adapter":
            return (
                _fenced(
                    "python",
                    "from transformers import AutoModelForCausalLM, AutoTokenizer",
                    "",
                    f'model = AutoModelForCausalLM.from_pretrained({name}, dtype="auto")',
                    f"tokenizer = AutoTokenizer.from_pretrained({name})",
                )
                + "\n\n"
                + _fenced("bash", f"vllm serve {self.name}")
            )
        shipped = self._base == "tiny-player"
        base = "str(tiny_player_path())" if shipped else json.dumps(self._base)
        lines = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            *(["from unstable_stream.inference.tiny_player import tiny_player_path"] if shipped else []),
            "",
            f'base = AutoModelForCausalLM.from_pretrained({base}, dtype="auto")',
            f"model = PeftModel.from_pretrained(base, {name})",
            f"tokenizer = AutoTokenizer.from_pretrained({name})",
        ]
        rank = int(self.checkpoint.lora.get("lora_rank", 0))
        slot = next((each for each in VLLM_LORA_RANKS if each >= rank), rank)
        serve = (
            f"vllm serve {'DIRECTORY_OF_TINY_PLAYER' if shipped else self._base} --enable-lora "
            f"--max-lora-rank {slot} --lora-modules trained={self.name}"
        )
        return _fenced("python", *lines) + "\n\n" + _fenced("bash", serve)

    def _provenance(self) -> str:
        checkpoint = self.checkpoint
        saved = datetime.fromtimestamp(checkpoint.occurred_at_ms / 1000, UTC)
        rows = [
            ("run", self.run_id),
            ("checkpoint", checkpoint.model_uid),
            ("checkpoint event", checkpoint.event_id),
            ("saved", f"{saved:%Y-%m-%d %H:%M:%S} UTC"),
            ("sha256 of the checkpoint's weights", checkpoint.sha256 or "not recorded"),
            *((f"sha256 of {name}", digest) for name, digest in sorted(self.weights.items())),
            ("log", self.log_id),
            ("trained with unstable_stream", self.trained_with or "not recorded"),
            ("pushed with unstable_stream", __version__),
        ]
        return _table(("", ""), [(name, f"`{value}`") for name, value in rows])


def _interval(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.1%} to {bounds[1]:.1%}"


def _setting(run_id: str, temperature: str | None, votes: str | None, best_of: str | None) -> str:
    chosen = f"votes per turn {votes or 'unknown'}"
    if best_of not in (None, "1"):
        chosen = f"the most probable of {best_of} answers per turn"
    return f"- `{run_id}`: temperature {temperature or 'unknown'}, {chosen}."


def _fenced(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def published_config(config: RunConfig) -> dict[str, Any]:
    """Return a run's configuration as JSON values that may be published.

    The values of keys that name a secret are left out: arguments of extensions and engines may be such. So is
    the login in an address.

    Raises:
        ConfigError: an ``api_key_env`` is not the name of an environment variable, but may be a key.
    """
    values: dict[str, Any] = _published(config.model_dump(mode="json"), "")
    return values


def _published(value: Any, where: str) -> Any:  # JSON
    if isinstance(value, Mapping):
        return {name: _entry(name, each, f"{where}.{name}".lstrip(".")) for name, each in value.items()}
    if isinstance(value, list):
        return [_published(each, f"{where}.{place}") for place, each in enumerate(value)]
    return _ARGUMENT.sub(rf"\1{LEFT_OUT}", _LOGIN.sub("", value)) if isinstance(value, str) else value


def _entry(name: str, value: Any, where: str) -> Any:  # JSON
    if name.endswith("_env") and isinstance(value, str):
        if not _VARIABLE.fullmatch(value) or _LOOKS_LIKE_A_KEY.fullmatch(value):
            # Do not repeat it: it may be the key.
            raise ConfigError(
                f"{where} of the run is no name of an environment variable and may be a key, so nothing is "
                "published: revoke the key if it is one; expected a name such as OPENROUTER_API_KEY"
            )
        return value
    if isinstance(value, str) and value and _SECRET_WORDS.intersection(re.split(r"[_\-.]", name.lower())):
        return LEFT_OUT
    return _published(value, where)
