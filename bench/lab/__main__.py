# SPDX-License-Identifier: Apache-2.0
"""``python bench/lab ...``"""

import sys
from pathlib import Path

if not __package__:  # run as a folder: the package is in the folder above
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
