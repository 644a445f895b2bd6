"""Configuration: what is refused, and that the message says what to change."""

import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from unstable_stream.api.config_keys import type_name
from unstable_stream.errors import ConfigError
from unstable_stream.log.stores.address import path_part
from unstable_stream.runs.config import RunConfig, parse_config, read_toml
from unstable_stream.runs.recording import derived_name, new_run_id

ROOT = Path(__file__).parents[2]
MINIMAL: dict[str, Any] = {"model": "tiny-player", "train_envs": [{"env_id": "TicTacToe-v0-train"}]}


def _opponent(name: str, **settings: Any) -> dict[str, Any]:
    return {"model_pool": {"fixed": [{"name": name, **settings}]}}


@pytest.mark.parametrize(
    "path",
    [
        path
        for place in ("examples", "unstable_stream")
        for path in sorted((ROOT / place).rglob("*.toml"))
        if path.parent.name != "mappings"  # those of imports
    ],
    ids=lambda path: path.name,
)
def test_every_committed_configuration_loads(path: Path) -> None:
    config = parse_config(read_toml(path))
    assert parse_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            _opponent("random-legal", extra_body={"n": 1}),
            'extra_body belongs to opponents of kind "openai", found "scripted"',
        ),
        (_opponent("m", kind="model", path="p", temperature="default"), 'of kind "openai", found "model"'),
        (_opponent("m", kind="openai", temperature="hot"), "model_pool.fixed.0.temperature"),
        (_opponent("m", kind="openai", extra_body={"temperature": 1}), "extra_body.temperature: other keys"),
        (_opponent("m", kind="openai", extra_body={"since": date(2026, 1, 1)}), "extra_body.since"),
        (_opponent("m", chat_template_kwargs={"a": 1}), 'kind "openai" or "model", found "scripted"'),
        ({"modle": "x"}, "unknown key 'modle', did you mean model?; known here: name"),
        (
            {"learner": {"batchsize": 3}},
            "'learner.batchsize', did you mean batch_size?; known here: iterations, b",
        ),
        ({"train_envs": [{"env_id": "A", "players": 2}]}, "unknown key 'train_envs.0.players'"),
        ({"train_envs": []}, "train_envs"),
        ({"eval_envs": [3]}, "eval_envs.0 is a table of keys with values, found 3"),
        (
            {"engine": {"type": "vllm", "gpus": 1}},
            "unknown key 'engine.gpus', did you mean num_gpus?; known here: type, max_par",
        ),
        ({"learner": {"batch_size": 0}}, "learner.batch_size: Input should be greater than 0, found 0"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature"),
        ({"buffer": {"max_buffer_size": 10}, "learner": {"batch_size": 64}}, "can never hold the 64 steps"),
        ({"collector": {"max_pending_steps": 10}, "learner": {"batch_size": 64}}, "stops collection before"),
        (
            {
                "collector": {"max_pending_steps": 300},
                "buffer": {"max_staleness": 2},
                "learner": {"batch_size": 64},
            },
            "max_pending_steps=300 exceeds buffer.max_buffer_size=256",
        ),
        ({"model_pool": {"sample_mode": "fixed"}}, "needs at least one entry in model_pool.fixed"),
        ({"model_pool": {"lag_range": [5, 2]}}, "must not exceed"),
        ({"learner": {"batch_size": 2, "optimizer_steps": 4}}, "learner.optimizer_steps=4 exceeds"),
        ({"engine": {"type": "vllm"}, "lora": {"lora_rank": 12}}, "lora.lora_rank=12: vLLM takes one of"),
        ({"engine": {"type": "vllm"}, "learner": {"parameters": "all"}}, 'use engine.type="transformers"'),
        ({"learner": {"parameters": "all"}, "algorithm": {"kl_coef": 0.1}}, "algorithm.kl_coef compares"),
        ({"algorithm": {"reference": "past"}}, 'reference="past" pulls with the weight kl_coef: set it'),
        (
            {"algorithm": {"kl_coef": 0.1, "reference": "average", "reference_every": 0}},
            "needs a reference_every of at least 1",
        ),
        ({"learner": {"parameters": "all", "initial_lora_path": "a"}}, "name its directory as the model"),
    ],
)
def test_mistakes_are_named_with_what_to_change(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(MINIMAL | change, origin="my.toml")
    assert says in str(caught.value)
    assert all(line.startswith("my.toml: ") for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"engine": {"type": "vllm"}, "lora": {"target_modules": ["q_proj", "lm_head"]}},
            "lora.target_modules names lm_head: no engine adapts the output head or an embedding",
        ),
        (
            {"lora": {"target_modules": ["q_proj", "model.embed_tokens"]}},
            "lora.target_modules names model.embed_tokens: no engine adapts",
        ),
        (
            {"engine": {"type": "vllm", "extra_engine_args": {"lora_target_modules": ["qkv_proj"]}}},
            "extra_engine_args sets lora_target_modules: remove it; vLLM would play an adapter of other",
        ),
        (
            {"engine": {"type": "vllm", "extra_engine_args": {"enable_sleep_mode": True}}},
            "extra_engine_args sets enable_sleep_mode: remove it; nothing lets the engine sleep",
        ),
    ],
)
def test_an_adapter_that_the_engine_could_not_play_is_not_trained(change: dict[str, Any], says: str) -> None:
    """It may stand in a recorded run."""
    config = parse_config(MINIMAL | change, origin="my.toml")
    with pytest.raises(ConfigError, match=re.escape(says)):
        config.check_trainable()


