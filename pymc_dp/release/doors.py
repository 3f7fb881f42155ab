"""One door for each planned chain and not one more, however many processes hold a copy of this object."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pymc_dp.exceptions import NoPlan
from pymc_dp.release.door import MeteredDoor
from pymc_dp.release.noise import NoiseSource


class Doors:
    """Opens the doors of one run that has been charged.

    PyMC restores a step's state between chains and copies it into workers, so nothing that counts may live in
    it. Chains claim their door by creating a file, which only one process can do for each name, in a folder
    that lasts as long as the run.

    Parameters
    ----------
    make_door : callable
        Makes a door, given its source of noise as ``noise=``. It has to be picklable.
    noise : NoiseSource
        Where the noise comes from.
    chains : int
        How many doors may be opened.
    """

    def __init__(self, make_door: Callable[..., MeteredDoor], noise: NoiseSource, chains: int) -> None:
        self._make_door = make_door
        self._noise = noise
        self._chains = chains
        self._folder = Path(tempfile.mkdtemp(prefix="pymc_dp-run-"))

    def open(self, key: tuple[int, ...]) -> MeteredDoor:
        """Return the door of one more chain, whose noise stream (if it is seeded at all) is `key`'s.

        Raises
        ------
        NoPlan
            If all planned chains have started, or the run is over.
        """
        for chain in range(self._chains):
            try:
                os.close(os.open(self._folder / f"chain-{chain}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            except FileNotFoundError:
                raise NoPlan("The run that was paid for is over. Call pm.sample again to plan a new one.") from None
            return self._make_door(noise=self._noise.for_chain(key))
        raise NoPlan(
            f"All {self._chains} chains that were paid for have started; one more would not be covered. "
            "Call pm.sample with the number of chains you need."
        )

    def close(self) -> None:
        """End the run: no copy of this object can open a door any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        return f"Doors(chains={self._chains})"
