"""``unstable-stream plan``: what a run would start, where, and with how much memory."""

from pathlib import Path

from unstable_stream.ui.cli.options import SetOption


def command(config: Path, overrides: SetOption = None, engine: str | None = None) -> None:
    """Show where each process of a run would compute, and its memory; start nothing.

    It plans for this machine, or for the Ray cluster that the environment variable RAY_ADDRESS names.

    "start" is what it takes when the model is loaded, "peak" with the longest turns that the settings allow.

    Example: unstable-stream plan examples/simpletak.toml --engine vllm

    Args:
        config: Configuration, a TOML file.
        engine: Inference engine: transformers or vllm.
    """
    from unstable_stream.api.build import load
    from unstable_stream.ui.cli.running import print_plan

    changes = [*(overrides or []), *([f"engine.type={engine}"] if engine else [])]
    print_plan(load(config, overrides=changes).plan())
