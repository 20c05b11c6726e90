"""The model runner: draft, forward, verify, commit, on top of vLLM's own.

Tested with vLLM 0.32.0. Relies on these methods of ``GPUModelRunner``, which the CPU runner
inherits: ``_prepare_inputs``, ``_sample``, ``propose_draft_token_ids``, ``_input_fits_in_drafter``,
``_on_request_state_removed``; and on the attributes ``input_batch``, ``requests``, ``attn_groups``,
``positions``, ``input_ids``, ``discard_request_mask``, ``kv_caches``, ``sampler``.

The scheduler is vLLM's own and knows nothing of trees: it gives the drafted tokens KV slots behind
the last accepted one, in draft order, and takes back what was not accepted by counting.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata

from lookahead_bench.engine.executors import Executor, ForkExecutor, Row, TreeExecutor
from lookahead_bench.engine.layout import Layout
from lookahead_bench.engine.sampling import unsupported_sampling
from lookahead_bench.engine.scheduler import scratch_blocks
from lookahead_bench.engine.settings import plugin_settings
from lookahead_bench.pools import Pools
from lookahead_bench.records import StrategySpec
from lookahead_bench.strategy import Step, Strategy
from lookahead_bench.tree import TokenTree
from lookahead_bench.verify import NO_CHOICE, Verdict, depth_tried, verify

STRATEGY_ARGUMENT = "lookahead_bench"
"""Key of ``SamplingParams.extra_args`` under which a request carries its StrategySpec."""


def largest(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Where the k largest of each row of ``logits`` [rows, vocabulary] are, largest first; int64 [rows, k]."""
    return logits.argmax(dim=-1, keepdim=True) if k == 1 else logits.topk(k, dim=-1).indices


class TreeDrafter:
    """Stands where vLLM wants a proposer of ``custom_class``; the runner drafts itself."""

    def __init__(self, vllm_config) -> None:
        del vllm_config

    def load_model(self, model) -> None:
        """Nothing to load."""

    def propose(self, *args, **kwargs) -> list[list[int]]:
        raise RuntimeError("drafts come from the runner, which knows the requests")


@dataclass(slots=True)
class Drafting:
    """One request's strategy and the draft it has in flight (None: none)."""

    strategy: Strategy
    layout: Layout | None = None


@dataclass(slots=True)
class StepLog:
    """What the last pass did, for whoever times the engine from outside.

    ``in_flight``, ``depth`` and ``matched`` are by request, as in `records.StepRecord`; the last two have those that drafted.
    """

    in_flight: dict[str, int]
    depth: dict[str, int] = field(default_factory=dict)
    matched: dict[str, int] = field(default_factory=dict)
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0


