# SPDX-License-Identifier: Apache-2.0
"""Themis in the simulator: the paper's figures 5 and 8 to 12, the authors' simulator, and machines of today.

Nothing is measured but the time to plan: all times of collectives are simulated. Writes docs/results/themis.md and
themis.json, and charts in docs/images.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

import script
import themis_charts
from mcr_dl import _C
from mcr_dl.networks.plans import CHUNKS, best
from mcr_dl.schedule.themis import Network, Plan, plan
from themis_networks import (
    FIGURE_5,
    GAINS,
    MACHINES,
    MB,
    TOPOLOGIES,
    WITH_LATENCY,
    WORKLOADS,
    bound,
    first_dimensions,
    without_latency,
)
from themis_report import markdown

POLICIES = ("baseline", "themis-fifo", "themis-scf")
CHUNK_COUNT = 64  # the paper's
IN_FLIGHT = 8  # with latencies, unless said otherwise
FIGURE_10 = ("3D-SW_SW_SW_hetero", "4D-Ring_FC_Ring_SW")
WINDOW = 100_000_000  # ps: figure 9's period of 100 µs


def all_reduce(network: Network, nbytes: int, policy: str, chunks: int = CHUNK_COUNT, in_flight: int = 1) -> Plan:
    """A plan of an all_reduce, the operation of the paper's figures."""
    return plan(network, "all_reduce", nbytes, policy=policy, chunks=chunks, in_flight=in_flight)


def _row(network: Network, nbytes: int, in_flight: int) -> dict[str, Any]:
    plans = {policy: all_reduce(network, nbytes, policy, in_flight=in_flight) for policy in POLICIES}
    times = {policy: each.makespan_us for policy, each in plans.items()}
    used = {policy: round(100 * each.utilization, 2) for policy, each in plans.items()}
    gains = {policy: round(times["baseline"] / times[policy], 4) for policy in POLICIES[1:]}
    return {"us": {policy: round(each, 3) for policy, each in times.items()}, "utilization": used, "speedup": gains}


def figure_5() -> dict[str, float]:
    """The makespan of each policy in units."""
    return {policy: all_reduce(FIGURE_5, 256 * MB, policy, 4).makespan_us / 1000 for policy in POLICIES}


def bandwidth_only() -> dict[str, Any]:
    """The six topologies without latencies; utilizations do not depend on the size."""
    found = {}
    for name, network in TOPOLOGIES.items():
        found[name] = _row(without_latency(network), 1000 * MB, 1)
        found[name]["bound"] = round(bound(network), 4)
    return found


def with_latency(sizes: list[int], depths: Iterable[int]) -> list[dict[str, Any]]:
    """The six topologies with Table 2's latencies: a row for each size (MB) and number of steps in flight."""
    return [
        {"topology": name, "mb": size, "in_flight": depth, **_row(network, size * MB, depth)}
        for depth in depths
        for name, network in TOPOLOGIES.items()
        for size in sizes
    ]


def auto_gains(sizes: list[int], depths: Iterable[int]) -> list[dict[str, Any]]:
    """``auto`` by the baseline with its best number of chunks."""
    rows = []
    for depth in depths:
        for name, network in TOPOLOGIES.items():
            for size in sizes:
                chosen = plan(network, "all_reduce", size * MB, in_flight=depth)
                base = best(network, "all_reduce", size * MB, POLICIES[:1], CHUNKS, depth)
                gain = round(base.makespan / chosen.makespan, 4)
                where = {"topology": name, "mb": size, "in_flight": depth}
                rows.append({**where, "policy": chosen.policy, "chunks": chosen.chunks, "gain": gain})
    return rows


