"""The page for those who come from UnstableBaselines is complete, and what it names exists and works."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tests.documented_code import blocks_of
from unstable_stream.api.settings import make_config
from unstable_stream.archive.reference import relations
from unstable_stream.events import EVENT_TYPES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorials" / "from-unstable-baselines.md"

# The names in the ancestor's documentation, by section of our page: classes, arguments, attributes, methods,
# modes, metrics, files.
NAMES: Final[dict[str, str]] = {
    "Loops and actors": "ray.init options num_gpus remote ray.get",
    "VLLMActor": """
        VLLMActor cfg tracker name model_name max_loras lora_config.lora_rank max_parallel_seq max_model_len
        temperature top_p max_tokens engine sampling_params submit_prompt prompt lora_path _batch_loop
        _report_loop queued running tok_s _tok_rate window
    """,
    "Collector": """
        Collector num_actors step_buffer model_pool tracker vllm_config training_envs evaluation_envs env_id
        players template evaluation_opponent max_eval_games_per_ckpt filter_opponent_invalid action_extraction
        collect num_workers num_eval_workers _submit_train _submit_eval _handle_finished _post_train
        _post_eval play_episode flight continue_collection
    """,
    "ModelPool": """
        ModelPool sample_mode max_active_lora tracker lag_range fixed mirror lagged random match-quality
        ts-dist exploration add_checkpoint path iteration add_fixed current_uid latest_ckpt ckpt_path sample
        uid_me uid_opp push_game_outcome _update_ratings _register_game _maintain_active_pool snapshot
    """,
    "StepBuffer": """
        StepBuffer max_buffer_size tracker final_reward_transformation step_reward_transformation
        sampling_reward_transformation buffer_strategy random add_trajectory trajectory player_id env_id
        get_batch batch_size clear stop size continue_collection train_data_step_<N>.csv
        write_training_data_to_file
    """,
    "StandardLearner": """
        StandardLearner model_name step_buffer model_pool algorithm batch_size mini_batch_size
        max_generation_len learning_rate grad_clip batch_delay_buffer lora_cfg lora_rank lora_alpha
        lora_dropout target_modules initial_lora_path num_learners
        ckpt_root save_every activation_checkpointing gradient_checkpointing use_trainer_cache max_train_len
        tracker train iterations device model tokenizer torch.set_default_dtype
        torch.set_float32_matmul_precision _step _samples_seen enable_full_activation_ckpt
    """,
    "Tracker": """
        Tracker run_name wandb_project wandb.init project FLUSH_EVERY _m _buffer _n _interface_stats use_wandb
        _put _agg _flush_if_due add_trajectory traj player_id env_id add_eval_episode rewards log_inference
        actor gpu_ids stats log_learner info log_model_pool match_counts ts_dict exploration
        get_interface_info
        collection-<env_id>/ evaluation-<env_id>/ inference/<actor>/ learner/
    """,
    "TerminalInterface": "TerminalInterface tracker step_buffer",
    "Data structures": """
        Trajectory pid obs actions extracted_actions infos final_rewards num_turns format_feedbacks
        Step act reward env_id step_info Opponent uid kind path_or_name rating active EpisodeResult traj
        end_by_opponent_invalid action_seq PlaySpec num_players player_id agent_specs seed AgentSpec model
        prompt_template action_extraction_fn TaskMeta type ckpt_uid opponent_uid BaseAlgo initialize
        prepare_batch update BaseTracker ExplorationTracker CuriosityStep
    """,
    "Reward transformations": """
        FinalRewardTransform x env_id StepRewardTransform trajectory step_index base_reward
        SamplingRewardTransform steps ComposeFinalRewardTransforms ComposeStepRewardTransforms
        ComposeSamplingRewardTransforms WinDrawLossFormatter RoleAdvantageFormatter
        RoleAdvantageByEnvFormatter RewardForFormat PenaltyForInvalidMove reward penalty NormalizeRewards
        NormalizeRewardsByEnv z_score ScaleRewardTransform DiscountFutureRewards ClampRewards
    """,
    "Algorithms, templates, logging": "Reinforce default qwen3-zs utils/logging.py",
}


_SPAN = re.compile(r"`([^`]+)`")
_METRIC = re.compile(r"(?:collection-|evaluation-|inference/|learner/|model-pool/|curriculum/)\S*")
_PREFIXES = {"us": "unstable_stream", "retra": "unstable_stream.reward_transformations"}


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """Return the rows of the page's tables by heading: there, here, proven by."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| There |"):
            there, here, proof = line.strip("| ").split(" | ")
            found.setdefault(heading, []).append((there, here, proof))
    return found


