# SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH of `make sanitize`: an editable install's finder would hide the package that PYTHONPATH names."""

import sys

sys.meta_path[:] = [each for each in sys.meta_path if "mcr_dl" not in type(each).__module__]
