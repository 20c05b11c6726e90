"""What pass@1 says, in sentences; pure functions of a summary."""

from __future__ import annotations

import pandas as pd

from lookahead_bench.report.words import cell_labels, plural


def pass_at_1(summary: pd.DataFrame) -> list[str]:
    """Per data set: plain decoding's pass@1, every cell that differs from it, and answers that were cut short."""
    if "pass_at_1" not in summary:
        return []
    sentences = []
    for dataset, cells in summary.groupby("dataset", sort=False):
        cells = cells.assign(name=cell_labels(cells))
        run = cells[cells["pass_at_1"].notna()]
        if run.empty:
            continue
        others = run[~run["is_baseline"].astype(bool)]
        changed = others[(others["passes_gained"] > 0) | (others["passes_lost"] > 0)]
        base = run[run["is_baseline"].astype(bool)]
        shown = base if len(base) else run
        said = [f"{line['name']} {_rate(line)}" for line in shown.to_dict("records")]
        if len(base) and len(others):
            same = len(others) - len(changed)
            said.append(f"every answer of {plural(same, 'other method')} passes where plain decoding's does")
        sentences.append(f"{dataset}: pass@1: " + "; ".join(said) + ".")
        sentences += [
            f"{dataset}: pass@1: {line['name']} {_rate(line)}, {plural(int(line['passes_gained']), 'answer')} gained and "
            f"{int(line['passes_lost'])} lost against plain decoding."
            for line in changed.to_dict("records")
        ]
        cut = int(run["answers_cut"].max())
        if cut:
            sentences.append(
                f"{dataset}: up to {plural(cut, 'answer')} of a method ended at the limit of tokens "
                "(decode.max_new_tokens), perhaps in the middle of the code: pass@1 is lower than the model's own for that."
            )
    return sentences


def _rate(line: dict[str, object]) -> str:
    whole = f"{line['pass_at_1']:.1%} of {plural(int(line['problems_tested']), 'problem')}"
    if pd.isna(line["pass_at_1_low"]):
        return f"solves {whole}"
    return f"solves {whole} (95 % interval {line['pass_at_1_low']:.1%} to {line['pass_at_1_high']:.1%})"
