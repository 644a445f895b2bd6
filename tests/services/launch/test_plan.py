"""The plan of a run: its memory, what it says at the start, and what it refuses."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from unstable_stream.errors import ConfigError
from unstable_stream.inference.model_config import ModelShape, read_shape
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.placement import Machine
from unstable_stream.services.launch.memory import GIB, Need
from unstable_stream.services.launch.plan import plan_run, plan_shape
from unstable_stream.services.launch.preflight import check_config

# Qwen3-0.6B.
SMALL = ModelShape(
    parameters=596_049_920,
    stored_bytes=2 * 596_049_920,
    layers=28,
    hidden=1024,
    intermediate=3072,
    heads=16,
    key_heads=8,
    head_size=128,
    vocabulary=151_936,
    max_positions=40_960,
)
LARGE = replace(SMALL, parameters=8_190_735_360, stored_bytes=2 * 8_190_735_360, layers=36)
"""About Qwen3-8B."""
CPU = Machine(memory_bytes=64 * GIB)


def config(**keys: Any) -> RunConfig:
    return parse_config(
        {
            "model": "tiny-player",
            "train_envs": [{"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}],
            "engine": {"type": "transformers", "max_model_len": 1024},
            **keys,
        }
    )


def vllm(**keys: Any) -> RunConfig:
    return config(engine={"type": "vllm", "max_model_len": 1024, **keys})


def gpu(gib: float) -> Machine:
    return Machine(gpus=1, gpu_bytes=int(gib * GIB), memory_bytes=64 * GIB)


def two_gpus(engines: float, learners: float) -> list[Machine]:
    """Return two machines: the learner is placed on the first, the engine on the other."""
    return [gpu(learners), gpu(engines)]


def needed(process: str, settings: RunConfig, shape: ModelShape = SMALL) -> Need:
    """What a process of a run on a CPU is foretold to need."""
    return next(each for each in plan_shape(settings, shape, [CPU]).needs if each.process == process)


def learner(**settings: Any) -> Need:
    return needed("learner", config(learner=settings))


def engine_parts(settings: RunConfig, shape: ModelShape = SMALL) -> dict[str, int]:
    return needed("engine 0", settings, shape).parts


def test_the_shape_of_a_model_is_read_from_its_files() -> None:
    path = tiny_player_path()
    shape = read_shape(path)
    with safe_open(path / "model.safetensors", framework="np") as weights:
        stored = [weights.get_tensor(name) for name in weights.keys()]  # noqa: SIM118  # not a mapping
    assert shape.parameters == sum(tensor.size for tensor in stored)
    assert shape.stored_bytes == sum(tensor.nbytes for tensor in stored)
    assert (shape.layers, shape.hidden) == (2, 128)
    config = json.loads((path / "config.json").read_text())
    assert shape.tied == config["tie_word_embeddings"]


def test_a_directory_without_weights_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"expected config\.json and \*\.safetensors"):
        read_shape(tmp_path)
    assert plan_run(config(), str(tmp_path), [CPU]).needs == (), "a run of such a model may still begin"


def test_every_process_of_a_run_is_in_the_plan() -> None:
    plan = plan_shape(config(collector={"num_actors": 2, "num_rollout_workers": 2}), SMALL, [CPU])
    named = [each.process for each in plan.needs]
    assert named == ["learner", "engine 0", "engine 1", "rollout 0", "rollout 1", "all others"]
    assert all(each.at_start <= each.peak for each in plan.needs)
    assert all(each.process in plan.table() for each in plan.needs)
    inline = plan_shape(config(backend="inline"), SMALL, [CPU])
    assert [each.process for each in inline.needs] == ["learner", "engine 0"]


def test_the_learner_holds_its_weights_and_of_what_it_trains_gradient_and_moments() -> None:
    plain, every = learner(), learner(parameters="all")
    assert plain.parts["weights"] == every.parts["weights"] == 4 * SMALL.parameters
    # Rank 16 on seven projections of 28 layers: 10.1 million numbers with gradient and two moments.
    assert plain.parts["adapter and optimizer"] == 16 * 16 * 28 * (
        (1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024) + 3 * (1024 + 3072)
    )
    assert every.parts["gradients and optimizer"] == 12 * SMALL.parameters
    pulled = plan_shape(config(algorithm={"kl_coef": 0.1, "reference": "past"}), SMALL, [CPU]).needs[0]
    assert pulled.parts["adapter and optimizer"] == 20 / 16 * plain.parts["adapter and optimizer"]
    assert learner(dtype="bfloat16").parts["weights"] == 2 * SMALL.parameters
    lower = learner(parameters="all", dtype="bfloat16")
    assert lower.parts["weights"] == 4 * SMALL.parameters, "sums of small steps need the digits"
    assert lower.at_start > 18 * SMALL.parameters, "autocast keeps a copy in bfloat16"
    with pytest.raises(ConfigError, match=r"the learner needs 13\d\.\d GiB .*learner\.parameters = \"lora\""):
        plan_shape(config(learner={"parameters": "all"}), LARGE, [gpu(80)])


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({}, 1),  # 1024 tokens of a micro-batch on a CPU
        ({"activation_checkpointing": True}, 0.45),
        ({"gradient_checkpointing": True}, 0.45),
        ({"max_train_len": 256, "mini_batch_size": 2}, 1 / 2),
        ({"max_train_len": 128, "mini_batch_size": 2}, 1 / 4),
        ({"max_train_len": 128, "mini_batch_tokens": 512}, 1 / 2),
        ({"max_train_len": 128, "mini_batch_tokens": 2}, 1 / 8),  # at least one row
    ],
)
def test_activations_grow_with_the_tokens_of_a_micro_batch(settings: dict[str, Any], share: float) -> None:
    found = learner(**settings).parts["activations"]
    assert found == pytest.approx(share * learner().parts["activations"])


def test_an_engine_holds_every_model_whole_if_all_parameters_are_trained() -> None:
    def whole(shape: ModelShape = SMALL, **keys: Any) -> dict[str, int]:
        engine = {"type": "transformers", "max_model_len": 1024, **keys}
        return engine_parts(config(learner={"parameters": "all"}, engine=engine), shape)

    assert whole(max_loras=3)["whole models"] == 3 * 4 * SMALL.parameters
    assert whole(max_loras=3, dtype="bfloat16")["whole models"] == 3 * 2 * SMALL.parameters
    tied = whole(replace(SMALL, tied=True), max_loras=3)["whole models"]
    assert tied == 3 * 4 * (SMALL.parameters + 151_936 * 1024), "embedding and output head apart"
    assert "adapters" not in whole()


def test_layers_without_an_adapter_keep_nothing_for_the_backward_pass() -> None:
    parts = {"learner": ("adapter and optimizer", "activations"), "engine 0": ("adapters",)}
    for process, part in [(process, part) for process, named in parts.items() for part in named]:
        every, last = (needed(process, config(**keys)) for keys in ({}, {"lora": {"last_layers": 7}}))
        assert last.parts[part] == pytest.approx(every.parts[part] / 4), (process, part)


def test_a_cache_of_bounded_size_holds_the_turns_in_flight() -> None:
    # Two rows of 1024 tokens, each with keys and values of 28 layers in float32.
    few = config(collector={"num_workers": 1, "num_eval_workers": 1})
    for settings, size in (
        (few, 2 * 1024 * 2 * 28 * 8 * 128 * 4),
        (config(), 4 * GIB),
        (vllm(kv_cache_gb=3), 3 * GIB),
    ):
        assert engine_parts(settings)["key-value cache"] == size


def test_on_a_gpu_the_cache_is_half_of_what_is_left_and_stands_twice_while_it_grows() -> None:
    def cache(gib: float) -> tuple[int, float]:
        plan = plan_shape(config(), SMALL, two_gpus(gib, 80))
        fraction = plan.placement.engines[0].memory_fraction or 1.0
        (engine,) = (need for need in plan.needs if need.process == "engine 0")
        return engine.parts["key-value cache"], fraction * gib * GIB

    rows = config().collector.num_workers + config().collector.num_eval_workers
    wanted = rows * 1024 * 2 * 28 * 8 * 128 * 2  # bfloat16
    assert cache(1000)[0] == wanted * 3 // 2
    store, room = cache(8)
    assert store == pytest.approx((room - 600 * 2**20 - 2 * SMALL.parameters) / 2 * 3 / 2)


def test_vllm_without_a_gpu_holds_adapters_twice_and_its_largest_batch() -> None:
    def engine(**keys: Any) -> dict[str, int]:
        return engine_parts(vllm(**keys))

    parts = engine(max_loras=3)
    assert parts["weights"] == 4 * SMALL.parameters, "float32 may be measured faster than the file's bfloat16"
    lower = engine(max_loras=3, dtype="bfloat16")
    assert lower["weights"] == 2 * SMALL.parameters
    assert parts["adapters"] == 2 * lower["adapters"]
    # Room for three and one more, and each of the three beside it.
    assert parts["adapters"] * 3 == engine(max_loras=1)["adapters"] * 7
    rows = engine(max_parallel_seq=64)["activations"]
    assert parts["activations"] - rows == pytest.approx(1.85 * 64 * SMALL.vocabulary * 24)
    chunks = engine(max_parallel_seq=64, extra_engine_args={"max_num_batched_tokens": 1024})["activations"]
    assert rows - chunks == pytest.approx(1.85 * 1024 * 4 * (4 * SMALL.hidden + 3 * SMALL.intermediate))


def engine_of_few_games(shape: ModelShape, **keys: Any) -> Need:
    engine = {"type": "transformers", "max_loras": 1, "dtype": "float32", **keys}
    few = {"num_workers": 2, "num_eval_workers": 0}
    return needed("engine 0", config(collector=few, engine=engine), shape)


def test_an_engine_computes_with_the_file_itself_where_the_numbers_are_the_same() -> None:
    converted = engine_of_few_games(SMALL, max_model_len=16)
    assert converted.peak - converted.at_start == SMALL.stored_bytes
    saved = replace(SMALL, stored_bytes=4 * SMALL.parameters)
    alike = engine_of_few_games(saved, max_model_len=16)
    assert alike.peak == sum(alike.parts.values()) < converted.peak


def test_an_engine_computes_the_prompts_of_a_step_together_and_a_long_one_alone() -> None:
    def activations(length: int) -> int:
        return engine_of_few_games(SMALL, max_model_len=length).parts["activations"]

    token = 1.85 * 4 * (4 * SMALL.hidden + 3 * SMALL.intermediate)
    assert activations(1024) - activations(512) == pytest.approx(2 * 512 * token)
    assert activations(4096) == activations(2048), "no more than 4096 tokens"
    assert activations(8192) - activations(4096) == pytest.approx(4096 * token)


def test_a_vllm_engine_on_a_shared_gpu_is_told_the_size_of_its_cache() -> None:
    shared = plan_shape(vllm(), SMALL, [gpu(24)]).placement.engines[0]
    fraction = shared.memory_fraction or 0.0
    assert shared.kv_cache_gb == pytest.approx(fraction * 24 - 1.5 - 2 * SMALL.parameters / GIB, abs=0.01)
    assert plan_shape(vllm(kv_cache_gb=2), SMALL, [gpu(24)]).placement.engines[0].kv_cache_gb is None
    assert plan_shape(vllm(), SMALL, [gpu(24), gpu(24)]).placement.engines[0].kv_cache_gb is None


def test_what_does_not_fit_is_refused_with_the_setting_to_change() -> None:
    large = replace(SMALL, parameters=8 * SMALL.parameters, stored_bytes=8 * SMALL.stored_bytes)
    for given, machine, key in (
        (config(), Machine(memory_bytes=8 * GIB), "take a smaller model"),
        (vllm(), gpu(12), r"engine\.max_model_len lower"),
        (config(), gpu(12), r"the learner needs .* for the model alone"),
    ):
        with pytest.raises(ConfigError, match=key) as refused:
            plan_shape(given, large, [machine])
        assert "\n" not in str(refused.value)


def test_an_engine_that_cannot_hold_its_model_on_its_gpu_is_refused() -> None:
    said = r"engine 0 needs 15\.8 GiB for the model alone and gets 9\.0 GiB .*engine\.num_gpus = 0"
    with pytest.raises(ConfigError, match=said):
        plan_shape(config(), LARGE, [gpu(36)])
    on_cpu = {"type": "transformers", "max_model_len": 1024, "num_gpus": 0}
    assert plan_shape(config(engine=on_cpu), LARGE, [gpu(36)]).needs, "what the message says helps"
    said = r"needs 16\.\d GiB .* 1024 tokens and gets 14\.\d GiB .*gpu_memory_utilization = 0\.9\d"
    with pytest.raises(ConfigError, match=said) as refused:
        plan_shape(vllm(), LARGE, two_gpus(17, 80))
    named = re.search(r"gpu_memory_utilization = ([\d.]+)", str(refused.value))
    assert named is not None
    assert plan_shape(vllm(gpu_memory_utilization=float(named[1])), LARGE, two_gpus(17, 80)).needs
    with pytest.raises(ConfigError, match=r"set engine\.tensor_parallel_size higher"):
        plan_shape(vllm(), LARGE, two_gpus(14, 80))
    with pytest.raises(ConfigError, match=r"set engine\.max_model_len lower"):
        plan_shape(vllm(max_model_len=40_000), LARGE, two_gpus(20, 80))
    quantized = vllm(extra_engine_args={"quantization": "bitsandbytes"})
    assert plan_shape(quantized, LARGE, two_gpus(14, 80)).needs


def test_whole_models_that_may_not_fit_an_engine_are_warned_of() -> None:
    plan = plan_shape(config(learner={"parameters": "all"}), SMALL, [gpu(24)])
    assert "set engine.max_loras or engine.max_parallel_seq lower" in plan.warnings[-1]


def test_long_turns_that_may_not_fit_are_warned_of() -> None:
    assert plan_shape(config(), SMALL, [CPU]).warnings == ()
    for settings, said in (
        (config(), "learner.activation_checkpointing"),
        (config(engine={"type": "transformers"}), "engine.max_model_len to the longest turn"),
    ):
        (warning,) = plan_shape(settings, SMALL, [Machine(memory_bytes=16 * GIB)]).warnings
        assert said in warning


def test_a_high_rank_with_large_batches_is_warned_of() -> None:
    high = {"lora_rank": 64, "lora_alpha": 64}
    (warning,) = plan_shape(config(lora=high, learner={"batch_size": 1024}), SMALL, [CPU]).warnings
    assert "lora_rank = 64 with 1,024 steps" in warning
    assert plan_shape(config(lora=high, learner={"batch_size": 1023}), SMALL, [CPU]).warnings == ()
    assert plan_shape(config(learner={"batch_size": 1024}), SMALL, [CPU]).warnings == ()


def test_a_run_says_at_its_start_who_computes_where() -> None:
    (line,) = plan_shape(config(), SMALL, [CPU]).lines
    assert line.startswith("learner and engine on the CPU; memory ")
    assert line.endswith("64.0 GiB free")
    lines = plan_shape(vllm(), SMALL, [gpu(80)]).lines
    assert lines[0].startswith("learner: on GPU 0")
    assert lines[1].startswith("engine 0: on GPU 0")


def test_a_missing_vllm_is_found_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install 'unstable_stream\[vllm\]'"):
        check_config(vllm())
    check_config(config())


def test_both_ways_to_recompute_activations_are_refused() -> None:
    with pytest.raises(ConfigError, match="recompute the same activations"):
        learner(gradient_checkpointing=True, activation_checkpointing=True)