ROWS = [(heading, *row) for heading, rows in sections().items() for row in rows]


def words(text: str) -> set[str]:
    """Return the names within code: ``train(iterations)`` has two."""
    return {word for span in _SPAN.findall(text) for word in re.split(r"[\s(),=…]+", span) if word}


def test_every_name_of_the_ancestors_documentation_has_a_row() -> None:
    assert list(sections()) == list(NAMES)
    for heading, rows in sections().items():
        named = {word for there, _, _ in rows for word in words(there)}
        assert set(NAMES[heading].split()) - named == set(), heading


def test_every_row_is_proven_by_a_test() -> None:
    """Those exist: ``test_docs.py`` follows such links of all pages."""
    assert [there for _, there, _, proof in ROWS if "[`test_" not in proof] == []


def exists(name: str) -> bool:
    """Tell whether a dotted name, such as ``us.Run.sql``, leads somewhere."""
    first, *rest = name.split(".")
    found: object = importlib.import_module(_PREFIXES[first])
    for part in rest:
        found = getattr(found, part, None)
    return found is not None


def test_every_name_of_this_package_exists() -> None:
    spans = [span for _, _, here, _ in ROWS for span in _SPAN.findall(here)]
    dotted = {name for span in spans for name in re.findall(r"\b(?:us|retra)(?:\.\w+)+", span)}
    methods = {f"us.Run.{name}" for span in spans for name in re.findall(r"\brun\.(\w+)", span)}
    assert len(dotted) > 20
    assert len(methods) > 5
    assert [name for name in sorted(dotted | methods) if not exists(name)] == []
    tables = {name for span in spans for name in re.findall(r"\bFROM (\w+)", span)}
    assert tables
    assert tables - {relation.name for relation in relations()} == set()


def test_every_event_exists() -> None:
    classes = {cls.__name__ for cls in EVENT_TYPES.values()}
    pattern = r"the events? (?:`\w+`(?: and )?)+|of `[A-Z]\w+`"
    named = {
        name for _, _, here, _ in ROWS for found in re.findall(pattern, here) for name in _SPAN.findall(found)
    }
    assert named
    assert named - classes == set()


def test_every_metric_is_documented() -> None:
    metrics = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    spans = set(_SPAN.findall(re.sub(r"```.*?```", "", metrics, flags=re.DOTALL)))
    named = {span for _, _, here, _ in ROWS for span in _SPAN.findall(here) if _METRIC.fullmatch(span)}
    assert len(named) > 10
    # That page names rolling means without `collection-ENV/`, and numbers of updates without `learner/`.
    parts = {name: name.partition("/") for name in named - spans}
    known = {name for name, (top, _, rest) in parts.items() if f"{top}/…" in spans and rest in {*spans, ""}}
    assert parts.keys() - known == set()


def test_both_scripts_of_the_page_describe_one_run() -> None:
    """They are run up to the start, which would need a GPU and hours."""
    _, parts, short = blocks_of(PAGE, "python")
    names: dict[str, Any] = {}
    exec(parts.code.replace("run = learner.train(200)", ""), names)
    described = make_config(names["collector"].settings_with(names["learner"]))

    asked: dict[str, Any] = {}

    def build(**settings: Any) -> SimpleNamespace:
        asked.update(settings)
        return SimpleNamespace(start=lambda iterations: iterations)

    names["us"] = SimpleNamespace(build=build)
    exec(short.code, names)
    assert names["run"] == 200
    shortly = make_config(asked)
    assert shortly.engine.type == "vllm"
    alike = ("model", "train_envs", "lora", "sampling", "evaluation", "rewards", "algorithm", "learner")
    assert [name for name in alike if getattr(described, name) != getattr(shortly, name)] == []
    assert (described.collector.num_actors, shortly.collector.num_actors) == (2, 2)
