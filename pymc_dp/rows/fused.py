"""Loops over rows, made for one model: from parameters and data to clipped, truncated, exact sums in one pass.

A block of rows goes through linear predictors, the scalar operations of `pymc_dp.rows.program`, norms, clipping and
integer sums while it is in the processor's cache. Loops are over rows and without branches, so that they become
vector instructions; whatever has no such form (a gamma function) is called in a loop of its own. The operations on a
row, and their order, are the same wherever it stands.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import numba
import numpy as np
import pytensor.scalar as ps
from numba import njit
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key

from pymc_dp.rows import elementary, kernels
from pymc_dp.rows.program import NotLowered, Operation, Program

#: Rows in a block: its intermediate results stay in the first-level cache.
BLOCK = 256
_UNROLLED = 16
_OPTIONS: dict[str, Any] = {"fastmath": False, "error_model": "numpy", "nogil": True}
#: Part of every key in the cache of compiled functions.
_VERSION = f"2 {sorted(_OPTIONS.items())} {numba.__version__} {inspect.getsource(elementary)}"
#: In loops of their own: they read memory, or branch, wherever a row says.
_ALONE = ("call", "gather")
_INFIX = frozenset("+ - * / < <= > >= == != & |".split())
_FUNCTIONS = frozenset("exp log log1p expm1 log1mexp log1p_up_to_one".split())


@dataclass(frozen=True, eq=False)
class Product:
    """A linear predictor: a table of floats times parameters.

    Attributes
    ----------
    table : int
        Which of the data.
    size, k : int
        Length of a row, number of predictors.
    place : int
        Where the parameters begin in the vector of numbers that parameters give.
    """

    table: int
    size: int
    k: int
    place: int


@dataclass(frozen=True, eq=False)
class Part:
    """The gradient with respect to one value variable.

    Attributes
    ----------
    kind : {"dense", "product", "gather"}
        As in `pymc_dp.rows.graphs.Block`.
    slopes : list of int
        Numbers of the operations that give the slopes.
    size : int
        Number of entries of the value variable.
    index : int, optional
        Number of the operation that gives the index, for ``"gather"``.
    product : Product, optional
        For ``"product"``.
    """

    kind: Literal["dense", "product", "gather"]
    slopes: list[int]
    size: int
    index: int | None = None
    product: Product | None = None


class FusedLoops:
    """Compiled loops over the rows of one model.

    Parameters
    ----------
    program : Program
        The operations.
    log_likelihood : int
        The operation that gives a row's log-likelihood.
    parts : sequence of Part
        The gradient, by value variable.
    products : sequence of Product
        The linear predictors, in the order in which the program numbers them.
    dtypes, widths : sequence
        Type of each table, and how many entries its rows have.

    Attributes
    ----------
    gradient : callable
        ``(P, S, I, low, high, units, taken, offsets, bound, steps, total, *tables)``: adds the clipped gradients of
        rows low to high, writes their log-likelihoods into ``units``; returns how many were clipped.
    slopes : callable
        ``(P, S, I, low, high, units, slopes, indices, *tables)``: writes log-likelihoods, slopes and indices.
    log_likelihood : callable
        ``(P, S, I, low, high, units, *tables)``: writes log-likelihoods.
    """

    def __init__(
        self,
        program: Program,
        log_likelihood: int,
        parts: Sequence[Part],
        products: Sequence[Product],
        widths: Sequence[int],
    ) -> None:
        self._program = program
        self._parts = parts
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
            **{name: getattr(elementary, name) for name in _FUNCTIONS},
        }
        self._calls: dict[tuple[Any, int], str] = {}
        self._keys: list[str | None] = []
        self._source = ""
        outputs = [log_likelihood, *[slope for part in parts for slope in part.slopes]]
        indices = [part.index for part in parts if part.index is not None]
        self._n_scratch = 1
        self._squares = {id(product): self._row() for product in products}
        self._norms = self._row()
        eta = {
            program.add("eta", detail=(number, m)): self._row()
            for number, product in enumerate(products)
            for m in range(product.k)
        }
        self._outputs = [self._row() for _ in outputs]
        self._source_of_block("block", outputs, indices, eta, with_squares=True)
        self._source_of_block("log_block", outputs[:1], [], eta, with_squares=False)
        self.n_slopes = len(outputs) - 1
        self.n_indices = len(indices)
        self.gradient = self._compile("gradient", self._source_of_gradient())
        self.slopes = self._compile("slopes", self._source_of_slopes())
        self.log_likelihood = self._compile("log_likelihood", self._source_of_log_likelihood())

    def scratch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return space for the intermediate results of one thread."""
        return np.empty(self._n_scratch * BLOCK), np.empty(max(1, self.n_indices) * BLOCK, dtype=np.int64)

    def _row(self) -> int:
        self._n_scratch += 1
        return self._n_scratch - 1

    def _compile(self, name: str, lines: Sequence[str]) -> Callable[..., Any]:
        source = "\n".join(lines) + "\n"
        self._source += source
        key = None
        if None not in self._keys:
            key = sha256("".join([_VERSION, self._source, *map(str, self._keys)]).encode()).hexdigest()
        function = compile_numba_function_src(source, name, self._globals, cache_key=key)
        compiled: Callable[..., Any] = njit(**_OPTIONS, cache=key is not None)(function)
        self._globals[name] = compiled
        return compiled

    # Sources

    def _source_of_block(
        self, name: str, outputs: Sequence[int], indices: Sequence[int], eta: dict[int, int], *, with_squares: bool
    ) -> None:
        """Compile the function that computes a block's outputs into scratch."""
        lines = [f"def {name}(P, S, I, start, n, {', '.join(self._tables)}):"]
        for number, product in enumerate(self._products):
            rows = [eta[self._program.add("eta", detail=(number, m))] for m in range(product.k)]
            lines += self._linear(product, rows, with_squares)
        lines += self._operations(outputs, indices, eta)
        lines.append("    return")
        self._compile(name, lines)

    def _linear(self, product: Product, rows: Sequence[int], with_squares: bool) -> list[str]:
        """Return the loop of a linear predictor: a fixed number of partial sums, added in a fixed order."""
        size, k, place, table = product.size, product.k, product.place, self._tables[product.table]
        lanes = 4 if k == 1 else 1
        whole = size // lanes * lanes
        sums = [f"s{m}_{lane}" for m in range(k) for lane in range(lanes)]
        squares = [f"q{lane}" for lane in range(lanes)] if with_squares else []
        lines = ["    for i in range(n):", f"        r = (start + i) * {size}"]
        lines += [f"        {name} = 0.0" for name in sums + squares]

        def term(lane: int, j: str) -> list[str]:
            found = [f"x = {table}[r + {j}]"]
            found += [f"s{m}_{lane} += x * P[{place + m} + ({j}) * {k}]" for m in range(k)]
            return found + ([f"q{lane} += x * x"] if with_squares else [])

        if whole:
            lines.append(f"        for j in range(0, {whole}, {lanes}):")
            for lane in range(lanes):
                lines += [f"            {line}" for line in term(lane, f"j + {lane}" if lane else "j")]
        for j in range(whole, size):
            lines += [f"        {line}" for line in term(j - whole, str(j))]
        add = (lambda stem: f"({stem}0 + {stem}1) + ({stem}2 + {stem}3)") if lanes == 4 else (lambda stem: f"{stem}0")
        lines += [f"        S[{row * BLOCK} + i] = {add(f's{m}_')}" for m, row in enumerate(rows)]
        if with_squares:
            lines.append(f"        S[{self._squares[id(product)] * BLOCK} + i] = {add('q')}")
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
            lines += [f"        S[{row * BLOCK} + i] = {self._expression(program[n])}" for n, row in columns.items()]
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
                arguments = ", ".join(f"S[{stored[i] * BLOCK} + i]" for i in program[n].inputs)
                lines += [
                    "    for i in range(n):",
                    f"        S[{stored[n] * BLOCK} + i] = {self._call(n)}({arguments})",
                ]
        moved = [(n, row) for n, row in zip(outputs, self._outputs, strict=False) if stored[n] != row]
        if moved:
            lines.append("    for i in range(n):")
            lines += [f"        S[{row * BLOCK} + i] = S[{stored[n] * BLOCK} + i]" for n, row in moved]
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
                load = f"S[{stored[number] * BLOCK} + i]"
                body.append(f"        v{number} = {self._cast(load, operation.kind)}")
                return
            for i in operation.inputs:
                write(i)
            body.append(f"        v{number} = {self._expression(operation)}")

        wanted = sorted(targets)
        for number in [*wanted, *indices]:
            write(number)
        rows = {n: self._outputs[outputs.index(n)] if n in outputs else self._row() for n in wanted}
        for number, row in rows.items():
            value = self._name(number)
            body.append(
                f"        S[{row * BLOCK} + i] = {value if program[number].kind == 'f' else f'np.float64({value})'}"
            )
        body += [f"        I[{k * BLOCK} + i] = {self._name(number)}" for k, number in enumerate(indices)]
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

    def _source_of_gradient(self) -> list[str]:
        tables = ", ".join(self._tables)
        logp, *slopes = self._outputs
        norms = f"S[{self._norms * BLOCK} + i]"
        lines = [
            f"def gradient(P, S, I, low, high, units, taken, offsets, bound, steps, total, {tables}):",
            "    n_clipped = 0",
            *[f"    t{p} = np.zeros({part.size}, dtype=np.int64)" for p, part in enumerate(self._parts)],
            f"    for start in range(low, high, {BLOCK}):",
            f"        n = min({BLOCK}, high - start)",
            f"        block(P, S, I, start, n, {tables})",
            "        if units.size > 0:",
            "            for i in range(n):",
            f"                units[start + i] = S[{logp * BLOCK} + i]",
            "        for i in range(n):",
            f"            {norms} = 0.0",
        ]
        place = 0
        of_part = []
        for p, part in enumerate(self._parts):
            rows = slopes[place : place + len(part.slopes)]
            place += len(part.slopes)
            of_part.append(rows)
            # Slopes that are zero for every row add nothing.
            square = " + ".join(
                f"S[{row * BLOCK} + i] * S[{row * BLOCK} + i]"
                for row, number in zip(rows, part.slopes, strict=True)
                if number
            )
            if not square:
                continue
            if part.product is not None:
                row_square = f"S[{self._squares[id(part.product)] * BLOCK} + i]"
                square = f"({row_square} + {kernels.TINY!r}) * ({square} + {kernels.TINY!r})"
            lines += [
                f"        if taken[{p}]:",
                "            for i in range(n):",
                f"                {norms} += {square}",
            ]
        lines += [
            "        for i in range(n):",
            f"            norm = sqrt({norms})",
            "            n_clipped += select(norm <= bound, 0, 1)",
            "            shorter = select(norm < inf, bound / norm, 0.0)",
            f"            {norms} = select(norm <= bound, 1.0, shorter)",
        ]
        n_indices = 0
        for p, (part, rows) in enumerate(zip(self._parts, of_part, strict=True)):
            if part.kind == "gather":
                n_indices += 1
            if any(part.slopes):
                lines.append(f"        if taken[{p}]:")
                lines += [f"            {line}" for line in self._sums(p, part, rows, norms, n_indices - 1)]
        for p, part in enumerate(self._parts):
            target = "j"
            if part.product is not None and part.product.k > 1:
                # Kept by predictor while adding; the variable is kept by column.
                size, k = part.product.size, part.product.k
                target = f"(j % {size}) * {k} + j // {size}"
            lines += [
                f"    if taken[{p}]:",
                f"        for j in range({part.size}):",
                f"            total[offsets[{p}] + {target}] += t{p}[j]",
            ]
        return [*lines, "    return n_clipped"]

    def _sums(self, p: int, part: Part, rows: Sequence[int], factor: str, index: int) -> list[str]:
        """Return the loops that add a block's shortened, truncated contributions."""
        if part.kind == "dense":
            lines = []
            for m, (row, number) in enumerate(zip(rows, part.slopes, strict=True)):
                if number:
                    lines += [
                        "c = 0",
                        "for i in range(n):",
                        f"    c += np.int64(select({factor} > 0.0, S[{row * BLOCK} + i] * {factor} * steps, 0.0))",
                        f"t{p}[{m}] += c",
                    ]
            return lines
        lines = ["for i in range(n):", f"    if {factor} > 0.0:"]
        if part.product is not None:
            size, table = part.product.size, self._tables[part.product.table]
            for m, row in enumerate(rows):
                lines.append(f"        slope = S[{row * BLOCK} + i] * {factor}")
                for first in range(0, size, _UNROLLED):
                    columns = range(first, min(size, first + _UNROLLED))
                    # All loads before all stores, so that they become vectors whatever the compiler knows of overlap.
                    lines += [f"        x{j} = {table}[(start + i) * {size} + {j}]" for j in columns]
                    lines += [f"        y{j} = t{p}[{m * size + j}]" for j in columns]
                    lines += [f"        t{p}[{m * size + j}] = y{j} + np.int64(x{j} * slope * steps)" for j in columns]
            return lines
        k = len(rows)
        lines += [f"        g = I[{index * BLOCK} + i]", f"        g = g + {part.size // k} if g < 0 else g"]
        lines += [f"        if 0 <= g < {part.size // k}:"]
        return lines + [
            f"            t{p}[g * {k} + {m}] += np.int64(S[{row * BLOCK} + i] * {factor} * steps)"
            for m, row in enumerate(rows)
        ]

    def _source_of_slopes(self) -> list[str]:
        tables = ", ".join(self._tables)
        logp, *slopes = self._outputs
        return [
            f"def slopes(P, S, I, low, high, units, out, indices, {tables}):",
            f"    for start in range(low, high, {BLOCK}):",
            f"        n = min({BLOCK}, high - start)",
            f"        block(P, S, I, start, n, {tables})",
            "        for i in range(n):",
            f"            units[start + i] = S[{logp * BLOCK} + i]",
            f"            for m in range({len(slopes)}):",
            f"                out[start + i, m] = S[({slopes[0] if slopes else 0} + m) * {BLOCK} + i]",
            f"            for m in range({self.n_indices}):",
            f"                indices[m, start + i] = I[m * {BLOCK} + i]",
        ]

    def _source_of_log_likelihood(self) -> list[str]:
        tables = ", ".join(self._tables)
        return [
            f"def log_likelihood(P, S, I, low, high, units, {tables}):",
            f"    for start in range(low, high, {BLOCK}):",
            f"        n = min({BLOCK}, high - start)",
            f"        log_block(P, S, I, start, n, {tables})",
            "        for i in range(n):",
            f"            units[start + i] = S[{self._outputs[0] * BLOCK} + i]",
        ]
