"""Write docs/configuration.md from the typed configuration and the files of conf/: ``python tools/write_configuration.py``.

Defaults and meanings come from the YAML files and their comments, types and allowed values from the
dataclasses, which are asked for them with a value that none allows.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from lookahead_bench import settings
from lookahead_bench.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
CONF = ROOT / "conf"
PAGE = ROOT / "docs" / "configuration.md"
# Group, its class, and the file and block of it that hold the defaults.
TYPED = (
    ("decode", settings.DecodeConfig, "config.yaml", "decode"),
    ("run", settings.RunConfig, "config.yaml", "run"),
    ("engine", settings.EngineConfig, "engine/cpu.yaml", None),
    ("quality", settings.QualityConfig, "config.yaml", "quality"),
    ("tracking", settings.TrackingConfig, "tracking/wandb.yaml", None),
)
GROUPS = {
    "model": "`model=NAME`; any other value is taken as a local folder or a hub id.",
    "dataset": "`dataset=NAME`, or several: `dataset=[humaneval,mt_bench]`. See [data_sets.md](data_sets.md).",
    "engine": "`engine=NAME`. `cuda` changes what it lists, the rest is as `cpu` has it.",
    "sweep": "`+sweep=NAME`. Lists are given as `sweep.ngram=[2,3]`.",
    "strategy": "`strategy=NAME`; its parameters are `strategy.KEY`, and `methods.NAME.KEY` where it is only compared with. "
    "What they mean is in [methods.md](methods.md).",
}
IMPOSSIBLE = object()
HEAD = """\
# Configuration

Every key that a run has. Keys are given on the command line as `key=value`; an unknown key or a value that is not allowed is refused in one
line, before a model is loaded.

```console
$ .venv/bin/python -m lookahead_bench --cfg job
$ .venv/bin/python -m lookahead_bench +sweep=ngram decode.max_new_tokens=64 run.repeats=2 run.dry=true
```

This page is written by `python tools/write_configuration.py` from the typed configuration (`lookahead_bench/settings.py`) and
the files of `conf/`.
"""


def page() -> str:
    """The page as text."""
    parts = [HEAD, _top()]
    parts += [_typed(*group) for group in TYPED]
    parts += [_group(name, about) for name, about in GROUPS.items()]
    return "\n".join(parts)


def _top() -> str:
    lines = ["## Of the whole run", "", "| key | default | meaning |", "|---|---|---|"]
    comments = {"sweep": "what is swept, chosen with `+sweep=NAME`; null: the one cell that `strategy` describes"}
    comments["baselines"] = "methods that are always measured beside it; `vllm`, which all are compared with, always is"
    written = _comments(CONF / "config.yaml", None) | _comments(CONF / "config.yaml", "dataset", "dataset.")
    comments |= {key: text for key, text in written.items() if text}
    config = yaml.safe_load((CONF / "config.yaml").read_text())
    values = {key: config[key] for key in ("sweep", "baselines", "results_dir")}
    values |= {f"dataset.{key}": value for key, value in config["dataset"].items() if key != "sources"}
    return "\n".join([*lines, *(_line(key, value, comments[key]) for key, value in values.items()), ""])


def _typed(name: str, kind: type, file: str, block: str | None) -> str:
    loaded = yaml.safe_load((CONF / file).read_text())
    defaults = loaded[block] if block else loaded
    comments = _comments(CONF / file, block)
    lines = [f"## {name}", "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        allowed = _allowed(kind, defaults, field.name)
        lines.append(_line(f"{name}.{field.name}", defaults[field.name], allowed, comments[field.name]))
    return "\n".join([*lines, ""])


def _allowed(kind: type, defaults: dict[str, Any], key: str) -> str:
    """What the class says of a value that it can't take."""
    try:
        kind(**{**defaults, key: IMPOSSIBLE})
    except ConfigError as error:
        return error.allowed if defaults[key] is not None or error.allowed.startswith("null") else f"null or {error.allowed}"
    raise ValueError(f"{kind.__name__} takes anything as {key}")


def _group(name: str, about: str) -> str:
    parts = [f"## Options of {name}", "", about, ""]
    for path in sorted((CONF / name).glob("*.yaml")):
        text = re.sub(r"^# @package _global_\n", "", path.read_text())
        parts += [f"`{path.stem}`", "", "```yaml", text.rstrip(), "```", ""]
    return "\n".join(parts)


def _comments(path: Path, block: str | None, prefix: str = "") -> dict[str, str]:
    """The comment on the line of each key: of those below ``block``, or of the file's own keys.

    Raises:
        ValueError: a key there has none.
    """
    lines = path.read_text().splitlines()
    indent = ""
    if block:
        start = lines.index(f"{block}:") + 1
        end = next((place for place in range(start, len(lines)) if re.match(r"\S", lines[place])), len(lines))
        lines, indent = lines[start:end], "  "
    found = {}
    for line in lines:
        match = re.match(rf"{indent}(\w+):\s*(.*?)(?:\s+#\s*(.*))?$", line)
        if match and (match[2] or match[3]):
            found[prefix + match[1]] = match[3] or ""
    if block and not all(found.values()):
        bare = [key for key, text in found.items() if not text]
        raise ValueError(f"{path.relative_to(ROOT)}: a comment is missing: {', '.join(bare)}")
    return found


def _line(key: str, default: object, *texts: str) -> str:
    shown = yaml.safe_dump(default, default_flow_style=True, width=999).replace("\n...", "").strip()
    return "| " + " | ".join([f"`{key}`", f"`{shown}`", *(text.replace("|", "\\|") for text in texts)]).replace("<", "&lt;") + " |"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page(), encoding="utf-8")
    print(target)
