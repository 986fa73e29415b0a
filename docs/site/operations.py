# SPDX-License-Identifier: Apache-2.0
"""An extension of griffe: the operations of ``mcr_dl``, which the stub ``_C.pyi`` has as overloads alone.

The reference shows one signature for each, the one with ``async_op: bool``, with the docstring of the first overload.
"""

from __future__ import annotations

from typing import Any

import griffe


class Operations(griffe.Extension):
    """Makes a function of the overloads of each operation."""

    def on_module_members(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Add the functions to ``mcr_dl._C``."""
        del kwargs
        if mod.path != "mcr_dl._C":
            return
        for name, overloads in mod.overloads.items():
            if overloads:
                function = next((each for each in overloads if self.general(each)), overloads[0])
                function.docstring = overloads[0].docstring
                for parameter in function.parameters:
                    if parameter.name == "op" and str(parameter.default) == "...":
                        parameter.default = "ReduceOp.SUM"  # a stub has no values of other packages
                mod.set_member(name, function)

    @staticmethod
    def general(function: griffe.Function) -> bool:
        """Whether this overload is of a blocking and of an asynchronous call."""
        return any(each.name == "async_op" and str(each.annotation) == "bool" for each in function.parameters)
