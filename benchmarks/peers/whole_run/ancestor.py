"""The ancestor's side: UnstableBaselines as published, with the replacements of ``ancestor_port``.

It is put together as its function ``build`` does it. That one itself asks for Weights & Biases, gives every
GPU to an engine, so that none is left for its learner, and its run ends with a ``NameError``. Ray is told of
a GPU that is not there, because its collector starts one engine for each. All its defaults hold but those of
``work``: temperature and ``top_p`` are 1 as on our side, and both kinds of checkpointing are off.
"""

import os
from types import SimpleNamespace

import ray
import unstable
import unstable.actor
import unstable.collector
import unstable.reward_transformations as rewards
from unstable.samplers import BaseModelSampler, UniformRandomEnvSampler

from benchmarks.peers.whole_run import work
from benchmarks.peers.whole_run.ancestor_learner import MarkedLearner
from benchmarks.peers.whole_run.ancestor_port import (
    MARKS,
    MarkedBuffer,
    Vllm,
    as_it_is,
    cell,
    make_board,
)
from unstable_stream.inference.tiny_player import tiny_player_path

_LORA = {
    "lora_rank": work.LORA_RANK,
    "lora_alpha": work.LORA_ALPHA,
    "lora_dropout": 0.0,
    "target_modules": list(work.PROJECTIONS),
}


def _replace_names() -> None:
    """Put the port's functions where the ancestor's actors look for others.

    Ray sends classes and functions to other processes together with the names that they use.
    """
    for name in ("EngineArgs", "LLMEngine", "LoRARequest", "SamplingParams"):
        setattr(unstable.actor, name, getattr(Vllm, name))
    unstable.actor.dict = str
    unstable.collector.ta = SimpleNamespace(make=make_board)
    unstable.collector.OBSERVATION_FORMATTING[work.TEMPLATE] = as_it_is
    unstable.collector.ACTION_EXTRACTION[work.TEMPLATE] = cell


def _play(task: work.Task) -> None:
    model = str(tiny_player_path())
    tracker = unstable.Tracker.options(name="Tracker").remote(run_name="whole-run")
    registry = unstable.ModelRegistry.options(name="ModelRegistry").remote(tracker=tracker)
    ray.get(registry.add_checkpoint.remote(uid="base", path=None, iteration=0))
    # Both seats are actors: mirror self-play.
    environment = unstable.TrainEnvSpec(work.ENVIRONMENT, 2, 2, work.TEMPLATE, work.TEMPLATE)
    scheduler = unstable.GameScheduler.options(name="GameScheduler").remote(
        model_sampler=BaseModelSampler(model_registry=registry),
        env_sampler=UniformRandomEnvSampler(train_env_specs=[environment]),
        logging_dir=ray.get(tracker.get_log_dir.remote()),
    )
    step_rewards = [
        rewards.RewardForFormat(work.FORMAT_REWARD),
        rewards.PenaltyForInvalidMove(*work.INVALID_MOVE_PENALTY),
    ]
    buffer = (
        ray.remote(MarkedBuffer)
        .options(name="Buffer")
        .remote(
            max_buffer_size=work.BUFFER_STEPS,
            tracker=tracker,
            final_reward_transformation=rewards.ComposeFinalRewardTransforms(
                [rewards.RoleAdvantageByEnvFormatter()]
            ),
            step_reward_transformation=rewards.ComposeStepRewardTransforms(step_rewards),
            sampling_reward_transformation=rewards.ComposeSamplingRewardTransforms(
                [rewards.NormalizeRewardsByEnv(True)]
            ),
        )
    )
    collector = unstable.Collector.options(name="Collector").remote(
        vllm_config={
            "model_name": model,
            "temperature": 1.0,
            "top_p": 1.0,
            "max_tokens": work.MAX_TOKENS,
            "max_parallel_seq": work.MAX_PARALLEL_SEQ,
            "max_loras": work.MAX_LORAS,
            "lora_config": _LORA,
            "max_model_len": work.CONTEXT_TOKENS,
        },
        tracker=tracker,
        buffer=buffer,
        game_scheduler=scheduler,
    )
    learner = (
        ray.remote(MarkedLearner)
        .options(name="Learner")
        .remote(
            model_name=model,
            lora_cfg=_LORA,
            batch_size=work.BATCH_STEPS,
            mini_batch_size=task.rows,
            learning_rate=work.LEARNING_RATE,
            grad_clip=work.GRAD_CLIP,
            buffer=buffer,
            tracker=tracker,
            model_registry=registry,
            activation_checkpointing=False,
            gradient_checkpointing=False,
        )
    )
    ray.get(learner.initialize_algorithm.remote(max_train_len=None, max_generation_len=work.MAX_TOKENS))
    collector.collect.remote(num_train_workers=work.GAMES_IN_FLIGHT)
    # Its N iterations make N - 1 updates.
    ray.get(learner.train.remote(task.updates + 1))


def main() -> None:
    """Play and train in the working directory."""
    task = work.read_task()
    os.environ[MARKS] = str(task.marks)
    _replace_names()
    ray.init(namespace="unstable", num_gpus=1)
    try:
        _play(task)
        work.tell(task.marks, "end")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
