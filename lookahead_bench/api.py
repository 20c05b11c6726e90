"""The engine for programs and notebooks: one object, any method, no configuration files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from lookahead_bench.data import encode_turn
from lookahead_bench.engine import EngineProcess, check_engine
from lookahead_bench.engine.settings import runs_eagerly, uses_native
from lookahead_bench.errors import ConfigError, InputError, check_int
from lookahead_bench.models import load_tokenizer, model_named, resolve_model
from lookahead_bench.pools import asks_for_pool
from lookahead_bench.records import Chunk, EngineSpec, Generation, Prompt, Request, StrategySpec
from lookahead_bench.strategy import make_strategy

GIB = 1 << 30
ENGINE_POOL = "engine"
"""The pool of all calls that ask for one, by method and parameters."""


class Engine:
    """vLLM with token-tree drafting, in a process of its own. A context manager.

    Every call may name another method or other parameters; the engine stays the same.

    Args:
        model: a name of ``conf/model``, a local folder, or a hub id.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        executor: ``tree`` (one pass over the whole tree) or ``fork`` (one row per path).
        max_drafts: largest draft that a method may ask for, in tokens.
        max_paths: for ``fork``: most paths of a draft that are computed.
        max_model_len: longest prompt plus output, in tokens.
        max_num_seqs: most requests at once.
        kv_cache_gib: size of the KV cache; None lets vLLM decide.
        enforce_eager: no compilation: starts in seconds, decodes slower. None compiles where a C++
            compiler is there.
        native_kernels: the project's own kernel for linear layers (CPU). None uses it where it can be built.
        prefix_caching: whether KV blocks of earlier prompts are reused.
        log: file for vLLM's own output; a temporary one if None.
        extra: further vLLM engine arguments, passed on as they are.

    Raises:
        InputError: the model can't be had, or the plug-in can't serve it.
        EngineError: vLLM did not start.

    Example:
        >>> with Engine("smollm2-135m") as engine:  # doctest: +SKIP
        ...     result, = engine.generate(["def add(a, b):"], strategy="lookahead", window=5, ngram=5, branches=5)
        ...     print(result.text, result.step_compression)
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        dtype: str = "float32",
        executor: str = "tree",
        max_drafts: int = 128,
        max_paths: int = 32,
        max_model_len: int = 2048,
        max_num_seqs: int = 8,
        kv_cache_gib: float | None = 1.0,
        enforce_eager: bool | None = None,
        native_kernels: bool | None = None,
        prefix_caching: bool = False,
        log: str | Path | None = None,
        **extra: object,
    ) -> None:
        source = resolve_model(model_named(model))
        self._tokenizer = load_tokenizer(source)
        self.spec = EngineSpec(
            model=source.path,
            role="plugin",
            executor=executor,
            dtype=dtype,
            max_drafts=check_int("max_drafts", max_drafts, 1, 4096),
            max_paths=check_int("max_paths", max_paths, 1, 1024),
            max_model_len=check_int("max_model_len", max_model_len, 2, 1 << 20),
            max_num_seqs=check_int("max_num_seqs", max_num_seqs, 1, 1024),
            kv_cache_bytes=None if kv_cache_gib is None else int(kv_cache_gib * GIB),
            enforce_eager=runs_eagerly(enforce_eager),
            native_kernels=uses_native(native_kernels),
            prefix_caching=prefix_caching,
            extra=extra,
        )
        check_engine(self.spec)
        path = Path(log) if log is not None else Path(tempfile.mkdtemp(prefix="lookahead-bench-")) / "engine.log"
        self._process = EngineProcess(self.spec, path)
        self.info = self._process.start()

    def generate(
        self, prompts: Sequence[str | Sequence[int]], *, strategy: str = "lookahead", **options: object
    ) -> list[Generation]:
        """Continue the prompts; results in their order.

        Args:
            prompts: texts (put through the model's chat template, unless ``chat=False``) or token ids.
            strategy: a method of the ``strategies`` folder, or ``module:Class``.
            **options: ``max_new_tokens`` (128), ``temperature`` (0), ``top_p`` (1), ``top_k`` (0: all),
                ``seed``, ``min_tokens``, ``stop`` (strings), ``stop_token_ids``, ``ignore_eos``,
                ``concurrency`` (all that the engine takes at once), ``chat`` (True); every other
                option is a parameter of the method. Nothing of one request serves another, unless
                ``shared_pool=True`` (``suffix``): then the outputs of all earlier calls with the same parameters.

        Raises:
            ConfigError: no such method or parameter, or the method's drafts are larger than the engine takes.
            EngineError: the engine died.
        """
        requests, concurrency = self._requests(prompts, strategy, options)
        return self._process.generate(requests, concurrency)

    def stream(
        self, prompts: Sequence[str | Sequence[int]], *, strategy: str = "lookahead", **options: object
    ) -> Iterator[Chunk]:
        """Like ``generate``, step by step: the tokens that each pass added to each prompt.

        A chunk's ``request_id`` is the prompt's index; the last chunk of a prompt has its result.
        """
        requests, concurrency = self._requests(prompts, strategy, options)
        return self._process.stream(requests, concurrency)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Token ids as text."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def close(self) -> None:
        """End the engine's process."""
        self._process.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, trace)

    def _requests(
        self, prompts: Sequence[str | Sequence[int]], strategy: str, options: dict[str, object]
    ) -> tuple[list[Request], int]:
        if isinstance(prompts, str):
            raise InputError("prompts is one string: give a list of prompts")
        sampling = {key: options.pop(key) for key in _SAMPLING & options.keys()}
        for key in ("stop", "stop_token_ids"):
            if key in sampling:
                sampling[key] = tuple(sampling[key])
        chat = bool(options.pop("chat", True))
        concurrency = check_int(
            "concurrency", options.pop("concurrency", self.spec.max_num_seqs), 1, self.spec.max_num_seqs
        )
        max_new_tokens = check_int("max_new_tokens", options.pop("max_new_tokens", 128), 1, self.spec.max_model_len)
        needs = make_strategy(strategy, **options).max_drafts
        if needs > self.spec.max_drafts:
            raise ConfigError(
                "strategy", strategy, f"one that drafts at most {self.spec.max_drafts} tokens, not {needs} "
                f"(or the engine made with max_drafts={needs})",
            )
        method = StrategySpec(strategy, options, pool=ENGINE_POOL if asks_for_pool(strategy, options) else None)
        requests = [
            Request(str(index), self._encode(index, prompt, chat), max_new_tokens, method, **sampling)
            for index, prompt in enumerate(prompts)
        ]
        return requests, concurrency

    def _encode(self, index: int, prompt: str | Sequence[int], chat: bool) -> tuple[int, ...]:
        if isinstance(prompt, str):
            turn = Prompt(str(index), "prompts", turns=(prompt,), chat=chat)
        else:
            turn = Prompt(str(index), "prompts", token_ids=tuple(prompt))
        return encode_turn(turn, 0, (), self._tokenizer)


_SAMPLING = {"temperature", "top_p", "top_k", "seed", "min_tokens", "stop", "stop_token_ids", "ignore_eos"}
