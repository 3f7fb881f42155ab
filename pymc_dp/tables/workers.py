"""The work of a cluster on a table: workers make a block, check it, and evaluate sums. Independent of Dask.

Errors are returned by name instead of raised: messages may hold rows, and Dask logs the messages and arguments of tasks
that raise. Logs of pandas and of file readers are not controlled here.
"""

import hashlib
import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pymc_dp.exceptions import TableChanged, UnsupportedTable
from pymc_dp.rows import probe
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.partitioned import Partial, answer
from pymc_dp.rows.table import IntArray, RowTable
from pymc_dp.tables.columns import Columns, array_of, block_of, unit_codes

#: The column with the number of a row's block.
BLOCK_OF_ROW = "_pymc_dp_block"


@dataclass(frozen=True, repr=False)
class Recipe:
    """Everything except rows that a worker needs. Public, except for the salt.

    `template` is the pickled likelihood on invented rows; `bits` the digest of its values (`pymc_dp.rows.probe`) and
    `versions` those of the packages, both in the client. `salt` is the random key of digests, so that a digest does not
    reveal rows.
    """

    template: bytes
    bits: str
    versions: dict[str, str]
    columns: Columns
    salt: bytes
    n_blocks: int


@dataclass(frozen=True)
class Refusal:
    """A worker's error: its name, and its message if the error is this package's own."""

    error: str
    message: str = ""

    @classmethod
    def of(cls, error: Exception) -> "Refusal":
        """Return the publishable part of an error: messages of other packages' errors may hold rows."""
        own = isinstance(error, TableChanged | UnsupportedTable)
        return cls(type(error).__name__, str(error) if own else "")

    def raised(self) -> Exception:
        """Return the error for the client to raise."""
        for own in (TableChanged, UnsupportedTable):
            if self.error == own.__name__:
                return own(self.message)
        return UnsupportedTable(
            f"A worker could not read its part of the table: {self.error}. Its message is not shown, as it may hold "
            "rows; the worker's own log may tell more to those who may see them."
        )


@dataclass(frozen=True, repr=False)
class Facts:
    """The public facts of a block: never a row."""

    n_units: int
    n_rows: int
    digest: bytes


class ResidentBlock:
    """A block on a worker. Confidential. Pickling keeps its arrays and the recipe, and no computed value."""

    def __init__(self, recipe: Recipe, block: RowTable) -> None:
        self.recipe, self.block = recipe, block
        digest = hashlib.blake2b(key=recipe.salt, digest_size=16)
        for values in [*block.rows, *([] if block.starts is None else [block.starts])]:
            digest.update(repr((values.dtype.str, values.shape)).encode())
            digest.update(np.ascontiguousarray(values).data)
        self.facts = Facts(block.n_units, block.n_rows, digest.digest())
        self._of_connection: dict[str, UnitLikelihood] = {}

    def likelihood(self, connection: str) -> UnitLikelihood:
        """Return the likelihood of the block, one for each connection, as it caches values."""
        if connection not in self._of_connection:
            template = _template(self.recipe)
            self._of_connection[connection] = template.on_rows(self.block.rows, self.block.starts, one_of_many=True)
        return self._of_connection[connection]

    def __sizeof__(self) -> int:
        return sum(rows.nbytes for rows in self.block.rows) + 1000  # Dask's scheduler moves small objects

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_connection": {}}

    def __repr__(self) -> str:
        return "ResidentBlock(confidential)"


#: Compiled templates of this process by their digest.
_TEMPLATES: dict[bytes, UnitLikelihood] = {}
_COMPILING = threading.RLock()
#: Compiled functions reuse the memory of their results.
_ONE_AT_A_TIME = threading.RLock()


