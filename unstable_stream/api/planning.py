"""Tell where the processes of a run would compute, and their memory, before anything starts."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unstable_stream.runs.config import RunConfig
    from unstable_stream.services.launch.plan import RunPlan as RunPlan


def plan_config(config: "RunConfig", *, fetch: bool = True) -> "RunPlan":
    """Plan for this machine, or for the Ray cluster that ``RAY_ADDRESS`` names; start nothing.

    Args:
        config: of the run.
        fetch: whether a model may be fetched from Hugging Face; if not, and it is no directory here, the plan
            has places and no memory.

    Raises:
        ConfigError: it cannot be placed, or the model does not fit.
        ServiceError: the cluster cannot be reached.
    """
    from unstable_stream.inference.base_model import model_here
    from unstable_stream.inference.model_config import read_shape
    from unstable_stream.runs.base_model import base_model_path
    from unstable_stream.runs.placement import place
    from unstable_stream.services.launch.plan import RunPlan, plan_shape, this_machine

    here = model_here(config.model, config.model_revisions.get(config.model))
    shape = read_shape(base_model_path(config)) if fetch or here else None
    machines = [this_machine()]
    if config.backend == "ray" and "RAY_ADDRESS" in os.environ:
        from unstable_stream.services.launch.ray.cluster import look_at_cluster

        machines = look_at_cluster()
    return RunPlan(place(config, machines), (), ()) if shape is None else plan_shape(config, shape, machines)
