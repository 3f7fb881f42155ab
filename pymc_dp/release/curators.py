"""One curator for each planned chain and not one more, however many processes hold a copy of this object."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pymc_dp.accounting import Releases
from pymc_dp.exceptions import NoPlan
from pymc_dp.release.curator import MeteredCurator
from pymc_dp.release.noise import NoiseSource


class Curators:
    """Opens the curators of one run that has been charged.

    PyMC restores a step's state between chains and copies it into workers, so nothing that counts may live in
    it. Chains claim their curator by creating a file, which only one process can do for each name, in a folder
    that lasts as long as the run.

    Parameters
    ----------
    make_curator : callable
        Makes a curator, given its source of noise as ``noise=``, how many releases of each kind it may make as
        ``allowance=`` and which of them were paid for one by one as ``scheduled=``. It has to be picklable.
    noise : NoiseSource
        Where the noise comes from.
    chains : int
        How many curators may be opened.
    allowance : mapping of str to int
        What one chain releases.
    allowance_once : mapping of str to int
        What is released before the chains start.
    scheduled, scheduled_once : sequence of Releases
        Which of the two were paid for on batches, or with noise that changes.
    """

    def __init__(
        self,
        make_curator: Callable[..., MeteredCurator],
        noise: NoiseSource,
        chains: int,
        allowance: Mapping[str, int],
        allowance_once: Mapping[str, int] | None = None,
        *,
        scheduled: Sequence[Releases] = (),
        scheduled_once: Sequence[Releases] = (),
    ) -> None:
        self._make_curator = make_curator
        self._noise = noise
        self._chains = chains
        # What chains were paid for covers nothing that is released before them, and the other way round.
        self._in_chain = {"allowance": dict(allowance), "scheduled": tuple(scheduled)}
        self._once = {"allowance": dict(allowance_once or {}), "scheduled": tuple(scheduled_once)}
        self._folder = Path(tempfile.mkdtemp(prefix="pymc_dp-run-"))

    def open(self, key: tuple[int, ...]) -> MeteredCurator:
        """Return the curator of one more chain, whose noise stream (if it is seeded at all) is `key`'s.

        Raises
        ------
        NoPlan
            If all planned chains have started, or the run is over.
        """
        for chain in range(self._chains):
            if self._claim(f"chain-{chain}"):
                return self._make_curator(noise=self._noise.for_chain(key), **self._in_chain)
        raise NoPlan(
            f"All {self._chains} chains that were paid for have started; one more would not be covered. "
            "Call pm.sample with the number of chains you need."
        )

    def open_once(self) -> MeteredCurator:
        """Return the curator of what is released once, before the chains start.

        Raises
        ------
        NoPlan
            If it has been opened, or the run is over.
        """
        if not self._claim("once"):
            raise NoPlan("What this run releases before its chains has been released.")
        # No chain's key begins with a number as large as this one.
        return self._make_curator(noise=self._noise.for_chain((2**32 - 1,)), **self._once)

    def _claim(self, name: str) -> bool:
        """Create a file; return False if it is there already."""
        try:
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise NoPlan("The run that was paid for is over. Call pm.sample again to plan a new one.") from None
        return True

    def close(self) -> None:
        """End the run: no copy of this object can open a curator any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        return f"Curators(chains={self._chains})"
