"""Compares a rate limit that counts costs (such as tokens) with a naive token bucket, over very many virtual claims.

The functions of ``lua/include/caps/costs.lua`` decide each claim, in Lua 5.1 and on a virtual clock. A bucket in whole
numbers (``tests/rigs/naive_bucket.py``) computes when each claim may begin. Both must agree to the millisecond.

In half of the comparisons (*with truths*), each job afterwards reports its true cost, which is 0.3 to 3 times the
declared cost. The output has the sum of the true costs, as a part of the rate.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lupa import lua51

from tests.rigs.naive_bucket import Bucket

COSTS: Final = Path("lua/include/caps/costs.lua")
LIMITS: Final = ((90_000, 60_000, 90_000), (7, 100, 5), (1_000_000, 3_600_000, 100), (3, 1_000, 2))
"""Limits as (units, ms, burst): tokens a minute, a bucket that is full after 0.1 s, points an hour, and a slow rate."""
BEGIN_MS: Final = 1_800_000_000_000


class Compared(NamedTuple):
    """The result of the comparison under one limit."""

    claims: int
    wrong: int
    """Number of claims that began at a different millisecond than the token bucket says."""
    units: int
    """The sum of the true costs of all jobs."""
    ms: int
    """Virtual time (ms) from the first claim to the last."""


def functions(lua: Any) -> Any:
    """Return the functions of ``costs.lua`` as a Lua table."""
    text = COSTS.read_text(encoding="utf-8")
    names = ("acquire_cost", "correct_cost")
    code = f"{text}\nreturn {{{', '.join(f'{name} = {name}' for name in names)}}}"
    return lua.execute(code)


def scope_under(lua: Any, limit: Sequence[int]) -> Any:
    """Return the Lua table that ``scopes.lua`` makes for a new rate with this limit: (units, ms, burst)."""
    most, window_ms, burst = limit
    shape = lua.table(
        text=f"{most}/{window_ms}ms/{burst}", most=most, burst=burst, window_us=window_ms * 1000
    )
    return lua.table(limit=shape, unit="tokens", arrival_us=0, rest=0)


def compare(limit: Sequence[int], claims: int, rng: random.Random, *, truths: bool) -> Compared:
    """Compare the Lua rate with the token bucket under one limit, for ``claims`` claims.

    ``limit``: (units, ms, burst). Most claims are made as early as possible. Each costs up to 3 times the burst.
    ``truths``: whether jobs report a true cost that differs from the declared one.
    """
    lua = lua51.LuaRuntime()
    called, scope = functions(lua), scope_under(lua, limit)
    bucket, now_ms, wrong, units = Bucket(*limit), BEGIN_MS, 0, 0
    bucket.at_ms = now_ms
    for _ in range(claims):
        cost = rng.randint(1, 3 * limit[2])
        costs, opens_ms = f"tokens:{cost}", bucket.opens_ms(cost, now_ms)
        if opens_ms > now_ms:
            early = called.acquire_cost(scope, opens_ms - 1, costs)
            wrong += bool(early) or scope.resumes != opens_ms
            scope.resumes = None
            now_ms = opens_ms
        wrong += not called.acquire_cost(scope, now_ms, costs)
        bucket.take(cost, now_ms)
        now_ms += rng.choice((0, 0, 0, 1, limit[1] // 100))
        taken = round(cost * rng.uniform(0.3, 3)) if truths else cost
        if truths:
            called.correct_cost(scope, now_ms, taken - cost)
            bucket.correct(taken - cost, now_ms)
        units += taken
    return Compared(claims, wrong, units, now_ms - BEGIN_MS)


def reports(claims: int, seed: int) -> Iterator[tuple[str, Compared, float]]:
    """Yield, for each limit: its text, the comparison, and the true costs per window as a part of the limit."""
    for truths in (False, True):
        for limit in LIMITS:
            rng = random.Random(seed)  # noqa: S311 - no secret
            found = compare(limit, claims // (2 * len(LIMITS)), rng, truths=truths)
            share = found.units * limit[1] / (found.ms * limit[0])
            yield f"{'/'.join(map(str, limit))}{' with truths' if truths else ''}", found, share


def main(arguments: Sequence[str]) -> int:
    """Compare, and print a line for each limit. Return the exit status."""
    parser = argparse.ArgumentParser(prog="costs", description=__doc__)
    parser.add_argument("--claims", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    wrong = 0
    for name, found, share in reports(asked.claims, asked.seed):
        wrong += found.wrong
        print(f"{name:36} {found.claims:9,} claims, {found.wrong} wrong, {share:.3f} of the rate")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