def _template(recipe: Recipe) -> UnitLikelihood:
    """Return the compiled template; refuse a process that computes other bits than the client."""
    key = hashlib.blake2b(recipe.template).digest()
    with _COMPILING:
        if key not in _TEMPLATES:
            if (here := probe.versions()) != recipe.versions:
                pairs = [(name, here.get(name), known) for name, known in recipe.versions.items()]
                differ = ", ".join(f"{name} {own} instead of {known}" for name, own, known in pairs if own != known)
                raise UnsupportedTable(f"A worker has other versions than the client: {differ}. Install the same.")
            template: UnitLikelihood = pickle.loads(recipe.template)  # noqa: S301  the client's, as all tasks
            template.warm_up()
            if probe.bits_of(template) != recipe.bits:
                raise UnsupportedTable(
                    "A worker computes other bits than the client from the template's rows: it has another processor, "
                    "or other settings of the compiler. Use machines of one kind for the client and all workers."
                )
            _TEMPLATES[key] = template
        return _TEMPLATES[key]


def load(recipe: Recipe, place: int, pieces: Sequence[Any]) -> ResidentBlock | Refusal:
    """Return a block made of pieces of the table, with its template compiled and checked, or a refusal."""
    try:
        with np.errstate(all="ignore"):
            read = [recipe.columns.read(piece) for piece in pieces]
            rows = {name: np.concatenate([each[name] for each in read]) for name in read[0]} if read[1:] else read[0]
            _refuse_split_units(recipe, place, rows)
            block = ResidentBlock(recipe, block_of(recipe.columns, rows))
            _template(recipe)
            return block
    except Exception as error:  # its message may hold rows
        return Refusal.of(error)


def _refuse_split_units(recipe: Recipe, place: int, rows: Mapping[str, np.ndarray]) -> None:
    """Refuse rows that belong to another block: a unit with rows in two blocks would be clipped twice.

    Each block checks its own rows alone. A unit belongs to one block, so that no unit is in two if all blocks pass.
    """
    unit = recipe.columns.unit
    if unit is not None and np.any(block_numbers(unit, rows[unit], recipe.n_blocks) != place):
        raise UnsupportedTable(
            "Rows of one unit are in two blocks, where the unit would count twice. Do not change the table while it is "
            "read, and use one version of Dask and pandas on all workers."
        )


def facts_of(block: ResidentBlock | Refusal) -> Facts | Refusal:
    """Return the public facts of a block, or its refusal."""
    return block if isinstance(block, Refusal) else block.facts


def evaluate(
    block: ResidentBlock | Refusal, asked: bytes, units: IntArray | None, digest: bytes, connection: str
) -> Partial | Refusal:
    """Return a block's answer, or a refusal."""
    try:
        if isinstance(block, Refusal):
            return block
        if block.facts.digest != digest:
            raise TableChanged("A part of the table was read again and is not what it was. Start again.")
        rows = block.likelihood(connection)
        with _ONE_AT_A_TIME:
            return answer(rows, pickle.loads(asked), units)  # noqa: S301  the client's, as all tasks
    except Exception as error:
        return Refusal.of(error)


class Answering:
    """An actor on a worker: holds a block, and answers."""

    def __init__(self, block: ResidentBlock | Refusal) -> None:
        self._block = block

    def answer(self, asked: bytes, units: IntArray | None, digest: bytes, connection: str) -> Partial | Refusal:
        """Return the block's answer, or a refusal."""
        return evaluate(self._block, asked, units, digest, connection)

    def __repr__(self) -> str:
        return "Answering(confidential)"


def block_numbers(name: str, units: Any, n_blocks: int) -> IntArray:
    """Return the number of the block that the rows of each unit belong to: a function of the unit alone."""
    codes = unit_codes(name, array_of(name, {name: units}, is_unit=True))
    values = codes.astype(object) if codes.dtype.kind in "UT" else codes.astype(np.int64)
    hashes = pd.util.hash_array(values, categorize=False)
    return np.asarray(hashes % np.uint64(n_blocks)).astype(np.int64)


def safe_block_numbers(units: pd.Series, name: str, n_blocks: int) -> pd.Series:
    """Return the number of the block that each row of a data frame goes to; 0 where that fails."""
    try:
        numbers = block_numbers(name, units, n_blocks)
    except Exception:  # `load` meets the same error again, and refuses the block
        numbers = np.zeros(len(units), dtype=np.int64)
    return pd.Series(numbers, index=units.index, name=BLOCK_OF_ROW)
