"""The shipped model: what it is, that it plays legally, and that its recipe makes it."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import unstable_stream as us
from unstable_stream.inference.tiny_player import tiny_player_path

RECIPE = Path(__file__).resolve().parents[3] / "examples" / "tiny_player"
PROMPT = "SimpleTak X\n0 1 2 3\n4 O 6 7\n8 9 10 11\n12 13 14 15\nmove:"
PROMPT_IDS = [3, 7, 8, 9, 10, 11, 12, 6, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 5]


@pytest.fixture(scope="module")
def untrained() -> ModuleType:
    spec = spec_from_file_location("untrained_tiny_player", RECIPE / "untrained.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_weights_are_stored_as_float16_and_loaded_as_float32() -> None:
    with safe_open(tiny_player_path() / "model.safetensors", framework="pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"F16"}  # noqa: SIM118
    model = AutoModelForCausalLM.from_pretrained(tiny_player_path())
    assert model.dtype == torch.float32
    assert sum(weight.numel() for weight in model.parameters()) == 338_688


def test_tokenizer_round_trip() -> None:
    fast = Tokenizer.from_file(str(tiny_player_path() / "tokenizer.json"))
    auto = AutoTokenizer.from_pretrained(tiny_player_path())
    assert fast.encode(PROMPT).ids == auto(PROMPT)["input_ids"] == PROMPT_IDS
    assert fast.decode(PROMPT_IDS) == auto.decode(PROMPT_IDS) == " ".join(PROMPT.split())
    assert fast.encode("[12] <end>").ids == [36, 1]
    assert fast.decode([36, 1]) == auto.decode([36, 1], skip_special_tokens=True) == "[12]"
    assert (auto.eos_token_id, auto.pad_token_id, auto.unk_token_id) == (1, 0, 2)
    assert fast.encode("castle").ids == [2]


def test_it_is_what_the_recipe_describes(untrained: ModuleType) -> None:
    shipped = json.loads((tiny_player_path() / "config.json").read_text())
    described = json.loads(untrained.model_config().to_json_string(use_diff=True))
    for config in (shipped, described):
        config.pop("transformers_version")
    assert shipped == described
    shipped_tokenizer = json.loads((tiny_player_path() / "tokenizer.json").read_text())
    assert shipped_tokenizer == json.loads(untrained.build_tokenizer().to_str())


def _score(model: Path | str, data: Path) -> tuple[float, float]:
    """Return the shares of won games and of illegal moves, against random legal play."""
    env = {"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}
    run = us.evaluation(str(model), ["random-legal"], envs=[env], games=40, data=data).start(live=False)
    ((won, illegal),) = us.sql(
        "SELECT count(*) FILTER (result = 'win' AND game_turn < 2) / 40, avg((NOT valid)::INT) FROM moves "
        f"WHERE run_id = '{run.id}' AND kind <> 'scripted'",
        data=data,
    ).rows()
    return won, illegal


@pytest.mark.longer
def test_it_plays_legally_but_badly_and_the_recipe_makes_its_like(
    untrained: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    won, illegal = _score(tiny_player_path(), tmp_path)
    assert 0.2 < won < 0.65
    assert illegal < 0.1
    # A short form of the commands in README.md: the moves of random play, imitated by random weights.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["untrained.py", "untrained"])
    untrained.main()
    assert {file.name for file in Path("untrained").iterdir()} == {
        file.name for file in tiny_player_path().iterdir()
    }
    _, before = _score(tmp_path / "untrained", tmp_path)
    assert before > 0.4
    us.play(["random-legal"] * 2, envs=["TicTacToe-v0-train"], games=100, data=tmp_path).start(live=False)
    made = us.imitate(
        RECIPE / "imitate.toml",
        "kind = 'scripted' AND env_id = 'TicTacToe-v0-train'",
        data=tmp_path,
        backend="inline",
        learner={"iterations": 8, "lr_warmup_updates": 1},
        evaluation={"opponents": []},
    ).start(live=False)
    us.push(made.id, tmp_path / "pushed", data=tmp_path)
    _, after = _score(tmp_path / "pushed", tmp_path)
    assert after < before / 2
