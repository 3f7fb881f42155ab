"""The allow-list of operations and types anywhere in a model's graphs.

A listed operation computes a function of its inputs, and of its inner graph, which is checked as well. An operation
with a state of its own could hold a table that no graph shows. All others are refused by name: operations of PyMC and
PyTensor that call functions or hold objects, those on named axes, sparse matrices and lists, and every operation that
somebody else defines.

The operations that may see values of rows are another list, `pymc_dp.model.allowed`.
"""

import functools
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.data import MinibatchOp
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.dist_math import SplineWrapper
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.arrays import builder_of, everything_in, operations_of
from pymc_dp.model.closures import is_of_library

#: Names of classes, by module. Base classes are listed, too: none of them has a state.
OPERATIONS: Mapping[str, str] = {
    "pymc.distributions.censored": "CensoredRV",
    "pymc.distributions.continuous": """
        AsymmetricLaplaceRV BetaClippedRV ExGaussianRV FlatRV HalfCauchyRV HalfFlatRV HalfStudentTRV
        InterpolatedRV KumaraswamyRV MoyalRV PolyaGammaRV RiceRV SkewNormalRV SkewStudentTRV TruncatedNormalRV
        WaldRV WeibullBetaRV _PolyaGammaLogDistFunc
    """,
    "pymc.distributions.custom": "CustomDistRV CustomSymbolicDistRV",
    "pymc.distributions.discrete": "DiscreteUniformRV DiscreteWeibullRV",
    "pymc.distributions.dist_math": "I0e I1e",
    "pymc.distributions.distribution": "DiracDeltaRV PartialObservedRV SymbolicRandomVariable",
    "pymc.distributions.mixture": "MixtureRV _BaseMixtureRV _HurdleRV",
    "pymc.distributions.multivariate": """
        CARRV DirichletMultinomialRV ICARRV KroneckerNormalRV LKJCorrRV MatrixNormalRV MvStudentTRV
        PrecisionMvNormalRV StickBreakingWeightsRV SymbolicMVNormalUsedInternally WishartRV ZeroSumNormalRV
        _LKJCholeskyCovRV
    """,
    "pymc.distributions.timeseries": "AutoRegressiveRV EulerMaruyamaRV GARCH11RV RandomWalkRV",
    "pymc.distributions.truncated": "TruncatedRV TruncationCheck",
    "pymc.logprob.utils": "CheckParameterValue",
    "pymc.math": "BatchedDiag",
    "pytensor.assumptions.specify": "SpecifyAssumptions",
    "pytensor.compile.builders": "FinalizedOpFromGraph OpFromGraph SymbolicOp",
    "pytensor.compile.ops": "DeepCopyOp TypeCastingOp ViewOp",
    "pytensor.conditional.op": "IfElse LazyIfElse",
    "pytensor.gradient": "DisconnectedGrad GradClip GradScale ZeroGrad",
    "pytensor.printing": "Print",
    "pytensor.raise_op": "Assert CheckAndRaise",
    "pytensor.scalar.basic": """
        AND Abs Add ArcCos ArcCosh ArcSin ArcSinh ArcTan ArcTan2 ArcTanh BinaryBitOp BinaryScalarOp Cast Ceil Clip
        Complex Composite Conj Cos Cosh EQ Exp Exp2 Expm1 FixedLogicalComparison Floor GE GT Identity Imag IntDiv
        Invert IsInf IsNan LE LT Log Log10 Log1p Log2 LogicalComparison Maximum Minimum Mod Mul NEQ Neg OR Pow
        Real Reciprocal RoundHalfAwayFromZero RoundHalfToEven ScalarInnerGraphOp ScalarOp Second Sign Sin Sinh Sqr
        Sqrt Sub Switch Tan Tanh TrueDiv Trunc UnaryBitOp UnaryScalarOp XOR
    """,
    "pytensor.scalar.loop": "ScalarLoop",
    "pytensor.scalar.math": """
        BetaInc BetaIncInv Erf Erfc Erfcinv Erfcx Erfinv Gamma GammaInc GammaIncC GammaIncCInv GammaIncInv GammaLn
        Grad2F1Loop Hyp2F1 I0 I1 Ive J0 J1 Jv Kve Log1mexp NdtriExp Owens_t PolyGamma Psi Sigmoid Softplus
        TriGamma
    """,
    "pytensor.scan.op": "Scan",
    "pytensor.tensor.basic": """
        ARange Alloc AllocDiag AllocEmpty Choose ExtractDiag Eye Join MakeVector Nonzero PermuteRowElements
        ScalarFromTensor Split TensorFromScalar
    """,
    "pytensor.tensor.blockwise": "Blockwise",
    "pytensor.tensor.einsum": "Einsum",
    "pytensor.tensor.elemwise": "CAReduce DimShuffle Elemwise",
    "pytensor.tensor.extra_ops": """
        Bartlett CpuContiguous CumOp FillDiagonal FillDiagonalOffset RavelMultiIndex Repeat SearchsortedOp Unique
        UnravelIndex
    """,
    "pytensor.tensor.fft": "IRFFTOp RFFTOp",
    "pytensor.tensor.fourier": "Fourier",
    "pytensor.tensor.linalg.constructors": "BaseBlockDiagonal BlockDiagonal",
    "pytensor.tensor.linalg.decomposition.cholesky": "Cholesky",
    "pytensor.tensor.linalg.decomposition.eigen": "Eig Eigh Eigvalsh",
    "pytensor.tensor.linalg.decomposition.lu": "LU LUFactor PivotToPermutations",
    "pytensor.tensor.linalg.decomposition.qr": "QR",
    "pytensor.tensor.linalg.decomposition.schur": "QZ Schur",
    "pytensor.tensor.linalg.decomposition.svd": "SVD",
    "pytensor.tensor.linalg.inverse": "MatrixInverse MatrixPinv TensorInv",
    "pytensor.tensor.linalg.products": "Expm KroneckerProduct",
    "pytensor.tensor.linalg.solvers.core": "SolveBase",
    "pytensor.tensor.linalg.solvers.general": "Solve",
    "pytensor.tensor.linalg.solvers.linear_control": """
        SolveBilinearDiscreteLyapunov SolveDiscreteARE SolveSylvester TRSYL
    """,
    "pytensor.tensor.linalg.solvers.lstsq": "Lstsq TensorSolve",
    "pytensor.tensor.linalg.solvers.psd": "CholeskySolve",
    "pytensor.tensor.linalg.solvers.triangular": "SolveTriangular",
    "pytensor.tensor.linalg.solvers.tridiagonal": "LUFactorTridiagonal SolveLUFactorTridiagonal",
    "pytensor.tensor.linalg.summary": "Det SLogDet",
    "pytensor.tensor.math": """
        All Any Argmax Dot FixedOpCAReduce Max MaxAndMinCAReduce Min MulWithoutZeros NonZeroDimsCAReduce Prod
        ProdWithoutZeros Sum
    """,
    "pytensor.tensor.pad": "Pad",
    "pytensor.tensor.random.basic": """
        BernoulliRV BetaBinomialRV BetaRV BinomialRV CategoricalRV CauchyRV ChoiceWithoutReplacement DirichletRV
        ExponentialRV GammaRV GenGammaRV GeometricRV GumbelRV HalfCauchyRV HalfNormalRV HyperGeometricRV
        IntegersRV InvGammaRV LaplaceRV LogNormalRV LogisticRV MultinomialRV MvNormalRV NegBinomialRV NormalRV
        ParetoRV PermutationRV PoissonRV ScipyRandomVariable StudentTRV TriangularRV TruncExponentialRV UniformRV
        VonMisesRV WaldRV WeibullRV
    """,
    "pytensor.tensor.random.op": "AbstractRNGConstructor DefaultGeneratorMakerOp RNGConsumerOp RandomVariable",
    "pytensor.tensor.reshape": "JoinDims SplitDims",
    "pytensor.tensor.shape": "Reshape Shape Shape_i SpecifyShape",
    "pytensor.tensor.signal.conv": "Convolve1d Convolve2d",
    "pytensor.tensor.sort": "ArgSortOp SortOp",
    "pytensor.tensor.special": "LogAddExp LogSoftmax LogSumExp Softmax XLog1PY XLogY",
    "pytensor.tensor.subtensor": "AdvancedIncSubtensor AdvancedSubtensor IncSubtensor Subtensor",
    "pytensor.tensor.symbolic": "FusibleSymbolicOp FusibleSymbolicOpDerivative TensorSymbolicOp",
    "pytensor.tensor.type_other": "MakeSlice",
}
#: Allowed types of variables; below, known types that are not allowed, with advice.
TYPES: Mapping[str, str] = {
    "pytensor.scalar.basic": "ScalarType",
    "pytensor.tensor.random.type": "RandomGeneratorType",
    "pytensor.tensor.type": "TensorType",
    "pytensor.tensor.type_other": "NoneTypeT SliceType",
}
_NAMED_AXES = (
    "has named axes of pymc.dims, which are not supported. Write the model with PyMC's ordinary distributions, pm.Data "
    "and dims="
)
TYPES_NOT_ALLOWED: Mapping[str, str] = {
    "pytensor.xtensor": _NAMED_AXES,
    "pytensor.sparse": "is a sparse matrix, whose rows cannot be told apart. Pass an ordinary array: matrix.toarray()",
    "pytensor.gradient": "",
    "pytensor.graph": "",
    "pytensor.link": "",
    "pytensor.raise_op": "",
    "pytensor.tensor.random.type": "",
    "pytensor.typed_list": "",
}
#: Classes that PyMC makes for each custom distribution; `pymc_dp.model.closures` looks through their functions.
_MADE_BY_PYMC = (CustomDistRV, CustomSymbolicDistRV)
_WHAT_TO_DO = (
    "Only operations that compute a function of their inputs and hold nothing of their own may be in a model. Write it "
    "with PyTensor's arithmetic and PyMC's distributions (pm.CustomDist for a density of your own)."
)


