# SPDX-License-Identifier: Apache-2.0
"""Compression: codecs keep their bounds, and compressed calls equal decoding the encoded parts."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mcr_dl
from codings import around, assert_equal
from harness import Pools, launchers
from mcr_dl import passes
from mcr_dl.examples import moe
from ranks import codec_faults, compress, session

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
TINY = 1.1754944e-38 * 127  # below it, a block of int8 is zero
COUNTS = [0, 1, 17, 1001]

backends = pytest.mark.parametrize("backend", session.BACKENDS)


@pytest.mark.parametrize(("codec", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_16_bit_codecs_are_torchs_casts(codec: str, dtype: torch.dtype) -> None:
    """All values of the type survive; all halfway points and their neighbors round as torch's casts do."""
    exact = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).float()
    assert_equal(around(exact, codec), exact)
    bits = exact.view(torch.int32)
    for step in (1, 2**11, 2**12, 2**12 + 1, 2**14, 2**15 - 1, 2**15, 2**15 + 1):
        near = (bits + step).view(torch.float32)
        assert_equal(around(near, codec), near.to(dtype).float())
        assert_equal(around(near.double(), codec), near.to(dtype).double())
    assert passes.encode(exact, codec).numel() == 2 * exact.numel()


def _int8_bound(values: torch.Tensor, block: int) -> None:
    got = around(values, f"int8:block={block}")
    for part, result in zip(values.split(block), got.split(block), strict=True):
        if not bool(part.isfinite().all()):
            assert bool(result.isnan().all())
            continue
        most = float(part.abs().max())
        if most < TINY:
            assert bool((result == 0).all())
            assert not bool(torch.signbit(result).any())
        else:
            assert float((result.double() - part.double()).abs().max()) <= most / 127 * 0.5001
            assert bool((result[part == 0] == 0).all())


@settings(deadline=None, max_examples=200)
@given(st.lists(FLOATS, min_size=1, max_size=40), st.integers(8, 20))
def test_int8_bound(values: list[float], block: int) -> None:
    """Half a scale in every finite block; NaN in every other; zero where the scale would be subnormal."""
    _int8_bound(torch.tensor(values), block)


@settings(deadline=None, max_examples=100)
@given(st.lists(FLOATS, min_size=1, max_size=40), st.sampled_from(["float32", "float64"]))
def test_zfp_bound(values: list[float], dtype: str) -> None:
    """The tolerance is kept; a part with a non-finite value is NaN; a part of zeros stays zero."""
    tensor = torch.tensor(values, dtype=getattr(torch, dtype))
    got = around(tensor, "zfp:tolerance=1e-3")
    rated = around(tensor, "zfp:rate=16")
    if not bool(tensor.isfinite().all()):
        assert bool(got.isnan().all())
        assert bool(rated.isnan().all())
        return
    # An absolute error below the type's own precision is impossible.
    allowed = max(1e-3, float(tensor.abs().max()) * (2.0**-20 if dtype == "float32" else 2.0**-48))
    assert float((got.double() - tensor.double()).abs().max()) <= allowed
    # Rounding may overflow; it never changes a sign.
    large = tensor.abs() > torch.finfo(tensor.dtype).max / 2
    assert bool(rated[~large].isfinite().all())
    assert bool((torch.signbit(rated[large]) == torch.signbit(tensor[large])).all())
    if not bool(tensor.any()):
        assert not bool(rated.any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [1, 1.3, 2, 2.25, 2.5, 4, 8, 16, 20])
