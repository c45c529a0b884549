"""The HSIC estimator: parameters, fit, prediction, files.

The functions below the class follow the same order.
"""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields, replace
from inspect import signature
from numbers import Integral, Real
from os import PathLike

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data

from bitmosaic.errors import DataTypeError, InvalidDataError, ParameterError, ViewMismatchError
from bitmosaic.estimators.checkpoint import open_checkpoint
from bitmosaic.estimators.constraints import check_prior
from bitmosaic.estimators.estimate import Estimate, check_dims, estimate
from bitmosaic.estimators.model_file import complete, read_model, write_model
from bitmosaic.estimators.parameters import (
    as_json,
    check_enough,
    check_fitted,
    check_parameters,
    is_dask,
    on_cluster,
    plain_value,
)
from bitmosaic.io.threads import available_threads
from bitmosaic.solver.blocks import LocalData
from bitmosaic.solver.clustering import Majority
from bitmosaic.solver.memory import parse_memory
from bitmosaic.solver.model import Model, nearest_two
from bitmosaic.solver.n_clusters import ClusterCounts
from bitmosaic.solver.train import Options, train
from bitmosaic.views import Views, as_views

FIXED_STEPS = 4  # progress steps of a fit besides its iterations
AUTO_TRAIN_SIZE, AUTO_TRAIN_ROWS_PER_CLUSTER = 15_000, 20
FAST = {"n_anchors": 128, "train_size": 5000, "max_iter": 4, "n_init": 3, "n_fits": 1}
CHOSEN_BY_SOLVER = ("n_clusters", "coupling", "cluster_iter", "n_fits")  # the solver takes None for "auto"
MAX_ITER, MANY_CLUSTERS, MANY_CLUSTERS_ITER = 8, 100, 4
UNSETTLED = 0.1  # warn if the last iteration lowered the objective by more than this share of its first value


