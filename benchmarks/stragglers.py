"""Passes on many workers, simulated: slow and lost ones, beside the arithmetic of ``docs/large_tables.md``.

    python -m uv run python benchmarks/stragglers.py  # about a minute

Nothing of the package runs here: the rules are those by which `pymc_dp.tables.on_dask` asks. Each worker has one block.
The client hands out one after the other, `HAND_OUT` seconds each, and waits for all. The work on a block takes a
log-normal time of mean `WORK`, independent of other blocks and passes. A worker is lost after an exponential time; then
every block is asked again, `NOTICE` seconds later, and that of the lost worker is read before, in `LOAD` seconds.
"""

import numpy as np
from scipy.integrate import trapezoid
from scipy.stats import lognorm

#: Ten million rows at 30 nanoseconds; a millisecond of scheduling; how often the client looks; reading a block.
WORK, HAND_OUT, NOTICE, LOAD = 0.3, 1e-3, 1.0, 2.0
PASSES = 2000


def law_of(spread):
    """Return the law of a block's time, whose logarithm has the standard deviation `spread`."""
    return lognorm(s=spread, scale=WORK * np.exp(-(spread**2) / 2))


def expected(n_workers, spread, lifetime):
    """Return the expected seconds of a pass: until the slowest block is there, and once more if a worker is lost."""
    begins = HAND_OUT * np.arange(n_workers)
    times = np.linspace(0.0, begins[-1] + law_of(spread).isf(1e-6 / n_workers), 2000)
    not_all = [-np.expm1(law_of(spread).logcdf(time - begins).sum()) for time in times]
    slowest = trapezoid(not_all, times)
    lost = -np.expm1(-n_workers * slowest / lifetime)
    again = NOTICE + max(slowest, begins.mean() + LOAD + WORK)
    return (1 - lost) * slowest + lost * (slowest / 2 + again)


def simulated(generator, n_workers, spread, lifetime):
    """Return the seconds of each of `PASSES` passes."""
    begins, found = HAND_OUT * np.arange(n_workers), np.zeros(PASSES)
    for place in range(PASSES):
        load = np.zeros(n_workers)
        while True:
            took = np.max(begins + load + law_of(spread).rvs(n_workers, random_state=generator))
            lost_at = generator.exponential(lifetime / n_workers)
            found[place] += min(took, lost_at)
            if lost_at > took:
                break
            found[place] += NOTICE
            load[generator.integers(n_workers)] = LOAD
    return found


def main():
    generator = np.random.default_rng(1)
    print("| workers | spread | a worker is lost after | work + latency | expected | simulated: mean | 99 of 100 |")
    print("|---|---|---|---|---|---|---|")
    for n_workers in (100, 1000):
        for spread in (0.05, 0.3, 0.6, 1.0):
            for hours in (1000, 10):
                passes = simulated(generator, n_workers, spread, 3600 * hours)
                print(
                    f"| {n_workers} | {spread} | {hours} hours | {WORK + HAND_OUT * n_workers:.2f} s | "
                    f"{expected(n_workers, spread, 3600 * hours):.2f} s | {passes.mean():.2f} ± "
                    f"{passes.std() / PASSES**0.5:.2f} s | {np.quantile(passes, 0.99):.2f} s |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
