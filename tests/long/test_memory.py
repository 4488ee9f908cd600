#!/usr/bin/env python3
"""Allocations that fail (tests/memory/allocations.py): 500 of each command's; arguments: the
beginnings of the names of these commands alone."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "memory"))
import allocations  # noqa: E402

sys.exit(allocations.main(500, sys.argv[1:]))
