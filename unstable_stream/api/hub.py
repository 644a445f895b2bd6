"""The Hugging Face Hub: upload of a directory as a model repository."""

from pathlib import Path
from typing import Final

from unstable_stream.errors import RunError

_MADE_BY_THE_HUB: Final = frozenset({".gitattributes"})


def upload(
    directory: Path,
    repository: str,
    *,
    public: bool,
    replace: bool,
    message: str,
    endpoint: str | None = None,
) -> str:
    """Upload a directory's files in one commit, and return the repository's address.

    The token is that of ``HF_TOKEN`` or ``hf auth login``.

    Args:
        directory: the files.
        repository: ``owner/name``; made if it does not exist.
        public: anybody may read it. A repository that is public already is refused unless this is said.
        replace: delete the files that are there.
        message: of the commit.
        endpoint: address of the Hub; ``None``: ``HF_ENDPOINT``, or huggingface.co.

    Raises:
        RunError: the repository has files, or is public, and that was not asked for; or the Hub refuses or
            cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # its client, httpx or httpx2

    api = HfApi(endpoint=endpoint)
    try:
        address = api.create_repo(repository, private=not public, exist_ok=True)
        found = api.model_info(repository)
        files = {each.rfilename for each in found.siblings or ()} - _MADE_BY_THE_HUB
        if files and not replace:
            raise RunError(f"hf://{repository} has files: add --replace to replace them all")
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
