"""What passes between the harness and the engine processes: plain, frozen, picklable records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything that one engine process is started with. Equal specs can share a process.

    Attributes:
        model: a local folder or a hub id, as vLLM takes it.
        role: tells processes apart that are alike otherwise (``vllm`` and ``vllm_control``).
        executor: ``stock`` (vLLM as it is), ``tree`` or ``fork`` (the plug-in).
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        speculative: for ``stock``: vLLM's own ``speculative_config``; None for plain decoding.
        max_drafts: for the plug-in: the largest draft it must take.
        max_paths: for the fork executor: most root-to-leaf paths of a draft that are computed.
        max_model_len: longest prompt plus output, in tokens.
        max_num_seqs: most requests at once.
        kv_cache_bytes: size of the KV cache; None lets vLLM decide (GPU).
        enforce_eager: no compilation.
        native_kernels: for the plug-in on CPU: the project's own C++ kernels in place of vLLM's.
        prefix_caching: whether finished prompts' KV blocks are reused.
        seed: the engine's own seed.
        threads: OpenMP threads; None takes all cores this process may use.
        extra: further vLLM engine arguments, passed on as they are.
    """

    model: str
    role: str
    executor: str = "stock"
    dtype: str = "float32"
    speculative: Mapping[str, object] | None = None
    max_drafts: int = 0
    max_paths: int = 32
    max_model_len: int = 2048
    max_num_seqs: int = 8
    kv_cache_bytes: int | None = 1 << 30
    enforce_eager: bool = False
    native_kernels: bool = False
    prefix_caching: bool = False
    seed: int = 0
    threads: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """A method by name with its parameters; for stock engines the name alone.

    Attributes:
        pool: name of the pool of outputs that requests with an equal spec share; None: nothing is shared.
    """

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued.

    Attributes:
        request_id: unique within the call.
        prompt_token_ids: at least one token.
        max_new_tokens: at least 1.
        strategy: the drafting method; None on a stock engine.
        temperature, top_p, top_k, seed: sampling; temperature 0 is greedy.
        ignore_eos: go on past the end of sequence.
        min_tokens: the end of sequence counts only from here on.
        stop_token_ids: further tokens that end the output.
        stop: strings that end the output; the text ends before them.
        logit_gaps: also report at every output position how close the likeliest tokens are to each other
            (stock engine, greedy, never in a timed pass).
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_new_tokens: int
    strategy: StrategySpec | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    logit_gaps: bool = False


