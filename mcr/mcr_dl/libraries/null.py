# SPDX-License-Identifier: Apache-2.0
"""The descriptor of the backend ``null``, which moves no data."""

from __future__ import annotations

from mcr_dl.libraries.descriptor import Library


class Null(Library):
    """For measurements of mcr_dl itself."""

    measured = False


LIBRARY = Null("null")
