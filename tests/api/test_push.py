"""A checkpoint is pushed: others load it as the policy that it was, and its card has the numbers."""

import base64
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import peft
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import unstable_stream as us
from tests.api.conftest import ENV, train
from tests.inference.tiny_model import CHAT_TEMPLATE, build_adapter, build_tiny_model
from tests.places import ask
from unstable_stream.algorithms.intervals import wilson_interval
from unstable_stream.api.checkpoints import find_checkpoint
from unstable_stream.api.model_card import LEFT_OUT, Form, ModelCard, published_config
from unstable_stream.api.push import upload
from unstable_stream.api.trained_on import read_training
from unstable_stream.errors import CheckpointError, ConfigError, RunError
from unstable_stream.events import AdapterProbe
from unstable_stream.events.arrays import unpack_floats, unpack_tokens
from unstable_stream.inference.base_model import find_license
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.runs.config import parse_config

pytestmark = pytest.mark.longer

TOKEN = "hf_of_this_test"
REPOSITORY = "me/player"


class Hub:
    """One model repository: what the client asks for when it makes, looks at and fills it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {".gitattributes": b""}
        self.private: bool | None = None
        """``None``: the repository does not exist."""
        self.message = ""
        self.refuses: str | None = None

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if self.refuses is not None:
            return 403, {"error": self.refuses}
        if path == "/api/repos/create":
            url = {"url": f"https://huggingface.co/{REPOSITORY}"}
            if self.private is not None:
                return 409, {"error": "You already created this model repo", **url}
            wanted = json.loads(body)
            # Versions 1 of the client say "private", later ones "visibility".
            self.private = wanted.get("private", wanted.get("visibility") == "private")
            return 200, url
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        of_repository = path.removeprefix(f"/api/models/{REPOSITORY}")
        if of_repository in ("", "/revision/main"):
            siblings = [{"rfilename": name} for name in self.files]
            return 200, {"id": REPOSITORY, "private": self.private, "siblings": siblings}
        if of_repository == "/tree/main":
            facts = {"type": "file", "oid": "0"}
            return 200, [{**facts, "path": name, "size": len(text)} for name, text in self.files.items()]
        if of_repository == "/preupload/main":
            how = {"uploadMode": "regular", "shouldIgnore": False}
            return 200, {"files": [{**how, "path": file["path"]} for file in json.loads(body)["files"]]}
        if of_repository == "/commit/main":
            for line in map(json.loads, body.decode().splitlines()):
                self.change(line["key"], line["value"])
            return 200, {"commitUrl": f"https://huggingface.co/{REPOSITORY}/commit/1", "commitOid": "1"}
        return 404, {"error": f"nothing at {path}"}

    def change(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "header":
            self.message = value["summary"]
        elif kind == "file":
            self.files[value["path"]] = base64.b64decode(value["content"])
        elif kind == "deletedFile":
            del self.files[value["path"]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, str]]:
    """A Hub and its address."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    made = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.partition("?")[0]
            known = self.headers.get("authorization") == f"Bearer {TOKEN}"
            status, answer = made.answer(path, body) if known else (401, {"error": "who are you?"})
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    yield made, address
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# player\n")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    return tmp_path


def probe(run: us.Run, update: int | None = None) -> AdapterProbe:
    """Return what the learner's policy says of a few sequences."""
    found = find_checkpoint(run.place, run.id, update)[0].checkpoints[-1].probe
    assert found is not None
    return found


def check_policy(model: Any, recorded: AdapterProbe) -> None:
    """Check that the model's log-probabilities are the learner's, and tell them from the base model's."""
    moved = 0.0
    for sequence in recorded.sequences:
        prompt = unpack_tokens(sequence.prompt_token_ids).tolist()
        completion = unpack_tokens(sequence.completion_token_ids).tolist()
        with torch.no_grad():
            logits = model.eval()(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        found = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        learned, base = (
            torch.tensor(unpack_floats(packed)) for packed in (sequence.logprobs, sequence.base_logprobs)
        )
        torch.testing.assert_close(found, learned, rtol=1e-4, atol=1e-4)
        moved = max(moved, (found - base).abs().max().item())
    assert moved > 0.01


def base_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_player_path(), dtype=torch.float32)


def logits(model: Any) -> torch.Tensor:
    """Return what it says of a few tokens."""
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.tensor([[5, 6, 7, 8, 9]])).logits
    return found


