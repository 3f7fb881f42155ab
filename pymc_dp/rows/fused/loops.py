"""Loops over rows, made for one model: from parameters and data to log-likelihoods and derivatives, block by block.

A block of rows goes through linear predictors and the scalar operations of `pymc_dp.rows.fused.program` while it is in
the processor's cache, and from there, unless the caller wants the numbers themselves, into `pymc_dp.rows.clip`. Loops
are over rows and without branches, so that they become vector instructions; whatever has no such form (the logarithm
of the gamma function) is called in a loop of its own. The operations on a row, and their order, are the same wherever
it stands.
"""

import inspect
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import numba
import numpy as np
import pytensor.scalar as ps
from numba import njit
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key

from pymc_dp.rows import clip, elementary, graphs
from pymc_dp.rows.fused import gamma
from pymc_dp.rows.fused.program import NotLowered, Operation, Product, Program

#: Most rows in a block, for the cost of a block itself, and the bytes of its intermediate results, for the caches.
_MOST_ROWS, _MOST_BYTES = 2048, 2**17
_OPTIONS: dict[str, Any] = {"fastmath": False, "error_model": "numpy", "nogil": True}
#: Part of every key in the cache of compiled functions.
_SOURCES = "".join(map(inspect.getsource, (elementary, gamma, graphs, clip)))
_VERSION = f"4 {sorted(_OPTIONS.items())} {numba.__version__} {_SOURCES}"
#: In loops of their own: they read memory, or branch, wherever a row says.
_ALONE = ("call", "gather")
_INFIX = frozenset("+ - * / < <= > >= == != & |".split())
_FUNCTIONS = frozenset("exp log log1p expm1 log1mexp log1p_up_to_one".split())


