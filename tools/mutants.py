"""Privacy bugs, each a small change of the package, and the tests that convict it: the mutation score.

    python tools/mutants.py                # all of them: prints the table and the score
    python tools/mutants.py refund seed    # those whose name or class holds one of the words

Each is applied by itself to a copy of the package in a temporary folder, and its tests are run there. It is convicted
if a test fails; one that survives, or whose text no longer stands in the package exactly once, is an error. The tests
are first run on the package as it is: a test that fails anyway convicts nobody. `mutants_table.py` has the list, and
`lint/test_mutants.py` checks the texts alone.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import arviz  # noqa: F401  what every test imports, once for all forks; not pymc_dp itself
import hypothesis  # noqa: F401
import pymc  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
from mutants_table import MUTANTS, ROOT, Mutant, where

_SECONDS = 900


def _pytest(folder: Path, tests: tuple[str, ...], cache: Path) -> tuple[int, str]:
    """Run tests in a fork of this process, which has imported what takes long; return how pytest ended, and why."""
    process = os.fork()
    if not process:
        code = 99
        try:
            output = os.open(folder / "output", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(folder)
            sys.pycache_prefix = tempfile.mkdtemp(dir=folder)  # a mutant may have the size and second of another
            os.environ |= {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(cache)}
            os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
            sys.path.insert(0, str(folder))
            options = ["-n", "0", "-x", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:doctest", "-o", "addopts="]
            options += ["--hypothesis-seed=0"]  # the same examples in every run
            code = int(pytest.main([*options, *(f"tests/{test}" for test in tests)]))
        finally:
            sys.stdout.flush()
            os._exit(code)
    began = time.monotonic()
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() - began > _SECONDS:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return -1, "took too long"
        time.sleep(0.1)
    lines = (folder / "output").read_text(errors="replace").splitlines()
    why = next((line[1:].strip() for line in lines if line.startswith("E ")), lines[-1] if lines else "")
    return os.waitstatus_to_exitcode(ended[1]), why


def convicted(mutant: Mutant, folder: Path, cache: Path) -> tuple[bool, str]:
    """Apply a mutant to the package in `folder`, run its tests, take it back."""
    path = folder / "pymc_dp" / mutant.file
    original = path.read_text()
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        compile(path.read_text(), path, "exec")
        # A kernel that was compiled into another is not compiled anew when its own file changes.
        fresh = Path(tempfile.mkdtemp(dir=folder)) if mutant.file.startswith("rows/") else cache
        code, why = _pytest(folder, mutant.tests, fresh)
    finally:
        path.write_text(original)
    return code == 1, why if code == 1 else f"pytest ended with {code}: {why}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("words", nargs="*", help="only mutants whose name or class holds one of these words")
    parser.add_argument("--no-baseline", action="store_true", help="do not first run the tests on the package as it is")
    asked = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS if not asked.words or any(word in f"{m.sort}: {m.name}" for word in asked.words)]
    misplaced = [m for m in chosen if where(m) != 1]
    for mutant in misplaced:
        print(f"TEXT STANDS {where(mutant)} TIMES in {mutant.file}: {mutant.sort}: {mutant.name}")
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        left_out = shutil.ignore_patterns("__pycache__", "*.ipynb", "_build", "_generated")
        for part in ("pymc_dp", "tests", "tools", "benchmarks", "docs", "notebooks"):
            shutil.copytree(ROOT / part, folder / part, ignore=left_out)
        shutil.copy(ROOT / "pyproject.toml", folder)
        cache = folder / "cache"
        if not asked.no_baseline:
            tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
            code, why = _pytest(folder, tests, cache)
            if code != 0:
                print(f"The tests fail on the package as it is: {why}")
                return 1
        survived = []
        for mutant in chosen:
            if mutant in misplaced:
                continue
            began = time.monotonic()
            found, why = convicted(mutant, folder, cache)
            if not found:
                survived.append(mutant)
            verdict = "convicted" if found else "SURVIVED "
            print(
                f"{verdict} {mutant.sort}: {mutant.name} | {time.monotonic() - began:.0f} s | {why[:140]}", flush=True
            )
    finally:
        shutil.rmtree(folder)
    print(f"{len(chosen) - len(survived) - len(misplaced)} of {len(chosen)} convicted, {len(survived)} survived")
    return int(bool(survived or misplaced))


if __name__ == "__main__":
    sys.exit(main())
