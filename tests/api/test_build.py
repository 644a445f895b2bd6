"""Settings in every form that ``build`` takes become the configuration that a TOML file would give."""

from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us
from tests.inference.byte_model import build_byte_model
from tests.processes import python
from unstable_stream.algorithms.settings import A2CConfig, PPOConfig, ReinforceConfig
from unstable_stream.api.quickstart import quickstart
from unstable_stream.api.settings import make_config
from unstable_stream.errors import ConfigError, UnstableStreamError
from unstable_stream.events import GameOutcome
from unstable_stream.runs.config import EnvConfig, RunConfig
from unstable_stream.services.launch.preflight import check_config
from unstable_stream.services.workers.learner_core import build_training_algorithm

pytestmark = pytest.mark.longer

SIMPLETAK, THREE = "SimpleTak-v0-train", "ThreePlayerTicTacToe-v0-train"


def of(**settings: Any) -> RunConfig:
    return make_config({"model": "tiny-player", "train_envs": [SIMPLETAK]} | settings)


class Halved(us.StepRewardTransform):
    """A transformation of a user's own."""

    def __init__(self, factor: float = 0.5, above: float = 0.0) -> None:
        self.factor = factor
        self.above = above

    def __call__(self, trajectory: Any, step_index: int, base_reward: float) -> float:
        return base_reward * self.factor if base_reward > self.above else base_reward


def test_the_import_is_light_and_no_public_name_is_missing_or_shadowed_by_a_subpackage() -> None:
    """An imported subpackage becomes an attribute of the package, in place of what had its name."""
    program = """
import importlib, pkgutil, sys
import unstable_stream as us
heavy = ["torch", "ray", "duckdb", "textarena", "pyarrow", "pydantic", "msgspec"]
print([name for name in heavy if name in sys.modules])
before = {name: getattr(us, name, None) for name in dir(us)}
for module in pkgutil.iter_modules(us.__path__):
    if module.name != "__main__": importlib.import_module(f"unstable_stream.{module.name}")
print([name for name, value in before.items() if value is None or getattr(us, name) is not value])
"""
    done = python(program)
    assert done.stdout == "[]\n[]\n", done.stderr


def test_the_short_form_is_a_run_that_was_checked_and_not_started(tmp_path: Path) -> None:
    short: dict[str, Any] = {"train_envs": [SIMPLETAK], "evaluation_opponents": ["random-legal"]}
    # Also sections that are named as the documented parts.
    run = us.build(model="tiny-player", **short, collector={"num_workers": 8}, data=tmp_path / "data")
    assert run.config.train_envs == (EnvConfig(env_id=SIMPLETAK, num_players=2, template="simpletak-board"),)
    assert run.config.collector.num_workers == 8
    assert [opponent.name for opponent in run.config.evaluation.opponents] == ["random-legal"]
    assert run.config.sampling.max_tokens == 4  # what the tiny player learns with
    assert run.state == "built"
    assert run.id.startswith("run-")
    assert not (tmp_path / "data").exists()


def test_flat_nested_and_dotted_keys_are_one() -> None:
    flat = of(learning_rate=2e-4, batch_size=64, max_loras=3, sample_mode="lagged")
    nested = of(
        learner={"learning_rate": 2e-4, "batch_size": 64},
        engine={"max_loras": 3},
        model_pool={"sample_mode": "lagged"},
    )
    dotted = {"learner.batch_size": 64, "engine.max_loras": 3, "model_pool.sample_mode": "lagged"}
    assert flat == nested == of(**dotted, learner={"learning_rate": 2e-4})
    assert (flat.learner.learning_rate, flat.engine.model_dump()["max_loras"]) == (2e-4, 3)
    assert of(engine="vllm").engine.type == "vllm"
    assert of(max_loras=4, engine="vllm").engine.model_dump()["max_loras"] == 4


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("TicTacToe-v0-train", ("TicTacToe-v0-train", 2, "tictactoe-board", 1.0)),
        ((SIMPLETAK, 2, "qwen3-zs"), (SIMPLETAK, 2, "qwen3-zs", 1.0)),
        (us.TrainEnvSpec(SIMPLETAK, weight=3.0), (SIMPLETAK, 2, "simpletak-board", 3.0)),
        ({"env_id": SIMPLETAK, "template": "default"}, (SIMPLETAK, 2, "default", 1.0)),
        (us.EvalEnvSpec(SIMPLETAK, 2, "chat"), (SIMPLETAK, 2, "chat", 1.0)),
        ((THREE, None, "default"), (THREE, 3, "default", 1.0)),
    ],
)
def test_an_environment_in_every_form(given: object, expected: tuple[object, ...]) -> None:
    for several in (given, [given]):
        (env,) = of(train_envs=several).train_envs
        assert (env.env_id, env.num_players, env.template, env.weight) == expected


