# SPDX-License-Identifier: Apache-2.0
"""``mcr-tune``, and the calls about what ``auto`` chooses. The tables themselves are in ``mcr_dl.tables``.

``cli`` is the command. ``tuner`` starts ranks that measure (``worker``), ``launched`` measures in those of a launcher;
``show``, ``plot``, ``diff`` and ``simulate`` present tables and networks. ``explain`` says why ``auto`` chooses a
candidate, ``refine`` tries others while a program runs, and ``costs`` gives the costs of schedules.
"""
