"""Tables on the workers of a Dask cluster: rows stay on the workers, which return exact sums.

Each worker thread holds one block. A pass sends a description to every block and adds the answers: integers and
counts (`pymc_dp.tables.workers`). Keys of tasks are random numbers. Noise is drawn in the client alone, when
all sums are complete, so a pass that Dask repeats, on any worker, changes nothing: it is a pure function.
"""

import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle
import distributed
import numpy as np
import xarray as xr
from dask.delayed import delayed

from pymc_dp.exceptions import TableChanged, UnsupportedTable, WorkersLost
from pymc_dp.rows import probe
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.partitioned import Partial, Partitions, Pass
from pymc_dp.rows.table import IntArray
from pymc_dp.tables.columns import Columns, refuse_absent
from pymc_dp.tables.local import Source
from pymc_dp.tables.workers import (
    BLOCK_OF_ROW,
    Answering,
    Facts,
    Recipe,
    Refusal,
    evaluate,
    facts_of,
    load,
    safe_block_numbers,
)

#: Seconds between a waiting client's checks for workers.
_LOOK_EVERY = 1.0
_UNITS_OF_DATASETS = "Units of several rows are read from data frames: dataset.to_dask_dataframe() makes one."
#: Seconds to wait for actors before tasks are used instead.
_PATIENCE = 30.0


class DaskPartitions:
    """The client's view of the blocks on workers: keys, lengths and digests.

    In another process, such as that of a chain, it opens its own connection to the scheduler.
    """

    #: A client has threads, which do not survive a fork.
    may_be_forked = False

    def __init__(
        self, client: distributed.Client, blocks: Sequence[distributed.Future], facts: Sequence[Facts], deadline: float
    ) -> None:
        self.lengths = [each.n_units for each in facts]
        self._digests = [each.digest for each in facts]
        self._keys = [block.key for block in blocks]
        self._address, self._security = client.scheduler_info()["address"], client.security
        self._deadline = deadline
        self._here: _Connection | None = _Connection(client, list(blocks))

    def answers(self, asked: Pass, units: Sequence[IntArray] | None) -> Iterator[Partial]:
        """Yield the answer of each block, once all are complete.

        The answers come from actors; if there are none, or a worker is lost, from tasks.
        """
        here, description = self._connected(), cloudpickle.dumps(asked)
        given = {
            place: (description, None if units is None else units[place], digest)
            for place, digest in enumerate(self._digests)
            if units is None or units[place].size
        }
        answers = here.answers_of_actors(given, self._deadline)
        if answers is None:
            futures = [
                here.client.submit(
                    evaluate, here.blocks[place], *arguments, here.name, key=_random_key("sum"), pure=False
                )
                for place, arguments in given.items()
            ]
            answers = gathered(here.client, futures, self._deadline)
        yield from _accepted(answers)

    def refuse_changes(self) -> None:
        """Refuse a block that was read again with other content."""
        here = self._connected()
        futures = [here.client.submit(facts_of, block, key=_random_key("facts"), pure=False) for block in here.blocks]
        facts = _accepted(gathered(here.client, futures, self._deadline))
        if [each.digest for each in facts] != self._digests:
            raise TableChanged("A part of the table was read again and is not what it was. Start again.")

    def _connected(self) -> "_Connection":
        """Return the connection of this process."""
        if self._here is None or self._here.process != os.getpid():
            client = distributed.Client(self._address, security=self._security, set_as_default=False)
            self._here = _Connection(client, [distributed.Future(key, client) for key in self._keys])
        return self._here

    def close(self) -> None:
        """Release the blocks on the workers."""
        if self._here is not None:
            self._here.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_here": None}

    def __repr__(self) -> str:
        return "DaskPartitions(confidential)"