@dataclass(frozen=True, slots=True)
class EarlierOutputs:
    """Outputs that an engine is to take for those of its own finished requests.

    Attributes:
        strategy: whose pool they go to.
        outputs: token ids, the earliest first.
    """

    strategy: StrategySpec
    outputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One forward pass after the prefill, for one request.

    Attributes:
        in_flight: tokens that the pass computed for this request: the root and its drafts.
        accepted: tokens that it added to the output (cut at a stop or a limit: emitted, not verified).
        seconds: wall time of the engine step, scheduler and sampling included.
        emitted_at_seconds: when its tokens were there, from the request's first token on. With several requests at
            once more lies between two passes of a request than its own: what others' prompts took.
        draft_seconds, forward_seconds, verify_seconds, commit_seconds: parts of it that do not overlap, measured in
            the plug-in for the whole batch; 0 on a stock engine.
        depth: how far down drafted tokens were held against the model's own choices, see `verify.depth_tried`.
        matched: how many of them it accepted one below the other, whether or not they were emitted: at most depth.
    """

    in_flight: int
    accepted: int
    seconds: float
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    emitted_at_seconds: float = 0.0
    depth: int = 0
    matched: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """What came of one request.

    Attributes:
        token_ids: the output; its end-of-sequence or stop token is kept.
        text: the output decoded, special tokens left out.
        finish_reason: ``stop`` or ``length``; ``error`` if it failed.
        queued_seconds: how long it waited for its turn, from the call that had it among its requests.
        prefill_seconds: from handing the request in to its first token (TTFT, without the wait for its turn).
        decode_seconds: from the first token to the last, whatever the engine did for others in between.
        steps: the passes after the prefill; their ``accepted`` sum to len(token_ids) - 1.
        gaps: per output token how far the logit of each of the likeliest tokens lies below the highest, by token id; if asked for.
        error: one line, if it failed; None otherwise.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    prefill_seconds: float
    decode_seconds: float
    steps: tuple[StepRecord, ...]
    gaps: tuple[Mapping[int, float], ...] | None = None
    error: str | None = None
    queued_seconds: float = 0.0

    @property
    def step_compression(self) -> float:
        """Tokens per decoding pass, S = (new tokens - 1) / passes; NaN if there was no pass."""
        return (len(self.token_ids) - 1) / len(self.steps) if self.steps else float("nan")

    @property
    def accepted_histogram(self) -> dict[int, int]:
        """How many passes added how many tokens."""
        return dict(sorted(Counter(step.accepted for step in self.steps).items()))


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step added to one request.

    Attributes:
        token_ids: the new tokens; empty for a request that was refused.
        generation: the whole result, with the request's last chunk only.
    """

    request_id: str
    token_ids: tuple[int, ...]
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine process says of itself once it is up.

    Attributes:
        start_seconds: from spawning the process to being ready.
        threads: OpenMP threads it runs with.
        bound_cores: those to which one of its threads is bound; empty if none is, None if that can't be found out.
        environment: its variables that change speed or results, the inherited ones and those that it was given.
        versions: of vllm, torch, transformers.
        log: path of the file that has its log.
    """

    start_seconds: float
    threads: int
    bound_cores: Sequence[int] | None
    environment: Mapping[str, str]
    versions: Mapping[str, str]
    log: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One item of a data set.

    Attributes:
        prompt_id: as the data set names it ("HumanEval/0", "81").
        dataset: name of the data set.
        turns: the user's turns as text, in order; empty if token ids are given.
        chat: whether the turns are put through the model's chat template.
        token_ids: the prompt as token ids (then there are no turns).
        category: the data set's own grouping, "" if it has none.
        metadata: what scoring needs later (HumanEval: entry_point, test, prompt).
        exact_tokens: the prompt is cut to so many tokens and its output goes on past the end of
            sequence, to be of one length too; None for a prompt as it is.
    """

    prompt_id: str
    dataset: str
    turns: tuple[str, ...] = ()
    chat: bool = True
    token_ids: tuple[int, ...] | None = None
    category: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)
    exact_tokens: int | None = None

    @property
    def num_turns(self) -> int:
        return max(1, len(self.turns))


@dataclass(frozen=True, slots=True)
class Cell:
    """The unit of work: one method on one data set under fixed settings.

    Attributes:
        cell_id: hash of the resolved settings, model digest, versions and the method's code; the same work has
            the same id.
        dataset: name of the data set.
        strategy: the method; names beginning with ``vllm`` are the stock engine's own.
        engine: what its process is started with.
        max_new_tokens, temperature, concurrency: decoding settings.
        is_baseline: whether the others are compared with it (``vllm``, plain stock decoding).
        title: what its sweep calls it; "" leaves that to its parameters.
    """

    cell_id: str
    dataset: str
    strategy: StrategySpec
    engine: EngineSpec
    max_new_tokens: int
    temperature: float = 0.0
    concurrency: int = 1
    is_baseline: bool = False
    title: str = ""

    @property
    def shares_pool(self) -> bool:
        """Whether outputs of earlier prompts serve later ones."""
        return self.strategy.pool is not None

    @property
    def label(self) -> str:
        """Short name for people: its title, or the like of "lookahead W5 N3 G5" or "vllm_draft_model smollm2-135m"."""
        if self.title:
            return self.title
        short = {"window": "W", "ngram": "N", "branches": "G"}
        shown = [f"{short[key]}{value}" for key, value in self.strategy.parameters.items() if key in short]
        if drafter := self.strategy.parameters.get("draft_model"):
            shown.insert(0, str(drafter).rstrip("/").rsplit("/", 1)[-1])
        return " ".join([self.strategy.name, *shown])