def test_an_adapter_is_the_learners_policy_in_plain_peft(trained: us.Run, tmp_path: Path) -> None:
    said = ask(trained.place.root, "push", f"{trained.id}@2", str(tmp_path / "player")).stdout
    assert f"{tmp_path / 'player'}: adapter {trained.id}@2, 6 files, " in said
    done = us.push(trained, tmp_path / "player", replace=True)
    assert (done.form, done.checkpoint) == ("adapter", f"{trained.id}@2")
    directory = Path(done.destination)
    names = "README.md adapter_config.json adapter_model.safetensors unstable_stream.json"
    files = {*names.split(), "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in directory.iterdir()} == files == set(done.files)
    config = json.loads((directory / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny-player"
    check_policy(peft.PeftModel.from_pretrained(base_model(), directory), probe(trained))
    assert AutoTokenizer.from_pretrained(directory).vocab_size == 40
    assert list(tmp_path.iterdir()) == [directory]


def test_a_merged_model_is_the_same_policy_without_peft(trained: us.Run, tmp_path: Path) -> None:
    done = trained.push(tmp_path / "merged", at=1, merged=True)
    assert (done.form, done.checkpoint) == ("merged", f"{trained.id}@1")
    directory = Path(done.destination)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    check_policy(model, probe(trained, 1))
    assert model.generation_config.eos_token_id == 1
    assert not list(directory.glob("adapter*"))
    adapted = peft.PeftModel.from_pretrained(
        base_model(), us.push(f"{trained.id}@1", tmp_path / "a", data=trained.place.root).destination
    )
    torch.testing.assert_close(logits(model), logits(adapted), rtol=1e-4, atol=1e-4)


def test_a_checkpoint_of_all_parameters_is_a_whole_model_already(tmp_path: Path) -> None:
    run = train(tmp_path / "data", parameters="all", learning_rate=1e-3, iterations=1)
    done = run.push(tmp_path / "whole")
    assert done.form == "whole"
    assert "optimizer.pt" not in done.files
    saved = find_checkpoint(run.place, run.id, None)[0].checkpoints[-1]
    assert done.weights == {"model.safetensors": saved.sha256}
    expected = logits(AutoModelForCausalLM.from_pretrained(saved.path, dtype="auto"))
    found = logits(AutoModelForCausalLM.from_pretrained(done.destination, dtype="auto"))
    torch.testing.assert_close(found, expected)
    assert (expected - logits(base_model())).abs().max() > 1e-3
    assert "all parameters trained" in (tmp_path / "whole" / "README.md").read_text()


def test_the_card_has_the_numbers(trained: us.Run, tmp_path: Path) -> None:
    judged = us.evaluation(trained, "first-legal", games=6, votes=3).start(live=False)
    trained.push(tmp_path / "player")
    card = (tmp_path / "player" / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert (front["license"], front["library_name"]) == ("mit", "peft")
    assert "base_model" not in front, "tiny-player is no id of the Hub"
    steps, games = trained.sql(
        "SELECT count(*), count(DISTINCT game_id) FROM update_provenance WHERE fate = 'trained'"
    ).rows()[0]
    assert f"2 updates on {steps} steps (turns) of {games} games. Opponents: `random-legal`." in card
    for run, count in ((trained, 4), (judged, 6)):
        rows = run.sql(
            "SELECT opponent, sum(wins)::INT, sum(draws)::INT, sum(losses)::INT, "
            # An untrained player may play all its games of a seat alike: they count once.
            "sum(wins * independent_games / games), sum(independent_games)::INT FROM win_rates "
            "WHERE split = 'eval' AND model_uid = 'ckpt-000002' GROUP BY opponent"
        ).rows()
        assert len(rows) == (2 if run is trained else 1)
        for opponent, wins, draws, losses, apart, independent in rows:
            assert 1 <= independent <= count
            (line,) = [line for line in card.splitlines() if f"`{opponent}` |" in line and run.id in line]
            low, high = wilson_interval(apart, independent)
            met = "yes" if opponent == "random-legal" else "no"
            assert f"| {met} | {count} | {wins}/{draws}/{losses} | {wins / count:.1%} |" in line
            assert f"| {low:.1%} to {high:.1%} |" in line
            assert ("4 games)" in line) == (run is trained), "only the run itself has an initial policy"
    assert f"- `{judged.id}`: temperature 1.0, votes per turn 3." in card
    told = json.loads((tmp_path / "player" / "unstable_stream.json").read_text())
    saved = find_checkpoint(trained.place, trained.id, 2)[0].checkpoints[-1]
    assert told["checkpoint"]["event_id"] == saved.event_id
    weights = (tmp_path / "player" / "adapter_model.safetensors").read_bytes()
    assert told["weights"] == {"adapter_model.safetensors": hashlib.sha256(weights).hexdigest()}
    assert parse_config(told["config"]) == us.open_run(trained.id, data=trained.place.root).config
    for fact in (trained.id, saved.event_id, saved.sha256, told["log_id"], us.__version__):
        assert f"`{fact}`" in card
    assert 'PeftModel.from_pretrained(base, "player")' in card
    assert "--enable-lora --max-lora-rank 16 --lora-modules trained=player" in card


def test_a_fork_has_its_parents_training_too(trained: us.Run, tmp_path: Path) -> None:
    fork = trained.fork(at=1, iterations=2, name="child").start(live=False)
    fork.push(tmp_path / "forked")
    (steps,) = us.sql(
        "SELECT count(*) FROM update_provenance WHERE fate = 'trained' AND "
        "((run_id = $1 AND update <= 1) OR run_id = $2)",
        [trained.id, fork.id],
        data=trained.place.root,
    ).rows()[0]
    assert f"2 updates on {steps} steps" in (tmp_path / "forked" / "README.md").read_text()


def test_files_are_replaced_only_if_that_is_said(trained: us.Run, tmp_path: Path) -> None:
    target = tmp_path / "player"
    target.mkdir()
    trained.push(target)  # an empty directory is as good as none
    (target / "old").touch()
    with pytest.raises(RunError, match="has files: name another directory, or add --force"):
        trained.push(target)
    trained.push(target, merged=True, replace=True)
    assert not (target / "old").exists()
    assert (target / "model.safetensors").exists()
    assert list(tmp_path.iterdir()) == [target]
    link = tmp_path / "link"
    link.symlink_to(target)
    trained.push(link, replace=True)
    assert link.is_symlink()
    assert not (target / "model.safetensors").exists()
    with pytest.raises(RunError, match="which --force would delete"):
        trained.push(trained.place.root.parent, replace=True)
    assert trained.place.root.is_dir()


def test_what_cannot_be_put_in_place_leaves_what_was_there(
    trained: us.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "player"
    target.mkdir()
    (target / "old").touch()
    rename = Path.rename

    def fail(path: Path, to: Path) -> Path:
        if to == target and (path / "README.md").exists():
            raise OSError("no space left on device")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(RunError, match=r"could not write .*player: no space left.*nothing was changed"):
        trained.push(target, replace=True)
    assert list(tmp_path.iterdir()) == [target]
    assert list(target.iterdir()) == [target / "old"]


def test_a_damaged_checkpoint_is_not_pushed(trained: us.Run, tmp_path: Path) -> None:
    weights = Path(trained.checkpoints().dicts()[-1]["path"]) / "adapter_model.safetensors"
    whole = weights.read_bytes()
    try:
        for merged in (False, True):
            weights.write_bytes(whole[:-4] + b"\0\0\0\1")
            with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors is damaged"):
                trained.push(tmp_path / "player", merged=merged)
            weights.unlink()
            with pytest.raises(CheckpointError, match=r"lacks adapter_model\.safetensors"):
                trained.push(tmp_path / "player", merged=merged)
    finally:
        weights.write_bytes(whole)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing@2", "out"], "no run 'nothing'"),
        (["trained@7", "out"], "no checkpoint of update 7"),
        (["trained@0", "out"], "is the base model tiny-player as it is"),
        (["trained@1x", "out"], "expected RUN@UPDATE"),
        (["trained", "hf://nobody"], "expected hf://OWNER/NAME"),
        (["trained", "s3://bucket/name"], "no known kind of address"),
        (["trained", "out", "--public"], "only the Hub is public or private"),
        (["trained", "file"], "file is a file: name a directory"),
    ],
)
def test_a_mistake_is_one_line(
    trained: us.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    failed = ask(trained.place.root, "push", *arguments)
    assert isinstance(failed.exception, (RunError, ConfigError))
    assert says in str(failed.exception)
    assert "\n" not in str(failed.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_archive_that_is_behind_is_named(trained: us.Run, tmp_path: Path) -> None:
    copy = shutil.copytree(trained.place.root, tmp_path / "copy")
    us.api.place.Place.at(copy).data.archive_file.unlink()
    with pytest.raises(us.errors.ArchiveError, match="archive"):
        us.push(trained.id, tmp_path / "out", data=copy)


def test_the_hub_gets_the_same_files(trained: us.Run, hub: tuple[Hub, str]) -> None:
    made, address = hub
    done = trained.push(f"hf://{REPOSITORY}", at=2)
    assert done.destination == f"{address}/{REPOSITORY}"
    assert made.private is True
    assert made.message == f"{trained.id}@2 of unstable_stream"
    assert made.files.keys() == {".gitattributes", *done.files}
    assert f'PeftModel.from_pretrained(base, "{REPOSITORY}")'.encode() in made.files["README.md"]


def test_an_adapter_that_a_run_began_with_is_pushed_though_no_learner_of_ours_saved_it(
    trained: us.Run, tmp_path: Path
) -> None:
    made = trained.push(tmp_path / "made")
    changes = [f"learner.initial_lora_path={made.destination}", "sampling.max_tokens=2"]
    begun = us.evaluation(
        "tiny-player", "random-legal", games=2, envs=[ENV], data=tmp_path / "data", overrides=changes
    )
    again = begun.start(live=False).push(tmp_path / "again")
    assert (again.checkpoint, again.weights) == (f"{begun.id}@0", made.weights)
    card = (tmp_path / "again" / "README.md").read_text()
    assert "0 updates on 0 steps (turns) of 0 games. Opponents: none." in card


def test_a_base_model_in_a_directory_is_found_by_its_path_and_keeps_its_chat_template(tmp_path: Path) -> None:
    base = build_tiny_model(tmp_path / "base")
    (base / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    adapter = build_adapter(base, tmp_path / "adapter", seed=1)
    settings = {"learner.initial_lora_path": adapter.path, "lora.lora_rank": 8, "sampling.max_tokens": 2}
    overrides, envs = [f"{key}={value}" for key, value in settings.items()], [{**ENV, "template": "chat"}]
    begun = us.evaluation(
        str(base), "random-legal", games=2, envs=envs, data=tmp_path / "data", overrides=overrides
    ).start(live=False)
    done, whole = begun.push(tmp_path / "out"), begun.push(tmp_path / "merged", merged=True)
    text = (tmp_path / "out" / "README.md").read_text()
    assert all(said in text for said in ('license: "cc-by-4.0"', f"`{base}`"))
    assert "base_model:" not in text
    adapted = peft.AutoPeftModelForCausalLM.from_pretrained(done.destination, dtype="auto")
    merged = AutoModelForCausalLM.from_pretrained(whole.destination, dtype="auto")
    torch.testing.assert_close(logits(merged), logits(adapted), rtol=1e-4, atol=1e-4)
    for directory in (done.destination, whole.destination):
        assert AutoTokenizer.from_pretrained(directory).chat_template == CHAT_TEMPLATE
    base.rename(tmp_path / "elsewhere")
    tokenizer_files = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    alone = begun.push(tmp_path / "alone").files
    assert {name for name in done.files if name not in alone} == tokenizer_files
    with pytest.raises(ConfigError, match=r"no such directory; the run began with a model of fingerprint"):
        begun.push(tmp_path / "not", merged=True)
    (tmp_path / "elsewhere" / "generation_config.json").write_text("{}")
    (tmp_path / "elsewhere").rename(base)
    with pytest.raises(ConfigError, match="is another model, of fingerprint"):
        begun.push(tmp_path / "not", merged=True)


def card(trained: us.Run, base_license: str | None, form: Form) -> tuple[str, dict[str, Any]]:
    """Return the card of a checkpoint, had its base model been one of the Hub, and its front matter."""
    fork, config = find_checkpoint(trained.place, trained.id, None)
    chosen = msgspec.structs.replace(fork.checkpoints[-1], base_model="Qwen/Qwen3-0.6B")
    text = ModelCard(
        name="me/player",
        form=form,
        run_id=trained.id,
        checkpoint=chosen,
        base_is_on_hub=True,
        base_license=base_license,
        log_id="log",
        trained_with="0.1.0",
        weights={},
        training=read_training(trained.place.data.archive_file, trained.id, chosen),
        config=published_config(config),
    ).render()
    return text, yaml.safe_load(text.split("---")[1])


def test_the_front_matter_is_what_the_hub_reads(trained: us.Run) -> None:
    text, front = card(trained, "apache-2.0", "adapter")
    told = {"base_model": "Qwen/Qwen3-0.6B", "base_model_relation": "adapter", "library_name": "peft"}
    assert (told | {"license": "apache-2.0"}).items() <= front.items()
    assert {"unstable-stream", "self-play", "lora"} <= set(front["tags"])
    lora = "vllm serve Qwen/Qwen3-0.6B --enable-lora --max-lora-rank 16 --lora-modules trained=me/player"
    assert lora in text
    text, front = card(trained, None, "merged")
    told = {"base_model_relation": "finetune", "library_name": "transformers", "license": "other"}
    assert told.items() <= front.items()
    assert "its files state none that is known" in text
    assert "vllm serve me/player" in text


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("README.md", "---\nlanguage: en\nlicense: llama3.2\n---\n# Llama", "llama3.2"),
        ("README.md", "# no front matter\nlicense: mit\n", None),
        ("LICENSE", f"{' ' * 30}Apache License\n{' ' * 24}Version 2.0, January 2004", "apache-2.0"),
        ("LICENSE.txt", "MIT License\n\nCopyright", "mit"),
        ("LICENSE", "All rights reserved", None),
        ("config.json", '{"license": "gemma"}', "gemma"),
        ("config.json", '{"model_type": "qwen3"}', None),
    ],
)
def test_the_license_is_that_which_the_base_model_states(
    tmp_path: Path, file: str, text: str, found: str | None
) -> None:
    (tmp_path / file).write_text(text)
    assert find_license("a-model", tmp_path) == found


def test_no_secret_is_published() -> None:
    opponent = {"name": "a/b", "kind": "openai", "base_url": "https://me:pw@host/v1"}
    tree = {"model": "tiny-player", "train_envs": [ENV], "evaluation": {"opponents": [opponent]}}
    tree |= {"trackers": ["my.tracker:Tracker(token='t0p')"]}

    def config(**engine: Any) -> Any:
        return parse_config({**tree, "engine": {"type": "my.engine:Engine", **engine}})

    told = published_config(config(hf_token="hf_abc", max_tokens=5, tokenizer="words"))
    assert told["engine"]["hf_token"] == LEFT_OUT
    assert (told["engine"]["max_tokens"], told["engine"]["tokenizer"]) == (5, "words")
    opponent = told["evaluation"]["opponents"][0]
    assert (opponent["base_url"], opponent["api_key_env"]) == ("https://host/v1", "OPENROUTER_API_KEY")
    assert "t0p" not in json.dumps(told)
    for key in ("sk-or-v1-0123456789abcdef", "hf_AbCdEfGhIjKlMnOp", "0123456789abcdef0123456789abcdef"):
        with pytest.raises(ConfigError, match=r"^engine\.api_key_env of the run is no name") as caught:
            published_config(config(api_key_env=key))
        assert key not in str(caught.value)


def send(directory: Path, *, public: bool = False, replace: bool = False) -> str:
    return upload(directory, REPOSITORY, public=public, replace=replace, message="new")


def test_files_on_the_hub_are_replaced_only_if_that_is_said(hub: tuple[Hub, str], directory: Path) -> None:
    made, _ = hub
    made.private = True
    made.files["model.safetensors"] = b"old"
    before = dict(made.files)
    with pytest.raises(RunError, match=r"^hf://me/player has files: add --force"):
        send(directory)
    assert made.files == before
    send(directory, replace=True)
    assert made.files.keys() == {".gitattributes", "README.md", "adapter_model.safetensors"}


def test_nothing_becomes_public_unless_that_is_said(hub: tuple[Hub, str], directory: Path) -> None:
    made, _ = hub
    made.private = False
    with pytest.raises(RunError, match=r"is public: add --public"):
        send(directory)
    assert made.files.keys() == {".gitattributes"}
    send(directory, public=True)
    assert "README.md" in made.files


def test_what_the_hub_says_no_to_is_one_line(
    hub: tuple[Hub, str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = hub
    made.refuses = "you have no right to create a model here"
    one_line = r"^could not upload to hf://me/player: .*"
    with pytest.raises(RunError, match=one_line + r"no right to create.*\Z"):
        send(directory)
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    with pytest.raises(RunError, match="who are you"):
        send(directory)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    with pytest.raises(RunError, match=one_line + r"\Z"):
        send(directory)
