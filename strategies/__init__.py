"""Drafting methods, one file each. A module in this folder registers itself by decorator."""
