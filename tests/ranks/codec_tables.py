# SPDX-License-Identifier: Apache-2.0
"""Compress("auto") on calls of real groups, as recorded in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import mcr_dl
from mcr_dl import passes
from mcr_dl.records import log
from mcr_dl.testing.expect import expect
from ranks import session

Outcome = tuple[str | None, str | None]  # codec and candidate


def _recorded(call: Callable[[], Any]) -> Outcome:
    seen = max((record.number for record in log.records()), default=0)
    call()
    (record,) = log.records(since=seen + 1)
    return record.codec, record.backend


def _start(path: str, *chain: Any) -> None:
    session.stop()
    mcr_dl.init_process_group(["mpi", "gloo"], tuning_table=path)
    mcr_dl.set_passes(["log", *chain])


def _all_reduce(count: int, dtype: torch.dtype = torch.float32, **keywords: Any) -> Outcome:
    tensor = torch.ones(count, dtype=dtype)
    outcome = _recorded(lambda: mcr_dl.all_reduce(tensor, **keywords))
    assert bool((tensor == mcr_dl.get_world_size()).all())
    return outcome


def by_size(path: str, codecs: list[str], sizes: list[int], backend: str | None) -> list[Outcome]:
    """all_reduces of float32 at these sizes in bytes."""
    _start(path, passes.Compress("auto", codecs=codecs))
    outcomes = [_all_reduce(nbytes // 4, backend=backend) for nbytes in sizes]
    session.stop()
    return outcomes


def by_kind(path: str) -> dict[str, Outcome]:
    """Calls of 2 MiB of many kinds."""
    _start(path, passes.Compress("auto", codecs=["bf16"], smallest=8 << 20))
    count, gloo, size = 1 << 19, {"backend": "gloo"}, mcr_dl.get_world_size()
    outcomes = {"too small": _all_reduce(count, **gloo), "asked": _all_reduce(count, **gloo, codec="auto")}
    mcr_dl.set_passes(["log", passes.Compress("auto", ["broadcast"], codecs=["bf16"])])
    outcomes["not in ops"] = _all_reduce(count, **gloo)
    mcr_dl.set_passes(["log", passes.Compress("auto", codecs=["bf16"])])
    outcomes["default"] = _all_reduce(count, **gloo)
    outcomes["none"] = _all_reduce(count, **gloo, codec="none")
    outcomes["another"] = _all_reduce(count, **gloo, codec="fp16")
    outcomes["integers"] = _all_reduce(count, torch.int32, **gloo)
    outcomes["bfloat16"] = _all_reduce(2 * count, torch.bfloat16, **gloo)
    values = torch.ones(count)
    outcomes["not measured"] = _recorded(lambda: mcr_dl.broadcast(values, 0, **gloo))
    counts, out = [count] * size, torch.empty(count * size)
    outcomes["a total"] = _recorded(lambda: mcr_dl.all_gatherv(out, values, counts, **gloo))
    outcomes["unknown size"] = _recorded(lambda: mcr_dl.all_to_allv(out, out.clone(), counts, counts, **gloo))
    session.stop()
    return outcomes


def explained(path: str, question: tuple[str, int]) -> dict[str, str]:
    """The answers of explain, with several chains."""
    _start(path)
    said = {"without": str(mcr_dl.explain(*question))}
    for codecs in (["bf16"], ["fp16"]):
        mcr_dl.set_passes([passes.Compress("auto", codecs=codecs)])
        said[codecs[0]] = str(mcr_dl.explain(*question))
    mcr_dl.set_passes([passes.Compress("bf16")])
    said["named"] = str(mcr_dl.explain(*question))
    session.stop()
    return said


def errors() -> None:
    """codec="auto" needs a group that has codecs to choose from."""
    _start("none")
    tensor, invalid = torch.ones(10), mcr_dl.InvalidArgumentError

    def call() -> None:
        mcr_dl.all_reduce(tensor, codec="auto")

    expect(invalid, call, "all_reduce (group", "'auto'", "set_passes")
    mcr_dl.set_passes([passes.Compress("bf16")])
    expect(invalid, call, "all_reduce (group", "'auto'", "codecs=", "got codec 'bf16'")
    mcr_dl.set_passes([passes.Compress("auto", codecs=["bf16"])])
    call()  # nothing was measured: not compressed
    assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 10
    mine = ["bf16", "int8"] if mcr_dl.get_rank() == 0 else ["bf16"]
    expect(invalid, lambda: mcr_dl.set_passes([passes.Compress("auto", codecs=mine)]), "passes", "codecs")
    session.stop()
