"""``unstable-stream plan``: what a run would start, where, and with how much memory."""

from pathlib import Path

import typer

from unstable_stream.cli.options import SetOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan", help=_plan.__doc__)(_plan)


def _plan(
    config: Path | None = typer.Argument(None, help="Configuration, a TOML file; not with --gpus."),
    overrides: SetOption = None,
    engine: str | None = typer.Option(None, "--engine", help="Inference engine: transformers or vllm."),
    gpus: int | None = typer.Option(None, "--gpus", min=1, help="GPUs of engines to plan a cluster around."),
    model: str | None = typer.Option(
        None, "--model", help="With --gpus: a directory, or a name that tells the size (default: 7.6B)."
    ),
    tokens_per_gpu: float | None = typer.Option(
        None, "--tokens-per-gpu", help="With --gpus: tokens a GPU generates a second (default: by the size)."
    ),
    prompt_tokens: float = typer.Option(700.0, "--prompt-tokens", help="With --gpus: of a turn."),
    completion_tokens: float = typer.Option(250.0, "--completion-tokens", help="With --gpus: of a turn."),
    turns: float = typer.Option(5.0, "--turns", help="With --gpus: of a seat in a game."),
    trajectories: float = typer.Option(2.0, "--trajectories", help="With --gpus: seats the model plays."),
    runs: int = typer.Option(1, "--runs", min=1, help="With --gpus: runs that share them."),
    environments: int = typer.Option(1, "--environments", min=1, help="With --gpus: of each run."),
) -> None:
    """Show where each process of a run would compute, and its memory; start nothing.

    It plans for this machine, or for the Ray cluster that the environment variable RAY_ADDRESS names.

    "start" is what it takes when the model is loaded, "peak" with the longest turns that the settings allow.

    With --gpus it shows instead what so many GPUs need around them, by measurements: cores by process,
    partitions, what brokers and archive keep. Several runs or environments keep several archivers busy.

    Example: unstable-stream plan examples/simpletak.toml --engine vllm

    Example: unstable-stream plan --gpus 64 --model Qwen/Qwen3-8B --completion-tokens 400
    """
    from unstable_stream.cli.running import print_plan

    if gpus is not None:
        if config is not None or overrides or engine:
            raise typer.BadParameter(
                "it plans for no configuration: leave CONFIG, --set and --engine out", param_hint="--gpus"
            )
        from unstable_stream.api.control_plane import control_plane

        around = control_plane(
            gpus,
            model,
            tokens_per_gpu_s=tokens_per_gpu,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            turns=turns,
            trajectories=trajectories,
            runs=runs,
            environments=environments,
        )
        print_plan(around)
        return
    if config is None:
        raise typer.BadParameter("give a configuration, or --gpus", param_hint="CONFIG")
    from unstable_stream.api.build import load

    changes = [*(overrides or []), *([f"engine.type={engine}"] if engine else [])]
    print_plan(load(config, overrides=changes).plan())
