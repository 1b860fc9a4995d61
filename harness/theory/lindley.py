"""Lindley's recursion: when a single first-come-first-served server begins each service, exact in integer ns.

Source: D. V. Lindley, "The theory of queues with a single server", Proc. Camb. Phil. Soc. 48 (1952) 277-289:
W_{i+1} = max(0, W_i + S_i - (A_{i+1} - A_i)).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def lindley_starts(arrivals_ns: Int64Array, services_ns: Int64Array) -> Int64Array:
    """int64[n] ns: when service i begins, A_i + W_i. The server is free at first.

    arrivals_ns: int64[n], sorted. services_ns: int64[n], >= 0. Raises ValueError for unsorted or unlike arrays.
    """
    if len(arrivals_ns) != len(services_ns):
        raise ValueError(f"{len(arrivals_ns)} arrivals, {len(services_ns)} services")
    if len(arrivals_ns) == 0:
        return np.empty(0, dtype=np.int64)
    if (np.diff(arrivals_ns) < 0).any():
        raise ValueError("arrivals are not in order")
    # start_i = max over j <= i of A_j + (S_j + ... + S_{i-1}): the recursion unrolled
    done_before = np.concatenate(([0], np.cumsum(services_ns[:-1])))
    starts: Int64Array = np.maximum.accumulate(arrivals_ns - done_before) + done_before
    return starts


def lindley_waits(arrivals_ns: Int64Array, services_ns: Int64Array) -> Int64Array:
    """int64[n] ns: how long request i waits before its service, W_i. Raises as `lindley_starts`."""
    waits: Int64Array = lindley_starts(arrivals_ns, services_ns) - arrivals_ns
    return waits
