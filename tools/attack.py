"""The attacks that are too long for every change, from the command line.

::

    python -m uv run python tools/attack.py replay --pairs 3000
    python -m uv run python tools/attack.py audit --runs 10000

Each prints a table and ends with exit code 1 where something was found. `ATTACKS` names the subcommands.
"""

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "steps"))  # samplers.py

import numpy as np
from audit import SURVEYS, Audit, all_audits, audited, audited_survey, broken_audits
from neighbours import neighbours_of
from replay import replay
from zoo import GAUSSIAN, REGRESSION, ZOO, Case, samplers_for

from pymc_dp.accounting import RELATIONS

#: Where chains start, and how loud answers are that lead them on, in turn.
_PLACES: tuple[dict[str, float], ...] = (
    {},
    {"start_scale": 30.0},
    {"loudness": 300.0},
    {"start_scale": 1e3, "loudness": 1e-3},
    {"start_scale": 5.0, "loudness": 10.0},
)


def table_of(columns: list[str], rows: list[list[Any]]) -> str:
    """Return a table in Markdown."""
    texts = [[f"{each:.3g}" if isinstance(each, float) else str(each) for each in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *texts]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# Record and replay ---------------------------------------------------------------------------------------------


def _combinations(only: str) -> list[tuple[Case, Any, str]]:
    return [
        (case, sampler, relation)
        for case in (REGRESSION, GAUSSIAN, *ZOO)
        for sampler in samplers_for(case)
        for relation in sampler.relations
        if only in f"{case} {sampler} {relation}"
    ]


def replays(arguments: argparse.Namespace) -> int:
    """Replay every sampler on every model, under every relation."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    furthest: dict[tuple[str, str], float] = defaultdict(float)
    found: list[str] = []
    combinations = _combinations(arguments.only)
    each = max(1, round(arguments.pairs / len(combinations)))
    begin = time.perf_counter()
    done = 0
    # Round by round, so that a run that is ended early has seen every combination.
    for round_ in itertools.count():
        if done >= arguments.pairs or round_ * arguments.per_run >= each:
            break
        for case, sampler, relation in combinations:
            seed = arguments.seed + 1000 * round_
            rng = np.random.default_rng(seed)
            table = case.table(rng)
            count = min(arguments.per_run, each - round_ * arguments.per_run)
            report = replay(
                case.build,
                table,
                neighbours_of(table, relation, rng, count, case.unit),
                sampler,
                relation=relation,
                unit_index=case.unit,
                epsilon=50.0,
                seed=seed,
                **_PLACES[round_ % len(_PLACES)],
            )
            key = (sampler.name, relation)
            done += len(report.comparisons)
            counts[key] += Counter(
                {
                    "pairs": len(report.comparisons),
                    "releases": sum(one.releases for one in report.comparisons),
                    "moved": report.moved,
                    "violations": len(report.violations),
                    "refused": bool(report.refused),
                }
            )
            furthest[key] = max([furthest[key], *(one.largest for one in report.comparisons)])
            where = f"{case}, {sampler}, {relation}, seed {seed}"
            found += [f"{where}: {violation}" for violation in report.violations]
            if report.refused:
                found.append(f"{where}: refused: {report.refused}")
            if arguments.verbose:
                print(f"{where}: {len(report.comparisons)} pairs, {len(report.violations)} violations", flush=True)
    names = ("pairs", "releases", "moved", "violations", "refused")
    rows: list[list[Any]] = [[*key, *(counts[key][name] for name in names), furthest[key]] for key in sorted(counts)]
    rows.append(["all", "", *(sum(each[name] for each in counts.values()) for name in names), max(furthest.values())])
    columns = ["sampler", "relation", *names, "furthest, of what was declared"]
    print(table_of(columns, rows))
    print(f"\n{len(combinations)} combinations, {time.perf_counter() - begin:.0f} s")
    for each_found in found:
        print("FOUND", each_found)
    return int(bool(found))


# Audit ---------------------------------------------------------------------------------------------------------


def audits(arguments: argparse.Namespace) -> int:
    """Prove lower bounds on epsilon, for samplers and surveys under every relation, and convict broken ones."""
    wanted = [*all_audits(), *itertools.product(SURVEYS, RELATIONS)]
    # All bounds hold together: each may be wrong with an equal part of what may go wrong.
    confidence = 1.0 - (1.0 - arguments.confidence) / len(wanted)
    columns = ["sampler", "relation", "claimed epsilon", "delta", "lower bound", "runs", "seconds"]
    print(f"Lower bounds that hold together with confidence {arguments.confidence}, each with {confidence:.5f}\n")
    print(table_of(columns, []), flush=True)

    def show(audit: Audit) -> None:
        row = [audit.sampler, audit.relation, audit.claimed, audit.delta, audit.least, audit.runs, round(audit.seconds)]
        print(table_of(columns, [row]).splitlines()[-1], flush=True)

    found = []
    for sampler, relation in wanted:
        if arguments.only and f"{sampler} {relation}" not in arguments.only.split(","):
            continue
        audit_of = audited_survey if isinstance(sampler, str) else audited
        audit = audit_of(sampler, relation, arguments.runs, confidence)
        show(audit)
        found += [f"CONVICTED {sampler} {relation}"] if audit.convicted else []
    if not arguments.only or "broken" in arguments.only.split(","):
        for audit in broken_audits(arguments.runs, confidence):
            show(audit)
            found += [] if audit.convicted else [f"NOT CONVICTED, but broken: {audit.sampler}"]
    for line in found:
        print(line)
    return int(bool(found))


# The command line ----------------------------------------------------------------------------------------------


def _replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=1000, help="pairs of neighbours, over all combinations")
    parser.add_argument("--per-run", type=int, default=4, help="neighbours of one first run")
    parser.add_argument("--only", default="", help="a part of 'model sampler relation'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=10_000, help="of each sampler and survey, on both tables together")
    parser.add_argument("--confidence", type=float, default=0.95, help="of all bounds together")
    parser.add_argument(
        "--only", default="", help="'sampler relation', 'survey relation' or 'broken', several separated by commas"
    )


#: Subcommand: what it does, and its arguments.
ATTACKS: dict[str, tuple[Callable[[argparse.Namespace], int], Callable[[argparse.ArgumentParser], None]]] = {
    "replay": (replays, _replay_arguments),
    "audit": (audits, _audit_arguments),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest="attack", required=True)
    for name, (attack, add_arguments) in ATTACKS.items():
        add_arguments(subparsers.add_parser(name, help=(attack.__doc__ or "").splitlines()[0]))
    return parser


def main(given: list[str] | None = None) -> int:
    """Run one attack; return what the process should end with."""
    arguments = _parser().parse_args(given)
    warnings.simplefilter("ignore")
    return ATTACKS[arguments.attack][0](arguments)


if __name__ == "__main__":
    sys.exit(main())