class _Connection:
    """A client, the blocks that it keeps alive, and actors that hold them.

    An actor answers without the scheduler: with an overhead of 4 milliseconds, where tasks have 18. Dask does not
    restore a lost actor, and a worker has one thread for all of its actors. So actors are used where workers have one
    thread; and when an actor is lost, tasks do its work on the blocks, which Dask computes again.
    """

    def __init__(self, client: distributed.Client, blocks: list[distributed.Future]) -> None:
        self.client, self.blocks = client, blocks
        self.process = os.getpid()
        self.name = secrets.token_hex(8)
        #: Actors, and the futures that keep them alive: otherwise only the default client would.
        self._actors: list[Any] = []
        self._kept: list[distributed.Future] = []
        self._workers: dict[str, int] = {}
        self._uses_actors = True

    def answers_of_actors(self, given: Mapping[int, tuple[Any, ...]], deadline: float) -> list[Any] | None:
        """Return the answers of some blocks' actors; None if there are no actors, or one is lost.

        Actors also count as lost if the workers have changed since the actors were made, or if they take long: a call
        that fails on its way is never answered, and in long passes actors gain nothing.
        """
        if not self._uses_actors:
            return None
        began = time.monotonic()
        answers: list[Any] = []
        try:
            if not self._actors:
                self._workers = self.client.nthreads()
                self._uses_actors = all(threads == 1 for threads in self._workers.values())
                if not self._uses_actors:
                    return None
                self._kept = [
                    self.client.submit(Answering, block, key=_random_key("actor"), actor=True, pure=False)
                    for block in self.blocks
                ]
                gathered(self.client, self._kept, deadline)
                self._actors = [actor.result() for actor in self._kept]
                began = time.monotonic()
            called = [self._actors[place].answer(*arguments, self.name) for place, arguments in given.items()]
            while len(answers) < len(called):
                try:
                    answers.append(called[len(answers)].result(timeout=_LOOK_EVERY))
                except TimeoutError:
                    if self.client.nthreads() != self._workers or time.monotonic() - began > _PATIENCE:
                        raise WorkersLost("An actor does not answer.") from None
            return answers
        except Exception:  # Dask raises different errors for a lost worker
            self._actors = []
            self._uses_actors = time.monotonic() - began < _PATIENCE
            # An actor that still works caches values in its likelihood: tasks get a likelihood of their own.
            self.name = secrets.token_hex(8)
            return None

    def close(self) -> None:
        """Release everything that the workers hold for this client."""
        self._actors.clear()
        self._kept.clear()
        self.blocks.clear()


def gathered(client: distributed.Client, futures: Sequence[distributed.Future], deadline: float) -> list[Any]:
    """Return the results of all futures, with a deadline: Dask itself waits for ever if no worker is left.

    Raises `WorkersLost` if there has been no worker for `deadline` seconds, the scheduler is gone, or a task failed.
    """
    seen = time.monotonic()
    while True:
        try:
            with client.as_current():
                distributed.wait(list(futures), timeout=_LOOK_EVERY)
            break
        except TimeoutError:
            with contextlib.suppress(Exception):  # raised if the scheduler does not answer
                if client.status == "running" and client.nthreads():
                    seen = time.monotonic()
                    continue
            if time.monotonic() - seen > deadline:
                for future in futures:
                    future.release()
                raise WorkersLost(
                    f"There has been no worker for {deadline:g} seconds. Start workers, and run again."
                ) from None
        except Exception as error:  # from the connection
            raise WorkersLost(f"The connection to the cluster was lost: {type(error).__name__}.") from None
    for future in futures:
        if future.status != "finished":
            reason = str(future.status)
            with contextlib.suppress(Exception):
                reason = type(future.exception(timeout=_LOOK_EVERY)).__name__
            raise WorkersLost(f"Workers failed while they worked on the table: {reason}.")
    try:  # one by one, as Dask's gather has no deadline
        return [future.result(timeout=max(deadline, _LOOK_EVERY)) for future in futures]
    except Exception as error:
        raise WorkersLost(f"Sums of the workers were lost: {type(error).__name__}.") from None


def _accepted(answers: list[Any]) -> list[Any]:
    """Return the workers' answers, or raise the first refusal among them."""
    for each in answers:
        if isinstance(each, Refusal):
            raise each.raised()
    return answers


