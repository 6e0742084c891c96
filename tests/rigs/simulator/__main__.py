"""The command line ``python -m tests.rigs.simulator``: see scripts/prove/simulate."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import click

from tests.kit.reaper import close_reaper
from tests.kit.servers import Engine, engines
from tests.rigs.simulator.families.shards import both_staged
from tests.rigs.simulator.families.simulation import FamilySimulation
from tests.rigs.simulator.planted import MUTANTS, planted
from tests.rigs.simulator.simulation import Failed, Plant, Simulation, staged


@click.command()
@click.option("--seeds", metavar="A..B", help="All from A to B.")
@click.option("--seed", type=int, help="This one.")
@click.option("--trace", is_flag=True, help="Print every step.")
@click.option(
    "--mutant", type=click.Choice(list(MUTANTS)), metavar="NAME", help="With this bug planted."
)
@click.option("--engine", type=click.Choice([each.name for each in engines()]), default="valkey")
@click.option("--families", is_flag=True, help="Parents and their children, on two servers.")
@click.option("--failures", default=5, show_default=True, help="Stop after so many.")
def main(
    seeds: str | None,
    seed: int | None,
    mutant: str | None,
    engine: str,
    failures: int,
    *,
    trace: bool,
    families: bool,
) -> None:
    """Run seeds of the simulator. Exits with 0 if every promise holds for every seed."""
    logging.disable(logging.CRITICAL)
    if (seeds is None) == (seed is None):
        raise click.UsageError("give --seeds A..B, or --seed N")
    chosen = [seed] if seed is not None else list(_between(seeds or ""))
    by_name = {each.name: each for each in engines()}
    with (
        _world(by_name[engine], families=families) as make,
        planted(mutant) if mutant is not None else nullcontext(Plant()) as plant,
    ):
        failed = _run(make, chosen, plant, failures, trace=trace)
    close_reaper()
    raise SystemExit(1 if failed else 0)


@contextmanager
def _world(engine: Engine, *, families: bool) -> Iterator[Callable[..., Simulation]]:
    """Start the servers, and yield the function that makes the simulation of a seed."""
    if families:
        with both_staged(engine) as stages:
            yield partial(FamilySimulation, stages)
    else:
        with staged(engine) as stage:
            yield partial(Simulation, stage)


def _between(text: str) -> range:
    first, found, last = text.partition("..")
    if not (found and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise click.UsageError(f"--seeds takes A..B, not {text}")
    return range(int(first), int(last) + 1)


def _run(
    make: Callable[..., Simulation],
    seeds: list[int],
    plant: Plant,
    failures: int,
    *,
    trace: bool,
) -> int:
    began, cpu, steps, failed, done = time.monotonic(), time.process_time(), 0, 0, 0
    events: Counter[str] = Counter()
    for seed in seeds:
        simulation = make(seed, plant=plant, on_step=click.echo if trace else lambda _line: None)
        done += 1
        try:
            result = simulation.run()
        except Failed as failure:
            failed += 1
            click.echo(f"FAILED {simulation.profile.name}, {simulation.policy.name}: {failure}")
            if failed >= failures:
                break
        else:
            steps += result.steps
            events.update(result.counts)
            if len(seeds) == 1:
                click.echo(f"{result.profile}, {result.policy}, digest {result.digest}")
    told = ", ".join(f"{count:,} {name}" for name, count in events.most_common())
    click.echo(
        f"{done:,} seeds, {failed} failed, {steps:,} steps, {time.monotonic() - began:.0f} s"
        f" ({time.process_time() - cpu:.0f} s of CPU without the server's)\n{told}"
    )
    return failed


if __name__ == "__main__":
    main()
