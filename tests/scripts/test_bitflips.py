#!/usr/bin/env python3
"""500 single-bit flips, stratified, all found and named (bitflips.py)."""
import sys

import bitflips

sys.exit(bitflips.main(500, 20))
