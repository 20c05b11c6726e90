"""Draws one draft of each method into docs/trees: ``python tools/draw_trees.py [FOLDER]``.

The drafts are those of the real strategy objects while the default model continues PROMPT greedily,
each at the first step that accepts most. Equal versions of the libraries give equal files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import torch
import yaml
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from transformers import AutoModelForCausalLM

from lookahead_bench.models import load_tokenizer, resolve_model
from lookahead_bench.strategy import Step, make_strategy
from lookahead_bench.tree import TokenTree
from lookahead_bench.verify import NO_CHOICE, verify

ROOT = Path(__file__).resolve().parent.parent
PROMPT = (
    "def area_of_square(side):\n    return side * side\n\n"
    "def area_of_circle(radius):\n    return 3.14 * radius * radius\n\n"
    "def area_of_rectangle("
)
NEW_TOKENS = 16
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "lookahead": ("lookahead", {"window": 3, "ngram": 4, "branches": 2}),
    "prompt_lookup": ("prompt_lookup", {}),
    "suffix": ("suffix", {}),
    "token_recycling": ("token_recycling", {}),
}
"""File name to method and parameters; what is left out is the method's default."""

STYLES = {
    "last accepted token": {"fc": "#000000", "ec": "#000000", "lw": 1.0, "ls": "-"},
    "accepted": {"fc": "#9ad0f0", "ec": "#000000", "lw": 2.2, "ls": "-"},
    "candidate": {"fc": "#ffffff", "ec": "#000000", "lw": 1.0, "ls": "-"},
    "window": {"fc": "#eeeeee", "ec": "#555555", "lw": 1.0, "ls": "--"},
}


class Target:
    """The default model in float32 as a function of the context."""

    def __init__(self) -> None:
        source = resolve_model(yaml.safe_load((ROOT / "conf/model/smollm2-135m.yaml").read_text()))
        self.tokenizer = load_tokenizer(source)
        self._model = AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32)

    @torch.inference_mode()
    def step(self, text: Sequence[int], tree: TokenTree, top_k: int) -> Step:
        """Verify ``tree`` below ``text``, whose last token is its root, in one pass."""
        past = len(text) - 1
        allowed = torch.ones(past + len(tree), past + len(tree), dtype=torch.bool).tril()
        allowed[past:, past:] = torch.from_numpy(tree.mask())
        logits = self._model(
            torch.tensor([[*text[:-1], *tree.tokens]]),
            attention_mask=torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))[None, None],
            position_ids=torch.tensor([[*range(past), *(past + depth for depth in tree.depths)]]),
            use_cache=False,
            logits_to_keep=len(tree),
        ).logits[0]
        choices, ranked = [NO_CHOICE] * len(tree), [()] * len(tree)
        for node, wanted in enumerate(tree.wants_logits):
            if wanted:
                ranked[node] = tuple(logits[node].topk(max(1, top_k)).indices.tolist())
                choices[node] = ranked[node][0]
        verdict = verify(tree, choices)
        return Step(tree, tuple(choices), verdict.path, verdict.tokens, tuple(ranked) if top_k else None)


def best_step(target: Target, name: str, parameters: dict[str, object]) -> Step:
    """The first of the steps that accept most nodes within NEW_TOKENS tokens."""
    method = make_strategy(name, **parameters)
    text = target.tokenizer.encode(PROMPT)
    end = len(text) + NEW_TOKENS
    method.begin(tuple(text))
    steps = [target.step(text, TokenTree.root(text[-1]), method.wants_top_k)]
    while True:
        text += steps[-1].emitted
        method.observe(steps[-1])
        if len(text) >= end:
            return max(steps, key=lambda step: len(step.path))
        steps.append(target.step(text, method.draft(method.max_drafts), method.wants_top_k))


def kind(step: Step, node: int) -> str:
    """Which of STYLES a node has. A window's node is one without logits, or the end of a column below one."""
    tree = step.tree
    if node == 0:
        return "last accepted token"
    if node in step.path:
        return "accepted"
    inner = not tree.wants_logits[node] or not tree.wants_logits[tree.parents[node]]
    return "window" if inner else "candidate"


def rows_of(tree: TokenTree) -> list[float]:
    """A row for each node: leaves one below the other, a parent in the middle of its children."""
    children: list[list[int]] = [[] for _ in tree.tokens]
    for node, parent in enumerate(tree.parents[1:], start=1):
        children[parent].append(node)
    rows = [0.0] * len(tree)
    leaves = 0

    def place(node: int) -> None:
        nonlocal leaves
        for child in children[node]:
            place(child)
        if children[node]:
            rows[node] = (rows[children[node][0]] + rows[children[node][-1]]) / 2
        else:
            rows[node], leaves = float(leaves), leaves + 1

    place(0)
    return rows


def draw(step: Step, tokenizer, path: Path) -> None:
    """Write the picture of one verified draft."""
    tree, depths, rows = step.tree, step.tree.depths, rows_of(step.tree)
    figure = Figure(figsize=(1.5 + 1.5 * (1 + max(depths)), 1.0 + 0.38 * (1 + max(rows))))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, max(depths) + 0.5), ylim=(max(rows) + 1.6, -0.6))
    axes.axis("off")
    for node, parent in enumerate(tree.parents):
        style = STYLES[kind(step, node)]
        if node:
            axes.plot(
                [depths[parent], depths[node]], [rows[parent], rows[node]], color=style["ec"], lw=style["lw"],
                ls=style["ls"], zorder=1,
            )
        axes.text(
            depths[node], rows[node], repr(tokenizer.decode([tree.tokens[node]])).replace("$", r"\$"), ha="center", va="center",
            family="DejaVu Sans Mono", fontsize=8, color="white" if node == 0 else "black",
            bbox={"boxstyle": "round", **style}, zorder=2,
        )
    shown = {kind(step, node) for node in range(len(tree))}
    marks = [
        Line2D([], [], marker="s", ms=9, lw=0, mfc=style["fc"], mec=style["ec"], mew=style["lw"], label=label)
        for label, style in STYLES.items()
        if label in shown
    ]
    axes.legend(handles=marks, loc="lower center", ncols=len(marks), frameon=False, fontsize=8)
    with matplotlib.rc_context({"svg.hashsalt": "trees", "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None})


def draw_all(folder: Path) -> None:
    """Write one SVG for each of METHODS."""
    folder.mkdir(parents=True, exist_ok=True)
    target = Target()
    for title, (name, parameters) in METHODS.items():
        draw(best_step(target, name, parameters), target.tokenizer, folder / f"{title}.svg")


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "trees")
