"""The files of a hub's repository at one commit, asked for with huggingface_hub, which honours HF_ENDPOINT."""

import re
from typing import TYPE_CHECKING

from aerie.errors import AerieError
from aerie.weights.manifest import File

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["files"]

COMMIT = re.compile(r"[0-9a-f]{40}")
TOKEN = (
    "put a token that may read it into the file that HF_TOKEN_PATH names, mode 0600 (`hf auth login` writes one), and"
    " on hosts into weights.token_file"
)


def files(repository: str, revision: str, endpoint: str) -> tuple[str, tuple[File, ...]]:
    """The commit, and every file of it. revision: 40 hexadecimal digits, or "" for the newest of the main branch.

    endpoint: the hub's address, "" for the library's own. Large files have the hub's sha256, the others git's hash.
    Raises AerieError for a repository, commit or hub that does not answer with that, with the remedy.
    """
    # Here, for it takes half a second to import.
    import httpx2
    from huggingface_hub import HfApi, RepoFile

    api = HfApi(endpoint=endpoint or None, library_name="aerie")
    try:
        commit = _commit(api, repository, revision)
        rows = list(api.list_repo_tree(repository, recursive=True, revision=commit))
    except (httpx2.HTTPError, OSError, ValueError, KeyError) as error:
        raise _explained(f"{repository} at {revision or 'main'} of {api.endpoint}", error) from error
    found = [row for row in rows if isinstance(row, RepoFile)]
    return commit, tuple(_file(row.path, row.size, row.blob_id, row.lfs.sha256 if row.lfs else None) for row in found)


def _commit(api: "HfApi", repository: str, revision: str) -> str:
    found = str(api.model_info(repository, revision=revision or "main").sha)
    if not COMMIT.fullmatch(found) or found != (revision or found):
        remedy = "The server does not honour revisions: use another address of the hub (weights.hub in the lock)."
        raise AerieError(
            f"{repository} of {api.endpoint}",
            seen=f"commit {found}",
            expected=revision or "40 hexadecimal digits",
            remedy=remedy,
        )
    return found


def _file(path: str, size: int, blob: str, sha256: str | None) -> File:
    return File(path=path, size=size, sha256=sha256, git_sha1=None if sha256 else blob)


def _explained(where: str, error: Exception) -> AerieError:
    from huggingface_hub import errors

    if not isinstance(error, errors.HfHubHTTPError):
        seen = str(error) or type(error).__name__
        remedy = "See whether this machine reaches that address, and whether it is a hub's."
        return AerieError(where, seen=seen, expected="a hub's answer", remedy=remedy)
    status = error.response.status_code
    if isinstance(error, errors.GatedRepoError):
        expected, remedy = "a gate that is open for you", f"Ask for access on the model's page, then {TOKEN}."
    elif isinstance(error, errors.RepositoryNotFoundError):
        expected = "a repository that you may read"
        remedy = f"Correct the location in the lock's [weights.models]; where it is private, {TOKEN}."
    elif isinstance(error, errors.RevisionNotFoundError):
        expected = "a commit of the repository"
        remedy = 'Correct the revision in the lock\'s [weights.models]; with "" the newest is taken and printed.'
    elif status in (401, 403):
        expected, remedy = "a token that the hub takes", f"The token is wrong or may not do this: {TOKEN}."
    elif status == 429:
        expected, remedy = "fewer requests than the hub allows", f"Wait some minutes; for more of them {TOKEN}."
    else:
        expected, remedy = "the repository's files", "Try again; if it stays so, the hub has a fault of its own."
    said = error.server_message or error.response.reason_phrase
    return AerieError(where, seen=f"{status} {said}", expected=expected, remedy=remedy)
