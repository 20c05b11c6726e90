"""Converts the default model into the cache, so that the first benchmark starts at once."""

import sys
from pathlib import Path

import yaml

from lookahead_bench.errors import InputError
from lookahead_bench.models import resolve_model

CONFIG = Path(__file__).resolve().parent.parent / "conf" / "model" / "smollm2-135m.yaml"

if __name__ == "__main__":
    try:
        resolve_model(yaml.safe_load(CONFIG.read_text()))
    except InputError as error:
        sys.exit(str(error))
