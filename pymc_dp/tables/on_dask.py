"""Tables on the workers of a Dask cluster: rows stay there, exact sums come back.

Each worker thread holds one block. A pass sends a description to every block and adds what comes back: integers and
counts (`pymc_dp.tables.workers`). Keys of tasks are random numbers. Noise is drawn in the client alone, when
all sums are there, so a pass that Dask repeats, on whatever worker, changes nothing: it is a pure function.
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

#: How often a client that waits looks whether there are workers, in seconds.
_LOOK_EVERY = 1.0
_UNITS_OF_DATASETS = "Units of several rows are read from data frames: dataset.to_dask_dataframe() makes one."
#: For how many seconds actors are waited for, before tasks are used instead.
_PATIENCE = 30.0


class DaskPartitions:
    """Blocks on workers, as the client sees them: keys, lengths and digests.

    In another process, such as that of a chain, it connects to the scheduler by itself.
    """

    #: A client has threads, which forks do not have.
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
        """Yield what each block answers, once all have.

        Actors answer where there are; tasks, if a worker is lost meanwhile or there are none.
        """
        here, description = self._connected(), cloudpickle.dumps(asked)
        given = {
            place: (description, None if units is None else units[place], digest)
            for place, digest in enumerate(self._digests)
            if units is None or units[place].size
        }
        answers = here.asked_of_actors(given, self._deadline)
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
        """Refuse, if a block was read again and is not what it was."""
        here = self._connected()
        asked = [here.client.submit(facts_of, block, key=_random_key("facts"), pure=False) for block in here.blocks]
        facts = _accepted(gathered(here.client, asked, self._deadline))
        if [each.digest for each in facts] != self._digests:
            raise TableChanged("A part of the table was read again and is not what it was. Start again.")

    def _connected(self) -> "_Connection":
        """Return the connection of this process."""
        if self._here is None or self._here.process != os.getpid():
            client = distributed.Client(self._address, security=self._security, set_as_default=False)
            self._here = _Connection(client, [distributed.Future(key, client) for key in self._keys])
        return self._here

    def close(self) -> None:
        """Let the workers forget the blocks."""
        if self._here is not None:
            self._here.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_here": None}

    def __repr__(self) -> str:
        return "DaskPartitions(confidential)"


class _Connection:
    """A client, the blocks it keeps alive, and actors that hold them.

    An actor answers without the scheduler: in 4 milliseconds beside the work, where tasks take 18. Dask does not bring
    a lost actor back, and a worker has one thread for all of its actors. So there are actors where workers have one
    thread; and when one is lost, tasks do its work on the blocks, which are made again.
    """

    def __init__(self, client: distributed.Client, blocks: list[distributed.Future]) -> None:
        self.client, self.blocks = client, blocks
        self.process = os.getpid()
        self.name = secrets.token_hex(8)
        #: Actors, and the futures that keep them alive: by itself an actor is kept by the default client's.
        self._actors: list[Any] = []
        self._kept: list[distributed.Future] = []
        self._workers: dict[str, int] = {}
        self._worth_actors = True

    def asked_of_actors(self, given: Mapping[int, tuple[Any, ...]], deadline: float) -> list[Any] | None:
        """Return the answers of some blocks' actors; None if there are none, or one is lost.

        One counts as lost, too, where the workers are others than when the actors were made, or it takes long. A call
        that fails on its way is never answered; and where a pass takes long, actors gain nothing.
        """
        if not self._worth_actors:
            return None
        began = time.monotonic()
        answers: list[Any] = []
        try:
            if not self._actors:
                self._workers = self.client.nthreads()
                self._worth_actors = all(threads == 1 for threads in self._workers.values())
                if not self._worth_actors:
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
        except Exception:  # of a worker that is gone, wherever Dask notices
            self._actors = []
            self._worth_actors = time.monotonic() - began < _PATIENCE
            # An actor that still works remembers what it computes: tasks have a likelihood of their own.
            self.name = secrets.token_hex(8)
            return None

    def close(self) -> None:
        """Let the workers forget what they hold for this client."""
        self._actors.clear()
        self._kept.clear()
        self.blocks.clear()


def gathered(client: distributed.Client, futures: Sequence[distributed.Future], deadline: float) -> list[Any]:
    """Return the results of all futures. Dask itself waits without end where no worker is left.

    Raises `WorkersLost` if there has been no worker for `deadline` seconds, the scheduler is gone, or Dask gave a task
    up.
    """
    seen = time.monotonic()
    while True:
        try:
            with client.as_current():
                distributed.wait(list(futures), timeout=_LOOK_EVERY)
            break
        except TimeoutError:
            with contextlib.suppress(Exception):  # of a scheduler that does not answer
                if client.status == "running" and client.nthreads():
                    seen = time.monotonic()
                    continue
            if time.monotonic() - seen > deadline:
                for future in futures:
                    future.release()
                raise WorkersLost(
                    f"There has been no worker for {deadline:g} seconds. Start workers, and run again."
                ) from None
        except Exception as error:  # of the connection
            raise WorkersLost(f"The connection to the cluster was lost: {type(error).__name__}.") from None
    for future in futures:
        if future.status != "finished":
            reason = str(future.status)
            with contextlib.suppress(Exception):
                reason = type(future.exception(timeout=_LOOK_EVERY)).__name__
            raise WorkersLost(f"Workers failed while they worked on the table: {reason}.")
    try:  # gathered one by one, for gathering all has no deadline
        return [future.result(timeout=max(deadline, _LOOK_EVERY)) for future in futures]
    except Exception as error:
        raise WorkersLost(f"Sums of the workers were lost: {type(error).__name__}.") from None


def _accepted(answers: list[Any]) -> list[Any]:
    """Return the workers' answers, or raise the refusal of one of them."""
    for each in answers:
        if isinstance(each, Refusal):
            raise each.raised()
    return answers


class DaskSource(Source):
    """A table on Dask: a data frame, or a Dataset of Dask arrays, of which `dim` counts rows."""

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
        """Let every worker thread make a block; refuse what any of them refuses."""
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
        # No worker is named: Dask keeps to a name when that worker is gone and another one has come.
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
        """Return for each block the pieces of the table that it is made of, which are not computed yet."""
        if isinstance(self._source, xr.Dataset):
            if columns.unit is not None:
                raise UnsupportedTable(_UNITS_OF_DATASETS)
            for name in columns.names:
                if name not in self._source.variables or self._dim not in self._source[name].dims:
                    raise UnsupportedTable(f"The table has no variable {name!r} with the dim {self._dim!r}.")
            # Along the rows, all columns are cut in the same places: those of the fewest chunks.
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
                # Rows with number k go to block k, and nowhere else: the divisions are given.
                moved = frame.assign(**{BLOCK_OF_ROW: numbers}).set_index(
                    BLOCK_OF_ROW, divisions=list(range(threads + 1)), sorted=False, shuffle_method="tasks"
                )
                return [[piece] for piece in moved.to_delayed()]
            pieces = frame.to_delayed()
        # Consecutive pieces, about as many for each thread.
        edges = np.linspace(0, len(pieces), min(threads, len(pieces)) + 1).round().astype(int)
        return [list(pieces[begin:end]) for begin, end in itertools.pairwise(edges)]


def _random_key(what: str) -> str:
    """Return the name of a task, which says nothing of its inputs."""
    return f"pymc_dp-{what}-{secrets.token_hex(16)}"
