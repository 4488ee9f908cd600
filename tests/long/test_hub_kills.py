#!/usr/bin/env python3
"""tests/scripts/test_hub_resume.py with 200 kills and 40 power cuts."""
import os
import pathlib
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "scripts/test_hub_resume.py"
os.execv(sys.executable, [sys.executable, str(SCRIPT), "--kills", "200", *sys.argv[1:]])