@pytest.mark.parametrize(
    ("model", "template"),
    [("Qwen/Qwen3-0.6B", "chat"), ("Qwen/Qwen3-1.7B-Base", "qwen3-zs"), ("gpt2-base", "default")],
)
def test_the_template_suits_the_model(model: str, template: str) -> None:
    assert of(model=model).train_envs[0].template == template


def test_a_name_with_a_slash_is_an_endpoint() -> None:
    met = of(evaluation_opponents=["first-legal", "google/gemini"]).evaluation.opponents
    assert [each.kind for each in met] == ["scripted", "openai"]


def test_opponents_to_train_against_are_met() -> None:
    assert of(opponents=["random-legal"]).model_pool.sample_mode == "random"
    assert of(opponents=["random-legal"], sample_mode="fixed").model_pool.sample_mode == "fixed"


def test_the_evaluation_opponent_may_stand_with_the_environment() -> None:
    config = of(eval_envs=[us.EvalEnvSpec(SIMPLETAK, fixed_opponent="first-legal")])
    assert [opponent.name for opponent in config.evaluation.opponents] == ["first-legal"]
    two = [us.EvalEnvSpec(SIMPLETAK, fixed_opponent=name) for name in ("first-legal", "random-legal")]
    with pytest.raises(ConfigError, match="name them once, evaluation_opponents"):
        of(eval_envs=two)


def test_transformations_are_objects_with_their_arguments() -> None:
    config = of(
        final_reward_transformation=us.ComposeFinalRewardTransforms(
            [us.WinDrawLossFormatter(), us.RoleAdvantageByEnvFormatter(tau=0.1)]
        ),
        step_reward_transformation=[us.RewardForFormat(1.5), Halved(above=0.25)],
        sampling_reward_transformation="NormalizeRewards",
    )
    rewards = config.rewards
    assert [dict(each) for each in (*rewards.final, *rewards.step, *rewards.sampling)] == [
        {"type": "WinDrawLossFormatter"},
        {"type": "RoleAdvantageByEnvFormatter", "tau": 0.1},
        {"type": "RewardForFormat", "reward": 1.5},
        {"type": "tests.api.test_build:Halved", "above": 0.25},
        {"type": "NormalizeRewards"},
    ]


def test_every_built_in_algorithm_is_an_object_a_name_or_a_table() -> None:
    given = us.algorithms.Reinforce(is_clip=3.0, truncated_turns="drop")
    config = of(algorithm=given)
    assert isinstance(config.algorithm, ReinforceConfig)
    assert (config.algorithm.is_clip, config.algorithm.truncated_turns) == (3.0, "drop")
    assert of(algorithm="reinforce").algorithm.type == "reinforce"
    # The tiny player's own settings are for whoever names no algorithm, and for single keys.
    assert of().algorithm.model_dump()["entropy_coef"] == 0.02
    assert given.settings.entropy_coef == config.algorithm.entropy_coef == 0.0
    assert of(is_clip=1.5).algorithm.model_dump()["entropy_coef"] == 0.02
    ppo, a2c = of(algorithm=us.PPO(epochs=2, entropy_coef=0.01)), of(algorithm=us.A2C(gae_lambda=0.9))
    assert ppo.algorithm == PPOConfig(epochs=2, entropy_coef=0.01)
    assert a2c.algorithm == A2CConfig(gae_lambda=0.9)
    assert of(algorithm="a2c").algorithm == A2CConfig()
    assert of(algorithm={"type": "ppo"}).algorithm == PPOConfig()
    for chosen in (A2CConfig(truncated_turns="mask"), PPOConfig(epochs=3)):
        built = build_training_algorithm(of(algorithm=chosen.model_dump()))
        assert type(built).__name__.lower() == chosen.type
        assert built.settings == chosen  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="gae_lambda"):
        of(algorithm={"type": "reinforce", "gae_lambda": 0.5})