class HSIC(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Highly-economized Scalable Image Clustering: one binary code and one cluster per image.

    Several kinds of features of the same images ("views") are compressed into one binary code per image while the
    clusters are learned on these codes.

    Views are a list of (n, d_v) arrays, a dict of name -> array, one 2-D array, memory maps, the path of a views folder
    or file, or a :class:`bitmosaic.views.Views`. They are read in blocks. A row of NaN in one view means that the image
    lacks this view. Any view may be a scipy.sparse matrix: it stays sparse, with the labels and codes of the same dense
    matrix. A row whose stored values are all NaN then means that the image lacks the view.

    Values are real numbers within the range of float32, of any type and scale. A column with a standard deviation below
    1e-37 counts as constant. A view with only constant columns gives a warning.

    If the views are Dask arrays (all of them), the fit runs on the current Dask client. Only the sampled rows are sent
    to this machine. `labels_` and `codes_` are Dask arrays, with the same values as a fit on one machine.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        "auto" selects the number of clusters with the best silhouette on held-out rows. It warns if other numbers are
        about as good; see `cluster_counts_`.
    preset : {"default", "fast"}, default="default"
        "fast" changes the defaults: n_anchors=128, train_size=5000 (or 20 rows per cluster), max_iter=4, n_init=3 and
        n_fits=1. Values other than the defaults are kept. On six sets of 10 to 1,000 clusters it had 92% to 103% of
        the NMI of the default.
    n_bits : int, default=128
        Length of a code, a multiple of 8.
    n_anchors : int, default=400
        Number of anchors: the rows of each view to which similarities are computed. At most the number of training
        rows; with start="proposals", at most a fifth of them (but more than n_clusters).
    shared_ratio : float, default=0.2
        Share of the bits whose projection is common to all views. Only with start="rotation" and several views.
    start : {"proposals", "rotation"}, default="proposals"
        How first codes and clusters are found. "proposals": several first clusterings, weighted by how well the views
        predict them on held-out rows; views are weighted likewise, and codes keep the structure inside clusters.
        "rotation": the principal components of the views after a random rotation, as in the paper.
    norm : {"l21", "frobenius"}, default="l21"
        Distance between codes and centers. "l21" has one norm per bit, which gives less weight to noisy bits.
        "frobenius" is the squared distance (HSIC-F).
    joint : bool, default=True
        Learn codes and clusters together. False learns the codes first (HSIC-TS).
    ridge, variance_reward : float, default=1e-3
        λ1, and λ2/N, of the objective. Only with start="rotation".
    coupling : float or "auto", default="auto"
        λ3, the weight of the clusters in the update of the codes. "auto" is 15% of the weight of all views together
        with start="proposals", and 1e-5 (as in the paper) with start="rotation", whose first clusters are poor.
    balance : float, default=1e-3
        ν, the penalty on centers with unequal numbers of +1 and -1, in units of the number of samples and the typical
        bit weight. HSIC-U has balance=0 and, with start="rotation", variance_reward=0.
    view_exponent : float, default=5
        r > 1. Larger values make the view weights more equal. Only with start="rotation".
    anchors : {"same", "per_view"}, default="same"
        Whether the anchors are the same images in every view. If too few images have all views, they differ.
    scaling : {"auto", "standard", "root", "unit", "center"}, default="auto"
        What is done to the values of every view, after which columns are centered. "standard" divides columns by their
        standard deviation, "root" does so after a square root, "unit" scales rows to length 1, "center" does nothing
        more. "auto" chooses for each view: "unit" for values that are mostly near zero (counts of words, activations),
        "root" for other values without negative ones if it makes columns more symmetric (histograms), "center" for
        values of both signs if columns have about the same spread (embeddings), else "standard". See `scalings_`.
    n_components : int or None, default=96
        Views with more columns are reduced to this number of principal components. With several views, the strongest
        components are damped. None keeps all columns.
    kernel_width : float, default=1
        Width of the similarities, relative to twice the mean distance to the nearest anchor.
    max_iter : int or "auto", default="auto"
        Maximum number of outer iterations. "auto" is 8, or 4 for 100 clusters or more.
    cluster_iter : int or "auto", default="auto"
        Clustering rounds (centers, then assignment) in each outer iteration. "auto" is 10, and fewer for more than
        200 clusters.
    n_init : int, default=20
        Number of initializations of the first clusters. Fewer are tried if rows × clusters is large.
    n_fits : int or "auto", default="auto"
        Number of draws of anchors from which start="proposals" takes first clusterings. "auto" is 3 for up to 5,000
        training rows and 128 clusters, else 1.
    tol : float, default=1e-4
        Stop when an iteration lowers the objective by less than this share.
    train_size : int, float or "auto", default="auto"
        Number (int) or share (float) of the rows used to learn the projections. All rows are encoded and clustered.
        "auto" is 15,000 rows or 20 rows per cluster, whichever is more.
    memory_limit : int, str or None, default=None
        Bound on the memory the fit allocates besides its input and output, for example "512MB". Similarities that do
        not fit are computed again when needed. At least 24 bytes per row are required. None is a quarter of the
        machine's memory.
    chunk_size : int or None, default=None
        Maximum number of rows read at a time. The result does not depend on it, nor on memory_limit.
    n_threads : int or None, default=None
        None is all cores. The result does not depend on it.
    random_state : int, RandomState or None, default=None
    verbose : int, default=0

    Attributes
    ----------
    labels_ : (n,) int32
        Cluster of each image. A Dask array if the views were Dask arrays.
    codes_ : (n, n_bits/8) uint8
        Code of each image, packed as by ``np.packbits``. A Dask array if the views were Dask arrays.
    n_clusters_ : int
        Number of clusters.
    cluster_counts_ : ClusterCounts or None
        With n_clusters="auto": the `candidates`, their `silhouette` and its `spread`, the number `chosen`, the range
        from `low` to `high` that is about as good, the silhouette by `chance`, and whether the choice is `clear`.
    cluster_centers_ : (n_clusters_, n_bits/8) uint8
        Packed centers.
    bit_weights_ : (n_bits,) float64
        Weight of each bit in the distance to a center.
    view_weights_ : (n_views,) float64
        Weight of each view, positive, sum 1. With start="proposals" it tells how clearly the view has clusters,
        compared with normally distributed rows; with start="rotation" it is learned (α in the paper).
    scalings_ : list of {"standard", "root", "unit", "center"}
        The scaling of each view.
    objective_ : float
        Final objective on the training rows.
    objective_history_ : list of (iteration, step, objective)
    n_iter_ : int
        Number of outer iterations.
    n_features_in_ : int
        Number of columns of all views together.
    view_names_ : list of str
    """

    _parameter_constraints: dict = {  # noqa: RUF012 (scikit-learn's contract)
        "n_clusters": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "preset": [StrOptions({"default", "fast"})],
        "n_bits": [Interval(Integral, 8, None, closed="left")],
        "n_anchors": [Interval(Integral, 1, None, closed="left")],
        "shared_ratio": [Interval(Real, 0, 1, closed="both")],
        "start": [StrOptions({"proposals", "rotation"})],
        "norm": [StrOptions({"l21", "frobenius"})],
        "joint": ["boolean"],
        "ridge": [Interval(Real, 0, None, closed="neither")],
        "variance_reward": [Interval(Real, 0, 0.1, closed="both")],
        "coupling": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "balance": [Interval(Real, 0, None, closed="left")],
        "view_exponent": [Interval(Real, 1, 100, closed="right")],
        "anchors": [StrOptions({"same", "per_view"})],
        "scaling": [StrOptions({"auto", "standard", "root", "unit", "center"})],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "kernel_width": [Interval(Real, 1e-3, 1e3, closed="both")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "cluster_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "n_fits": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "tol": [Interval(Real, 0, None, closed="left")],
        "train_size": [
            Interval(Integral, 1, None, closed="left"),
            Interval(Real, 0, 1, closed="right"),
            StrOptions({"auto"}),
        ],
        "memory_limit": [Interval(Integral, 1, None, closed="left"), str, None],
        "chunk_size": [Interval(Integral, 1, None, closed="left"), None],
        "n_threads": [Interval(Integral, 1, None, closed="left"), None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    _model: Model
    _majority: Majority | None

    def __init__(
        self,
        n_clusters=8,
        *,
        preset="default",
        n_bits=128,
        n_anchors=400,
        shared_ratio=0.2,
        start="proposals",
        norm="l21",
        joint=True,
        ridge=1e-3,
        variance_reward=1e-3,
        coupling="auto",
        balance=1e-3,
        view_exponent=5.0,
        anchors="same",
        scaling="auto",
        n_components=96,
        kernel_width=1.0,
        max_iter="auto",
        cluster_iter="auto",
        n_init=20,
        n_fits="auto",
        tol=1e-4,
        train_size="auto",
        memory_limit=None,
        chunk_size=None,
        n_threads=None,
        random_state=None,
        verbose=0,
    ):
        self.n_clusters = n_clusters
        self.preset = preset
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.shared_ratio = shared_ratio
        self.start = start
        self.norm = norm
        self.joint = joint
        self.ridge = ridge
        self.variance_reward = variance_reward
        self.coupling = coupling
        self.balance = balance
        self.view_exponent = view_exponent
        self.anchors = anchors
        self.scaling = scaling
        self.n_components = n_components
        self.kernel_width = kernel_width
        self.max_iter = max_iter
        self.cluster_iter = cluster_iter
        self.n_init = n_init
        self.n_fits = n_fits
        self.tol = tol
        self.train_size = train_size
        self.memory_limit = memory_limit
        self.chunk_size = chunk_size
        self.n_threads = n_threads
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def paper(cls, n_clusters=8, **changes):
        """Return HSIC with the settings of the paper: 128 bits, 1000 anchors, all rows, λ3 = 1e-5, 10 iterations."""
        model = cls(n_clusters, n_bits=128, n_anchors=1000, shared_ratio=0.2, start="rotation")
        model.set_params(scaling="center", n_components=None, anchors="same", kernel_width=1.0, balance=1e-3, n_init=10)
        model.set_params(ridge=1e-3, variance_reward=1e-3, coupling=1e-5, view_exponent=5.0, norm="l21", joint=True)
        return model.set_params(max_iter=10, cluster_iter=10, tol=0.0, train_size=1.0).set_params(**changes)

    # ---- fit

    def fit(self, X, y=None, progress=None, checkpoint=None, constraints=None, init_labels=None):
        """Learn codes and clusters from views.

        Parameters
        ----------
        X : views
            Arrays, scipy.sparse matrices or files; see the class description.
        y : ignored
        progress : callable or None
            ``progress(done, total)`` is called after each step.
        checkpoint : path or None
            Folder in which the fit saves its state every few seconds. If the process dies, the same call resumes from
            there and gives the same result. Delete the folder once the model is saved.
        constraints : :class:`bitmosaic.Constraints` or None
            `labels_` meets the constraints exactly. `predict` ignores them and returns the nearest center.
        init_labels : (n,) int or None
            Initial clusters, -1 where unknown. Clusters keep these numbers; the labels may change. Clusters without
            an initial label start among the images without one.

        Returns
        -------
        self
        """
        views = as_views(X)
        options = self.check(views.n_rows)
        prior = check_prior(constraints, init_labels, views.n_rows, options.n_clusters, on_cluster(views))
        n_steps = options.max_iter + FIXED_STEPS + (self.n_clusters == "auto")
        report = step_reporter(n_steps, progress, self.verbose)

        with solver_data(views) as data, open_checkpoint(checkpoint, self, views, prior.signature) as (state, seed):
            rng = np.random.default_rng(seed)
            trained = train(data, options, rng, report, state, prior.rules, prior.labels)
            labels, codes = data.outcome(trained.labels, np.int32), data.outcome(trained.codes, np.uint8)

        self._check_features(X, views, reset=True)
        self._set_model(trained.model, views.names, views.columns, trained.counts)
        self.labels_ = labels
        self.codes_ = codes
        self.view_weights_ = trained.view_weights
        self.n_iter_ = trained.n_iter
        self.objective_history_ = trained.history
        self.objective_ = trained.history[-1][2]
        if progress:
            progress(n_steps, n_steps)
        warn_about_fit(self, trained.n_found, trained.converged, prior.rules is not None)
        return self

    def fit_transform(self, X, y=None):
        """Fit, and return the packed codes of the same images."""
        return self.fit(X).codes_

    def partial_fit(self, X, y=None):
        """Encode and assign more images, then move each center to the majority of all codes ever assigned to it.

        The first call on an unfitted estimator is a `fit`. It learns the projections, which do not change later, so
        start with many images. `labels_` and `codes_` become those of the new images, assigned to the centers before
        the update. `y` is ignored.
        """
        if not hasattr(self, "_model"):
            return self.fit(X)
        codes = self._encode(X)
        if is_dask(codes):
            raise DataTypeError("partial_fit takes views in memory or in files; got Dask arrays. Pass them in blocks.")
        n_threads = available_threads(self.n_threads)
        labels = self._model.assign(codes, n_threads)
        majority = self.majority().with_codes(codes, labels, n_threads)
        self._model, self._majority = replace(self._model, centers=majority.centers), majority
        self.cluster_centers_, self.labels_, self.codes_ = majority.centers, labels, codes
        return self

    def majority(self):
        """Return the centers and the bit sums of all codes ever assigned to them, which `partial_fit` updates."""
        if self._majority is None:
            codes, labels = np.asarray(self.codes_), np.asarray(self.labels_)
            return Majority.of(self._model.centers, codes, labels, available_threads(self.n_threads))
        return self._majority

    def estimate(self, n, dims) -> Estimate:
        """Estimate the time, memory and disk space of a fit of `n` rows, without any data.

        `dims` are the numbers of columns of the views: a list, or a dict of name -> columns. The solver is timed for a
        few seconds on random rows, so the machine should be as busy as it will be during the fit. The estimate does
        not include reading files that are not in the system's cache yet, nor compiling kernels the first time after
        an installation. The number of iterations depends on the data. n_clusters must be a number.
        """
        if not isinstance(n, int | np.integer) or isinstance(n, bool):
            raise InvalidDataError(f"n must be a whole number of rows; got {n!r}.")
        options = self.check(n)
        if options.n_clusters is None:
            raise ParameterError(
                "An estimate needs a number of clusters; got n_clusters='auto'. Set n_clusters to a number."
            )
        return estimate(int(n), check_dims(dims), options)

    def check(self, n_samples):
        """Check the parameters for this number of samples, and return the solver's options."""
        self._check_parameters()
        check_enough(n_samples, fewest_rows(self))
        return solver_options(self, n_samples)

    def _check_parameters(self):
        check_parameters(self)
        if self.n_bits % 8:
            raise ParameterError(f"n_bits must be a multiple of 8; got {self.n_bits}.")

    def _set_model(self, model, view_names, columns, counts):
        """Set the attributes that `fit` and `load` have in common."""
        self._model = model
        self._majority = None
        self._columns = columns or (None,) * len(view_names)  # names of the columns of each view
        self._n_features_out = model.centers.shape[1]
        self.view_names_ = list(view_names)
        self.cluster_centers_ = model.centers
        self.n_clusters_ = len(model.centers)
        self.cluster_counts_ = counts
        self.bit_weights_ = model.bit_weights
        self.scalings_ = [embedding.scaling for embedding in model.embeddings]

    # ---- prediction

    def transform(self, X):
        """Return the packed codes (n, n_bits/8) uint8 of images, from all or some of the fitted views."""
        return self._encode(X)

    def predict(self, X):
        """Return the cluster of each image, from all or some of the fitted views (given by name in a dict)."""
        codes = self._encode(X)
        if is_dask(codes):
            from bitmosaic.estimators.dask import data as lazy

            return lazy.of_rows(lazy.assign, self._model, codes, None, np.int32)
        return self._model.assign(codes, available_threads(self.n_threads))

    def nearest(self, X):
        """Return the cluster of each image, the distance to its center, and the margin to the second nearest center.

        Distances are in bits, weighted by `bit_weights_`.
        """
        codes = self._encode(X)
        if is_dask(codes):
            from bitmosaic.estimators.dask import data as lazy

            columns = lazy.of_rows(lazy.nearest, (self.cluster_centers_, self.bit_weights_), codes, 3, np.float64)
            return columns[:, 0].astype(np.int32), columns[:, 1].astype(np.float32), columns[:, 2].astype(np.float32)
        return nearest_two(codes, self.cluster_centers_, self.bit_weights_, available_threads(self.n_threads))

    @property
    def view_widths(self):
        """Number of columns of each fitted view."""
        return self._model.widths

    def _encode(self, X):
        views, numbers = self._views_to_encode(X)
        if on_cluster(views):
            from bitmosaic.estimators.dask import data as lazy

            return lazy.encode(self._model, views, numbers, self.chunk_size)
        return self._model.encode(views, numbers, self.chunk_size, available_threads(self.n_threads))

    def _views_to_encode(self, X):
        """Return the given views in the order of the fit, and their numbers among the fitted views."""
        check_fitted(self)
        views = as_views(X)
        numbers = match_views(X, views, self.view_names_)
        self._check_features(X, views, reset=False)
        check_columns(views, numbers, self.view_names_, self._model.widths, self._columns)
        return sort_views(views, numbers)

    def _check_features(self, X, views, reset):
        """Apply scikit-learn's checks of the names and number of columns, if the input is one table."""
        if len(views) == 1 and not has_view_names(X) and not isinstance(X, list | tuple):
            try:
                validate_data(self, X, reset=reset, skip_check_array=True)
            except ValueError as error:
                raise ViewMismatchError(str(error)) from None
        elif reset:
            self.n_features_in_ = sum(views.widths)

    # ---- files

    def save(self, path):
        """Write the fitted model as one file without code: safetensors with a JSON manifest."""
        check_fitted(self)
        write_model(path, "HSIC", *arrays_and_facts(self))

    @classmethod
    def load(cls, path):
        """Read a model written by :meth:`save`. Nothing in the file is executed."""
        arrays, facts = read_model(path, "HSIC")
        with complete(path):
            estimator = cls(**todays_parameters(facts["parameters"]))
            restore(estimator, arrays, facts)
        return estimator

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        tags.input_tags.sparse = True
        return tags


# ---- parameters


def effective_parameters(estimator):
    """Return the parameters after the preset has replaced defaults."""
    parameters = {name: plain_value(value) for name, value in estimator.get_params().items()}
    if estimator.preset == "fast":
        defaults = signature(type(estimator).__init__).parameters
        parameters |= {name: value for name, value in FAST.items() if parameters[name] == defaults[name].default}
        if estimator.train_size == "auto":
            parameters["train_size"] = max(FAST["train_size"], AUTO_TRAIN_ROWS_PER_CLUSTER * fewest_rows(estimator))
    return parameters


def solver_options(estimator, n):
    """Return the solver's options for `n` rows. Raises an error if train_size gives too few rows."""
    parameters = effective_parameters(estimator)
    names = {field.name for field in fields(Options)}
    options = {name: value for name, value in parameters.items() if name in names}
    if options["max_iter"] == "auto":
        options["max_iter"] = MANY_CLUSTERS_ITER if fewest_rows(estimator) >= MANY_CLUSTERS else MAX_ITER
    options |= {
        **{name: None if parameters[name] == "auto" else parameters[name] for name in CHOSEN_BY_SOLVER},
        "same_anchors": estimator.anchors == "same",
        "n_train": n_training_rows(estimator, parameters["train_size"], n),
        "memory_limit": parse_memory(parameters["memory_limit"]),
        "n_threads": available_threads(parameters["n_threads"]),
    }
    return Options(**options)


def n_training_rows(estimator, train_size, n):
    """Return how many of `n` rows the projections are learned on."""
    if train_size == "auto":
        n_train = min(n, max(AUTO_TRAIN_SIZE, AUTO_TRAIN_ROWS_PER_CLUSTER * fewest_rows(estimator)))
    elif isinstance(train_size, Integral):
        n_train = min(n, train_size)
    else:
        n_train = max(1, round(train_size * n))
    if n_train < fewest_rows(estimator):
        raise ParameterError(
            f"train_size must give at least n_clusters={estimator.n_clusters} rows; {estimator.train_size!r} of {n} "
            f"gives {n_train}. Raise it."
        )
    return n_train


def fewest_rows(estimator):
    """Return the smallest number of rows that can be fitted: n_clusters, or 1 if it is "auto"."""
    return 1 if estimator.n_clusters == "auto" else int(estimator.n_clusters)


# ---- fit


def solver_data(views):
    """Return the solver's reader of the views, as a context manager for one fit."""
    if not on_cluster(views):
        return nullcontext(LocalData(views))
    from bitmosaic.estimators.dask.data import cluster_data

    return cluster_data(views)


def step_reporter(n_steps, progress, verbose):
    """Return ``report(message, steps=1)``, which the solver calls at the start of each step."""
    done = 0

    def report(message, steps=1):
        nonlocal done
        done += steps
        if verbose:
            print(f"HSIC: {message}", flush=True)
        if progress:
            progress(done - 1, n_steps)

    return report


def warn_about_fit(estimator, n_found, converged, constrained):
    """Warn if the number of clusters is unclear or not reached, or if the objective still fell at the end."""
    if estimator.cluster_counts_ and not estimator.cluster_counts_.clear:
        warnings.warn(f"The number of clusters is not clear: {estimator.cluster_counts_}.", UserWarning, stacklevel=3)
    if n_found < estimator.n_clusters_:
        constraints = ", or constraints keep clusters empty" if constrained else ""
        warnings.warn(
            f"There are fewer distinct codes than n_clusters={estimator.n_clusters_}: {n_found} clusters were found. "
            f"Many images may be alike, or n_bits too small{constraints}.",
            ConvergenceWarning,
            stacklevel=3,
        )
    ends = [value for _, step, value in estimator.objective_history_ if step == "α"]  # after each iteration
    fell = (ends[-2] - ends[-1]) / abs(ends[0]) if len(ends) > 1 and ends[0] else 0
    if not converged and fell > UNSETTLED:
        warnings.warn(
            f"The objective still fell by {fell:.0%} of its first value in the last of max_iter={estimator.n_iter_} "
            "iterations. Raise max_iter.",
            ConvergenceWarning,
            stacklevel=3,
        )


# ---- prediction


def has_view_names(X):
    """Return whether the user's input names its views."""
    return isinstance(X, Mapping | Views | str | PathLike)


def match_views(X, views, fitted):
    """Return the number of each of `views`, which were made from X, among the fitted view names."""
    if not has_view_names(X):
        if len(views) == len(fitted):
            return list(range(len(fitted)))
        raise ViewMismatchError(
            f"A list of views must have all of {fitted}, in this order; got {len(views)} views. "
            "Pass a dict of name -> array to use some of them."
        )
    unknown = [name for name in views.names if name not in fitted]
    if unknown:
        raise ViewMismatchError(
            f"Views must be among those the model was fitted on, {fitted}; got {unknown}. Rename or drop them."
        )
    return [fitted.index(name) for name in views.names]


def check_columns(views, numbers, fitted, widths, columns):
    """Raise an error if a view has other columns than at fit; `widths` and `columns` are those of the fit."""
    given = views.columns or (None,) * len(views)
    for width, names, v in zip(views.widths, given, numbers, strict=True):
        if width != widths[v]:
            raise ViewMismatchError(
                f"A view must have as many columns as at fit; view {fitted[v]!r} had {widths[v]}, got {width}. "
                "Was it made by another extractor?"
            )
        if names and columns[v] and names != columns[v]:
            raise ViewMismatchError(
                f"The columns of view {fitted[v]!r} have other names or another order than at fit. "
                "Reorder or rename them."
            )


def sort_views(views, numbers):
    """Return views and numbers in the order of the fit, so that codes do not depend on the order of a dict."""
    order = np.argsort(numbers)
    return Views(tuple(views.names[i] for i in order), tuple(views.arrays[i] for i in order)), sorted(numbers)


# ---- files


def arrays_and_facts(estimator):
    """Return the content of the model file of a fitted estimator."""
    arrays, kernels = estimator._model.to_arrays()
    arrays |= {"labels": np.asarray(estimator.labels_), "codes": np.asarray(estimator.codes_)}  # computes Dask arrays
    arrays["view_weights"] = estimator.view_weights_
    if estimator._majority is not None:  # after a partial_fit it cannot be computed from codes and labels
        arrays |= {"bit_sums": estimator._majority.bit_sums, "counts": estimator._majority.counts}
    facts = {
        "parameters": as_json(estimator.get_params()),
        "view_names": estimator.view_names_,
        "columns": [names and list(names) for names in estimator._columns],
        "kernels": kernels,
        "cluster_counts": estimator.cluster_counts_ and estimator.cluster_counts_.as_json(),
        "n_iter": estimator.n_iter_,
        "objective_history": [list(entry) for entry in estimator.objective_history_],
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
    }
    return arrays, facts


def todays_parameters(stored):
    """Return the parameters of a model file in today's names."""
    stored = dict(stored)
    if "standardize" in stored:  # of version 0.1.0
        root, standardize = stored.pop("root"), stored.pop("standardize")
        stored["scaling"] = "center" if not standardize else "auto" if root else "standard"
    if stored.get("start") == "consensus":
        stored["start"] = "proposals"
    return stored


def restore(estimator, arrays, facts):
    """Set the fitted attributes of an estimator from a model file, whose hash was checked."""
    model, names = Model.from_arrays(arrays, facts["kernels"]), facts["view_names"]
    counts = ClusterCounts.from_json(facts["cluster_counts"]) if estimator.n_clusters == "auto" else None
    columns = tuple(columns and tuple(map(str, columns)) for columns in facts["columns"])
    estimator._set_model(model, names, columns, counts)
    if "bit_sums" in arrays:
        estimator._majority = Majority(model.centers, arrays["bit_sums"], arrays["counts"])
    estimator.labels_ = arrays["labels"]
    estimator.codes_ = arrays["codes"]
    estimator.view_weights_ = arrays["view_weights"]
    estimator.n_iter_ = int(facts["n_iter"])
    estimator.objective_history_ = [(int(i), str(step), float(value)) for i, step, value in facts["objective_history"]]
    estimator.objective_ = estimator.objective_history_[-1][2]
    estimator.n_features_in_ = facts["n_features_in"]
    if facts["feature_names_in"]:
        estimator.feature_names_in_ = np.array(facts["feature_names_in"], object)
