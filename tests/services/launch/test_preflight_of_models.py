"""A start refuses a model that cannot play, or that its settings cannot use, before anything is recorded."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from unstable_stream.errors import ConfigError
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.inference.tokenizer import FileTokenizer, load_tokenizer
from unstable_stream.runs.config import EnvConfig, RunConfig, parse_config
from unstable_stream.services.launch.first_turns import check_first_turn
from unstable_stream.services.launch.preflight import check_base_model, check_config

TEMPLATES = """
from unstable_stream.games.board_templates import format_tictactoe_board
from unstable_stream.games.templates import extract_boxed

class Boxed:  # the tiny player reads the board, and has no token for a box
    def format(self, observation):
        return format_tictactoe_board(observation)
    extract = staticmethod(extract_boxed)

class Bare(Boxed):  # the environment wants a number
    def extract(self, completion):
        return "cell", {"correct_answer_format": True}

class Silent(Boxed):  # it says nothing of the form of an answer
    def extract(self, completion):
        return "", {}

class Strict(Boxed):  # it takes only the form that it asks for
    def extract(self, completion):
        return completion[completion.index("MOVE:"):], {"correct_answer_format": True}

class OtherForm(Boxed):  # an answer in a form that nobody else knows is not tried
    def extract(self, completion):
        return completion, {"correct_answer_format": completion.startswith("<move>")}

class Headed(Boxed):  # one word of many that the player does not know
    def format(self, observation):
        return "Noughts " + format_tictactoe_board(observation)

class Blank:
    def format(self, observation):
        return "   "

class Broken:
    def format(self, observation):
        return observation[None]
"""


@pytest.fixture(scope="module")
def tokenizer() -> FileTokenizer:
    return load_tokenizer(tiny_player_path())


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words.py").write_text(TEMPLATES)
    monkeypatch.chdir(tmp_path)


def check(tokenizer: FileTokenizer | None, template: str, env_id: str = "TicTacToe-v0-train") -> None:
    check_first_turn("somebody", EnvConfig(env_id=env_id, template=template), template, tokenizer)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("qwen3-sp", r"no token for \d+ words of the prompt \('<\|im_start\|>user', 'Solve'"),
        ("observation", r"no token for \d+ words of the prompt \('You', 'are', 'Player'"),
        ("chat", "no chat template"),
        ("simpletak-board", "no 4x4 SimpleTak board with an own symbol"),
        ("words.py:Blank", "gives an empty prompt"),
        ("words.py:Broken", "TypeError: string indices must be integers"),
        ("words.py:Headed", "cannot write the answer"),  # the words are no reason
        ("words.py:Boxed", r"the tokenizer cannot write the answer '\\\\boxed\{0\}': it becomes '"),
        ("words.py:Bare", r"the answer '\[0\]' is read as 'cell', which the environment calls invalid"),
    ],
)
@pytest.mark.usefixtures("own")
def test_a_template_that_a_model_cannot_use_is_named(
    tokenizer: FileTokenizer, template: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        check(tokenizer, template)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"somebody: template {template!r} on the first turn of TicTacToe-v0-")


@pytest.mark.usefixtures("own")
def test_a_template_that_fits_is_not(tokenizer: FileTokenizer) -> None:
    check(tokenizer, "tictactoe-board")
    for name in ("OtherForm", "Silent", "Strict"):
        check(tokenizer, f"words.py:{name}")
    check(None, "qwen3-zs")
    check(None, "qwen3-reasoning")
    check(None, "default", "Tak-v0-train")


@pytest.mark.parametrize("missing", ["tokenizer.json", "everything"])
def test_a_configuration_with_a_model_that_is_not_whole_is_refused_before_a_start(
    tmp_path: Path, missing: str
) -> None:
    """A dry run checks no more and no less than a start does."""
    model = tmp_path / "model"
    if missing != "everything":
        shutil.copytree(tiny_player_path(), model)
        (model / missing).unlink()
    env = {"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}
    with pytest.raises(ConfigError, match=r"tokenizer|no such directory"):
        check_config(parse_config({"model": str(model), "train_envs": [env]}))


def test_variables_of_a_chat_template_that_no_prompt_uses_are_refused() -> None:
    board = {"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}
    config = settings("tiny-player", train_envs=[board], chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(ConfigError, match="tictactoe-board does not use the chat template"):
        check_config(config)
    check_config(config.model_copy(update={"chat_template_kwargs": {}}))


def test_an_opponent_is_tried_where_it_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "key")
    endpoint = {"name": "o", "kind": "openai", "api_key_env": "SOME_KEY", "template": "tictactoe-board"}
    board = {"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}
    alone = {"env_id": "FifteenPuzzle-v0-train", "num_players": 1, "template": "qwen3-sp"}
    config = {"model": "some/model", "train_envs": [board, alone], "evaluation": {"opponents": [endpoint]}}
    check_config(parse_config(config))
    unfit = endpoint | {"template": "simpletak-board"}
    said = "opponent 'o': template 'simpletak-board' on the first turn of Tic"
    with pytest.raises(ConfigError, match=said):
        check_config(parse_config(config | {"evaluation": {"opponents": [unfit]}}))


# -- the model itself ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a model whose layers have names of their own."""
    path = tmp_path_factory.mktemp("gpt2")
    transformers.GPT2Config(n_layer=1).save_pretrained(path)
    return path


def settings(path: object, **others: Any) -> RunConfig:
    return parse_config({"model": str(path), "train_envs": [{"env_id": "TicTacToe-v0"}], **others})


def test_only_an_adapter_needs_layers_to_adapt(gpt2: Path) -> None:
    with pytest.raises(ConfigError, match=r"lora\.target_modules names q_proj.*c_attn"):
        check_base_model(settings(gpt2), str(gpt2))
    for unneeded in ({"learner": {"parameters": "all"}}, {"lora": {"target_modules": ["c_attn"]}}):
        with pytest.raises(ConfigError, match="no tokenizer files"):  # the next thing that is missing
            check_base_model(settings(gpt2, **unneeded), str(gpt2))
    check_base_model(settings(gpt2, learner={"iterations": 0}), str(gpt2))


def test_a_head_among_the_targets_matters_to_an_adapter_alone(gpt2: Path) -> None:
    lora = {"target_modules": ["lm_head"]}
    with pytest.raises(ConfigError, match="names lm_head"):
        settings(gpt2, lora=lora).check_trainable()
    settings(gpt2, lora=lora, learner={"parameters": "all"}).check_trainable()


def test_an_opponent_that_cannot_play_is_named(tmp_path: Path) -> None:
    transformers.MambaConfig(num_hidden_layers=1).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    other = {"name": "state-space", "kind": "model", "path": str(tmp_path)}
    config = settings(tiny_player_path(), evaluation={"opponents": [other]})
    with pytest.raises(ConfigError, match=r"opponent 'state-space': .*MambaForCausalLM"):
        check_config(config)


def test_a_tokenizer_larger_than_its_model_is_refused_with_both_sizes(tmp_path: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((tiny_player_path() / file).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 7}')
    with pytest.raises(ConfigError, match="has 40 tokens and the model 7 "):
        check_base_model(settings(tmp_path), str(tmp_path))
