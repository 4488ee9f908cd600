#!/usr/bin/env python3
"""The fault sweep (tests/fault/sweep.py), thinned out to two and a half minutes."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fault"))
import sweep  # noqa: E402

sys.exit(sweep.main(150))
