"""What a drafting method is to the rest of the project, and how it is found by name.

A strategy is a plain object per request. It sees token ids only, never torch or vLLM:
``begin`` once with the prompt, then ``draft`` before and ``observe`` after every forward pass.
The pass over the prompt is observed too, as an empty tree below the prompt's last token.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from lookahead_bench.errors import ConfigError, InputError, check_int
from lookahead_bench.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass as its strategy sees it.

    Attributes:
        tree: the tree that was verified: the draft, or what the scheduler left of it.
        choices: per node the target's choice after it, NO_CHOICE (-1) where not computed.
        path: accepted nodes below the root.
        emitted: tokens that this pass added to the output: those of ``path``, then the bonus.
        top_k: per node the target's most likely tokens, best first; None unless the strategy
            sets ``wants_top_k``. Empty for nodes without logits.
    """

    tree: TokenTree
    choices: tuple[int, ...]
    path: tuple[int, ...]
    emitted: tuple[int, ...]
    top_k: tuple[tuple[int, ...], ...] | None = None


@runtime_checkable
class Strategy(Protocol):
    """A drafting method for one request.

    Attributes:
        max_drafts: upper bound of the drafted tokens of one step, known from the parameters alone.
        wants_top_k: how many of the target's most likely tokens ``observe`` wants per node.
    """

    wants_top_k: ClassVar[int]

    @property
    def max_drafts(self) -> int: ...

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Start a request; called once, before anything else."""

    def draft(self, budget: int) -> TokenTree:
        """Draft below the last accepted token, at most ``budget`` nodes besides the root."""

    def observe(self, step: Step) -> None:
        """Learn from a pass. The last of ``step.emitted`` is the root of the next draft."""


INSTRUMENTS = {"filler": "lookahead_bench.cost.filler:Filler"}
"""What measures and is no method of decoding, so not among those that are compared: name to module:Class."""

MAX_OWN = 4096
"""Most drafts of a step and most ranked tokens that a class outside the ``strategies`` folder may ask for."""

_REGISTRY: dict[str, type] = {}
T = TypeVar("T", bound=type)


def strategy(name: str) -> Callable[[T], T]:
    """Class decorator: make a method known under ``name`` (``strategy=name`` on the command line).

    The class is constructed with the method's parameters as keywords and checks them itself,
    raising ConfigError that names ``strategy.<parameter>``.
    """

    def register(cls: T) -> T:
        if _REGISTRY.setdefault(name, cls) is not cls:
            raise ValueError(f"two strategies are named {name!r}")
        return cls

    return register


def strategies() -> Mapping[str, type]:
    """All methods in the ``strategies`` folder, by name; importing the folder's modules registers them."""
    import strategies as folder

    for module in pkgutil.iter_modules(folder.__path__, "strategies."):
        importlib.import_module(module.name)
    return dict(sorted(_REGISTRY.items()))


def find_strategy(name: str) -> type:
    """The class of a method: one of the ``strategies`` folder by name, or any by ``module:Class``.

    Raises:
        ConfigError: there is no such method.
    """
    name = INSTRUMENTS.get(name, name)
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            # Whatever the user's file does when it is imported.
            raise ConfigError("strategy", name, f"importable as module:Class ({_said(error)})") from error
        if not inspect.isclass(found):
            raise ConfigError("strategy", name, "a class, as module:Class")
        return found
    known = strategies()
    if name not in known:
        raise ConfigError("strategy", name, "one of " + ", ".join(known) + ", or module:Class")
    return known[name]


def make_strategy(name: str, **parameters: object) -> Strategy:
    """A fresh strategy object for one request.

    Raises:
        ConfigError: no such method, no such parameter, a parameter out of range or missing, or a class that is no
            Strategy.
    """
    method = find_strategy(name)
    accepted = tuple(inspect.signature(method).parameters)
    for key, value in parameters.items():
        if key not in accepted:
            takes = ", ".join(accepted) if accepted else "nothing"
            raise ConfigError(
                f"strategy.{key}", value, f"left out: {name} has no such parameter (it takes {takes})"
            )
    if ":" not in name:
        return method(**parameters)
    try:
        made = method(**parameters)
    except InputError:
        raise
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in parameters.items())
        raise ConfigError("strategy", name, f"a class that can be made with ({given}): {_said(error)}") from error
    missing = [part for part in ("max_drafts", "wants_top_k", "begin", "draft", "observe") if not hasattr(made, part)]
    if missing:
        raise ConfigError("strategy", name, f"a Strategy (lookahead_bench/strategy.py); it has no {', '.join(missing)}")
    for bound in ("max_drafts", "wants_top_k"):
        check_int(f"{name}.{bound}", getattr(made, bound), 0, MAX_OWN)
    return made


def _said(error: Exception) -> str:
    """An error of code that is not the project's, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
