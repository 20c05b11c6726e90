"""Kernels of the project's own in C++, built where they are used and kept in the cache."""

