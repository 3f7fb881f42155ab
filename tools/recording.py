"""What a private run asks the curator and the source of noise for, recorded, and answered as in an earlier run."""

import dataclasses
import inspect
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from neighbours import Neighbour
from xarray import DataTree

from pymc_dp.release import MeteredCurator
from pymc_dp.release.batches import PoissonBatches


@dataclass
class Request:
    """One call of a public method of a curator.

    Attributes
    ----------
    curator, method : int, str
        Which curator, counted as they are first used, and which query was asked.
    arguments : dict
        What was asked for, every number by its bits.
    given : dict
        The same as it was passed.
    additions : list of (ndarray of int64, float)
        Exact integers that noise was asked for, and the noise's standard deviation in their steps.
    batch : ndarray or None
        The units of the batch that was drawn.
    decisions : list of (bool, float)
        Probabilities of the Barker test: the less likely decision, and how likely it is.
    answer : object
        What came back, every number by its bits.
    kind : str
        The kind of the release.
    """

    curator: int
    method: str
    arguments: dict[str, Any]
    given: dict[str, Any]
    additions: list[tuple[np.ndarray, float]] = field(default_factory=list)
    batch: np.ndarray | None = None
    decisions: list[tuple[bool, float]] = field(default_factory=list)
    answer: Any = None
    kind: str = ""


@dataclass
class Trace:
    """What one run did.

    Attributes
    ----------
    requests : list of Request
        In order.
    noisy, words, accepted : list
        All noisy answers, random words and decisions, in order.
    noticed : list
        Warnings and log records between the charge and the end.
    published : object
        The published tree, every number by its bits; None if the run failed.
    plan : Plan or None
        What was charged.
    error : str
        How it failed, if it did.
    tree : DataTree or None
        The published tree.
    """

    requests: list[Request] = field(default_factory=list)
    noisy: list[np.ndarray] = field(default_factory=list)
    words: list[np.ndarray] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    noticed: list[Any] = field(default_factory=list)
    published: Any = None
    plan: Any = None
    error: str = ""
    tree: DataTree | None = None


class Diverged(BaseException):
    """The second run asks for something else than the first; raised inside it, past all handlers of exceptions."""


def bits(value: Any) -> Any:
    """Return a value as plain data that is equal for equal bits alone."""
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, float | np.floating):
        return struct.pack("<d", float(value))
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return value.shape, [bits(one) for one in value.ravel()]
        raw = np.ascontiguousarray(value)
        return str(raw.dtype), raw.shape, raw.tobytes()
    if isinstance(value, Mapping):
        return [(str(name), bits(one)) for name, one in value.items()]
    if isinstance(value, list | tuple):
        return [bits(one) for one in value]
    if dataclasses.is_dataclass(value):
        of_fields = [(each.name, bits(getattr(value, each.name))) for each in dataclasses.fields(value)]
        return type(value).__name__, of_fields
    raise TypeError(f"{type(value).__name__} is not compared by its bits yet: say how in bits().")


def bits_of_tree(tree: DataTree) -> Any:
    """Return a published tree by its bits, but for the time at which it was made."""
    return [
        (
            node.path,
            bits({name: value for name, value in node.attrs.items() if name != "created_at"}),
            [
                (str(name), list(map(str, each.dims)), bits(each.values), bits(each.attrs))
                for name, each in {**node.to_dataset().data_vars, **node.to_dataset().coords}.items()
            ],
        )
        for node in tree.subtree
    ]


