"""Partitions in this process: blocks that are held in memory, or read again for every pass."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from pymc_dp.rows.likelihood import Threads, UnitLikelihood
from pymc_dp.rows.partitioned import Partial, Pass, answer
from pymc_dp.rows.table import IntArray
from pymc_dp.tables.columns import Block


class InMemory:
    """Blocks that are held in memory: what is computed of them is remembered between passes.

    Parameters
    ----------
    template : UnitLikelihood
        The model's likelihood.
    blocks : sequence of Block
        Each unit in one of them.
    """

    def __init__(self, template: UnitLikelihood, blocks: Sequence[Block]) -> None:
        self._parts = [template.on_rows(block.rows, block.starts) for block in blocks]
        self.lengths = [part.n_units for part in self._parts]

    may_be_forked = True

    def answers(self, asked: Pass, units: Sequence[IntArray] | None) -> Iterator[Partial]:
        """Yield what each partition answers."""
        for place, part in enumerate(self._parts):
            if units is None:
                yield answer(part, asked)
            elif units[place].size:
                yield answer(part, asked, units[place])

    def refuse_changes(self) -> None:
        """Do nothing: the rows are this object's own, or the user's arrays, as in a model."""

    def use_threads(self, threads: Threads) -> None:
        """Take note of how many threads may share a pass."""
        for part in self._parts:
            part.use_threads(threads)


class BlockSource(Protocol):
    """Something that blocks are read from, always the same ones in the same order."""

    def blocks(self, wanted: Sequence[bool] | None = None) -> Iterator[Block | None]:
        """Yield the blocks; None in the place of those that are not wanted."""
        ...

    def refuse_changes(self) -> None:
        """Refuse, if the source has changed since it was opened."""
        ...


class OutOfCore:
    """Blocks that are read for every pass and forgotten: memory does not grow with the table.

    Nothing is remembered between passes either: an expansion's weights are computed anew in each.

    Parameters
    ----------
    template : UnitLikelihood
        The model's likelihood.
    source : BlockSource
        Where blocks are read.
    lengths : sequence of int
        How many units each block has.
    """

    def __init__(self, template: UnitLikelihood, source: BlockSource, lengths: Sequence[int]) -> None:
        self._template, self._source, self.lengths = template, source, list(lengths)
        self._threads = Threads()

    may_be_forked = True

    def answers(self, asked: Pass, units: Sequence[IntArray] | None) -> Iterator[Partial]:
        """Yield what each partition answers."""
        self._source.refuse_changes()
        wanted = None if units is None else [each.size > 0 for each in units]
        for place, block in enumerate(self._source.blocks(wanted)):
            if block is None:
                continue
            part = self._template.on_rows(block.rows, block.starts)
            part.use_threads(self._threads)
            yield answer(part, asked, None if units is None else units[place])
        self._source.refuse_changes()  # while it was read

    def refuse_changes(self) -> None:
        """Refuse, if the source has changed since it was opened."""
        self._source.refuse_changes()

    def use_threads(self, threads: Threads) -> None:
        """Take note of how many threads may share a pass."""
        self._threads = threads
