"""The queue M/D/1: Poisson arrivals, one server, every service takes the same time. Waits are in units of a service."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext

#: Beyond this wait the sum has more terms than anybody waits for.
_LONGEST = 1000.0
_SPARE_DIGITS = 80


def md1_mean_wait(load: float) -> float:
    """E[W] = load / (2 (1 - load)) (Pollaczek-Khinchine, constant service). Raises ValueError unless 0 <= load < 1."""
    _check_load(load)
    return load / (2.0 * (1.0 - load))


def md1_wait_sd(load: float) -> float:
    """Standard deviation of W: Var W = E[W]^2 + load / (3 (1 - load)) (Takacs' second moment). Raises ValueError."""
    _check_load(load)
    return math.sqrt(md1_mean_wait(load) ** 2 + load / (3.0 * (1.0 - load)))


def md1_cdf(load: float, wait: float) -> float:
    """P(W <= wait). Raises ValueError unless 0 <= load < 1 and wait <= 1000.

    A. K. Erlang (1909): F(t) = (1 - load) sum_{k=0}^{floor t} e^{-x} x^k / k! with x = load (k - t). The terms
    alternate and grow as e^(2 load t) while the sum stays below 1, so it takes decimals of 80 digits and more.
    """
    _check_load(load)
    if not wait <= _LONGEST:
        raise ValueError(f"a wait of {wait} services is beyond {_LONGEST:g}")
    if wait < 0.0:
        return 0.0
    with localcontext(Context(prec=_SPARE_DIGITS + int(wait))):
        exact_load, t = Decimal(load), Decimal(wait)
        total, factorial = Decimal(0), Decimal(1)
        for k in range(int(wait) + 1):
            factorial *= k or 1
            x = exact_load * (k - t)
            total += (-x).exp() * (x**k if k else Decimal(1)) / factorial
        return float((1 - exact_load) * total)


def md1_quantile(load: float, p: float) -> float:
    """The least wait t with P(W <= t) >= p, to 1e-9; 0 where the share that does not wait, 1 - load, is enough.

    Raises ValueError unless 0 <= load < 1 and 0 <= p < 1.
    """
    _check_load(load)
    if not 0.0 <= p < 1.0:
        raise ValueError(f"no quantile at {p}")
    if p <= 1.0 - load:
        return 0.0
    low, high = 0.0, 1.0
    while md1_cdf(load, high) < p:
        low, high = high, 2.0 * high
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        low, high = (middle, high) if md1_cdf(load, middle) < p else (low, middle)
    return high


def _check_load(load: float) -> None:
    if not 0.0 <= load < 1.0:
        raise ValueError(f"a load of {load} has no steady state")
