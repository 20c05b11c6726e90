"""Benchmarks of lookahead decoding and other draft-free methods on vLLM."""

from __future__ import annotations

from importlib import import_module

_PUBLIC = {
    "Engine": "lookahead_bench.api",
    "Results": "lookahead_bench.store",
    "load_results": "lookahead_bench.store",
}
"""Public names and where they live; imported when first asked for, so that the package stays light."""

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
