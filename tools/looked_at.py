"""What was looked at and is not allowed in models, or is, with what becomes of rows in it: one entry for each name.

Nothing in the package depends on these records. `tests/model/test_builders.py` compares them, and the lists of what is
allowed, with the packages that are installed: a name that a new release of PyMC or PyTensor brings fails it until
somebody has looked at it.
"""

from collections.abc import Mapping
from enum import Enum


class Verdict(Enum):
    """What becomes of rows in what a builder builds."""

    ROW_LOCAL = "the log-likelihood of a row is a function of that row, which a test shows for each name"
    REFUSED = "a likelihood of rows with it is refused"
    BY_OPERATIONS = "a function of variables: the operations that it is made of are listed by themselves"
    NEITHER = "it builds no part of a likelihood, or works on what others built"


BUILDERS: Mapping[str, Mapping[Verdict, str]] = {
    "pymc.distributions": {
        Verdict.ROW_LOCAL: """
            AsymmetricLaplace Bernoulli Beta BetaBinomial Binomial Categorical Cauchy Censored ChiSquared CustomDist
            DensityDist DiracDelta Dirichlet DirichletMultinomial DiscreteUniform DiscreteWeibull ExGaussian
            Exponential Flat Gamma Geometric Gumbel HalfCauchy HalfFlat HalfNormal HalfStudentT HurdleGamma
            HurdleLogNormal HurdleNegativeBinomial HurdlePoisson HyperGeometric InverseGamma KroneckerNormal
            Kumaraswamy LKJCorr Laplace LogNormal Logistic LogitNormal Lognormal Mixture Moyal Multinomial MvNormal
            MvStudentT NegativeBinomial Normal NormalMixture OrderedLogistic OrderedMultinomial OrderedProbit Pareto
            Poisson SkewNormal SkewStudentT StickBreakingWeights StudentT Triangular Truncated TruncatedNormal Uniform
            VonMises Wald Weibull Wishart ZeroInflatedBinomial ZeroInflatedNegativeBinomial ZeroInflatedPoisson
            ZeroSumNormal
        """,
        Verdict.REFUSED: """
            AR CAR EulerMaruyama GARCH11 GaussianRandomWalk ICAR Interpolated MatrixNormal MvGaussianRandomWalk
            MvStudentTRandomWalk PolyaGamma RandomWalk Rice Simulator
        """,
        Verdict.NEITHER: "Continuous Discrete Distribution LKJCholeskyCov SymbolicRandomVariable WishartBartlett",
    },
    "pymc": {
        Verdict.REFUSED: "Minibatch",
        Verdict.NEITHER: """
            ADVI ASVGD BaseModel BinaryGibbsMetropolis BinaryMetropolis CategoricalGibbsMetropolis DEMetropolis
            DEMetropolisZ Data Deterministic Empirical FrozenModel FullRank FullRankADVI Group HamiltonianMC MeanField
            Metropolis Model NUTS Point Potential SVGD Slice adadelta adagrad adagrad_window adam adamax
            apply_momentum apply_nesterov_momentum compile compile_fn compile_forward_sampling_function
            compute_deterministics compute_log_likelihood do draw find_MAP find_constrained_prior find_hessian fit
            get_data icdf init_nuts logccdf logcdf logp model_to_graphviz model_to_mermaid model_to_networkx
            modelcontext momentum nesterov_momentum norm_constraint observe predictions_to_inference_data rmsprop
            sample sample_approx sample_posterior_predictive sample_prior_predictive sample_smc set_data sgd
            to_inference_data total_norm_constraint vectorize_over_posterior
        """,
    },
    "pymc.gp": {
        Verdict.REFUSED: """
            Base HSGP HSGPPeriodic Latent LatentKron Marginal MarginalApprox MarginalKron MarginalSparse TP
            kmeans_inducing_points set_boundary
        """,
        Verdict.BY_OPERATIONS: """
            Add BaseCovariance Circular Combination Constant Coregion Cosine Covariance ExpQuad Exponential
            Exponentiated Gibbs Kron Linear Matern12 Matern32 Matern52 Mean Periodic Polynomial Prod RatQuad ScaledCov
            Stationary WarpedInput WhiteNoise WrappedPeriodic Zero approx_hsgp_hyperparams calc_basis_periodic
            calc_eigenvalues calc_eigenvectors stabilize
        """,
        Verdict.NEITHER: "conditioned_vars handle_args plot_gp_dist replace_with_values",
    },
    "pymc.dims": {
        Verdict.REFUSED: """
            Bernoulli Beta BetaBinomial Binomial Categorical Cauchy Censored CircularTransform Data Deterministic
            DimDistribution DimTransform DiracDelta Dirichlet Exponential Flat Gamma Geometric Gumbel HalfCauchy
            HalfFlat HalfNormal HalfStudentT HyperGeometric IntervalTransform InverseGamma Kumaraswamy Laplace
            LogNormal LogOddsTransform LogTransform Logistic MeasurableXTensorFromTensor MvNormal NegativeBinomial
            Normal Pareto Poisson PositiveDimDistribution Potential SimplexTransform StudentT Triangular
            TruncatedNormal Uniform UnitDimDistribution VectorDimDistribution VonMises Weibull ZeroSumNormal
            ZeroSumTransform copy_docstring dimshuffle_support_point expand_dist_dims
            measurable_xtensor_from_tensor_icdf measurable_xtensor_from_tensor_logccdf
            measurable_xtensor_from_tensor_logcdf measurable_xtensor_from_tensor_logprob
            xtensor_from_tensor_support_point
        """,
    },
    "pymc.math": {
        Verdict.BY_OPERATIONS: """
            BatchedDiag abs all and_ any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin
            argsort as_tensor batched_diag betainc block_diag broadcast_arrays broadcast_to cartesian ceil cho_solve
            cholesky clip concatenate constant cos cosh cumprod cumsum det diag diff digamma dot eigh eq erf erfc
            erfcinv erfinv exp expand_dims expand_packed_triangular expm1 eye flat_outer flatten flatten_list floor
            full full_like gamma gammainc gammaincc gammaln ge gt i0 i1 invlogit invprobit iv kron kron_diag kron_dot
            kron_matrix_op kron_solve_lower kron_solve_upper kronecker kv le linspace log log10 log1mexp log1p
            log1pexp log2 log_softmax logaddexp logbern logdet logdiffexp logit logsumexp lt matmul matrix_inverse max
            maximum mean min minimum moveaxis neq norm ones ones_like or_ polygamma probit prod repeat reshape round
            sgn sigmoid sin sinh slogdet softmax softplus solve solve_triangular sort sqr sqrt squeeze stack std sum
            swapaxes switch take tan tanh tile trace transpose tril triu unique var where zeros zeros_like
        """,
    },
    "pymc.model.transform": {
        Verdict.NEITHER: """
            ModelAnchor change_value_transforms do extract_deterministics freeze_dims_and_data freeze_model
            insert_deterministics observe parse_vars prune_vars_detached_from_observed remove_minibatched_nodes
            remove_value_transforms
        """,
    },
}
#: Operations, and modules of operations, that have been looked at and are not allowed, with the reason.
NOT_ALLOWED: Mapping[str, str] = {
    "pymc.data": "draws minibatches",
    "pymc.dims": "has axes with names",
    "pymc.distributions.dist_math.SplineWrapper": "holds a spline",
    "pymc.distributions.simulator": "calls functions of the user's",
    "pymc.initial_point": "is of PyMC's own rewriting",
    "pymc.logprob": "is of PyMC's own rewriting",
    "pymc.model": "is of PyMC's own rewriting",
    "pymc.ode": "holds times and calls a function of the user's",
    "pymc.variational": "multiplies the likelihood",
    "pytensor.breakpoint": "calls a debugger",
    "pytensor.compile.debug": "is of PyTensor's own rewriting",
    "pytensor.compile.ops.FromFunctionOp": "calls a function of the user's",
    "pytensor.gradient.UndefinedGrad": "is none",
    "pytensor.graph": "is of PyTensor's own rewriting",
    "pytensor.link": "calls other code",
    "pytensor.sparse": "has sparse matrices",
    "pytensor.tensor.blas": "is of PyTensor's own rewriting",
    "pytensor.tensor.blockwise.BlockwiseWithCoreShape": "is of PyTensor's own rewriting",
    "pytensor.tensor.blockwise.OpWithCoreShape": "is of PyTensor's own rewriting",
    "pytensor.tensor.optimize": "calls optimisers",
    "pytensor.tensor.random.op.RandomVariableWithCoreShape": "is of PyTensor's own rewriting",
    "pytensor.tensor.rewriting": "is of PyTensor's own rewriting",
    "pytensor.typed_list": "has lists",
    "pytensor.xtensor": "has axes with names",
}
#: Operations that may be in a model (`pymc_dp.model.operations`), have been looked at, and may not see rows: they call
#: LAPACK for what can fail, have lengths or branches that rows would decide, or nobody has shown that they are total.
NOT_FOR_ROWS = frozenset(
    """
    ARange AllocEmpty Assert Bartlett BaseBlockDiagonal BinaryBitOp BinaryScalarOp BlockDiagonal CheckAndRaise Choose
    Complex Conj Convolve1d Convolve2d CpuContiguous DeepCopyOp Det Eig Eigh Eigvalsh Expm Eye FillDiagonal
    FillDiagonalOffset FixedLogicalComparison Fourier GradScale Hyp2F1 IRFFTOp IfElse Imag JoinDims LU
    LUFactor LUFactorTridiagonal LazyIfElse LogicalComparison Lstsq MakeSlice MatrixInverse MatrixPinv MulWithoutZeros
    Nonzero PermuteRowElements PivotToPermutations Print QR QZ RFFTOp RavelMultiIndex Real Repeat SLogDet SVD
    ScalarInnerGraphOp ScalarOp Scan Schur SearchsortedOp SolveBase SolveLUFactorTridiagonal SpecifyAssumptions
    SplitDims TRSYL TensorInv TensorSolve TypeCastingOp UnaryBitOp UnaryScalarOp Unique UnravelIndex
    """.split()
)
