"""Errors a user can act on; the command turns each into one line and an exit status."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input, known before any model is loaded. The command exits with status 2.

    The message is one line that says what is wrong and what would be right.
    """


class ConfigError(InputError):
    """A configuration key holds a value that is not allowed.

    Args:
        key: dotted key as the user types it, for example ``strategy.window``.
        value: the value found there.
        allowed: what is allowed, in words ("an integer from 1 to 512").
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(f"{key}={value!r}: must be {allowed}")


class EngineError(RuntimeError):
    """An engine process could not start, or failed while it worked."""


def check_int(key: str, value: object, low: int, high: int) -> int:
    """Return ``value`` if it is an integer in [low, high], else raise ConfigError naming ``key``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(key, value, f"an integer from {low} to {high}")
    return value


def check_bool(key: str, value: object) -> bool:
    """Return ``value`` if it is a bool, else raise ConfigError naming ``key``."""
    if not isinstance(value, bool):
        raise ConfigError(key, value, "true or false")
    return value
