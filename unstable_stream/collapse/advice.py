"""Say in words what a warning means and how to go back before the collapse."""

from unstable_stream.events import CollapseWarning

__all__ = ["advice"]


def advice(warning: CollapseWarning, learning_rate: float, options: str = "") -> str:
    """Return a warning in one sentence, and the command that forks the run before it.

    Args:
        warning: of the run.
        learning_rate: the run's peak learning rate; half of it is proposed.
        options: those that lead a command to the run's log and data directory, each after a space.
    """
    if warning.rule == "unplayable" and warning.fork_at == 0:
        return (
            f"update {warning.update} learns from nothing that was played well: {warning.text}. Read some "
            f"(unstable-stream games{options}), then change the template, sampling.max_tokens or the model"
        )
    return (
        f"sign of a collapse at update {warning.update}, since update {warning.began}: {warning.text}. "
        f"Go back before it: unstable-stream fork {warning.run_id} --at {warning.fork_at} "
        f"--set learner.learning_rate={learning_rate / 2:g}{options}"
    )
