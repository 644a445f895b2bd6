"""The parts of the ancestor's documentation under its names: they describe a run, :func:`build` makes it.

There they were Ray actors that passed objects to each other. Here they hold settings, and processes exchange
events through the log. docs/tutorials/from-unstable-baselines.md maps every name.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeVar

from unstable_stream.api.build import build
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


def _refuse(where: str, given: Mapping[str, tuple[object, str]]) -> None:
    """Refuse arguments that mean nothing here: name to value and what to use instead."""
    for name, (value, instead) in given.items():
        if value is not None:
            raise ConfigError(f"{where}({name}=…) means nothing here: {instead}")


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
        self,
        max_buffer_size: int | None = None,
        *,
        final_reward_transformation: object = None,
        step_reward_transformation: object = None,
        sampling_reward_transformation: object = None,
        buffer_strategy: object = None,
        max_staleness: int | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        """Describe the buffer.

        Args:
            max_buffer_size: most steps kept; ``None``: four batches.
            final_reward_transformation: a ``Compose…``, a list, one transformation or its name; ``None``:
                as configured by default.
            step_reward_transformation: likewise.
            sampling_reward_transformation: likewise.
            buffer_strategy: ``random``, ``fifo``, ``prioritised``, or an extension.
            max_staleness: steps sampled more than this many updates ago are dropped; ``None``: never.
            tracker: gives the run its name.
        """
        self.settings = _given(locals())
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
        lag_range: tuple[int, int] | None = None,
        mirror_fraction: float | None = None,
        temperature: float | None = None,
        fixed: Sequence[object] = (),
        draw_probability: Mapping[str, float] | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        """Describe the pool.

        Args:
            sample_mode: ``mirror``, ``fixed``, ``lagged``, ``random``, ``match-quality``, ``ts-dist``,
                ``exploration``, ``pfsp-hard``, ``pfsp-variance``, or an extension.
            max_active_lora: checkpoints kept as opponents, the newest included.
            lag_range: how many checkpoints back ``lagged`` reaches, first and last.
            mirror_fraction: this share of games is mirror self-play whatever the mode.
            temperature: of the modes that weigh opponents; lower: the highest weights are drawn more often.
            fixed: fixed opponents; also :meth:`add_fixed`.
            draw_probability: TrueSkill's, by environment.
            tracker: gives the run its name.
        """
        self.settings = _given(locals(), {"temperature": "model_pool.temperature"}, "fixed")
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
        training_envs: object,
        evaluation_envs: object = None,
        evaluation_opponent: object = None,
        max_eval_games_per_ckpt: int | None = None,
        filter_opponent_invalid: bool | None = None,
        action_extraction: str | None = None,
        engine: object = None,
        tracker: Tracker | None = None,
    ) -> None:
        """Describe collection.

        Args:
            num_actors: inference engines.
            step_buffer: receives the steps; the learner has the same.
            model_pool: gives the opponents; the learner has the same.
            vllm_config: ``model_name``, ``max_parallel_seq``, ``max_tokens``, ``max_loras``,
                ``max_model_len``, ``lora_config``, ``temperature``, ``top_p``, for whatever engine plays.
            training_envs: ``(env_id, players, template)``, ids or :class:`TrainEnvSpec`.
            evaluation_envs: likewise, or :class:`EvalEnvSpec`; the training environments by default.
            evaluation_opponent: one or several: ``random-legal`` and other scripted ones, an endpoint's model
                name, or a function.
            max_eval_games_per_ckpt: games per checkpoint, environment and opponent.
            filter_opponent_invalid: leave out games that ended by the opponent's invalid move.
            action_extraction: refused: a template has its own.
            engine: ``transformers``, ``vllm`` or an engine class; ``None``: vLLM if it is installed and there
                is a GPU, else transformers.
            tracker: gives the run its name.
        """
        _refuse(
            "Collector",
            {"action_extraction": (action_extraction, "templates have one: docs/reference/environments.md")},
        )
        names = {
            "training_envs": "train_envs",
            "evaluation_envs": "eval_envs",
            "evaluation_opponent": "evaluation_opponents",
        }
        self.settings = _given(locals(), names, "vllm_config", "engine", "action_extraction", "names")
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
                known = "max_tokens" if name == "max_generation_len" else name
                if known in settings and settings[known] != value:
                    raise ConfigError(
                        f"{name}: the parts say {settings[known]!r} and {value!r}; one value is for both"
                    )
                settings[known] = value
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
        self.settings |= {"num_workers": num_workers, "num_eval_workers": num_eval_workers}


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
        algorithm: object = None,
        batch_size: int | None = None,
        mini_batch_size: int | None = None,
        mini_batch_tokens: int | None = None,
        learning_rate: float | None = None,
        grad_clip: float | None = None,
        batch_delay_buffer: float | None = None,
        parameters: Literal["lora", "all"] | None = None,
        lora_cfg: Mapping[str, Any] | None = None,
        initial_lora_path: str | None = None,
        save_every: int | None = None,
        activation_checkpointing: bool | None = None,
        gradient_checkpointing: bool | None = None,
        max_train_len: int | None = None,
        max_generation_len: int | None = None,
        num_learners: int | None = None,
        ckpt_root: str | None = None,
        use_trainer_cache: bool | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        """Describe training.

        Args:
            model_name: base model: a directory, a Hugging Face id, or ``tiny-player``.
            step_buffer: gives the batches.
            model_pool: receives the checkpoints.
            algorithm: an object or a name; REINFORCE by default.
            batch_size: steps per update.
            mini_batch_size: most rows in one forward pass.
            mini_batch_tokens: most tokens in one forward pass, with padding; a longer row is computed alone.
            learning_rate: of AdamW.
            grad_clip: global L2 norm.
            batch_delay_buffer: wait until so many batches are there.
            parameters: ``lora``: those of an adapter; ``all``: those of the model, full fine-tuning.
            lora_cfg: ``lora_rank``, ``lora_alpha``, ``lora_dropout``, ``target_modules``.
            initial_lora_path: adapter to begin from.
            save_every: updates between two checkpoints.
            activation_checkpointing: less memory, about a quarter slower.
            gradient_checkpointing: likewise, by layers.
            max_train_len: only the first so many tokens are trained on; ``None``: all.
            max_generation_len: longest completion; also the length normaliser of Dr. GRPO.
            num_learners: learners that share the work of each batch, processes of one machine.
            ckpt_root: directory or address (``s3://bucket/runs``) of the checkpoints; ``None``: the data
                directory.
            use_trainer_cache: refused unless ``False``.
            tracker: gives the run its name.
        """
        _refuse(
            "StandardLearner",
            {"use_trainer_cache": (use_trainer_cache or None, "training keeps no key-value cache")},
        )
        names = {"model_name": "model", "lora_cfg": "lora"}
        self.settings = _given(locals(), names, "use_trainer_cache", "names")
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
        instead = "the view reads the log of a run; write TerminalInterface(run)"
        _refuse("TerminalInterface", {"tracker": (tracker, instead), "step_buffer": (step_buffer, instead)})
        if run is None:
            raise ConfigError(
                "TerminalInterface(): give it a run, e.g. TerminalInterface(us.open_run('demo'))"
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
            ("max_tokens", "max_tokens"),
            ("temperature", "sampling.temperature"),  # the pool has one too
            ("top_p", "top_p"),
        )
        if theirs in given
    }
    if engine is None:
        engine = "vllm" if _GPU.exists() and importlib.util.find_spec("vllm") else "transformers"
    return settings | {"engine": table("engine", engine) | given}


def _given(
    arguments: Mapping[str, object], names: Mapping[str, str] | None = None, *others: str
) -> dict[str, Any]:
    """Return a constructor's arguments that are given, but for ``others``; ``names``: those of settings."""
    left_out = ("self", "step_buffer", "model_pool", "tracker", *others)
    return {
        (names or {}).get(name, name): value
        for name, value in arguments.items()
        if value is not None and name not in left_out
    }
