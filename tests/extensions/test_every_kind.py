"""Every kind of extension, from outside the package: each example in a directory of the user's own."""

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documented_code import blocks_of
from tests.inference.byte_model import build_byte_model
from unstable_stream.errors import ConfigError
from unstable_stream.events import EVENT_TYPES
from unstable_stream.extensions import KINDS, reference_to
from unstable_stream.extensions.imports import FILE_MODULE_PREFIX
from unstable_stream.runs.code import code_in_use
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.services.launch.extension_trials import recorded_sample
from unstable_stream.services.launch.preflight import check_config

EXAMPLES = Path(__file__).parents[2] / "examples" / "extensions"
TICTACTOE: dict[str, Any] = {"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "algorithm": ("Vanilla", {"algorithm": {"type": "{it}", "weight": 0.5}}),
    "final_transformation": ("winner_takes_all", {"rewards": {"final": ["{it}"]}}),
    "step_transformation": ("Discounted", {"rewards": {"step": [{"type": "{it}", "gamma": 0.9}]}}),
    "sampling_transformation": (
        "clipped",
        {"rewards": {"sampling": ["NormalizeRewards", "{it}(limit=1.5)"]}},
    ),
    "opponent_sampling": ("a_little_better", {"model_pool": {"sample_mode": "{it}"}}),
    "rating_system": ("Points", {"model_pool": {"rating_system": "{it}"}}),
    "buffer_strategy": ("surprising_first", {"buffer": {"strategy": "{it}"}}),
    "template": ("Terse", {"train_envs": [TICTACTOE | {"template": "{it}"}], "model": "./bytes"}),
    "opponent": (
        "middle_first",
        {"evaluation": {"opponents": ["{it}", {"name": "stubborn", "player": "opponent:Stubborn(start=7)"}]}},
    ),
    "environment": (
        "Stones",
        {
            "train_envs": [{"env_id": "{it}(stones=9)", "template": "observation"}],
            "evaluation": {"opponents": ["random-legal"]},
            "model": "./bytes",
        },
    ),
    "tracker": ("Printer", {"trackers": ["jsonl", {"type": "{it}", "only": "learner/"}]}),
    "consumer": ("mean_length", {"consumers": ["{it}"]}),
    "engine": ("Constant", {"engine": {"type": "{it}", "token": 5}}),
}


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_byte_model(tmp_path_factory.mktemp("models") / "bytes")