def refuse_unlisted(graphs: Mapping[str, Iterable[Variable]], *, derived: bool = False) -> None:
    """Refuse graphs with an operation or a type of variable that is not listed, in inner graphs as well.

    The keys name the graphs in messages. In log-probabilities (`derived`) PyMC writes a spline for `pm.Interpolated`.
    """
    for name, outputs in graphs.items():
        variables = list(everything_in(outputs))
        for variable in variables:  # types before operations: their advice is more specific
            kind = type(variable.type)
            if not _is_listed(kind, TYPES):
                found = (each for module, each in TYPES_NOT_ALLOWED.items() if kind.__module__.startswith(module))
                advice = next(found, "") or f"is no array, but a {kind.__name__}, which is not supported"
                raise UnsupportedModel(f"{name} depends on a variable that {advice}.")
        for variable in variables:
            builder = builder_of(variable)
            if builder is not None:
                raise UnsupportedModel(
                    f"{name} depends on {builder}, which computes the middle of its locations, and perhaps their "
                    "range, while the model is built: with rows for locations, every row would depend on all others. "
                    "Write the basis with round public numbers (pm.gp.hsgp_approx.calc_eigenvectors(x - centre, L, "
                    "...)), or give it public locations, one for each group: dp.public(locations)."
                )
            for op in operations_of(variable):
                if not (derived and type(op) is SplineWrapper):
                    _refuse_operation(name, op)