class DaskSource(Source):
    """A table on Dask: a data frame, or a Dataset of Dask arrays, with `dim` as the dim of rows."""

    def __init__(self, source: Any, client: distributed.Client | None, deadline: float, dim: str | None) -> None:
        is_frame = hasattr(source, "to_delayed") and hasattr(source, "columns")
        if not (is_frame or isinstance(source, xr.Dataset)):
            raise UnsupportedTable(
                f"A table on Dask is a data frame or an xarray Dataset, not a {type(source).__name__}. Put arrays into "
                'a Dataset: xr.Dataset({"x": (("row", "feature"), x), "y": ("row", y)}).'
            )
        self._source, self._client, self._deadline, self._dim = source, client, deadline, dim

    def count(self, unit: str | None) -> int:
        """Return the number of units."""
        client = self._connected()
        if isinstance(self._source, xr.Dataset):
            if unit is not None:
                raise UnsupportedTable(_UNITS_OF_DATASETS)
            return int(self._source.sizes[self._dim])
        number = self._source[self._source.columns[:1]].shape[0] if unit is None else self._source[unit].nunique()
        (found,) = gathered(client, [client.compute(number)], self._deadline)
        return int(found)

    def fixed(self) -> "DaskSource":
        """Refuse, as `pieces` does."""
        self.pieces(Columns((), (), None))
        return self

    def pieces(self, columns: Columns) -> Iterator[Mapping[str, np.ndarray]]:
        """Refuse: rows would leave the workers."""
        raise UnsupportedTable(
            "Nothing but exact sums leaves the workers of a table on Dask: levels are not found in it, nor folds made. "
            "Declare the levels that are known, and compare models on the units that they were fitted to."
        )

    @contextmanager
    def opened(self, template: UnitLikelihood, columns: Columns) -> Iterator[tuple[Partitions, int]]:
        """Make a block on every worker thread; raise a refusal of any of them."""
        client = self._connected()
        threads = sum(client.nthreads().values())
        if not threads:
            raise WorkersLost("The cluster has no workers. Start some, and run again.")
        groups = self._grouped(columns, threads)
        template.warm_up()
        recipe = Recipe(
            cloudpickle.dumps(template),
            probe.bits_of(template),
            probe.versions(),
            columns,
            secrets.token_bytes(16),
            len(groups),
        )
        # No worker is named: Dask would wait for that worker after it is gone.
        blocks = [
            client.compute(delayed(load, pure=False)(recipe, place, pieces, dask_key_name=_random_key("block")))
            for place, pieces in enumerate(groups)
        ]
        described = [client.submit(facts_of, block, key=_random_key("facts"), pure=False) for block in blocks]
        facts = _accepted(gathered(client, described, self._deadline))
        partitions = DaskPartitions(client, blocks, facts, self._deadline)
        try:
            yield partitions, sum(each.n_rows for each in facts)
        finally:
            partitions.close()

    def _connected(self) -> distributed.Client:
        if self._client is not None:
            return self._client
        try:
            return distributed.get_client()
        except ValueError:
            raise UnsupportedTable(
                "A table on Dask needs a cluster: start one with distributed.Client(), or pass client=."
            ) from None

    def _grouped(self, columns: Columns, threads: int) -> list[list[Any]]:
        """Return the pieces of the table for each block, not computed yet."""
        if isinstance(self._source, xr.Dataset):
            if columns.unit is not None:
                raise UnsupportedTable(_UNITS_OF_DATASETS)
            for name in columns.names:
                if name not in self._source.variables or self._dim not in self._source[name].dims:
                    raise UnsupportedTable(f"The table has no variable {name!r} with the dim {self._dim!r}.")
            # All columns get the same chunks of rows: those of the column with the fewest.
            variables = [self._source[name].variable for name in columns.names]
            chunks = [each.chunks[each.dims.index(self._dim)] for each in variables if each.chunks is not None]
            cut = self._source[columns.names].chunk({str(self._dim): min(chunks, key=len)})
            by_name = {}
            for name in columns.names:
                whole = cut[name].chunk({dim: -1 for dim in cut[name].dims if dim != self._dim})
                by_name[name] = whole.transpose(self._dim, ...).data.to_delayed().ravel()
            pieces = [dict(zip(by_name, each, strict=True)) for each in zip(*by_name.values(), strict=True)]
        else:
            refuse_absent(columns.expected, self._source.columns)
            frame = self._source[columns.names]
            if columns.unit is not None:
                numbers = frame[columns.unit].map_partitions(
                    safe_block_numbers, columns.unit, threads, meta=(BLOCK_OF_ROW, "int64")
                )
                # Rows with number k go to block k alone, as the divisions are given.
                moved = frame.assign(**{BLOCK_OF_ROW: numbers}).set_index(
                    BLOCK_OF_ROW, divisions=list(range(threads + 1)), sorted=False, shuffle_method="tasks"
                )
                return [[piece] for piece in moved.to_delayed()]
            pieces = frame.to_delayed()
        # Consecutive pieces, about as many for each thread.
        edges = np.linspace(0, len(pieces), min(threads, len(pieces)) + 1).round().astype(int)
        return [list(pieces[begin:end]) for begin, end in itertools.pairwise(edges)]


def _random_key(kind: str) -> str:
    """Return a random name of a task, independent of its inputs."""
    return f"pymc_dp-{kind}-{secrets.token_hex(16)}"