@pytest.mark.parametrize(
    "address",
    [
        "s3://me:s3cret@bucket/runs",
        "s3://bucket/runs?sig=s3cret",
        "simplecache::https://me:s3cret@host",
        "x://host/#s3cret",
    ],
)
def test_a_password_or_signature_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match=r"learner\.ckpt_root: ") as refused:
        parse_config(MINIMAL, [f"learner.ckpt_root={address}"])
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["a" * 151, "ü" * 76, "../run", "a/b", "..", ".hidden", "run.", "", " ", "a\nb", "\x1b[31mred"]
)
def test_a_name_that_no_file_can_have_is_refused_before_anything_is_recorded(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^configuration: name: it becomes a part of file n") as refused:
        parse_config({**MINIMAL, "name": name})
    assert str(refused.value).isprintable()
    assert parse_config({**MINIMAL, "name": "Größe 2: what?"}).name == "Größe 2: what?"


def test_the_name_of_a_run_about_another_is_cut() -> None:
    for origin in ("demo", "ü" * 75, "a" * 144 + ".b", "tiny."):
        name = derived_name("eval", origin)
        assert name.startswith("eval-")
        assert path_part(new_run_id(parse_config({**MINIMAL, "name": name}).name), "run id")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_text('model = "tiny-player"', encoding="utf-8-sig")
    assert read_toml(path) == {"model": "tiny-player"}


def test_several_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"name": 3, "sede": 1})
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("learner.iterations=7", lambda config: config.learner.iterations == 7),
        ("learner.learning_rate=3e-4", lambda config: config.learner.learning_rate == 3e-4),
        ("name=demo", lambda config: config.name == "demo"),
        ('name="a b"', lambda config: config.name == "a b"),
        ("buffer.max_staleness=none", lambda config: config.buffer.max_staleness is None),
        ('name="none"', lambda config: config.name == "none"),
        ("engine.max_loras=3", lambda config: config.engine.max_loras == 3),
        ("engine.type=vllm", lambda config: config.engine.type == "vllm"),
        ("collector.filter_opponent_invalid=true", lambda config: config.collector.filter_opponent_invalid),
        (
            'evaluation.opponents=[{ name = "random-legal" }]',
            lambda config: config.evaluation.opponents[0].kind == "scripted",
        ),
        ('train_envs=["A-v0", { env_id = "B-v0" }]', lambda config: config.train_envs[1].env_id == "B-v0"),
    ],
)
def test_overrides_are_toml_values(override: str, read: Any) -> None:
    assert read(parse_config(MINIMAL, [override]))


@pytest.mark.parametrize("override", ["learner", "=3", "model.name=x"])
def test_malformed_overrides_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_config(MINIMAL, [override])


def test_overrides_leave_the_given_mapping_alone() -> None:
    values: dict[str, Any] = MINIMAL | {"learner": {"batch_size": 32}}
    parse_config(values, ["learner.batch_size=64"])
    assert values["learner"] == {"batch_size": 32}


def test_a_missing_file_and_broken_toml_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.toml: No such file"):
        read_toml(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("model = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml: not valid TOML: .*line 1"):
        read_toml(broken)


def test_defaults_that_depend_on_other_keys() -> None:
    config = parse_config(MINIMAL | {"learner": {"batch_size": 100}})
    assert (config.max_pending_steps, config.max_buffer_size) == (200, 400)
    assert config.evaluated_envs == config.train_envs


def test_steps_carry_texts_where_own_code_may_read_them() -> None:
    assert not parse_config(MINIMAL).step_texts
    own = "examples/extensions/sampling_transformation.py:clipped"
    assert parse_config(MINIMAL | {"rewards": {"sampling": [own]}}).step_texts
    assert not parse_config(MINIMAL | {"rewards": {"sampling": [own], "step_texts": False}}).step_texts
    assert parse_config(MINIMAL, ['buffer.strategy="examples/extensions/buffer_strategy.py:x"']).step_texts


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (int | Literal["all"], "integer or one of `all`"),
        (Literal["a", "b"] | None, "one of `a`, `b`"),
        (Annotated[float, "seconds"] | None, "number"),
        (tuple[Literal["a", "b"], ...], "list of `a`, `b`"),
        (tuple[str | dict[str, Any], ...], "list"),
        (str | dict[str, Any] | None, "text or table"),
        (bool | RunConfig, "boolean or section"),
    ],
)
def test_the_page_names_every_type(annotation: object, name: str) -> None:
    assert type_name(annotation) == name


def test_checkpoints_too_rare_for_the_staleness_are_refused() -> None:
    # Update n trains on version n - 1; the newest checkpoint is up to save_every - 1 versions older.
    values = MINIMAL | {"buffer": {"max_staleness": 2}}
    parse_config(values, ["learner.save_every=3"]).check_trainable()
    with pytest.raises(ConfigError, match=r"Set learner\.save_every to at most 3"):
        parse_config(values, ["learner.save_every=4"]).check_trainable()


@pytest.mark.parametrize("name", ["reinforce", "ppo", "a2c"])
def test_an_unknown_key_of_any_algorithm_is_named_with_those_it_has(name: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.gae'.*; known here: .*is_clip"):
        parse_config(MINIMAL | {"algorithm": {"type": name, "gae": 0.5}})
