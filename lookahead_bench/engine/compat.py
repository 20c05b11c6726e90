"""Whether this vLLM has what the plug-in hooks into."""

from __future__ import annotations

HOOKS = (
    "_prepare_inputs",
    "_sample",
    "propose_draft_token_ids",
    "_input_fits_in_drafter",
    "_on_request_state_removed",
)
"""Methods of vLLM's model runner that the plug-in overrides. One that vLLM no longer has would
never be called, and the plug-in would decode plainly without a word."""


def check_hooks(runner: type) -> None:
    """Raise RuntimeError, in one line, if vLLM's ``runner`` lacks a method that the plug-in overrides."""
    missing = [name for name in HOOKS if not callable(getattr(runner, name, None))]
    if missing:
        raise RuntimeError(
            f"{runner.__module__}.{runner.__name__} has no {', '.join(missing)}: "
            "the plug-in does not fit this release of vLLM"
        )