class Plain:
    """An algorithm of a user's own, by its shape alone."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight


def test_an_algorithm_of_ones_own_takes_its_own_arguments_only() -> None:
    home = f"{__name__}:Plain"
    own = {"type": home, "weight": 0.5}
    assert of(algorithm=own).algorithm.model_dump() == own
    from_file = {"model": "tiny-player", "train_envs": [SIMPLETAK], "algorithm": {"entropy_coef": 0.1}}
    changed = make_config({"algorithm": own}, from_file | {"train_envs": [{"env_id": SIMPLETAK}]})
    assert changed.algorithm.model_dump() == own
    parts: dict[str, Any] = {"step_buffer": us.StepBuffer(), "model_pool": us.ModelPool()}
    envs: dict[str, Any] = {"training_envs": [SIMPLETAK], "evaluation_envs": [SIMPLETAK]}
    collector = us.Collector(1, **parts, **envs, vllm_config={}, engine=Plain)
    learner = us.StandardLearner("tiny-player", **parts, algorithm=own)
    made = make_config(collector.settings_with(learner))
    assert made.algorithm.model_dump() == own
    assert made.engine.model_dump()["type"] == home


def test_objects_stand_wherever_a_name_does() -> None:
    pinned = of(
        trackers=[Plain(0.5)],
        consumers=mean_reward,
        opponents=[lambda observation: "[0]", lambda observation: "[1]", {"name": "c", "player": careful}],
    )
    assert pinned.model_dump()["trackers"] != []
    assert pinned.consumers == (f"{__name__}:mean_reward",)
    assert len({opponent.name for opponent in pinned.model_pool.fixed}) == 3
    assert pinned.model_pool.fixed[2].player == f"{__name__}:careful"


def careful(observation: str) -> str:
    return "[0]"


@us.consumer(topics=["game-outcomes"])
def mean_reward(event: GameOutcome, context: us.Context) -> None:
    context.emit("games", 1.0)


def test_two_opponents_of_one_name_are_refused() -> None:
    two = [{"name": "a", "player": player} for player in (careful, Plain)]
    config = of(opponents=two[:1], evaluation_opponents=two[1:])
    with pytest.raises(ConfigError, match="two different opponents are named 'a'"):
        check_config(config)


def test_a_part_of_the_distribution_cannot_be_trained_on() -> None:
    with pytest.raises(ConfigError, match=r"sampling\.top_p = 0\.9: the learner .* Set sampling\.top_p = 1"):
        check_config(of(sampling={"top_p": 0.9}))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"learnin_rate": 1e-4}, "unknown setting 'learnin_rate': did you mean learning_rate?"),
        ({"zzz": 1}, "unknown setting 'zzz': docs/reference/configuration.md lists the keys"),
        ({"num_threads": 2}, "write engine={'num_threads': …} or learner={'num_threads': …}"),
        ({"learner": {"rate": 1}}, "unknown key 'learner.rate'"),
        ({"train_envs": ["KuhnPoker-v0-train"]}, "the tiny player reads boards of SimpleTak, TicTacToe"),
        ({"train_envs": [7]}, "environment 7: expected an id"),
        ({"learning_rate": -1.0}, "learner.learning_rate"),
        ({"action_extraction": "boxed"}, "a template has its own extraction"),
        ({"ckpt_root": "s3://ME:SECRET@bucket"}, "expected s3://bucket"),
        ({"run_name": "demo"}, "name=…"),
        ({"wandb_project": "UB"}, "trackers=[{'type': 'wandb', 'project': …}]"),
    ],
)
def test_a_mistake_names_the_way_out(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        of(**settings)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"evaluation_opponents": ["nobody"]},
        {"train_envs": [("NoSuchGame-v0-train", 2, "default")]},
        {"train_envs": [(SIMPLETAK, 2, "no-such-template")]},
        {"backend": "threads"},
    ],
)
def test_build_checks_what_no_type_can(settings: dict[str, Any]) -> None:
    with pytest.raises(UnstableStreamError):
        us.build(**({"model": "tiny-player", "train_envs": [SIMPLETAK]} | settings))


def test_a_file_is_loaded_and_changed(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text(
        'model = "tiny-player"\n[[train_envs]]\nenv_id = "SimpleTak-v0-train"\ntemplate = "simpletak-board"\n'
        "[learner]\nbatch_size = 64\n"
    )
    run = us.load(file, overrides=["seed=3"], learning_rate=5e-4, data=tmp_path)
    learner = run.config.learner
    assert (learner.batch_size, learner.learning_rate, run.config.seed) == (64, 5e-4, 3)
    assert run.config.sampling.max_tokens == 512  # a file says all it means: no defaults of the tiny player
    again = us.build(config=run.config, batch_size=128)
    assert (again.config.learner.batch_size, again.config.learner.learning_rate) == (128, 5e-4)
    with pytest.raises(ConfigError, match="cannot read"):
        us.load(tmp_path / "none.toml")


def test_the_weight_of_the_draw_makes_no_second_opponent(tmp_path: Path) -> None:
    run = quickstart(data=tmp_path)
    met, measured = run.config.model_pool.fixed[0], run.config.evaluation.opponents[0]
    assert (met.name, met.weight) == ("random-legal", 4.0)
    assert (measured.name, measured.weight) == ("random-legal", 1.0)
    check_config(run.config)


def test_the_quickstart_trains_an_adapter_of_another_model(tmp_path: Path) -> None:
    model = build_byte_model(tmp_path / "model")
    assert quickstart(str(model), data=tmp_path).config.learner.parameters == "lora"
