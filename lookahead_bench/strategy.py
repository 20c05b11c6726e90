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

from lookahead_bench.errors import ConfigError
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
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError("strategy", name, f"importable as module:Class ({error})") from error
    known = strategies()
    if name not in known:
        raise ConfigError("strategy", name, "one of " + ", ".join(known) + ", or module:Class")
    return known[name]


def make_strategy(name: str, **parameters: object) -> Strategy:
    """A fresh strategy object for one request.

    Raises:
        ConfigError: no such method, no such parameter, or a parameter out of range.
    """
    method = find_strategy(name)
    accepted = tuple(inspect.signature(method).parameters)
    for key, value in parameters.items():
        if key not in accepted:
            takes = ", ".join(accepted) if accepted else "nothing"
            raise ConfigError(
                f"strategy.{key}", value, f"left out: {name} has no such parameter (it takes {takes})"
            )
    return method(**parameters)