def test_zfp_rate(rate: float, dtype: torch.dtype) -> None:
    """The rate determines the size, whatever the values; smooth data keeps the error that the rate allows."""
    for count in (1, 3, 4, 5, 64, 1001):
        smooth = torch.linspace(0, 3, count, dtype=dtype).sin()
        sizes = {passes.encode(values, f"zfp:rate={rate}").numel() for values in (smooth, torch.zeros_like(smooth))}
        assert len(sizes) == 1
        assert sizes.pop() <= 8 + max(64, max(rate, 3) * (count + 4) / 8 + 8)
        around(smooth, f"zfp:rate={rate}")
        if rate >= 16:
            assert float((around(smooth, f"zfp:rate={rate}") - smooth).abs().max()) < 2.0 ** (4 - rate + 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zfp_tolerance_of_large_values(dtype: torch.dtype) -> None:
    """None becomes infinite."""
    largest = torch.finfo(dtype).max
    generator = torch.Generator().manual_seed(3)
    for share in (1e-6, 1e-3, 0.1):
        values = (torch.rand(400, generator=generator, dtype=dtype) * 2 - 1).sign() * largest
        got = around(values, f"zfp:tolerance={min(largest * share, 1e300)}")
        assert bool(got.isfinite().all())


def _guarded(data: torch.Tensor) -> torch.Tensor:
    """A copy of bytes that ends where memory cannot be read."""
    pages = -(-data.numel() // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = torch.frombuffer(mmap.mmap(-1, pages + mmap.PAGESIZE), dtype=torch.uint8)
    guard = ctypes.c_void_p(memory.data_ptr() + pages)
    assert ctypes.CDLL(None).mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return memory[pages - data.numel() : pages].copy_(data)


@pytest.mark.parametrize("codec", ["bf16", "int8", "zfp:rate=8", "zfp:tolerance=1e-3"])
def test_wrong_encoded_data(codec: str) -> None:
    """Too few bytes, too many, and other tensors than those of bytes are errors, and nothing is read behind them."""
    like = torch.ones(1000)
    encoded = passes.encode(like, codec)
    for wrong in (encoded[:0], encoded[:3], torch.zeros(100_000, dtype=torch.uint8)):
        with pytest.raises(mcr_dl.McrError, match="encoded bytes"):
            passes.decode(_guarded(wrong), like, codec)
    if codec.startswith("zfp"):  # which has the number of elements in front of the data
        fewer = passes.encode(like[:4], codec)
        enough = torch.cat([fewer, torch.zeros(encoded.numel() - fewer.numel(), dtype=torch.uint8)])
        with pytest.raises(mcr_dl.BackendError, match=f"codec {codec}.*: expected 1000 encoded elements, got 4"):
            passes.decode(enough, like, codec)
    with pytest.raises(mcr_dl.InvalidTypeError, match="uint8"):
        passes.decode(encoded.float(), like, codec)
    with pytest.raises(mcr_dl.InvalidTypeError, match="on the CPU, got one on meta"):
        passes.encode(like.to("meta"), codec)


def test_data_that_is_cut_short() -> None:
    """A codec of variable size decodes it as if zeros followed, and reads nothing behind it."""
    like = torch.linspace(0, 100, 1_000_000).sin()
    codec = "zfp:tolerance=1e-6"
    short = passes.encode(like, codec)[:64]
    zeros = torch.zeros(4096, dtype=torch.uint8)
    assert_equal(passes.decode(_guarded(short), like, codec), passes.decode(torch.cat([short, zeros]), like, codec))


@pytest.mark.parametrize("codec", ["bf16", "fp16", "int8", "int8:block=1000", "zfp:rate=8", "zfp:tolerance=1e-3"])
def test_adversarial_values(codec: str) -> None:
    """The decoded value is near the original or as specified: zeros, subnormals, the largest, NaN, infinity."""
    largest, tiny = torch.finfo(torch.float32).max, torch.finfo(torch.float32).smallest_normal / 4
    zeros = torch.zeros(100)
    assert not bool(around(zeros, codec).any())
    small = torch.full((100,), tiny)
    assert float(around(small, codec).abs().max()) <= tiny * 1.01
    big = torch.tensor([largest, -largest] * 10)
    result = around(big, codec)
    assert not bool(result.isnan().any())
    if codec == "fp16":
        assert bool(result.isinf().all())
    elif not codec.startswith("zfp"):
        # bf16 rounds values above its own largest number to infinity, as torch's cast does.
        assert_equal(result, big.bfloat16().float()) if codec == "bf16" else torch.testing.assert_close(result, big)
    for special in (math.nan, math.inf, -math.inf):
        mixed = torch.ones(100)
        mixed[50] = special
        result = around(mixed, codec)
        if codec in ("bf16", "fp16"):
            assert_equal(result, mixed)
        else:
            assert bool(result[50].isnan())
            assert bool((result.isnan() | (result == 1)).all())


def test_what_codecs_take() -> None:
    """A codec rejects types that it would not make smaller or could not preserve."""
    for codec, dtype in (
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("int8", "int32"),
        ("int8", "bool"),
        ("int8", "float8_e5m2"),
    ):
        with pytest.raises(mcr_dl.InvalidTypeError, match=f"{codec}.*"):
            passes.encode(torch.ones(3).to(getattr(torch, dtype)), codec)
    with pytest.raises(mcr_dl.InvalidArgumentError, match=r"expected one of .*bf16, .*fp16, .*int8.*zfp.*got 'gzip'"):
        passes.encode(torch.ones(3), "gzip")
    half = torch.randn(100).half()
    assert_equal(around(half, "int8"), around(half.float(), "int8").half())


@pytest.mark.parametrize("options", ["tolerance=1e-3", "feedback=a,tolerance=1e-3", "tolerance=1e-3,feedback=a"])
def test_bounds_of_zfp(options: str) -> None:
    """Whatever the order of the options."""
    bound = "1e-3 for each value, or the type's precision at the largest value nearby"
    assert passes.error_bound(f"zfp:{options}") == bound


def test_bounds() -> None:
    """A comma may follow the name, as in the codec of a call; each codec has a bound."""
    assert passes.error_bound("bf16,feedback=a") == "2^-8 of each value"
    assert all(passes.error_bound(_with_options(codec)) for codec in passes.known_codecs())
    with pytest.raises(mcr_dl.InvalidArgumentError, match=r"'bf61': expected one of .*bf16.*, got 'bf61'"):
        passes.error_bound("bf61")


def _with_options(codec: str) -> str:
    return f"{codec}:rate=8" if codec == "zfp" else codec


@pytest.mark.parametrize("codec", ["zfp", "zfp:tolerance=0", "zfp:rate=65", "int8:block=4", "bf16:x=1"])
def test_no_bounds_of_codecs_that_calls_refuse(codec: str) -> None:
    with pytest.raises(mcr_dl.InvalidArgumentError, match=codec.partition(":")[0]):
        passes.error_bound(codec)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("backend", [*session.BACKENDS, None])
@pytest.mark.parametrize("codec", ["bf16", "int8", "zfp:tolerance=1e-3"])
def test_operations(pools: Pools, world: int, backend: str | None, codec: str) -> None:
    """Every operation equals its definition, blocking and not."""
    dtypes = ["float32", "float64"] if codec == "int8" and backend == "mpi" else ["float32"]
    counts = COUNTS if backend is not None else [17]
    made = pools.get("processes", world).run(compress.matrix, codec, backend, counts, dtypes, list(compress.OPERATIONS))
    assert made == [len(compress.OPERATIONS) * 2 * len(counts) * len(dtypes)] * world


@pytest.mark.parametrize("codec", ["fp16", "zfp:rate=16", "int8:block=100"])
def test_other_codecs(pools: Pools, codec: str) -> None:
    """All operations with the other codecs, on one backend."""
    pools.get("processes", 3).run(
        compress.matrix, codec, "mpi", [1, 1001], ["float32"], ["all_reduce", "all_to_all", "all_gatherv", "broadcast"]
    )


@pytest.mark.parametrize("codec", ["bf16", "int8", "zfp:tolerance=1e-3"])
def test_reductions(pools: Pools, codec: str) -> None:
    """SUM, AVG, PRODUCT, MIN and MAX, with NaN and infinity among the values."""
    pools.get("processes", 3).run(compress.reductions, codec)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_tensors(pools: Pools, dtype: str) -> None:
    """They are summed in float32."""
    pools.get("processes", 2).run(compress.halves, dtype)


@backends
@pytest.mark.parametrize("world", [2, 3])
def test_in_flight(pools: Pools, world: int, backend: str) -> None:
    """Many pending calls, waited for in a different order on every rank."""
    codecs = ["bf16", "int8", "zfp:tolerance=1e-2"]
    pools.get("processes", world).run(compress.in_flight, backend, codecs, world, 120)


@backends
def test_blocking_after_started(pools: Pools, backend: str) -> None:
    """No rank keeps another's later phases from being issued."""
    pools.get("processes", 2).run(compress.blocking_after_started, backend)


@backends
@pytest.mark.parametrize("order", [["fuse", "compress"], ["compress", "fuse"]])
def test_with_fusion(pools: Pools, order: list[str], backend: str) -> None:
    """Either order gives the same values."""
    pools.get("processes", 2).run(compress.with_fusion, order, backend)


def test_by_group(pools: Pools) -> None:
    """Per call, per group, or not at all."""
    pools.get("processes", 2).run(compress.by_group)


def test_subgroups(pools: Pools) -> None:
    """Each group has its own chain."""
    pools.get("processes", 3).run(compress.subgroups)


def test_errors(pools: Pools) -> None:
    """Clear errors, with nothing sent."""
    pools.get("processes", 2).run(codec_faults.errors)
    pools.get("processes", 2).run(codec_faults.feedback_after_a_failed_call)
    pools.get("processes", 2).run(codec_faults.capacity_that_fails)


@backends
@pytest.mark.parametrize("world", [2, 3])
def test_failing_codec(pools: Pools, world: int, backend: str) -> None:
    """It fails its own call, of each operation, on every rank that needs its output, and on no other."""
    for fixed in (True, False):
        pools.get("processes", world).run(codec_faults.failing_codec, backend, fixed)


def test_feedback(pools: Pools) -> None:
    """The mean over many steps approaches the exact sum; without feedback its error stays."""
    for plain, fed in pools.get("processes", 2).run(compress.feedback):
        assert plain > 0.05
        assert fed < plain / 20


def test_demo(tmp_path: Path) -> None:
    """Training with compressed collectives reaches the uncompressed loss within the demo's tolerance."""
    chart = tmp_path / "moe.png"
    given = ["--codec", "bf16", "--codec", "zfp:rate=16", "--steps", "20", "--batch", "4", "--megabytes", "0.5"]
    given += ["--no-chart", "--chart", str(chart)]
    code, out, err = launchers.python("-m", "mcr_dl.examples.moe", *given, limit=100)
    assert code == 0, out + err
    modes = json.loads(chart.with_suffix(".json").read_text())["modes"]
    assert [each["mode"] for each in modes] == ["auto", "bf16", "zfp:rate=16"], out + err
    plain, *others = (each["loss_end"] for each in modes)
    assert plain < modes[0]["loss_start"] - 0.5
    assert all(0 < abs(each - plain) < moe.CODEC_TOLERANCE for each in others), modes
