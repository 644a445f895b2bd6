"""The tokens at which every engine ends an answer, where the files of a model disagree about them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from structlog.testing import capture_logs

from tests.algorithms.test_scoring import SHAPE
from tests.inference.byte_model import byte_tokenizer
from tests.inference.conftest import playing
from unstable_stream.inference.engine import GenerationRequest, SamplingSettings
from unstable_stream.inference.tokenizer import end_token_ids, load_tokenizer

SPECIAL = ("<end>", "<turn>", "<close>", "<end2>", "<|im_end|>", "<user>")
CLOSING = "{% for m in messages %}<turn>{{ m.role }}: {{ m.content }}<close>\n{% endfor %}<turn>assistant: "
BETWEEN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
LAST_IS_OTHER = "{% for m in messages %}{{ m.content }}{{ '<end2>' if loop.last else '<end>' }}{% endfor %}"
TAKES_NO_ANSWER = (
    "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
)
READS_PARTS = "<turn>{% for m in messages %}{{ m.content[0].text + m.content[1].text }}{% endfor %}"


def write(
    directory: Path,
    *,
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    special: tuple[str, ...] = SPECIAL,
    **tokenizer_config: object,
) -> dict[str, int]:
    """Write the small files of a model; return the ids of its added tokens."""
    directory.mkdir(exist_ok=True)
    backend = byte_tokenizer(*special)
    backend.save(str(directory / "tokenizer.json"))
    ids = {token.content: id_ for id_, token in backend.get_added_tokens_decoder().items()}
    named = {"vocab_size": backend.get_vocab_size(), "max_position_embeddings": 64, **(config or {})}
    files = {"config": named, "generation_config": generation, "tokenizer_config": tokenizer_config}
    for name, content in files.items():
        if content is not None:
            (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return ids


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "expected"),
    [
        pytest.param({"eos_token_id": 256}, None, {}, {"<end>"}, id="only the configuration"),
        pytest.param({"text_config": {"eos_token_id": 256}}, None, {}, {"<end>"}, id="its text part"),
        pytest.param({}, {"eos_token_id": 256}, {}, {"<end>"}, id="only the generation configuration"),
        pytest.param({}, None, {"eos_token": "<end>"}, {"<end>"}, id="only the tokenizer"),
        pytest.param({}, None, {"eos_token": {"content": "<end>"}}, {"<end>"}, id="an object around it"),
        pytest.param({}, None, {"eot_token": "<end>"}, {"<end>"}, id="its end of turn"),
        pytest.param({}, {"eos_token_id": [256, 259]}, {}, {"<end>", "<end2>"}, id="a list"),
        pytest.param(
            {"eos_token_id": 256},
            {"eos_token_id": 259},
            {"eos_token": "<user>", "chat_template": CLOSING},
            {"<end>", "<end2>", "<user>", "<close>"},
            id="the template's differs from all three",
        ),
        pytest.param({}, None, {"chat_template": BETWEEN}, {"<user>"}, id="only between turns"),
        pytest.param({}, None, {"chat_template": LAST_IS_OTHER}, {"<end2>"}, id="another within an answer"),
        pytest.param({"eos_token_id": 5000}, {"eos_token_id": None}, {}, set(), id="beyond the vocabulary"),
        pytest.param({}, None, {"chat_template": TAKES_NO_ANSWER}, set(), id="a template without answers"),
        pytest.param({}, None, {"chat_template": READS_PARTS}, set(), id="a template of other messages"),
        pytest.param({}, None, {}, set(), id="none at all"),
    ],
)
def test_every_file_that_names_an_end_counts(
    tmp_path: Path, config: Any, generation: Any, tokenizer: Any, expected: set[str]
) -> None:
    special = (*(name for name in SPECIAL if name != "<|im_end|>"), "<other>")
    ids = write(tmp_path, config=config, generation=generation, special=special, **tokenizer)
    with capture_logs() as logs:
        found = end_token_ids(tmp_path)
    assert {name for name, id_ in ids.items() if id_ in found} == expected
    assert found <= set(ids.values())
    assert len(logs) == (0 if expected else 1)
    loaded = load_tokenizer(tmp_path)
    assert loaded.eos_token_ids == found
    own = "<close>" if "<close>" in expected else min(expected, key=lambda name: ids[name], default="")
    assert loaded.answer_end == ids.get(own)


def test_without_a_chat_template_the_usual_names_end_a_turn(tmp_path: Path) -> None:
    ids = write(tmp_path)
    assert end_token_ids(tmp_path) == {ids["<|im_end|>"]}


def test_a_model_without_a_tokenizer_ends_where_its_configurations_say(tmp_path: Path) -> None:
    write(tmp_path, config={"eos_token_id": [3]}, generation={"eos_token_id": 7})
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    assert end_token_ids(tmp_path) == {3, 7}


async def test_the_transformers_engine_ends_answers_exactly_there(tmp_path: Path) -> None:
    """The file that transformers reads names another end than tokenizer and chat template."""
    ids = write(tmp_path, eos_token="<end2>", chat_template=CLOSING)
    shape = SHAPE | {"vocab_size": 256 + len(SPECIAL), "max_position_embeddings": 300}
    config = transformers.LlamaConfig(**shape | {"initializer_range": 0.02, "eos_token_id": ids["<end>"]})
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    ends = {ids[name] for name in ("<end>", "<end2>", "<close>")}
    requests = [GenerationRequest([5], SamplingSettings(max_tokens=250), seed=seed) for seed in range(12)]
    async with playing(tmp_path) as engine:
        answers = [await engine.generate(request) for request in requests]
    assert {answer.token_ids[-1] for answer in answers if answer.finish_reason == "stop"} == ends
    assert not any(ends.intersection(answer.token_ids[:-1]) for answer in answers)
