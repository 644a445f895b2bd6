"""Take a checkpoint out as files that transformers, PEFT and vLLM load, into a directory or to the Hub."""

import hashlib
import json
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unstable_stream.api.checkpoints import find_checkpoint, split_name
from unstable_stream.api.model_card import CONFIG_FILE, Form, ModelCard, published_config
from unstable_stream.api.place import Place, PlacedRun, placed
from unstable_stream.api.trained_on import read_training
from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import Checkpoint
from unstable_stream.inference.base_model import find_license
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.adapter_format import CONFIG_FILE as ADAPTER_CONFIG_FILE
from unstable_stream.log.stores.checkpoint_files import opened_checkpoint
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import read_history

if TYPE_CHECKING:
    from unstable_stream.runs.history import RunStatus

_log = get_logger(__name__)

_HUB: Final = "hf://"
_REPOSITORY: Final = re.compile(r"[\w.\-]+/[\w.\-]+")
_GENERATION: Final = "generation_config.json"


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push."""

    destination: str
    """The directory, or the address on the Hub."""
    form: Form
    """``adapter``, ``merged``, or ``whole``: all parameters were trained."""
    checkpoint: str
    """``RUN@UPDATE``."""
    files: dict[str, int]
    """Size in bytes by name."""
    weights: dict[str, str]
    """SHA-256 by weight file."""


def push(
    checkpoint: str | PlacedRun,
    destination: Path | str,
    *,
    merged: bool = False,
    replace: bool = False,
    public: bool = False,
    data: Path | str | None = None,
    log: str | None = None,
) -> Pushed:
    """Write a checkpoint for transformers, PEFT and vLLM, with a model card; see docs/how-to/push.md.

    Args:
        checkpoint: ``RUN@UPDATE``; ``RUN`` or a run is its newest one.
        destination: a directory, or ``hf://owner/name`` on the Hugging Face Hub.
        merged: the base model with the adapter merged into it, instead of the adapter.
        replace: replace what is there.
        public: on the Hub, let anybody read it; by default the repository is private.
        data: the data directory.
        log: the event log; ``None``: ``local``.

    Raises:
        RunError: no such run or checkpoint, nothing was trained, the destination has files, or it cannot be
            written.
        CheckpointError: the checkpoint's files are not those that were recorded.
        ConfigError: no such form of a destination, the base model is to be merged and not there, or a secret
            may be recorded.
        ArchiveError: there is no archive to make the model card from.
    """
    place, name = placed(checkpoint, data, log)
    repository = _repository(destination, public)
    target = Path(destination).expanduser().resolve()
    if repository is None:
        _check_target(target, place, replace)
    fork, config = find_checkpoint(place, *split_name(name))
    run_id, chosen = fork.parent_run_id, fork.checkpoints[-1]
    uid = fork.name
    if chosen.path is None:
        raise RunError(
            f"{uid} is the base model {chosen.base_model} as it is: nothing was trained, so there is "
            "nothing to push; name a later update"
        )
    form: Form = "whole" if chosen.parameters == "all" else "merged" if merged else "adapter"
    card_name = repository or target.name
    with _staging(None if repository else target) as staging:
        card = _write(staging, place, config, run_id, chosen, form, card_name)
        files = {file.name: file.stat().st_size for file in sorted(staging.iterdir())}
        if repository is None:
            _put(staging, target, replace)
            where = str(target)
        else:
            message = f"{uid} of unstable_stream"
            where = upload(staging, repository, public=public, replace=replace, message=message)
    return Pushed(where, form, uid, files, dict(card.weights))


def upload(directory: Path, repository: str, *, public: bool, replace: bool, message: str) -> str:
    """Upload a directory's files in one commit, and return the repository's address.

    The token is that of ``HF_TOKEN`` or ``hf auth login``, the Hub that of ``HF_ENDPOINT``.

    Args:
        directory: the files.
        repository: ``owner/name``; made if it does not exist.
        public: anybody may read it. A repository that is public already is refused unless this is said.
        replace: delete the files that are there.
        message: of the commit.

    Raises:
        RunError: the repository has files, or is public, and that was not asked for; or the Hub refuses or
            cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # its client, httpx or httpx2

    api = HfApi()
    try:
        address = api.create_repo(repository, private=not public, exist_ok=True)
        found = api.model_info(repository)
        files = {each.rfilename for each in found.siblings or ()} - {".gitattributes"}
        if files and not replace:
            raise RunError(f"hf://{repository} has files: add --force to replace them all")
        if not public and not found.private:
            raise RunError(
                f"hf://{repository} is public: add --public to publish there, or make it private first"
            )
        api.upload_folder(
            repo_id=repository,
            folder_path=directory,
            commit_message=message,
            delete_patterns="*" if replace else None,
        )
    except (httpx.HTTPError, OSError, ValueError) as error:
        first = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"could not upload to hf://{repository}: {first}") from error
    return str(address)


