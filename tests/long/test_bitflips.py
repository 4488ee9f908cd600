#!/usr/bin/env python3
"""10,000 single-bit flips, at least 300 in each stratum (tests/scripts/bitflips.py)."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scripts"))
import bitflips  # noqa: E402

sys.exit(bitflips.main(10000, 300))
