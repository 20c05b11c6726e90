"""Prompts: where they come from, which are taken, and how they become token ids."""

from lookahead_bench.data.encode import encode_turn
from lookahead_bench.data.prompts import data_digest, load_prompts

__all__ = ["data_digest", "encode_turn", "load_prompts"]
