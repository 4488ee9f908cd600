#!/usr/bin/env python3
"""bench_memory.py with 30 GB as well; wants 70 GB of free disk."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.exit(subprocess.call([sys.executable, os.path.join(HERE, "bench_memory.py"), "--big"]))