class Recorder:
    """Source of noise, batches and decisions of one run: fresh ones, or those of an earlier run.

    Parameters
    ----------
    first : Trace, optional
        The run to be replayed. Default: none, everything is drawn.
    neighbour : Neighbour, optional
        What changed since the first run.
    seed : int
        Of everything that is drawn.
    loudness : float
        Noise of the first run, in units of what it should be: answers far from the exact sums lead to other places.
    """

    def __init__(
        self, first: Trace | None = None, neighbour: Neighbour | None = None, seed: int = 0, loudness: float = 1.0
    ) -> None:
        self.trace, self.first, self.neighbour = Trace(), first, neighbour
        self._rng = np.random.default_rng([seed, 0 if first is None else 1])
        self._loudness = loudness
        self.diverged = ""
        self._curators: list[Any] = []
        self._open: Request | None = None
        self._poisson = False
        self._unlikely = False

    def _divergence(self, what: str) -> Diverged:
        self.diverged = f"Diverged: {what}"
        return Diverged(what)

    # As a source of noise ----------------------------------------------------------------------------------

    def add(self, integers: np.ndarray, scale: float) -> np.ndarray:
        if self._open is None:
            raise self._divergence("noise was drawn outside of any request at the curator")
        self._open.additions.append((np.array(integers), float(scale)))
        place = len(self.trace.noisy)
        if self.first is None:
            noise = np.rint(self._rng.normal(scale=self._loudness * scale, size=integers.size))
            self.trace.noisy.append(integers + noise.astype(np.int64))
        else:
            if place >= len(self.first.noisy) or self.first.noisy[place].shape != integers.shape:
                raise self._divergence(f"addition of noise {place} has another size, or is one too many")
            self.trace.noisy.append(self.first.noisy[place])
        return self.trace.noisy[-1].copy()

    def words(self, count: int) -> np.ndarray:
        if self._poisson:  # how many words a batch takes follows the number of units, and nobody sees it
            return self._rng.integers(0, 2**64, size=count, dtype=np.uint64)
        place = len(self.trace.words)
        if self.first is None:
            self.trace.words.append(self._rng.integers(0, 2**64, size=count, dtype=np.uint64))
        else:
            if place >= len(self.first.words) or self.first.words[place].size != count:
                raise self._divergence(f"other random words are asked for at place {place}")
            self.trace.words.append(self.first.words[place])
        return self.trace.words[-1].copy()

    def for_chain(self, key: tuple[int, ...]) -> "Recorder":
        return self

    # Batches ---------------------------------------------------------------------------------------------------

    def batch(self, real: Callable[..., np.ndarray], described: Any, *rest: Any) -> np.ndarray:
        """Draw a batch, or couple it to that of the first run."""
        if self._open is None:
            raise self._divergence("a batch was drawn outside of any request at the curator")
        poisson = isinstance(described, PoissonBatches)
        if poisson and self.first is not None:
            coupled = self._coupled()
        else:
            self._poisson = poisson
            try:
                coupled = real(described, *rest)
            finally:
                self._poisson = False
        self._open.batch = np.array(coupled)
        if self.first is not None and not poisson:
            before = self.first.requests[len(self.trace.requests) - 1].batch
            if before is None or not np.array_equal(before, coupled):
                raise self._divergence("the same random words drew another batch")
        return coupled

    def _coupled(self) -> np.ndarray:
        """Return the batch of the first run without the changed unit, or with it by a coin."""
        before = self.first.requests[len(self.trace.requests) - 1].batch
        place = self.neighbour.place
        if self.neighbour.change == "replaced":
            return before
        if self.neighbour.change == "removed":
            return np.array([unit - (unit > place) for unit in before if unit != place], dtype=np.int64)
        moved = [unit + (unit >= place) for unit in before]
        if self._rng.random() < 0.5:
            moved.append(place)
        return np.array(sorted(moved), dtype=np.int64)

    # Decisions ---------------------------------------------------------------------------------------------

    def probability(self, real: Callable[..., tuple[bool, float]], *arguments: Any) -> tuple[bool, float]:
        """Record the probabilities of a decision."""
        self._unlikely, probability = real(*arguments)
        self._open.decisions.append((self._unlikely, probability))
        return self._unlikely, probability

    def happens(self, real: Callable[..., bool], *arguments: Any) -> bool:
        """Draw a decision, or repeat that of the first run."""
        place = len(self.trace.accepted)
        if self.first is None:
            accepted = (np.random.default_rng(self._rng.integers(2**32)).random() < arguments[1]) == self._unlikely
        elif place < len(self.first.accepted):
            accepted = self.first.accepted[place]
        else:
            raise self._divergence("one decision more than in the first run")
        self.trace.accepted.append(bool(accepted))
        return bool(accepted == self._unlikely)

    # Requests ----------------------------------------------------------------------------------------------

    def request(self, curator: MeteredCurator, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a call of a public method of the curator."""
        if self._open is not None:  # one public method of the curator calls another
            return method(curator, *args, **kwargs)
        bound = inspect.signature(method).bind(curator, *args, **kwargs)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        if not any(curator is known for known in self._curators):
            self._curators.append(curator)
        place = next(k for k, known in enumerate(self._curators) if known is curator)
        query = given.get("query")
        named = {} if query is None else {each.name: getattr(query, each.name) for each in dataclasses.fields(query)}
        named |= {name: value for name, value in given.items() if name != "query"}
        asked = Request(
            place,
            method.__name__ if query is None else type(query).__name__,
            {name: bits(value) for name, value in named.items()},
            given,
        )
        self._refuse_another(asked)
        self.trace.requests.append(asked)
        self._open = asked
        try:
            release = method(curator, *args, **kwargs)
            asked.answer, asked.kind = bits(release), getattr(release, "kind", "")
        except Exception as error:
            asked.answer = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._open = None
        return release

    def _refuse_another(self, asked: Request) -> None:
        if self.first is None:
            return
        place = len(self.trace.requests)
        if place >= len(self.first.requests):
            raise self._divergence(f"request {place}, {asked.method}, was not made in the first run")
        before = self.first.requests[place]
        if (before.curator, before.method) != (asked.curator, asked.method):
            raise self._divergence(f"request {place} is {asked.method} of curator {asked.curator}, was {before.method}")
        other = [name for name in asked.arguments if asked.arguments[name] != before.arguments.get(name)]
        if other:
            raise self._divergence(f"request {place}, {asked.method}, has another {', '.join(other)}")
