"""The parts of the ancestor's documentation under its names: they describe a run, :func:`build` makes it.

There they were Ray actors that passed objects to each other. Here they hold settings, and processes exchange
events through the log. docs/tutorials/from-unstable-baselines.md maps every name.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from unstable_stream.api.build import build
from unstable_stream.api.settings import full_key
from unstable_stream.api.shorthand import table
from unstable_stream.errors import ConfigError

if TYPE_CHECKING:
    from unstable_stream.api.run import Run
    from unstable_stream.services.launch.launcher import Backend

F = TypeVar("F", bound=Callable[..., Any])

_GPU: Final = Path("/dev/nvidiactl")


def _local(method: F) -> F:
    """Give a method the ``remote`` that its namesake has, to say what to write instead."""
    name = method.__qualname__.partition(".")[2]

    def refuse(*_: object, **__: object) -> NoReturn:
        raise ConfigError(
            f".{name}.remote(…): there are no Ray actors to call; write .{name}(…), without ray.get"
        )

    setattr(method, "remote", refuse)  # noqa: B010 - functions declare no such attribute
    return method


class _Part:
    """Base of the parts: it refuses ``options`` and ``remote``, and names the new place of methods and
    attributes."""

    _ELSEWHERE: Mapping[str, str] = {}

    @classmethod
    def options(cls, *_: object, **__: object) -> NoReturn:
        """Refused: there is no Ray actor to name, to place or to make."""
        raise ConfigError(f"{cls.__name__}: there are no Ray actors to make; write {cls.__name__}(…)")

    remote = options

    def __getattr__(self, name: str) -> NoReturn:
        instead = f": {self._ELSEWHERE[name]}" if name in self._ELSEWHERE else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{instead}")


class Tracker(_Part):
    """The name of a run, and its project on Weights & Biases.

    All metrics are on the log without a tracker, see :meth:`Run.metrics`; :meth:`Run.track` sends them to
    TensorBoard, Weights & Biases or a file, also afterwards.
    """

    _ELSEWHERE: Mapping[str, str] = {
        "add_trajectory": "trajectories are on the log; ask run.metrics('collection-')",
        "add_eval_episode": "evaluation games are on the log; ask run.metrics('evaluation-')",
        "log_inference": "engines publish their own metrics; ask run.metrics('inference/')",
        "log_learner": "each update is on the log; ask run.metrics('learner/')",
        "log_model_pool": "ask run.metrics('model-pool/') or run.sql('FROM rating_ladder')",
        "get_interface_info": "the live view reads the log; call run.watch()",
        "FLUSH_EVERY": "metrics are published with each policy version, or after 64 seconds of play",
        "use_wandb": "give wandb_project, or trackers=['wandb']",
    }

    def __init__(self, run_name: str = "run", wandb_project: str | None = None) -> None:
        """Name the run.

        Args:
            run_name: display name; part of the run's id.
            wandb_project: send every metric to this project on Weights & Biases, as the run goes. Without an
                API key, files are written that ``wandb sync`` sends later.
        """
        self.run_name = run_name
        self.wandb_project = wandb_project


class StepBuffer(_Part):
    """The buffer of steps that wait for the learner, and the transformations that shape their rewards."""

    _ELSEWHERE: Mapping[str, str] = {
        "add_trajectory": "trajectories come from the log; play games with Collector.collect",
        "get_batch": "the learner draws batches, each is recorded; ask run.sql('FROM training_batches')",
        "write_training_data_to_file": "call run.export_batches(directory), at any time",
        "size": "ask run.audit().steps.pending",
        "clear": "steps on the log are not deleted; give max_staleness to drop old ones",
        "stop": "call run.stop()",
        "continue_collection": "back-pressure is a setting, max_pending_steps",
    }

    def __init__(
        self, max_buffer_size: int | None = None, *, tracker: Tracker | None = None, **settings: object
    ) -> None:
        """Describe the buffer.

        Args:
            max_buffer_size: most steps kept; ``None``: four batches.
            tracker: gives the run its name.
            settings: ``final_reward_transformation``, ``step_reward_transformation``,
                ``sampling_reward_transformation``: a ``Compose…``, a list, one transformation or its name;
                ``buffer_strategy``; ``max_staleness``; and others of :func:`build`.
        """
        self.settings = _given(max_buffer_size=max_buffer_size, **settings)
        self.tracker = tracker
        self.collector: Collector | None = None


class ModelPool(_Part):
    """The opponents that the model trains against, and the rating of models."""

    _ELSEWHERE: Mapping[str, str] = {
        "current_uid": "ask run.checkpoints()",
        "latest_ckpt": "ask run.checkpoints()",
        "ckpt_path": "ask run.checkpoints()",
        "sample": "opponents are drawn by the collector and recorded; ask run.sql('FROM planned_seats')",
        "push_game_outcome": "ratings follow from the outcomes on the log; ask run.sql('FROM rating_ladder')",
        "snapshot": "ask run.metrics('model-pool/')",
    }

    def __init__(
        self,
        sample_mode: object = "mirror",
        max_active_lora: int | None = None,
        *,
        fixed: Sequence[object] = (),
        temperature: float | None = None,
        tracker: Tracker | None = None,
        **settings: object,
    ) -> None:
        """Describe the pool.

        Args:
            sample_mode: ``mirror``, ``fixed``, ``lagged``, ``random``, ``match-quality``, ``ts-dist``,
                ``exploration``, ``pfsp-hard``, ``pfsp-variance``, or an extension.
            max_active_lora: checkpoints kept as opponents, the newest included.
            fixed: fixed opponents; also :meth:`add_fixed`.
            temperature: of the modes that weigh opponents; lower: the highest weights are drawn more often.
            tracker: gives the run its name.
            settings: ``lag_range``, ``mirror_fraction``, ``draw_probability``, and others of :func:`build`.
        """
        own = {"model_pool.temperature": temperature}  # sampling has one too
        self.settings = _given(sample_mode=sample_mode, max_active_lora=max_active_lora, **own, **settings)
        self.fixed = list(fixed)
        self.tracker = tracker

    @_local
    def add_checkpoint(self, path: str | None = None, iteration: int = -1) -> None:
        """Accept the first checkpoint, which is the base model: every run begins with it anyway.

        Raises:
            ConfigError: another one; says what to use instead.
        """
        if path is not None or iteration != -1:
            raise ConfigError(
                f"ModelPool.add_checkpoint(path={path!r}, iteration={iteration}): the learner adds "
                "checkpoints; begin from an adapter with StandardLearner(initial_lora_path=…), from another "
                "run with run.fork(at=…)"
            )

    @_local
    def add_fixed(self, name: object) -> None:
        """Add a fixed opponent: a name, a function or a mapping."""
        self.fixed.append(name)


class Collector(_Part):
    """The games to play, and the engine that plays them."""

    def __init__(
        self,
        num_actors: int = 1,
        *,
        step_buffer: StepBuffer,
        model_pool: ModelPool,
        vllm_config: Mapping[str, Any],
        engine: object = None,
        tracker: Tracker | None = None,
        **settings: object,
    ) -> None:
        """Describe collection.

        Args:
            num_actors: inference engines.
            step_buffer: receives the steps; the learner has the same.
            model_pool: gives the opponents; the learner has the same.
            vllm_config: ``model_name``, ``max_parallel_seq``, ``max_tokens``, ``max_loras``,
                ``max_model_len``, ``lora_config``, ``temperature``, ``top_p``, for whatever engine plays.
            engine: ``transformers``, ``vllm`` or an engine class; ``None``: vLLM if it is installed and there
                is a GPU, else transformers.
            tracker: gives the run its name.
            settings: ``training_envs``, which is required, and ``evaluation_envs``: ``(env_id, players,
                template)``, ids, :class:`TrainEnvSpec` or :class:`EvalEnvSpec`; ``evaluation_opponent``: one
                or several scripted ones, an endpoint's model name, or a function;
                ``max_eval_games_per_ckpt``; ``filter_opponent_invalid``; and others of :func:`build`.
        """
        self.settings = _given(num_actors=num_actors, **settings)
        self.settings |= _engine_settings(vllm_config, engine)
        self.step_buffer = step_buffer
        self.model_pool = model_pool
        self.tracker = tracker
        step_buffer.collector = self

    def settings_with(self, learner: "StandardLearner") -> dict[str, Any]:
        """Return what collector and learner describe together, as keyword arguments of :func:`build`.

        Raises:
            ConfigError: they do not belong together, or contradict each other.
        """
        if self.step_buffer is not learner.step_buffer or self.model_pool is not learner.model_pool:
            raise ConfigError(
                "collector and learner have different step buffers or model pools: give both the same"
            )
        pool, buffer = self.model_pool, self.step_buffer
        model = learner.settings["model"]
        played = self.settings.get("model", model)
        if str(played) != str(model):
            raise ConfigError(
                f"the collector plays with {played!r} and the learner trains {model!r}: name one model in "
                "vllm_config['model_name'] and model_name"
            )
        trackers = [each.tracker for each in (learner, self, buffer, pool) if each.tracker is not None]
        settings: dict[str, Any] = {"name": trackers[0].run_name} if trackers else {}
        projects = {tracker.wandb_project for tracker in trackers} - {None}
        if projects:
            settings["trackers"] = [{"type": "wandb", "project": name} for name in sorted(projects, key=str)]
        for part in (pool.settings, buffer.settings, self.settings, learner.settings):
            for name, value in part.items():
                if settings.setdefault(name, value) != value:
                    raise ConfigError(
                        f"{name}: the parts say {settings[name]!r} and {value!r}; one value is for both"
                    )
        if pool.fixed:
            settings["model_pool"] = {"fixed": pool.fixed}
        return settings

    @_local
    def collect(self, num_workers: int, num_eval_workers: int = 16) -> None:
        """Say how many games are in flight; they begin with :meth:`StandardLearner.train`.

        Args:
            num_workers: training games.
            num_eval_workers: evaluation games.
        """
        self.settings |= _given(num_workers=num_workers, num_eval_workers=num_eval_workers)


class StandardLearner(_Part):
    """The model to train, and the settings of training."""

    _ELSEWHERE: Mapping[str, str] = {
        **dict.fromkeys(
            ("device", "model", "tokenizer"),
            "it is in the learner's process; run.checkpoints() has files that PEFT loads",
        ),
        **dict.fromkeys(("_step", "_samples_seen"), "ask run.metrics('learner/')"),
    }

    def __init__(
        self,
        model_name: str,
        *,
        step_buffer: StepBuffer,
        model_pool: ModelPool,
        tracker: Tracker | None = None,
        **settings: object,
    ) -> None:
        """Describe training.

        Args:
            model_name: base model: a directory, a Hugging Face id, or ``tiny-player``.
            step_buffer: gives the batches.
            model_pool: receives the checkpoints.
            tracker: gives the run its name.
            settings: ``algorithm``, ``batch_size``, ``mini_batch_size``, ``learning_rate``, ``grad_clip``,
                ``lora_cfg``, ``initial_lora_path``, ``save_every``, ``max_train_len``,
                ``max_generation_len``, ``activation_checkpointing``, ``gradient_checkpointing``,
                ``num_learners``, ``ckpt_root`` and others of :func:`build`; ``use_trainer_cache`` is refused
                unless ``False``.
        """
        if not settings.get("use_trainer_cache"):
            settings.pop("use_trainer_cache", None)
        self.settings = _given(model_name=model_name, **settings)
        self.step_buffer = step_buffer
        self.model_pool = model_pool
        self.tracker = tracker

    @_local
    def train(
        self,
        iterations: int,
        *,
        data: Path | str | None = None,
        log: str | None = None,
        backend: "Backend | None" = None,
        block: bool = True,
        live: bool = True,
    ) -> "Run":
        """Run everything until so many updates are made, and return the run.

        Args:
            iterations: updates; N iterations make N updates.
            data: data directory; ``./unstable-data`` by default.
            log: ``local`` (the default) or ``kafka://HOST:PORT``.
            backend: ``ray`` or ``inline``.
            block: as for :meth:`Run.start`.
            live: as for :meth:`Run.start`.

        Raises:
            ConfigError: no collector has this learner's buffer, or the settings cannot work.
        """
        collector = self.step_buffer.collector
        if collector is None:
            raise ConfigError(
                "StandardLearner.train: nobody collects into its step buffer; make a "
                "Collector(step_buffer=…, model_pool=…) with the same buffer first"
            )
        run = build(collector=collector, learner=self, data=data, log=log, backend=backend)
        return run.start(iterations, block=block, live=live)


class TerminalInterface(_Part):
    """The live view of a run."""

    def __init__(
        self, run: "Run | None" = None, *, tracker: object = None, step_buffer: object = None
    ) -> None:
        """Choose the run.

        Args:
            run: a :class:`Run`.
            tracker: refused: the view reads the log.
            step_buffer: refused.
        """
        if run is None or tracker is not None or step_buffer is not None:
            raise ConfigError(
                "the view reads the log of a run: write TerminalInterface(run), e.g. "
                "TerminalInterface(us.open_run('demo'))"
            )
        self._run = run

    @_local
    def run(self) -> None:
        """Show the run until it ends, or until Ctrl-C, as :meth:`Run.watch` does."""
        self._run.watch()


def _engine_settings(vllm_config: Mapping[str, Any], engine: object) -> dict[str, Any]:
    given = dict(vllm_config)
    settings = {
        ours: given.pop(theirs)
        for theirs, ours in (
            ("model_name", "model"),
            ("lora_config", "lora"),
            ("max_tokens", "sampling.max_tokens"),
            ("temperature", "sampling.temperature"),
            ("top_p", "sampling.top_p"),
        )
        if theirs in given
    }
    if engine is None:
        engine = "vllm" if _GPU.exists() and importlib.util.find_spec("vllm") else "transformers"
    return settings | {"engine": table("engine", engine) | given}


def _given(**arguments: object) -> dict[str, Any]:
    """Return the arguments that are given under the full names of their settings."""
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        if value is None:
            continue
        key = ".".join(full_key(name))
        if key in given:
            raise ConfigError(f"{name}: {key} is given twice, by two names; give it once")
        given[key] = value
    return given