class Loops:
    """Compiled loops that compute some outputs of a program for rows of one model.

    Parameters
    ----------
    program : Program
        The operations.
    outputs : sequence of int
        The operations that give the numbers that are wanted.
    indices : sequence of int
        The operations that give whole numbers that are wanted.
    products : sequence of Product
        The linear predictors, in the order in which the program numbers them.
    widths : sequence of int
        How many entries the rows of each table have.

    Notes
    -----
    ``P`` holds the numbers that parameters give, ``S`` and ``I`` the intermediate results of a block; the first rows
    of both are its outputs.
    """

    def __init__(
        self,
        program: Program,
        outputs: Sequence[int],
        indices: Sequence[int],
        products: Sequence[Product],
        widths: Sequence[int],
    ) -> None:
        self._program = program
        self._products = products
        self._tables = [f"X{k}" for k in range(len(widths))]
        self._widths = widths
        self._globals: dict[str, Any] = {
            "__name__": __name__,
            "np": np,
            "inf": np.inf,
            "nan": np.nan,
            "sqrt": np.sqrt,
            "select": elementary.select,
            "add_clipped": clip.add_clipped,
            "digamma": gamma.digamma,
            "trigamma": gamma.trigamma,
            **{name: getattr(elementary, name) for name in _FUNCTIONS},
        }
        self._calls: dict[tuple[Any, int], str] = {}
        self._keys: list[str | None] = []
        self._source = ""
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._n_outputs, self._n_indices, self._n_scratch = len(outputs), len(indices), len(outputs)
        self._source_of_block(outputs, indices)

    def write(self, point: np.ndarray, tables: Sequence[np.ndarray], out: np.ndarray, indices: np.ndarray) -> None:
        """Write the outputs of all rows.

        Parameters
        ----------
        point : ndarray
            The numbers that parameters give.
        tables : sequence of ndarray
            The rows, one after the other.
        out : ndarray, shape (outputs, rows)
        indices : ndarray of int64, shape (indices, rows)
        """
        self._function("write")(point, *self._scratch(), out.shape[1], out, indices, *tables)

    def add_clipped(
        self,
        point: np.ndarray,
        tables: Sequence[np.ndarray],
        n_rows: int,
        log_likelihoods: np.ndarray,
        vectors: tuple[np.ndarray, ...],
        vector_squares: tuple[np.ndarray, ...],
        parts: np.ndarray,
        bound: float,
        steps_per_one: float,
        sums: np.ndarray,
    ) -> int:
        """Take the outputs of all rows, but for the first, as slopes to `pymc_dp.rows.clip.add_clipped`.

        The first output is written into `log_likelihoods`, unless it is empty. Returns how many were clipped.
        """
        n_clipped: int = self._function("clipped")(
            point,
            *self._scratch(),
            n_rows,
            log_likelihoods,
            vectors,
            vector_squares,
            parts,
            bound,
            steps_per_one,
            sums,
            *tables,
        )
        return n_clipped

    def _scratch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return space for the intermediate results of one thread."""
        return np.empty(self._n_scratch * self._block), np.empty(max(1, self._n_indices) * self._block, dtype=np.int64)

    def _function(self, name: str) -> Callable[..., Any]:
        if name not in self._compiled:
            source = {"write": self._source_of_write, "clipped": self._source_of_clipped}[name]
            self._compiled[name] = self._compile(name, source())
        return self._compiled[name]

    def _row(self) -> int:
        self._n_scratch += 1
        return self._n_scratch - 1

    def _compile(self, name: str, lines: Sequence[str]) -> Callable[..., Any]:
        source = "\n".join(lines) + "\n"
        key = None
        if None not in self._keys:
            keys = [_VERSION, str(self._block), self._source, source, *map(str, self._keys)]
            key = sha256("".join(keys).encode()).hexdigest()
        function = compile_numba_function_src(source, name, self._globals, cache_key=key)
        compiled: Callable[..., Any] = njit(**_OPTIONS, cache=key is not None)(function)
        return compiled

    # Sources

    def _source_of_block(self, outputs: Sequence[int], indices: Sequence[int]) -> None:
        """Compile the function that computes a block's outputs into scratch."""
        needed = set(self._needed([*outputs, *indices]))
        lines = [f"def block(P, S, I, start, n, {', '.join(self._tables)}):"]
        stored: dict[int, int] = {}
        for number, product in enumerate(self._products):
            etas = [self._program.add("eta", detail=(number, m)) for m in range(product.k)]
            if needed.isdisjoint(etas):
                continue
            rows = [self._row() for _ in etas]
            stored |= dict(zip(etas, rows, strict=True))
            lines += self._linear(product, rows)
        lines += self._operations(outputs, indices, stored)
        lines.append("    return")
        # Rows in a block. Which rows share a block changes no bit of their results. Not a power of two, lest all
        # intermediate results of a row compete for the same places of the first-level cache.
        self._block = _MOST_ROWS
        while self._block > 128 and 8 * self._block * self._n_scratch > _MOST_BYTES:
            self._block //= 2
        self._block -= 24
        self._globals["BLOCK"] = self._block
        self._globals["block"] = self._compile("block", lines)
        self._source = "\n".join(lines)

    def _linear(self, product: Product, rows: Sequence[int]) -> list[str]:
        """Return the loop of a linear predictor: a fixed number of partial sums, added in a fixed order."""
        size, k, place, table = product.size, product.k, product.place, self._tables[product.table]
        lanes = 4 if k == 1 else 1
        whole = size // lanes * lanes
        lines = ["    for i in range(n):", f"        r = (start + i) * {size}"]
        lines += [f"        s{m}_{lane} = 0.0" for m in range(k) for lane in range(lanes)]

        def term(lane: int, j: str) -> list[str]:
            return [f"x = {table}[r + {j}]"] + [f"s{m}_{lane} += x * P[{place + m} + ({j}) * {k}]" for m in range(k)]

        if whole:
            lines.append(f"        for j in range(0, {whole}, {lanes}):")
            for lane in range(lanes):
                lines += [f"            {line}" for line in term(lane, f"j + {lane}" if lane else "j")]
        for j in range(whole, size):
            lines += [f"        {line}" for line in term(j - whole, str(j))]
        for m, row in enumerate(rows):
            total = f"(s{m}_0 + s{m}_1) + (s{m}_2 + s{m}_3)" if lanes == 4 else f"s{m}_0"
            lines.append(f"        S[{row} * BLOCK + i] = {total}")
        return lines

    def _operations(self, outputs: Sequence[int], indices: Sequence[int], eta: dict[int, int]) -> list[str]:
        """Return the loops of the scalar operations: vectors first, then calls, then what depends on those."""
        program = self._program
        needed = self._needed([*outputs, *indices])
        levels: dict[int, int] = {}
        for number in needed:
            operation = program[number]
            level = max((levels[i] for i in operation.inputs), default=0)
            levels[number] = level + 1 if operation.name in _ALONE else level
        stored = dict(eta)
        columns = self._columns(needed)
        stored |= columns
        parameters = [n for n in needed if program[n].name == "parameter"]
        lines = [f"    v{n} = {self._cast(f'P[{program[n].detail}]', program[n].kind)}" for n in parameters]
        if columns:
            lines.append("    for i in range(n):")
            lines += [f"        S[{row} * BLOCK + i] = {self._expression(program[n])}" for n, row in columns.items()]
        for level in range(max(levels.values(), default=0) + 1):
            later = [n for n in needed if levels[n] > level]
            calls = [n for n in later if program[n].name in _ALONE and levels[n] == level + 1]
            targets = {n for n in outputs if levels[n] == level and n not in stored}
            targets |= {i for n in calls for i in program[n].inputs if program[n].name == "call" and i not in stored}
            targets |= {
                i for n in later for i in program[n].inputs if levels[i] <= level and not self._is_cheap(i)
            } - set(stored)
            last = level == max(levels.values(), default=0)
            lines += self._vector_loop(targets, outputs, stored, indices if last else [])
            for n in calls:
                if program[n].name == "gather":
                    lines += self._vector_loop({n}, outputs, stored, [])
                    continue
                stored[n] = self._row()
                arguments = ", ".join(f"S[{stored[i]} * BLOCK + i]" for i in program[n].inputs)
                lines += [
                    "    for i in range(n):",
                    f"        S[{stored[n]} * BLOCK + i] = {self._call(n)}({arguments})",
                ]
        moved = [(n, row) for row, n in enumerate(outputs) if stored[n] != row]
        if moved:
            lines.append("    for i in range(n):")
            lines += [f"        S[{row} * BLOCK + i] = S[{stored[n]} * BLOCK + i]" for n, row in moved]
        return lines

    def _columns(self, needed: Sequence[int]) -> dict[int, int]:
        """Return rows of scratch for the columns of wide tables: vector instructions need them side by side."""
        wide = [n for n in needed if self._program[n].name == "data" and self._widths[self._program[n].detail[0]] > 1]
        return {n: self._row() for n in wide if self._program[n].kind == "f"}

    def _needed(self, outputs: Sequence[int]) -> list[int]:
        found, todo = set(), list(outputs)
        while todo:
            number = todo.pop()
            if number not in found:
                found.add(number)
                todo += self._program[number].inputs
        return sorted(found)

    def _is_cheap(self, number: int) -> bool:
        """Return whether a result is computed again rather than stored."""
        operation = self._program[number]
        if operation.name in ("constant", "parameter", "data", "eta"):
            return True
        return operation.kind != "f" and all(self._is_cheap(i) for i in operation.inputs)

    def _vector_loop(
        self, targets: set[int], outputs: Sequence[int], stored: dict[int, int], indices: Sequence[int]
    ) -> list[str]:
        """Return one loop that computes `targets` and stores them."""
        program = self._program
        body: list[str] = []
        written: set[int] = set()

        def write(number: int) -> None:
            operation = program[number]
            if number in written or operation.name in ("constant", "parameter"):
                return
            written.add(number)
            if number in stored:
                load = f"S[{stored[number]} * BLOCK + i]"
                body.append(f"        v{number} = {self._cast(load, operation.kind)}")
                return
            for i in operation.inputs:
                write(i)
            body.append(f"        v{number} = {self._expression(operation)}")

        wanted = sorted(targets)
        for number in [*wanted, *indices]:
            write(number)
        rows = {n: outputs.index(n) if n in outputs else self._row() for n in wanted}
        for number, row in rows.items():
            value = self._name(number)
            body.append(
                f"        S[{row} * BLOCK + i] = {value if program[number].kind == 'f' else f'np.float64({value})'}"
            )
        body += [f"        I[{k} * BLOCK + i] = {self._name(number)}" for k, number in enumerate(indices)]
        stored.update(rows)
        return ["    for i in range(n):", *body] if body else []

    def _name(self, number: int) -> str:
        operation = self._program[number]
        return f"({operation.detail})" if operation.name == "constant" else f"v{number}"

    @staticmethod
    def _cast(text: str, kind: str) -> str:
        return {"f": text, "i": f"np.int64({text})", "b": f"({text} != 0)"}[kind]

    def _expression(self, operation: Operation) -> str:
        inputs = [self._name(i) for i in operation.inputs]
        name = operation.name
        if name in _INFIX:
            return f"{inputs[0]} {name} {inputs[1]}"
        if name == "data":
            table, offset = operation.detail
            width = self._widths[table]
            place = "start + i" if width == 1 else f"(start + i) * {width} + {offset}"
            load = f"{self._tables[table]}[{place}]"
            return {"f": f"np.float64({load})", "i": f"np.int64({load})", "b": f"({load} != 0)"}[operation.kind]
        if name == "gather":
            first, step = operation.detail
            return self._cast(f"P[{first} + {inputs[0]} * {step}]", operation.kind)
        if name in ("float", "integer"):
            return f"np.{'float64' if name == 'float' else 'int64'}({inputs[0]})"
        forms = {"negative": "-{0}", "abs": "abs({0})", "not": "not {0}", "select": "select({0}, {1}, {2})"}
        if name in forms:
            return forms[name].format(*inputs)
        return f"{name}({', '.join(inputs)})"

    def _call(self, number: int) -> str:
        """Return the name of PyTensor's own compiled function for an operation."""
        operation = self._program[number]
        key = (operation.detail, len(operation.inputs))
        if key not in self._calls:
            node = operation.detail.make_node(*[ps.float64() for _ in operation.inputs])
            if node.outputs[0].type.dtype != "float64":
                raise NotLowered(str(operation.detail))
            self._calls[key] = f"call{len(self._calls)}"
            function, cached_as = numba_funcify_and_cache_key(operation.detail, node=node)
            self._globals[self._calls[key]] = function
            self._keys.append(cached_as)
        return self._calls[key]

    def _source_of_write(self) -> list[str]:
        tables = ", ".join(self._tables)
        return [
            f"def write(P, S, I, n_rows, out, indices, {tables}):",
            "    for start in range(0, n_rows, BLOCK):",
            "        n = min(BLOCK, n_rows - start)",
            f"        block(P, S, I, start, n, {tables})",
            f"        for m in range({self._n_outputs}):",
            "            for i in range(n):",
            "                out[m, start + i] = S[m * BLOCK + i]",
            f"        for m in range({self._n_indices}):",
            "            for i in range(n):",
            "                indices[m, start + i] = I[m * BLOCK + i]",
        ]

    def _source_of_clipped(self) -> list[str]:
        tables = ", ".join(self._tables)
        return [
            f"def clipped(P, S, I, n_rows, units, vectors, squares, parts, bound, steps, sums, {tables}):",
            "    n_clipped = 0",
            "    factors = np.empty(BLOCK)",
            f"    slopes = S.reshape((-1, BLOCK))[1:{self._n_outputs}]",
            "    groups = I.reshape((-1, BLOCK))",
            "    for start in range(0, n_rows, BLOCK):",
            "        n = min(BLOCK, n_rows - start)",
            f"        block(P, S, I, start, n, {tables})",
            "        if units.size > 0:",
            "            for i in range(n):",
            "                units[start + i] = S[i]",
            "        n_clipped += add_clipped(",
            "            n, start, slopes, vectors, squares, groups, parts, bound, steps, factors, sums",
            "        )",
            "    return n_clipped",
        ]
