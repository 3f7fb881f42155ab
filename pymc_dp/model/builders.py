"""Every public name of PyMC that models are built with, and what becomes of rows in it.

The list is compared by a test with the packages that are installed: a name that a new release of PyMC brings fails it
until somebody has looked at it.
"""

import functools
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_dp.model.arrays import is_public

#: A mark of an operation, which stays with it when graphs are copied.
_BUILDER = "pymc_dp_builder"


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
#: Methods that compute a number from rows while the model is built, and put it into the graph.
EVALUATING: Mapping[str, tuple[str, ...]] = {
    "HSGP": ("prior_linearized", "_build_conditional"),
    "HSGPPeriodic": ("prior_linearized", "_build_conditional"),
}


def marking(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of `EVALUATING` that marks what it returns, but for locations that were declared public."""

    @functools.wraps(original)
    def marked(self: Any, locations: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, locations, *args, **kwargs)
        inputs = ancestors([locations]) if isinstance(locations, Variable) else []
        leaves = [each for each in inputs if each.owner is None]
        self._evaluated = getattr(self, "_evaluated", False) or not (leaves and all(map(is_public, leaves)))
        if self._evaluated:
            _mark(result, name)
        return result

    return marked


def _mark(result: Any, name: str) -> None:
    if isinstance(result, tuple | list):
        for each in result:
            _mark(each, name)
    elif isinstance(result, Variable) and result.owner is not None:
        setattr(result.owner.tag, _BUILDER, name)


def evaluated_by(variable: Variable) -> str | None:
    """Return which builder computed a number from rows for this variable, if one did."""
    return None if variable.owner is None else getattr(variable.owner.tag, _BUILDER, None)
