"""The light tokenizer against transformers' own, on the same files."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from tests.inference.tiny_model import EOS_TOKEN_ID, VOCABULARY
from tests.processes import python
from unstable_stream.errors import ConfigError
from unstable_stream.inference.tokenizer import _load_with_transformers, load_tokenizer

TEXT = "you are player X [4] the board is up <eos>"

# Shaped like the templates models ship with: indented blocks, loop control, a date, a mark for training.
MODEL_LIKE_TEMPLATE = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{% for message in rest %}
    {%- if message['role'] not in ['user', 'assistant'] %}
        {{- raise_exception('unknown role') }}
    {%- endif %}
    {% if loop.index > 5 %}{% break %}{% endif %}
    {% generation %}<user> {{ message['content'] | trim }}{% endgeneration %}
    {{ {'a': 'é'} | tojson }} {{ strftime_now('%Y') }}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
{%- endif %}
"""


def test_agrees_with_transformers(tiny_model: Path) -> None:
    """Same ids, same text, same chat prompt."""
    ours = load_tokenizer(tiny_model)
    theirs = AutoTokenizer.from_pretrained(tiny_model)
    assert ours.encode(TEXT) == theirs(TEXT)["input_ids"] == [VOCABULARY.index(word) for word in TEXT.split()]
    ids = ours.encode(TEXT)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == TEXT.removesuffix(" <eos>")
    assert ours.decode(ids, skip_special=False) == TEXT
    chat = theirs.apply_chat_template(
        [{"role": "user", "content": "you are player O"}], add_generation_prompt=True, return_dict=False
    )
    assert ours.encode_chat("you are player O") == chat
    assert ours.eos_token_ids == {EOS_TOKEN_ID}
    assert ours.context_tokens == 256
    # What a hub name gets, whose files are not at hand.
    slow = _load_with_transformers(str(tiny_model))
    assert (slow.encode(TEXT), slow.encode_chat("you are player O")) == (ids, chat)
    assert (slow.eos_token_ids, slow.context_tokens) == (ours.eos_token_ids, 256)


def _write_bos_model(path: Path, template: object) -> Path:
    """A tokenizer that puts <bos> first, saved with truncation and padding on, as some are."""
    vocabulary = ("<bos>", "<eos>", "<unk>", "<user>", "<assistant>", "hello")
    words = {word: index for index, word in enumerate(vocabulary)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<bos>", "<eos>"])
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    path.mkdir()
    backend.save(str(path / "tokenizer.json"))
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"__type": "AddedToken", "content": "<bos>", **plain},
        "eos_token": "<eos>",
        "chat_template": template,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def test_renders_templates_as_transformers_does(tmp_path: Path) -> None:
    """Blanks and line ends included; one <bos>, whether the template or the tokenizer writes it."""
    path = _write_bos_model(tmp_path / "model", MODEL_LIKE_TEMPLATE)
    ours = load_tokenizer(path)
    assert ours.encode("hello hello hello") == [0, 5, 5, 5]
    expected = AutoTokenizer.from_pretrained(path).apply_chat_template(
        [{"role": "user", "content": " hello "}], add_generation_prompt=True, tokenize=False
    )
    assert expected.count("<bos>") == 1
    assert ours._chat is not None
    rendered = ours._chat.render(
        messages=[{"role": "user", "content": " hello "}],
        add_generation_prompt=True,
        bos_token="<bos>",
        eos_token="<eos>",
    )
    assert rendered == expected
    assert ours.encode_chat(" hello ")[:3] == [0, 3, 5]


def test_named_templates_and_none(tmp_path: Path) -> None:
    """Of several templates the default one; without any, an error that says what to do."""
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "<user>"}]
    assert load_tokenizer(_write_bos_model(tmp_path / "named", named)).encode_chat("hello") == [3]
    with pytest.raises(ConfigError, match="has no chat template; choose a prompt template"):
        load_tokenizer(_write_bos_model(tmp_path / "none", None)).encode_chat("hello")
    with pytest.raises(ConfigError, match="cannot be compiled"):
        load_tokenizer(_write_bos_model(tmp_path / "broken", "{% if %}"))
    strict = load_tokenizer(_write_bos_model(tmp_path / "strict", "{{ raise_exception('no users') }}"))
    with pytest.raises(ConfigError, match="no users"):
        strict.encode_chat("hello")


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    """An empty directory and a file that is no tokenizer."""
    with pytest.raises(ConfigError, match="no tokenizer files"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("modules", "unused"),
    [
        ("games.players games.templates", {"textarena"}),
        ("algorithms.update_decisions history.proofs.verify history.hindsight.rederive", {"torch"}),
        ("inference.openai inference.policy_player", {"torch", "transformers", "openai"}),
    ],
)
def test_what_a_light_process_imports_loads_nothing_heavy(
    tiny_model: Path, modules: str, unused: set[str]
) -> None:
    """Rollout workers decide, prove and tokenise without it."""
    code = (
        f"import sys, {', '.join(f'unstable_stream.{name}' for name in modules.split())}\n"
        "from unstable_stream.inference.tokenizer import load_tokenizer\n"
        f"assert load_tokenizer({str(tiny_model)!r}).encode('[4]') == [9]\n"
        f"sys.exit(bool({unused} & sys.modules.keys()))"
    )
    assert (done := python(code)).returncode == 0, done.stderr
