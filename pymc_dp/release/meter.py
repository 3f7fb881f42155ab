"""The counts of a curator: of the releases that are left, and of units that its releases have clipped.

Releases are counted down before rows are read. Counts of clipped units are themselves released, with noise. A second
release on the same batch would not be covered by the accounting: composition requires a fresh batch for each release.
Instead a unit's contribution may have further entries: the indicator that the unit is clipped, and, if the number of
units is protected, the indicator that the unit is in the batch, each times the weight w and the clip bound b. They
increase the sensitivity by a known factor (`count_factor` of `pymc_dp.release.batches`): from b to sqrt(1 + 2 w²) b if
a unit is added or removed, from 2b to sqrt(1 + (w / 2)²) 2b if a unit is replaced. The noise of the release grows by
the same factor. Means over many batches are precise: the noise of one count is about (noise multiplier) / w.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from pymc_dp.accounting import NO_NOISE, Releases
from pymc_dp.exceptions import BudgetExceeded
from pymc_dp.release.batches import Batches
from pymc_dp.release.interface import FloatArray, Release
from pymc_dp.release.noise import IntArray

#: The largest number of events that a refusal lists.
_SHOWN = 3


class Meter:
    """Counts down the releases of one curator.

    Every release uses up one count of an event in `paid` with its kind and batches and with no more noise. Without such
    an event it is refused. Releases `without_noise` are allowed for a budget of infinite epsilon only.
    """

    def __init__(self, paid: Sequence[Releases], *, without_noise: bool = False) -> None:
        self.without_noise = without_noise
        # Events with the most noise first, so that a release uses the cheapest event that covers it.
        self._paid = sorted(paid, key=lambda event: -event.noise_needed)
        self._left = [event.count for event in self._paid]

    def spend(
        self,
        kind: str,
        noise_multiplier: float,
        batches: Batches | None = None,
        *,
        adds_noise: bool = True,
        delta: float = 0.0,
    ) -> None:
        """Count one release, on `batches` or on all units; one above a threshold spends `delta`.

        Decisions add no noise, since the test itself is random: only events of decisions cover them, and these cover
        nothing else. A release that was not paid for raises `BudgetExceeded`.
        """
        left = [place for place, event in enumerate(self._paid) if event.kind == kind and self._left[place] > 0]
        if not left:
            raise BudgetExceeded(f"All planned releases of kind {kind!r} of this chain have been made.")
        if adds_noise and not noise_multiplier > NO_NOISE and not self.without_noise:
            raise BudgetExceeded(f"A release of kind {kind!r} was asked for without noise, which cannot be paid for.")
        for place in left:
            event = self._paid[place]
            alike = event.sampling is None if batches is None else batches.covered_by(event)
            alike = alike and event.adds_noise == adds_noise and delta * event.count <= event.of_thresholds
            if alike and noise_multiplier >= event.noise_needed:
                self._left[place] -= 1
                return
        raise BudgetExceeded(
            f"No release of kind {kind!r} with noise multiplier {noise_multiplier:.4g}, this threshold and "
            f"{'these batches' if batches is not None else 'on all units'} is left of what was paid for: "
            f"{', '.join(str(self._paid[place]) for place in left[:_SHOWN])}."
        )

    def __repr__(self) -> str:
        return f"Meter({[event.with_count(left) for event, left in zip(self._paid, self._left, strict=True) if left]})"


class ClipTally:
    """Exact counts of clipped units by kind of release, in the order of `kinds`, since the last reset. Confidential."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._clipped = dict.fromkeys(kinds, 0)
        self._releases = dict(self._clipped)

    def __len__(self) -> int:
        return len(self._clipped)

    def add(self, kind: str, n_clipped: int) -> None:
        """Add the clipped units of one release."""
        if kind in self._clipped:
            self._clipped[kind] += n_clipped
            self._releases[kind] += 1

    def taken(self, n_protected: int | None) -> tuple[list[int], list[int]]:
        """Return by kind the total of clipped units and the number of releases (at least 1), and reset both.

        The last entry is `n_protected`, the number of units if that is protected; None: it is public.
        """
        counts, releases = list(self._clipped.values()), [max(1, number) for number in self._releases.values()]
        self._clipped = dict.fromkeys(self._clipped, 0)
        self._releases = dict(self._clipped)
        return (counts, releases) if n_protected is None else ([*counts, n_protected], [*releases, 1])


class BatchCounts:
    """Counts that were released on batches since the last reset: functions of them have no privacy cost.

    The entries are the clipped units, and the number of units if that is protected.
    """

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self._made = 0
        self._variance = 0.0
        self._total: FloatArray = np.zeros(entries)

    def add(self, counts: FloatArray | IntArray, noise_std: float, scale: float) -> None:
        """Add the counts of one batch; `scale` makes them estimates for all units."""
        self._made += 1
        self._variance += (noise_std * scale) ** 2
        self._total += counts[: self.entries] * scale

    def taken(self) -> Release:
        """Return the mean over batches, or nan without a batch, and reset the counts."""
        mean, noise_std = np.full(self.entries, np.nan), math.nan
        if self._made:
            mean, noise_std = self._total / self._made, math.sqrt(self._variance) / self._made
        self._made, self._variance, self._total = 0, 0.0, np.zeros(self.entries)
        return Release("clip_count", mean, noise_std, ())
