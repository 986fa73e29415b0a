# SPDX-License-Identifier: Apache-2.0
"""Views of the log: summaries, trace files, and formats for other tools (docs/logging.md).

>>> mcr_dl.set_passes(["log"])
>>> with mcr_dl.trace.region("step"):
...     train()
>>> mcr_dl.log_summary(show_straggler=True)
>>> mcr_dl.trace.save("traces")                                   # then: mcr-trace merge traces -o trace.json
"""

from mcr_dl.trace._configure import configure
from mcr_dl.trace._files import Trace, read, read_all
from mcr_dl.trace._log_summary import log_summary
from mcr_dl.trace._regions import Region, region, regions
from mcr_dl.trace.saving import save

__all__ = [
    "Region",
    "Trace",
    "configure",
    "log_summary",
    "read",
    "read_all",
    "region",
    "regions",
    "save",
]


def __dir__() -> list[str]:
    """The public names, without the modules that have them."""
    return sorted(__all__)
