"""Whether the model hub can be reached, asked once and quickly.

Libraries that download from the hub retry for half a minute and longer. Asking first turns that
into one clear line. With HF_HUB_OFFLINE set nothing is asked and only the hub's cache counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lookahead_bench.errors import InputError

_TIMEOUT_SECONDS = 10.0


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE was set when this process started."""
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def hub_revision(repo_id: str, kind: Literal["model", "dataset"]) -> str:
    """Commit of the newest revision of ``repo_id`` on the hub.

    Raises:
        InputError: the hub can't be reached, or has no such repository for this user.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        return HfApi().repo_info(repo_id, repo_type=kind, timeout=_TIMEOUT_SECONDS).sha or ""
    except RepositoryNotFoundError as error:
        raise InputError(
            f"the hub has no {kind} {repo_id!r} that this account may read (private ones need HF_TOKEN)"
        ) from error
    except HFValidationError as error:
        raise InputError(f"{repo_id!r} is no hub id of a {kind} (owner/name)") from error
    except HfHubHTTPError as error:
        raise InputError(f"the hub refused {kind} {repo_id!r}: {one_line(error)}") from error
    except Exception as error:  # each version of the hub's client has network errors of its own
        raise InputError(
            f"the hub cannot be reached for {kind} {repo_id!r}: {one_line(error)} "
            "(HF_HUB_OFFLINE=1 uses what is cached)"
        ) from error


def cached_revision(model_id: str) -> str:
    """Commit of the revision of a model that lies in the hub's cache.

    Raises:
        InputError: it isn't there.
    """
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model_id, "config.json")
    if not isinstance(config, str):
        raise InputError(f"model {model_id!r} is not in the hub's cache, and HF_HUB_OFFLINE is set")
    return Path(config).parent.name


def one_line(error: Exception) -> str:
    """The first line of what an exception says, or its type if it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