def _refuse_operation(name: str, op: Any) -> None:
    kind = type(op)
    if not _is_known(kind):
        raise UnsupportedModel(f"{name} depends on the operation {kind.__name__}, which is not listed. {_WHAT_TO_DO}")
    if _holds_state(op):
        raise UnsupportedModel(
            f"{name} depends on an operation {kind.__name__} that holds an array or a function of yours. {_WHAT_TO_DO}"
        )


def _is_known(kind: type) -> bool:
    """Return whether a class of operations is listed, or made by PyMC for a distribution."""
    # Classes that `type` makes have the module of their metaclass.
    is_made_by_pymc = kind.__module__ == "abc" and any(kind.__bases__ == (base,) for base in _MADE_BY_PYMC)
    return _is_listed(kind, OPERATIONS) or is_made_by_pymc


def _holds_state(op: Any) -> bool:
    """Return whether an attribute of an operation is an array, a function of the user's, or an operation with one."""
    values = getattr(op, "__dict__", {}).values()
    return any(_is_state(each) for value in values for each in (value if isinstance(value, list | tuple) else [value]))


def _is_listed(kind: type, listed: Mapping[str, str]) -> bool:
    """Return whether a class is listed, and is the object of that name in its module."""
    if kind.__qualname__ not in listed.get(kind.__module__, "").split():
        return False
    return getattr(sys.modules[kind.__module__], kind.__qualname__, None) is kind


