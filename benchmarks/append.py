"""Measures appending alone, as ratios to what SQLite itself does in the same minute: `python -m benchmarks.append`.

The same as `python -m benchmarks --only append`, and takes the same options.
"""

from __future__ import annotations

import sys

from benchmarks.__main__ import main

if __name__ == "__main__":
    main(["--only", "append", *sys.argv[1:]])