def activity(network: Network, policy: str) -> list[list[float]]:
    """Figure 9: of each dimension, the share of each 100 µs in which it has a chunk, waiting or in transfer."""
    found = all_reduce(without_latency(network), 1000 * MB, policy)
    windows = -(-found.makespan // WINDOW)
    shares = []
    for k in range(1, len(network.dimensions) + 1):
        spans = sorted((step.ready, step.end) for step in found.steps if step.dimension == k)
        busy, reached = [0] * windows, 0
        for ready, end in spans:
            start = max(ready, reached)
            for window in range(start // WINDOW, min(windows, end // WINDOW + 1)):
                inside = min(end, (window + 1) * WINDOW) - max(start, window * WINDOW)
                busy[window] += max(0, inside)
            reached = max(reached, end)
        last = found.makespan - (windows - 1) * WINDOW
        shares.append([round(time / (last if i == windows - 1 else WINDOW), 3) for i, time in enumerate(busy)])
    return shares


def granularity(counts: list[int]) -> list[dict[str, Any]]:
    """Figure 10: 100 MB, by the number of chunks, in the mean of two topologies."""
    rows = []
    for chunks in counts:
        for way, depth in (("bandwidth only", 1), ("latencies", 64)):
            networks = [TOPOLOGIES[name] for name in FIGURE_10]
            networks = [without_latency(each) for each in networks] if depth == 1 else networks
            used = {
                policy: round(
                    100
                    * statistics.mean(
                        all_reduce(each, 100 * MB, policy, chunks, depth).utilization for each in networks
                    ),
                    2,
                )
                for policy in POLICIES
            }
            rows.append({"chunks": chunks, "network": way, "utilization": used})
    return rows


def workloads() -> list[dict[str, Any]]:
    """Figure 12's communication: one collective of each workload on each topology, and at full bandwidth."""
    rows = []
    for work in WORKLOADS:
        for name, whole in TOPOLOGIES.items():
            network = whole if work.most_ranks is None else first_dimensions(whole, work.most_ranks)
            found = _row(network, work.nbytes, IN_FLIGHT)
            chosen = plan(network, "all_reduce", work.nbytes, in_flight=IN_FLIGHT)
            base = all_reduce(without_latency(network), work.nbytes, "baseline")
            ideal = base.makespan_us * base.utilization
            found["us"] |= {"auto": round(chosen.makespan_us, 3), "ideal": round(ideal, 3)}
            rows.append({"workload": work.name, "bytes": work.nbytes, "topology": name, "us": found["us"]})
    return rows


def machines() -> list[dict[str, Any]]:
    """The possible gains on networks of today, without latencies."""
    rows = []
    for name, network in MACHINES.items():
        base = best(network, "all_reduce", 1000 * MB, POLICIES[:1])
        first, *others = network.dimensions
        inner, spare = 1, False
        for k, each in enumerate(others):
            inner *= network.dimensions[k].size
            spare = spare or first.gbps < inner * each.gbps
        gain = {
            policy: round(base.makespan / plan(network, "all_reduce", 1000 * MB, policy=policy).makespan, 3)
            for policy in ("themis-scf", "auto")
        }
        rows.append({"machine": name, "spare": spare, "bound": round(bound(network), 3), **gain})
    return rows


def speed(rounds: int) -> dict[str, float]:
    """Milliseconds of processor time to plan an all_reduce of 512 chunks in 4 dimensions.

    The median over the four-dimensional networks and all policies, the slowest case, and ``auto`` over all policies and
    numbers of chunks.
    """
    networks = [each for each in TOPOLOGIES.values() if len(each.dimensions) == 4]
    single, search = [], []
    for turn in range(rounds):
        for network in networks:
            for depth in (1, IN_FLIGHT):
                nbytes = 101 * MB + turn  # plans are memoised
                for policy in POLICIES:
                    start = time.process_time()
                    all_reduce(network, nbytes, policy, 512, depth)
                    single.append((policy, depth, network, time.process_time() - start))
                start = time.process_time()
                plan(network, "all_reduce", nbytes, in_flight=depth)
                search.append(time.process_time() - start)
    of_case: dict[Any, list[float]] = {}
    for policy, depth, network, seconds in single:
        of_case.setdefault((policy, depth, network), []).append(seconds)
    slowest = max(statistics.median(each) for each in of_case.values())
    return {
        "plan_ms": round(1000 * statistics.median(each[3] for each in single), 2),
        "slowest_plan_ms": round(1000 * slowest, 2),
        "auto_ms": round(1000 * statistics.median(search), 2),
    }


def general(network: Network) -> dict[str, float]:
    """Milliseconds that the general simulator takes for a plan's chunks; SystemExit if it finds another makespan."""
    found = all_reduce(without_latency(network), 101 * MB, "themis-scf", 512)
    model = _C.CostModel()
    for k in range(len(network.dimensions)):
        link = model.add_resource(f"dimension {k}", slots=1)
        model.add_cost("issue", str(k), "broadcast", per_mib=1 << 20, demands=[(link, 1024)])
    schedules = [_C.Schedule() for _ in found.orders]
    last: dict[int, list[int]] = {}
    for step in sorted(found.steps, key=lambda each: (each.chunk, each.index)):
        nbytes = step.end - step.start  # one for each picosecond
        issued = schedules[step.chunk].issue("broadcast", nbytes, last.get(step.chunk, []), step.dimension - 1)
        last[step.chunk] = [issued]
    jobs = [_C.Job(each, parts=[(str(k), 0) for k in range(len(network.dimensions))]) for each in schedules]
    start = time.process_time()
    end = _C.simulate(model, jobs, [[0, 1]], order="shortest", in_order=False)["end"]
    seconds = time.process_time() - start
    if end != found.makespan:
        raise SystemExit(f"the general simulator takes {end} ps, the plan {found.makespan}")
    return {"general_ms": round(1000 * seconds, 1)}


def main() -> None:
    """Simulate and report."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--rounds", type=int, default=15, help="plans of each kind that are timed")
    given = script.parse(parser, rounds=1)
    sizes = [100, 1000] if given.smoke else [100, 250, 500, 1000]
    depths = [1, IN_FLIGHT] if given.smoke else list(WITH_LATENCY)
    homo = TOPOLOGIES["3D-SW_SW_SW_homo"]
    document = {
        "conditions": "simulated; decimal units; no contention between dimensions",
        "chunks": CHUNK_COUNT,
        "figure_5_units": figure_5(),
        "bandwidth_only": bandwidth_only(),
        "latencies": with_latency(sizes, depths),
        "auto": auto_gains(list(GAINS[1]), depths),
        "figure_9": {policy: activity(homo, policy) for policy in POLICIES},
        "figure_10": granularity([4, 64] if given.smoke else [1 << power for power in range(2, 10)]),
        "figure_12": workloads(),
        "machines": machines(),
        "planning": speed(given.rounds) | general(TOPOLOGIES["4D-Ring_FC_Ring_SW"]),
    }
    script.publish(given, "themis", document, markdown, themis_charts.draw)


if __name__ == "__main__":
    main()
