#!/usr/bin/env python3
"""tests/scripts/test_hostile_sources.py with the larger bombs."""
import os
import pathlib
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "scripts/test_hostile_sources.py"
os.execv(sys.executable, [sys.executable, str(SCRIPT), "--long", *sys.argv[1:]])