class TreeRunner:
    """What the plug-in adds to one of vLLM's runners; goes before it in the bases.

    Who joins the two adds ``copy_slots(kv_caches, sources, targets)``, which moves entries of every
    layer's KV cache from slots to slots (int64) in the layout of its attention, and may put something
    faster in the place of ``largest``.
    """

    largest = staticmethod(largest)

    def __init__(self, vllm_config, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self._executor: Executor | None = None
        self._drafting: dict[str, Drafting] = {}
        self.pools = Pools()
        self._rows: tuple[Row, ...] = ()
        self._forward_began = 0.0
        self.step_log = StepLog({})

    # -- requests ---------------------------------------------------------------------------

    def _drafting_of(self, request_id: str) -> Drafting | None:
        """The request's strategy, made when it is first seen; None if it asked for none."""
        drafting = self._drafting.get(request_id)
        if drafting is None:
            state = self.requests[request_id]
            spec = strategy_of(state.sampling_params)
            if spec is None:
                return None
            drafting = Drafting(self.pools.strategy(spec))
            drafting.strategy.begin(state.prompt_token_ids)
            self._drafting[request_id] = drafting
        return drafting

    def _on_request_state_removed(self, req_id, req_state) -> None:
        super()._on_request_state_removed(req_id, req_state)
        self._drafting.pop(req_id, None)

    # -- draft ------------------------------------------------------------------------------

    def _input_fits_in_drafter(self, common_attn_metadata) -> bool:
        return True

    def propose_draft_token_ids(self, scheduler_output, sampled_token_ids, *args, **kwargs) -> list[list[int]]:
        """Drafted token ids per row of the batch, in tree order, for the scheduler."""
        began = perf_counter()
        drafts = [
            self._draft(request_id) if sampled else []
            for request_id, sampled in zip(self.input_batch.req_ids, sampled_token_ids)
        ]
        self.step_log.draft_seconds = perf_counter() - began
        return drafts

    def _draft(self, request_id: str) -> list[int]:
        drafting = self._drafting_of(request_id)
        if drafting is None:
            return []
        state = self.requests[request_id]
        if len(state.output_token_ids) < state.sampling_params.min_tokens:
            # Which tokens are barred depends on the position, and a tree has several.
            return []
        room = self.max_model_len - state.num_tokens - 1
        budget = max(0, min(plugin_settings(self.vllm_config).max_drafts, room))
        tree = drafting.strategy.draft(budget)
        drafting.layout = self.executor.layout(tree).cut(1 + self.num_spec_tokens)
        return list(drafting.layout.tokens[1:])

    # -- forward ----------------------------------------------------------------------------

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        _, metadata, most_sampled = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        rows, logits_indices = [], []
        start = 0
        for index, (request_id, scheduled) in enumerate(
            zip(self.input_batch.req_ids, num_scheduled_tokens.tolist())
        ):
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(request_id, ())
            context = int(self.input_batch.num_computed_tokens_cpu[index])
            layout, nodes = self._in_flight(request_id, drafts, scheduled), (0,)
            if layout is not None:
                positions = torch.tensor(layout.depths, device=self.device) + context
                self.positions[start : start + scheduled] = positions
                nodes = tuple(node for node, wanted in enumerate(layout.tree.wants_logits) if wanted)
                first = layout.first
                indices = [start + first[node] for node in nodes]
            else:
                if drafts:
                    # The scheduler pads a resumed request with placeholders, which are no tokens.
                    self.input_ids.gpu[start + scheduled - len(drafts) : start + scheduled].fill_(0)
                indices = [start + scheduled - 1 - len(drafts)]
            rows.append(Row(request_id, start, scheduled, context, layout, nodes, len(logits_indices)))
            logits_indices += indices
            start += scheduled
        self._rows = tuple(rows)
        self.executor.place(rows)
        self.step_log = StepLog({row.request_id: row.scheduled for row in rows})
        self._forward_began = perf_counter()
        return torch.tensor(logits_indices, device=self.device), metadata, most_sampled

    @property
    def executor(self) -> Executor:
        """The way trees are computed; made at first use, when the KV cache is there."""
        if self._executor is None:
            settings = plugin_settings(self.vllm_config)
            if settings.executor == "fork":
                block_size = self.cache_config.block_size
                scratch = scratch_blocks(settings.scratch_blocks(block_size))
                self._executor = ForkExecutor(self, scratch, settings.max_paths, block_size)
            else:
                self._executor = TreeExecutor(self)
        return self._executor

    def slots(self, row: Row) -> torch.Tensor:
        """KV slots of a row's tokens, int64 [scheduled]; writing to it moves them."""
        return self.input_batch.block_table[0].slot_mapping.gpu[row.start : row.start + row.scheduled]

    def _in_flight(self, request_id: str, drafts, scheduled: int) -> Layout | None:
        """What the scheduler left of the request's draft; None if nothing of it is in this batch."""
        drafting = self._drafting.get(request_id)
        if drafting is None or drafting.layout is None:
            return None
        layout, drafting.layout = drafting.layout.cut(1 + len(drafts)), None
        if scheduled != len(layout) or tuple(drafts) != layout.tokens[1:]:
            return None
        return layout

    # -- verify and commit ------------------------------------------------------------------

    def _sample(self, logits, spec_decode_metadata) -> SamplerOutput:
        if logits.is_cuda:
            # Reading the choices would wait for the pass: its time would be taken for verification's.
            torch.cuda.synchronize(logits.device)
        began = perf_counter()
        self.step_log.forward_seconds = began - self._forward_began
        sampling = self.input_batch.sampling_metadata
        output = None
        if sampling.all_greedy and not self._foreign_sampling():
            choices = self.largest(logits, 1)[:, 0].tolist()
        elif all(row.layout is None for row in self._rows):
            output = self.sampler(logits=logits, sampling_metadata=sampling)
            choices = output.sampled_token_ids[:, 0].tolist()
        else:
            choices = self._choose(logits, sampling)
        verdicts = [self._verify(row, choices) for row in self._rows]
        self.step_log.verify_seconds = perf_counter() - began
        for index, (row, verdict) in enumerate(zip(self._rows, verdicts)):
            if not self.discard_request_mask.np[index]:
                if verdict.path:
                    self.executor.commit(row, verdict.path)
                self._observe(row, verdict, choices, logits)
        self.step_log.commit_seconds = perf_counter() - began - self.step_log.verify_seconds
        if output is not None:
            return output
        return SamplerOutput(_padded([verdict.tokens for verdict in verdicts], self.device), None)

    def _choose(self, logits: torch.Tensor, sampling: SamplingMetadata) -> list[int]:
        """The target's choice for every row of ``logits`` [num_logits, vocabulary] where not all is greedy."""
        roots = [row.first_logit for row in self._rows]
        choices = self.largest(logits, 1)[:, 0]
        own = self.sampler(logits=logits[roots], sampling_metadata=sampling)
        choices[roots] = own.sampled_token_ids[:, 0].to(choices.dtype)
        inner, owner = [], []
        for index, row in enumerate(self._rows):
            if not sampling.all_greedy and self._temperature(row.request_id) > 0:
                inner += range(row.first_logit + 1, row.first_logit + len(row.nodes))
                owner += [index] * (len(row.nodes) - 1)
        if inner:
            drawn = self.sampler(logits=logits[inner], sampling_metadata=_spread(sampling, owner))
            choices[inner] = drawn.sampled_token_ids[:, 0].to(choices.dtype)
        return choices.tolist()

    def _temperature(self, request_id: str) -> float:
        return self.requests[request_id].sampling_params.temperature

    def _foreign_sampling(self) -> bool:
        """Whether a request of the batch asks for more than an argmax or a plain sample."""
        asked = (self.requests[row.request_id].sampling_params for row in self._rows)
        return any(unsupported_sampling(params) or params.min_tokens for params in asked)

    def _verify(self, row: Row, choices: list[int]) -> Verdict:
        if row.layout is None:
            return Verdict((), (choices[row.first_logit],))
        tree, spread = row.layout.tree, self._spread_choices(row, choices)
        verdict = verify(tree, spread)
        self.step_log.depth[row.request_id] = depth_tried(tree, spread, verdict.path)
        self.step_log.matched[row.request_id] = len(verdict.path)
        return verdict

    def _spread_choices(self, row: Row, choices: list[int]) -> tuple[int, ...]:
        """The choices of a row's nodes, NO_CHOICE where no logits were computed."""
        spread = [NO_CHOICE] * len(row.layout.tree)
        for offset, node in enumerate(row.nodes):
            spread[node] = choices[row.first_logit + offset]
        return tuple(spread)

    def _observe(self, row: Row, verdict: Verdict, choices: list[int], logits: torch.Tensor) -> None:
        drafting = self._drafting_of(row.request_id)
        if drafting is None:
            return
        if row.layout is not None:
            tree, spread = row.layout.tree, self._spread_choices(row, choices)
        else:
            state = self.requests[row.request_id]
            last = (state.output_token_ids or state.prompt_token_ids)[-1]
            tree, spread = TokenTree.root(last), (choices[row.first_logit],)
        top_k = None
        if wanted := drafting.strategy.wants_top_k:
            best = self.largest(logits[row.first_logit : row.first_logit + len(row.nodes)], wanted)
            by_node = dict(zip(row.nodes, map(tuple, best.tolist())))
            top_k = tuple(by_node.get(node, ()) for node in range(len(tree)))
        drafting.strategy.observe(Step(tree, spread, verdict.path, verdict.tokens, top_k))


def strategy_of(params: SamplingParams | None) -> StrategySpec | None:
    """The method that a request asked for; None if it asked for none or can't be verified as a tree."""
    if params is None or not params.extra_args or unsupported_sampling(params):
        return None
    spec = params.extra_args.get(STRATEGY_ARGUMENT)
    return StrategySpec(**spec) if spec else None


def _padded(tokens: list[tuple[int, ...]], device: torch.device) -> torch.Tensor:
    """Emitted tokens as int32 [num_requests, longest], -1 where a row is shorter."""
    longest = max(map(len, tokens))
    rows = [[*row, *[-1] * (longest - len(row))] for row in tokens]
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _spread(sampling: SamplingMetadata, owner: list[int]) -> SamplingMetadata:
    """Sampling parameters for several rows of logits per request: row i belongs to ``owner[i]``."""

    def pick(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values[owner]

    return replace(
        sampling,
        temperature=pick(sampling.temperature),
        all_greedy=False,
        all_random=True,
        top_p=pick(sampling.top_p),
        top_k=pick(sampling.top_k),
        generators={
            row: sampling.generators[request] for row, request in enumerate(owner) if request in sampling.generators
        },
        max_num_logprobs=None,
        no_penalties=True,
        output_token_ids=[[] for _ in owner],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=type(sampling.logitsprocs)(),
    )
