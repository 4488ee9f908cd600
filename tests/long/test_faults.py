#!/usr/bin/env python3
"""The fault sweep (tests/fault/sweep.py) at every k; arguments: these commands alone."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fault"))
import sweep  # noqa: E402

sys.exit(sweep.main(None, sys.argv[1:]))
