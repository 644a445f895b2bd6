"""The quick start of UnstableBaselines, as it reads here: the tiny player on SimpleTak, without a GPU.

Run: python examples/quick_start.py            (200 updates; or --iterations 20)
"""

import argparse

import unstable_stream as us
import unstable_stream.reward_transformations as retra

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--iterations", type=int, default=200, help="total update steps")
parser.add_argument("--data", default="unstable-data", help="directory for everything that is kept")
parser.add_argument("--backend", choices=("ray", "inline"), default="ray")
parser.add_argument("--batch-size", type=int, default=384)
parser.add_argument("--num-workers", type=int, default=384)


def main(arguments: argparse.Namespace) -> us.Run:
    """Describe the parts and train."""
    tracker = us.Tracker(run_name="demo")

    step_buffer = us.StepBuffer(
        max_buffer_size=2 * arguments.batch_size,
        tracker=tracker,
        final_reward_transformation=retra.ComposeFinalRewardTransforms([retra.RoleAdvantageByEnvFormatter()]),
        step_reward_transformation=retra.ComposeStepRewardTransforms(
            [retra.RewardForFormat(1.5), retra.PenaltyForInvalidMove(1.0, -1.0)]
        ),
        sampling_reward_transformation=retra.ComposeSamplingRewardTransforms(
            [retra.NormalizeRewardsByEnv(True)]
        ),
    )

    model_pool = us.ModelPool(sample_mode="mirror", max_active_lora=3, tracker=tracker)
    model_pool.add_checkpoint(path=None, iteration=-1)  # a run begins with the base model anyway

    lora_cfg = {
        "lora_rank": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    }
    collector = us.Collector(
        num_actors=1,
        step_buffer=step_buffer,
        model_pool=model_pool,
        tracker=tracker,
        vllm_config={
            "model_name": "tiny-player",
            "max_parallel_seq": 128,
            "max_tokens": 4,
            "max_loras": 5,
            "lora_config": lora_cfg,
        },
        training_envs=[("SimpleTak-v0-train", 2, "simpletak-board")],  # (env-id, players, prompt template)
        evaluation_envs=[
            ("SimpleTak-v0-train", 2, "simpletak-board"),
            ("TicTacToe-v0-train", 2, "tictactoe-board"),
        ],
        evaluation_opponent="random-legal",
        max_eval_games_per_ckpt=16,
        engine="transformers",
    )

    learner = us.StandardLearner(
        model_name="tiny-player",
        step_buffer=step_buffer,
        model_pool=model_pool,
        tracker=tracker,
        algorithm=us.algorithms.Reinforce(),
        batch_size=arguments.batch_size,
        mini_batch_size=64,
        learning_rate=3e-3,
        grad_clip=0.2,
        lora_cfg=lora_cfg,
        activation_checkpointing=False,
        gradient_checkpointing=False,
        max_train_len=None,  # always train on the full sequence
        max_generation_len=4,  # important for Dr. GRPO
    )

    collector.collect(num_workers=arguments.num_workers, num_eval_workers=16)
    return learner.train(arguments.iterations, data=arguments.data, backend=arguments.backend)


if __name__ == "__main__":
    run = main(parser.parse_args())
    print(
        run.sql(
            """
            SELECT env_id, opponent, policy_version AS "update", sum(games) AS games,
                sum(wins) / sum(games) AS won
            FROM win_rates WHERE split = 'eval' GROUP BY ALL ORDER BY ALL
            """
        )
    )
