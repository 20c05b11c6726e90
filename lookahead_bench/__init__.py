"""Benchmarks of lookahead decoding and other draft-free methods on vLLM."""