@pytest.fixture
def directory(byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with copies of all examples; what is imported is forgotten after the test."""
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, tmp_path)
    (tmp_path / "bytes").symlink_to(byte_model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    yield tmp_path
    for name in list(sys.modules):
        if name in names or name.startswith(FILE_MODULE_PREFIX):
            del sys.modules[name]


def configured(kind: str, it: str, **more: Any) -> RunConfig:
    changes: Any = json.loads(json.dumps(CONFIGS[kind][1]).replace("{it}", it))
    return parse_config({"model": "tiny-player", "train_envs": [TICTACTOE]} | changes | more)


def test_there_is_a_short_example_of_every_kind() -> None:
    for kind in KINDS.values():
        text = (EXAMPLES / kind.example).read_text()
        body = re.sub(r'^""".*?"""\n', "", text, flags=re.DOTALL)
        assert 3 <= len([line for line in body.splitlines() if line.strip()]) <= 32, kind.example
    assert {path.name for path in EXAMPLES.glob("*.py")} == {kind.example for kind in KINDS.values()}


@pytest.mark.parametrize("form", ["module", "file"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_an_extension_beside_the_user_is_tried_and_its_use_recorded(
    directory: Path, kind: str, form: str
) -> None:
    name = CONFIGS[kind][0]
    config = configured(kind, f"{kind}:{name}" if form == "module" else f"{kind}.py:{name}")
    assert parse_config(config.model_dump(mode="json")) == config, "it is the same when it is read back"
    check_config(config)
    use = next(use for use in code_in_use(config) if use.kind == kind)
    assert use.target == (f"{kind}:{name}" if form == "module" else f"{directory}/{kind}.py:{name}")
    assert len(use.sha256) == 64


WRONG = """
import torch
from unstable_stream.algorithms import Reinforce
from unstable_stream.reward_transformations import SamplingRewardTransform

class Algorithm: pass
def nothing(*arguments, **named): return None
def no_arguments(): return 1.0
def fails(*arguments, **named): raise KeyError("of the user")

class Environment:
    def reset(self, num_players): ...
    get_observation = step = close = reset

class Engine:
    def __init__(self, model_path): ...
    async def generate(self, request): ...

class BareNetwork(Reinforce):
    def __init__(self, weight): super().__init__()
    def networks(self): return {"critic": torch.nn.Linear(2, 1)}

class StateOfNoJson(SamplingRewardTransform):
    def __init__(self, limit): ...
    def __call__(self, steps, env_id=None): return steps
    def state(self): return {"seen": {1, 2}}
"""


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("algorithm", "Algorithm", "cannot take {'weight': 0.5}"),
        ("algorithm", "nothing", "makes a partial"),
        ("algorithm", "BareNetwork", "networks()['critic'] is a Linear; expected an OwnNetwork"),
        ("final_transformation", "no_arguments", "TypeError: no_arguments() takes 0"),
        ("final_transformation", "nothing", "AttributeError: 'NoneType' object has no attribute 'keys'"),
        ("step_transformation", "nothing", "into None; expected a finite number"),
        ("sampling_transformation", "fails", "KeyError: 'of the user'"),
        ("sampling_transformation", "StateOfNoJson", "Object of type set is not JSON serializable"),
        ("opponent_sampling", "no_arguments", "cannot be called with (pool, me, opponent, env_id)"),
        ("opponent_sampling", "nothing", "the weight None"),
        ("buffer_strategy", "no_arguments", "cannot be called with (step, update, seed)"),
        ("buffer_strategy", "nothing", "ranked step"),
        ("template", "nothing", "format returned None"),
        ("template", "no_arguments", "takes 0 positional arguments"),
        ("opponent", "no_arguments", "cannot be called with one argument"),
        ("opponent", "nothing", "answered None; expected the action as text"),
        ("environment", "Environment", "cannot take {'stones': 9}"),
        ("engine", "Engine", "unexpected keyword argument 'token'"),
        ("engine", "no_arguments", "TypeError"),
        ("tracker", "Algorithm", "cannot take {'only': 'learner/'}"),
        ("consumer", "nothing", "is a function, not a plug-in: decorate it with @consumer"),
    ],
)
def test_a_wrong_signature_is_one_line_that_names_key_extension_and_signature(
    directory: Path, kind: str, name: str, says: str
) -> None:
    (directory / "wrong.py").write_text(WRONG)
    with pytest.raises(ConfigError) as caught:
        check_config(configured(kind, f"wrong.py:{name}"))
    message = str(caught.value)
    assert "\n" not in message
    assert says in message
    assert f"wrong.py:{name}" in message
    key = {"environment": "train_envs.0.env_id", "template": "train_envs.0.template"}.get(kind)
    assert message.startswith(key or KINDS[kind].key)


def test_an_object_of_this_process_needs_the_inline_backend(directory: Path) -> None:
    name = reference_to("final_transformation", lambda x, env_id: dict(x))
    rewards = {"final": [name]}
    check_config(configured("opponent_sampling", "mirror", rewards=rewards, backend="inline"))
    with pytest.raises(ConfigError, match=r'rewards\.final\.0: .*backend = "inline"'):
        check_config(configured("opponent_sampling", "mirror", rewards=rewards))


def test_the_page_has_every_kind_and_a_configuration_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    root = EXAMPLES.parents[1]
    monkeypatch.chdir(root)
    page = root / "docs" / "how-to" / "extending.md"
    (block,) = blocks_of(page, "toml")
    check_config(parse_config(tomllib.loads(block.code)))
    text = page.read_text()
    assert set(recorded_sample()) == set(EVENT_TYPES), "extensions are tried with events of every type"
    for kind in KINDS.values():
        assert f"\n| {kind.name.replace('_', ' ')} | `" in text
        assert f"../../examples/extensions/{kind.example}" in text
