"""The documentation's quick start, read here: the same names and arguments describe the same run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us
import unstable_stream.reward_transformations as retra
from unstable_stream.api.settings import make_config
from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import RunConfig, TransformersEngineConfig

LORA = {"lora_rank": 32, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}


class Parts:
    """The quick start up to the start, with the tiny player and a scripted opponent."""

    def __init__(self, **learner: Any) -> None:
        self.tracker = us.Tracker(run_name="demo")
        self.step_buffer = us.StepBuffer(
            max_buffer_size=768,
            tracker=self.tracker,
            final_reward_transformation=retra.ComposeFinalRewardTransforms(
                [retra.RoleAdvantageByEnvFormatter()]
            ),
            step_reward_transformation=retra.ComposeStepRewardTransforms(
                [retra.RewardForFormat(1.5), retra.PenaltyForInvalidMove(1.0, -1.0)]
            ),
            sampling_reward_transformation=retra.ComposeSamplingRewardTransforms(
                [retra.NormalizeRewardsByEnv(True)]
            ),
        )
        self.model_pool = us.ModelPool(sample_mode="mirror", max_active_lora=3, tracker=self.tracker)
        self.model_pool.add_checkpoint(path=None, iteration=-1)
        self.collector = us.Collector(
            num_actors=2,
            step_buffer=self.step_buffer,
            model_pool=self.model_pool,
            tracker=self.tracker,
            vllm_config={
                "model_name": "tiny-player",
                "max_parallel_seq": 128,
                "max_tokens": 4,
                "max_loras": 5,
                "lora_config": LORA,
                "max_model_len": 256,
            },
            training_envs=[("SimpleTak-v0-train", 2, "simpletak-board")],
            evaluation_envs=[
                ("SimpleTak-v0-train", 2, "simpletak-board"),
                ("TicTacToe-v0-train", 2, "tictactoe-board"),
            ],
            evaluation_opponent="random-legal",
            engine="transformers",
        )
        arguments: dict[str, Any] = {
            "model_name": "tiny-player",
            "step_buffer": self.step_buffer,
            "model_pool": self.model_pool,
            "tracker": self.tracker,
            "algorithm": us.algorithms.Reinforce(),
            "batch_size": 384,
            "mini_batch_size": 1,
            "learning_rate": 1e-5,
            "grad_clip": 0.2,
            "lora_cfg": LORA,
            "activation_checkpointing": False,
            "gradient_checkpointing": False,
            "max_train_len": None,
            "max_generation_len": 4,
        } | learner
        self.learner = us.StandardLearner(**arguments)

    def built(self) -> RunConfig:
        """Return the configuration of their run."""
        return us.build(collector=self.collector, learner=self.learner).config


def test_the_parts_describe_one_run() -> None:
    parts = Parts()
    parts.collector.collect(num_workers=384, num_eval_workers=16)
    config = parts.built()
    assert (config.name, config.learner.grad_clip) == ("demo", 0.2)
    counts = (config.collector.num_actors, config.collector.num_workers, config.collector.num_eval_workers)
    assert counts == (2, 384, 16)
    assert [env.env_id for env in config.evaluated_envs] == ["SimpleTak-v0-train", "TicTacToe-v0-train"]
    assert isinstance(config.engine, TransformersEngineConfig)
    assert config.rewards.step == (
        {"type": "RewardForFormat", "reward": 1.5},
        {"type": "PenaltyForInvalidMove", "reward": 1.0, "penalty": -1.0},
    )
    assert config.rewards.sampling == ({"type": "NormalizeRewardsByEnv", "z_score": True},)


def test_every_argument_of_every_part_reaches_the_run() -> None:
    lora = {"lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": ["q_proj"]}
    pool = {
        "sample_mode": "ts-dist",
        "max_active_lora": 3,
        "lag_range": (2, 5),
        "mirror_fraction": 0.25,
        "temperature": 0.5,
        "fixed": ["random-legal"],
        "draw_probability": {"SimpleTak-v0-train": 0.2},
    }
    buffer = {
        "max_buffer_size": 64,
        "final_reward_transformation": retra.WinDrawLossFormatter(),
        "step_reward_transformation": [retra.RewardForFormat(0.1)],
        "sampling_reward_transformation": "NormalizeRewards",
        "buffer_strategy": "prioritised",
        "max_staleness": 3,
    }
    learner = {
        "model_name": "tiny-player",
        "algorithm": us.A2C(),
        "batch_size": 16,
        "mini_batch_size": 4,
        "mini_batch_tokens": 90,
        "learning_rate": 2e-5,
        "grad_clip": 0.3,
        "batch_delay_buffer": 2.0,
        "parameters": "lora",
        "lora_cfg": lora,
        "initial_lora_path": "/somewhere",
        "save_every": 2,
        "activation_checkpointing": False,
        "gradient_checkpointing": True,
        "max_train_len": 100,
        "max_generation_len": 5,
        "num_learners": 2,
        "ckpt_root": str(Path.cwd() / "elsewhere"),
        "use_trainer_cache": False,
    }
    engine = {"max_loras": 5, "max_parallel_seq": 4, "max_model_len": 200}
    sampling = {"max_tokens": 5, "temperature": 0.7, "top_p": 1.0}
    collector = {
        "num_actors": 2,
        "vllm_config": {"model_name": "tiny-player", "lora_config": lora, **engine, **sampling},
        "training_envs": [("SimpleTak-v0-train", 2, "qwen3-zs")],
        "evaluation_envs": [("TicTacToe-v0-train", 2, "default")],
        "evaluation_opponent": ["random-legal", "first-legal"],
        "max_eval_games_per_ckpt": 6,
        "filter_opponent_invalid": True,
        "action_extraction": None,
        "engine": "transformers",
    }

    made = {"step_buffer": us.StepBuffer(**buffer), "model_pool": us.ModelPool(**pool)}  # type: ignore[arg-type]
    playing: Any = us.Collector(**made, **collector)  # type: ignore[arg-type]
    playing.collect(num_workers=5, num_eval_workers=3)
    trained: Any = us.StandardLearner(**made, **learner)  # type: ignore[arg-type]
    config = make_config(playing.settings_with(trained)).model_dump()
    assert config["sampling"] == sampling
    assert {**config["engine"], **engine} == config["engine"]
    assert {**config["lora"], **lora, "target_modules": ("q_proj",)} == config["lora"]
    kept = [config["buffer"][name] for name in ("max_buffer_size", "strategy", "max_staleness")]
    assert kept == [64, "prioritised", 3]
    stages = [stage[0]["type"] for stage in list(config["rewards"].values())[:3]]
    assert stages == ["WinDrawLossFormatter", "RewardForFormat", "NormalizeRewards"]
    pooled, met = config["model_pool"]["fixed"], config["evaluation"]["opponents"]
    assert [each["name"] for each in (*pooled, *met)] == ["random-legal", "random-legal", "first-legal"]
    assert config["evaluation"]["max_eval_games_per_ckpt"] == 6
    templates = [env["template"] for env in (*config["train_envs"], *config["eval_envs"])]
    assert templates == ["qwen3-zs", "default"]
    assert config["collector"]["filter_opponent_invalid"]
    counts = [config["collector"][name] for name in ("num_actors", "num_workers", "num_eval_workers")]
    assert counts == [2, 5, 3]
    assert config["algorithm"]["type"] == "a2c"
    for section, arguments in (("model_pool", pool), ("learner", learner)):
        for name in set(arguments) & set(config[section]) - {"fixed"}:
            assert config[section][name] == arguments[name], name


def test_fixed_opponents_are_added_to_the_pool() -> None:
    parts = Parts()
    parts.model_pool.add_fixed("first-legal")
    assert [opponent.name for opponent in parts.built().model_pool.fixed] == ["first-legal"]


def test_a_wandb_project_is_a_tracker_of_the_run() -> None:
    parts = Parts()
    parts.tracker.wandb_project = "UB"
    assert parts.built().trackers == ({"type": "wandb", "project": "UB"},)


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_the_root_of_checkpoints_is_a_setting_of_the_learner(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = str(tmp_path) if kind == "directory" else request.getfixturevalue("s3")
    assert Parts(ckpt_root=root).built().learner.ckpt_root == root
    small: dict[str, Any] = {"model": "tiny-player", "train_envs": ["TicTacToe-v0-train"]}
    assert make_config({**small, "ckpt_root": root}) == make_config({**small, "learner": {"ckpt_root": root}})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda parts: us.StepBuffer.options(name="StepBuffer"), "write StepBuffer(…)"),
        (lambda parts: us.Collector.remote(), "write Collector(…)"),
        (lambda parts: getattr(parts.collector.collect, "remote")(384), "write .collect(…), without ray.get"),  # noqa: B009
        (lambda parts: getattr(parts.learner.train, "remote")(200), "write .train(…)"),  # noqa: B009
        (lambda parts: parts.step_buffer.size(), "run.audit().steps.pending"),
        (lambda parts: parts.step_buffer.get_batch.remote(8), "FROM training_batches"),
        (lambda parts: parts.step_buffer.write_training_data_to_file([]), "run.export_batches(directory)"),
        (lambda parts: parts.model_pool.add_checkpoint("a/path", 3), "initial_lora_path"),
        (lambda parts: parts.tracker.log_model_pool({}, {}, {}), "run.metrics('model-pool/')"),
        (lambda parts: us.TerminalInterface(tracker=parts.tracker), "TerminalInterface(run)"),
        (lambda parts: parts.learner.model, "has no attribute 'model': it is in the learner's"),
        (lambda parts: parts.learner._step, "run.metrics('learner/')"),
        (lambda parts: parts.tracker.FLUSH_EVERY, "with each policy version, or after 64 seconds"),
        (
            lambda parts: us.build(collector=parts.collector, learner=Parts().learner),
            "different step buffers or model pools",
        ),
        (lambda parts: us.build(collector=parts.collector), "give both"),
        (
            lambda parts: us.StandardLearner(
                "a", step_buffer=us.StepBuffer(), model_pool=us.ModelPool()
            ).train(1),
            "nobody collects into its step buffer",
        ),
    ],
)
def test_what_means_nothing_here_says_what_to_use(wrong: Callable[[Parts], object], says: str) -> None:
    with pytest.raises((ConfigError, AttributeError)) as refused:
        wrong(Parts())
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


_ELSEWHERE = "AgentSpec BaseAlgo BaseTracker EpisodeResult ExplorationTracker Opponent PlaySpec Step TaskMeta"


@pytest.mark.parametrize("name", [*_ELSEWHERE.split(), "Trajectory", "VLLMActor"])
def test_a_class_that_is_something_else_here_is_named_with_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}': .*from-unstable-baselines"):
        getattr(us, name)


@pytest.mark.parametrize(
    ("learner", "says"),
    [
        ({"model_name": "Qwen/Qwen3-0.6B"}, "name one model"),
        ({"max_generation_len": 8}, "one value is for both"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(learner: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Parts(**learner).built()