def _is_state(value: Any) -> bool:
    """Return whether an attribute of an operation is an array or a function of the user's."""
    if isinstance(value, np.ndarray):
        return bool(value.size > 1)
    if isinstance(value, functools.partial):
        return _is_state(value.func)
    if isinstance(value, Constant | SharedVariable):
        return False  # an input of the graph inside, which is searched
    if isinstance(value, Op):
        return not _is_known(type(value)) or _holds_state(value)
    return callable(value) and not isinstance(value, np.ufunc) and not is_of_library(value)


def refuse_unsplittable(model: pm.Model) -> None:
    """Refuse a model whose likelihood cannot be split into rows, by its variables and operations alone."""
    if not model.observed_RVs:
        instead = (
            " A likelihood in a pm.Potential cannot be split into rows: write it with pm.Censored, pm.Truncated, or "
            "pm.CustomDist(..., observed=)."
        )
        raise UnsupportedModel(
            f"The model has no observed variable: pass the data as observed=...{instead if model.potentials else ''}"
        )
    _refuse_minibatches(model)
    graphs = {f"{each.name!r}": [each] for each in [*model.basic_RVs, *model.potentials, *model.deterministics]}
    graphs |= {f"The data of {rv.name!r}": [value] for rv, value in model.rvs_to_values.items()}
    for rv, start in model.rvs_to_initial_values.items():
        graphs[f"The initval of {rv.name!r}"] = [start] if isinstance(start, Variable) else []
    refuse_unlisted(graphs)
    free = {rv.name for rv in model.free_RVs}
    for rv in model.observed_RVs:
        stem = rv.name.removesuffix("_observed")
        if stem != rv.name and f"{stem}_unobserved" in free:
            raise UnsupportedModel(
                f"{stem!r} has missing observed values, which PyMC would impute with one parameter each. Before the "
                "model, and by a rule that looks at each row alone: drop rows with a missing outcome; in a covariate "
                "put a public number in place of missing values, and a column of zeros and ones beside it that says "
                "where."
            )
    for rv in model.free_RVs:
        if model.rvs_to_values[rv].dtype.startswith(("int", "uint", "bool")):
            raise UnsupportedModel(
                f"The free variable {rv.name!r} is discrete, and gradients need continuous ones. Sum it out of "
                "the likelihood (for example with pm.Mixture)."
            )


def _refuse_minibatches(model: pm.Model) -> None:
    """Refuse `pm.Minibatch` and ``total_size=``: only batches that are drawn by this package are accounted for."""
    for variable in ancestors([*model.basic_RVs, *model.rvs_to_values.values(), *model.potentials]):
        if variable.owner is not None and isinstance(variable.owner.op, MinibatchOp):
            raise UnsupportedModel(
                "The model holds pm.Minibatch, which draws rows anew, and with replacement, whenever the likelihood is "
                "computed: one person may be drawn several times, and no accounting here covers such batches. Pass "
                "the whole table, and batch_size= to a sampler that draws batches itself (DPSGLD, DPSGHMC, DPSGNHT, "
                "DPMinibatchPenalty)."
            )
    for rv in model.observed_RVs:
        if rv.owner is not None and isinstance(rv.owner.op, MinibatchRandomVariable):
            raise UnsupportedModel(
                f"{rv.name!r} has total_size=, which multiplies the likelihood of every row. Leave it out: samplers "
                "that draw batches scale them by themselves."
            )