def _repository(destination: Path | str, public: bool) -> str | None:
    """Return ``owner/name``; ``None``: the destination is a directory."""
    text = str(destination)
    if not text.startswith(_HUB):
        if public or re.match(r"\w+:/", text):
            raise ConfigError(
                f"{text}: {'only the Hub is public or private' if public else 'no known kind of address'}; "
                f"expected {_HUB}OWNER/NAME or a directory"
            )
        return None
    repository = text.removeprefix(_HUB)
    if not _REPOSITORY.fullmatch(repository):
        raise ConfigError(f"{text}: expected {_HUB}OWNER/NAME, e.g. {_HUB}me/tictactoe-player")
    return repository


def _check_target(target: Path, place: Place, replace: bool) -> None:
    if target.exists() and not target.is_dir():
        raise RunError(f"{target} is a file: name a directory")
    if target.is_dir() and any(target.iterdir()):
        if not replace:
            raise RunError(f"{target} has files: name another directory, or add --force to replace them all")
        for kept in (place.data.root.resolve(), Path.cwd()):
            if kept.is_relative_to(target):
                raise RunError(f"{target} holds {kept}, which --force would delete: name another directory")


def _write(
    staging: Path, place: Place, config: RunConfig, run_id: str, chosen: Checkpoint, form: Form, name: str
) -> ModelCard:
    """Write everything into ``staging`` and return the card. What is quick to refuse comes first."""

    async def read(log: EventLog) -> "tuple[RunStatus, str]":
        return (await read_history(log)).run(run_id), await log.log_id()

    published = published_config(config)
    training = read_training(place.archive, run_id, chosen)
    status, log_id = place.ask_history(read)
    base = _base_directory(config, needed=form == "merged")
    _write_model(staging, chosen, form, base)
    # A run records the fingerprint of a base model that is not on the Hub.
    named = _REPOSITORY.fullmatch(config.model) is not None and not Path(config.model).is_dir()
    card = ModelCard(
        name=name,
        form=form,
        run_id=run_id,
        checkpoint=chosen,
        base_is_on_hub=named and not config.model_fingerprint,
        base_license=find_license(config.model, base),
        log_id=log_id,
        trained_with=status.began.package_version if status.began else "",
        weights={file.name: _sha256(file) for file in sorted(staging.glob("*.safetensors"))},
        training=training,
        config=published,
    )
    (staging / CONFIG_FILE).write_text(json.dumps(card.to_json(), indent=2) + "\n", encoding="utf-8")
    (staging / "README.md").write_text(card.render(), encoding="utf-8")
    return card


def _base_directory(config: RunConfig, *, needed: bool) -> Path | None:
    """Return the base model's directory; ``None``: it is not there, or another one, and not ``needed``."""
    from unstable_stream.runs.base_model import base_model_path

    try:
        return Path(base_model_path(config, weights=needed))
    except ConfigError as error:
        if needed:
            raise
        _log.warning("pushed without the base model's tokenizer and license", reason=str(error))
        return None


def _write_model(staging: Path, chosen: Checkpoint, form: Form, base: Path | None) -> None:
    from unstable_stream.algorithms.learners.checkpoint import copy_loadable
    from unstable_stream.algorithms.learners.lora import merge_adapter
    from unstable_stream.algorithms.learners.policy import tokenizer_files

    assert chosen.path is not None
    with tempfile.TemporaryDirectory() as made:
        target = Path(made) if form == "merged" else staging
        with opened_checkpoint(chosen.path, chosen.sha256) as saved:
            copy_loadable(saved, target, chosen.sha256)
        if form == "whole":
            return
        if form == "merged":
            assert base is not None
            merge_adapter(base, target, staging)
    if form == "adapter":
        # The learner recorded the directory that the base model had here; others know it by its name.
        config_file = staging / ADAPTER_CONFIG_FILE
        adapter = json.loads(config_file.read_bytes()) | {"base_model_name_or_path": chosen.base_model}
        config_file.write_text(json.dumps(adapter, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name, content in ({} if base is None else tokenizer_files(str(base))).items():
        if form == "merged" or name != _GENERATION:
            (staging / name).write_bytes(content)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _staging(target: Path | None) -> Iterator[Path]:
    """Give a new directory, beside ``target`` if there is one, and remove what is left of it at the end."""
    if target is None:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)
        return
    partial = target.parent / f".{target.name}-{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        yield partial
    except OSError as error:
        raise RunError(f"could not write {target}: {error}; nothing was changed there") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put(staging: Path, target: Path, replace: bool) -> None:
    """Rename the finished directory to its name; what it replaces is deleted last."""
    old = target.parent / f"{staging.name}-replaced"
    replaced = replace and target.is_dir()
    if replaced:
        target.rename(old)
    try:
        staging.rename(target)  # onto an empty directory, or onto nothing
    except OSError:
        if replaced:
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
