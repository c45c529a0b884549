"""The HSIC estimator: translates parameters, calls the solver, keeps the result."""

from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data

from bitmosaic import fitted_views, hsic_file
from bitmosaic.checkpoint import kept_in
from bitmosaic.errors import InvalidDataError, ParameterError, ViewMismatchError
from bitmosaic.estimate import Estimate, check_dims, estimate
from bitmosaic.fit_warnings import warn_of
from bitmosaic.guidance import guidance
from bitmosaic.hsic_online import Online
from bitmosaic.hsic_options import fewest_rows, solver_options
from bitmosaic.model_file import complete, read_model, write_model
from bitmosaic.parameters import check_enough, check_fitted, check_parameters, check_progress
from bitmosaic.scale import lazy
from bitmosaic.scale.data import data_of, on_cluster
from bitmosaic.scale.parts import whole_fit
from bitmosaic.scale.rows import is_dask
from bitmosaic.solver.train import memory_needs, train
from bitmosaic.threads import available_threads
from bitmosaic.views import as_views

FIXED_STEPS = 4  # that a fit reports beside its iterations


class HSIC(Online, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Highly-economized Scalable Image Clustering: a common binary code and a cluster for every image.

    Several kinds of features of the same images ("views") are compressed into one binary code per image while the
    clusters are learned on those codes. Views are given as a list of (n, d_v) arrays, a dict of name -> array, one 2-D
    array, memory maps, the path of a views folder or file, or a :class:`bitmosaic.views.Views`. They are read in
    blocks. A row of NaN in one view means that this image lacks that view. Values are real numbers of any type and
    scale within the range of float32; a spread below 1e-37 counts as none, and a view without any gives a warning.

    Views can be Dask arrays, all of them: the fit runs on the current Dask client, few rows come to this machine to be
    learned from, and labels and codes are Dask arrays. They are those of a fit of the same rows on one machine.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        "auto" takes the number whose clusters hold best for rows that did not make them, and warns where other numbers
        are about as good: see `cluster_counts_`.
    preset : {"default", "fast"}, default="default"
        "fast" lowers the defaults of n_anchors to 128, n_components to 24, train_size to 3,000 rows, max_iter to 4 and
        n_init to 3; what is given otherwise stays.
    n_bits : int, default=128
        Length of a code, a multiple of 8.
    n_anchors : int, default=400
        Samples of each view to which similarities are taken; at most all training rows, and with the consensus start
        a fifth of them (but more than n_clusters).
    shared_ratio : float, default=0.2
        Share of the bits whose projection all views have in common. With one view there are none.
    start : {"consensus", "rotation"}, default="consensus"
        First codes: from the directions on which the views agree, with k-means there for the first labels; or the
        principal components of the views after a random rotation.
    norm : {"l21", "frobenius"}, default="l21"
        How codes are compared with their centroids: one norm per bit, which damps bad bits, or plain squares (HSIC-F).
    joint : bool, default=True
        Learn codes and clusters together. False learns the codes first (HSIC-TS).
    ridge, variance_reward : float, default=1e-3
        λ1, and λ2/N, of the objective.
    coupling : float or "auto", default="auto"
        λ3: how much the clusters pull at the codes. "auto" is 15% of the pull of all views together after a consensus
        start, and the paper's 1e-5 after a rotation, whose first clusters are not worth following.
    balance : float, default=1e-3
        ν, in units of the number of samples and the typical bit weight: how much a centroid should have as many +1 as
        -1. HSIC-U has balance=0 and variance_reward=0.
    view_exponent : float, default=5
        r > 1; large values make the view weights more equal.
    anchors : {"same", "per_view"}, default="same"
        Whether the anchors are the same images in every view. Where too few images have all views, they are not.
    root : bool, default=True
        Take the square root of views without negative values where that makes their columns more symmetric: of most
        histograms, counts and energies a few large values would outweigh the rest.
    standardize : bool, default=True
        Divide each column by its standard deviation. False only centres the columns.
    n_components : int or None, default=96
        A view with more columns is reduced to so many principal components before similarities are taken; the strongest
        ones are damped where there are several views. None takes all columns as they are.
    kernel_width : float, default=1
        The width of the similarities, relative to twice the mean distance to the nearest anchor.
    max_iter : int or "auto", default="auto"
        Outer iterations; "auto" is 8, and 4 from 100 clusters on, where more gain nothing.
    cluster_iter : int or "auto", default="auto"
        Rounds of centroids and assignment inside each; "auto" is 10, and fewer beyond 200 clusters.
    n_init : int, default=20
        Seedings of the first clusters that are tried; fewer where rows × clusters is large.
    tol : float, default=1e-4
        Stop when an iteration lowers the objective by less than this share.
    train_size : int, float or "auto", default="auto"
        How many rows (or which share) the projections are learned on; all rows are encoded and clustered. "auto" is
        20,000 rows or 20 for each cluster, whichever is more.
    memory_limit : int, str or None, default=None
        Bound on what the fit allocates beside its input and output, e.g. "512MB". Blocks of similarities that do not
        fit are computed again when needed; 24 bytes for each row must. None is a quarter of the machine's memory.
    chunk_size, n_threads : int or None, default=None
        At most this many rows are read at a time; threads, None is every core. The result depends on neither, nor on
        memory_limit.
    random_state : int, RandomState or None, default=None
    verbose : int, default=0

    Attributes
    ----------
    labels_ : (n,) int32 · codes_ : (n, n_bits/8) uint8, packed as by ``np.packbits``; Dask arrays if the views were
    n_clusters_ : int, the number of clusters
    cluster_counts_ : None, or with n_clusters="auto" what was tried: `candidates`, their `silhouette` and its `spread`,
        `chosen`, the range from `low` to `high` that is about as good, `chance`, and whether the choice is `clear`
    cluster_centers_ : (n_clusters_, n_bits/8) uint8, packed
    bit_weights_ : (n_bits,) how much each bit counts in the distance to a center
    view_weights_ : (n_views,) how much each view counts, positive, sum 1 (the paper's α)
    objective_ : float, of the training rows
    objective_history_ : list of (iteration, step, objective)
    n_iter_ : int · view_names_ : list of str
    """

    _parameter_constraints: dict = {  # noqa: RUF012 (scikit-learn's contract)
        "n_clusters": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "preset": [StrOptions({"default", "fast"})],
        "n_bits": [Interval(Integral, 8, None, closed="left")],
        "n_anchors": [Interval(Integral, 1, None, closed="left")],
        "shared_ratio": [Interval(Real, 0, 1, closed="both")],
        "start": [StrOptions({"rotation", "consensus"})],
        "norm": [StrOptions({"l21", "frobenius"})],
        "joint": ["boolean"],
        "ridge": [Interval(Real, 0, None, closed="neither")],
        "variance_reward": [Interval(Real, 0, 0.1, closed="both")],
        "coupling": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "balance": [Interval(Real, 0, None, closed="left")],
        "view_exponent": [Interval(Real, 1, 100, closed="right")],
        "anchors": [StrOptions({"same", "per_view"})],
        "root": ["boolean"],
        "standardize": ["boolean"],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "kernel_width": [Interval(Real, 1e-3, 1e3, closed="both")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "cluster_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_init": [Interval(Integral, 1, None, closed="left")],
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

    def __init__(
        self,
        n_clusters=8,
        *,
        preset="default",
        n_bits=128,
        n_anchors=400,
        shared_ratio=0.2,
        start="consensus",
        norm="l21",
        joint=True,
        ridge=1e-3,
        variance_reward=1e-3,
        coupling="auto",
        balance=1e-3,
        view_exponent=5.0,
        anchors="same",
        root=True,
        standardize=True,
        n_components=96,
        kernel_width=1.0,
        max_iter="auto",
        cluster_iter="auto",
        n_init=20,
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
        self.root = root
        self.standardize = standardize
        self.n_components = n_components
        self.kernel_width = kernel_width
        self.max_iter = max_iter
        self.cluster_iter = cluster_iter
        self.n_init = n_init
        self.tol = tol
        self.train_size = train_size
        self.memory_limit = memory_limit
        self.chunk_size = chunk_size
        self.n_threads = n_threads
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def paper(cls, n_clusters=8, **changes):
        """HSIC with exactly the settings of the paper: 128 bits, 1000 anchors, all rows, λ3 = 1e-5, 10 iterations."""
        model = cls(n_clusters, n_bits=128, n_anchors=1000, shared_ratio=0.2, start="rotation", root=False)
        model.set_params(
            standardize=False, n_components=None, anchors="same", kernel_width=1.0, balance=1e-3, n_init=10
        )
        model.set_params(ridge=1e-3, variance_reward=1e-3, coupling=1e-5, view_exponent=5.0, norm="l21", joint=True)
        return model.set_params(max_iter=10, cluster_iter=10, tol=0.0, train_size=1.0).set_params(**changes)

    # ---- fit

    def fit(self, X, y=None, progress=None, checkpoint=None, constraints=None, init_labels=None):
        """Learn codes and clusters from views. `y` is ignored; ``progress(done, total)`` is called after each step.

        `checkpoint` is a folder in which a long fit keeps what it has, every few seconds: if the process dies, the same
        call goes on from there, and comes to the same result. Delete it once the model is saved.

        `constraints` is a :class:`bitmosaic.Constraints`: `labels_` meets it exactly, while `predict` takes the nearest
        center of a new image. `init_labels` (n,), -1 where unknown, is where clusters begin: they keep these numbers,
        and may change; other clusters begin among images without a label.
        """
        check_progress(progress)
        views = as_views(X)
        options = self.check(views.n_rows)
        told = guidance(constraints, init_labels, views.n_rows, options.n_clusters, on_cluster(views))

        n_steps = options.max_iter + FIXED_STEPS + (self.n_clusters == "auto")
        done = 0

        def report(message, steps=1):
            nonlocal done
            done += steps
            if self.verbose:
                print(f"HSIC: {message}", flush=True)
            if progress:
                progress(done - 1, n_steps)

        data = data_of(views)
        with whole_fit(data.client), kept_in(checkpoint, self, views, told.digest) as (keeper, seed):
            rng = np.random.default_rng(seed)
            trained = train(data, options, rng, report, keeper, told.rules, told.known)
            labels, codes = data.outcome(trained.labels, np.int32), data.outcome(trained.codes, np.uint8)
        self._check_columns(X, views, reset=True)
        self._keep(trained.model, views.names, views.columns, trained.counts)
        self.labels_, self.codes_ = labels, codes
        self.view_weights_, self.n_iter_ = trained.view_weights, trained.n_iter
        self.objective_history_, self.objective_ = trained.history, trained.history[-1][2]
        if progress:
            progress(n_steps, n_steps)
        warn_of(self, trained.n_found, trained.converged, told.rules is not None)
        return self

    def estimate(self, n, dims) -> Estimate:
        """How long a fit of `n` rows will take, and how much memory and disk, without any data.

        `dims` are the columns of the views: a list, or a dict of name -> columns. The solver is timed for a few seconds
        on random rows, so the machine should be as busy as it will be. Not in it: the time to read files that are not
        in the system's cache yet, and to compile kernels the first time after an installation. How often clusters
        change until they stay depends on the data; n_clusters must be a number.
        """
        if not isinstance(n, int | np.integer) or isinstance(n, bool):
            raise InvalidDataError(f"n must be a whole number of rows; got {n!r}.")
        options = self.check(n)
        if options.n_clusters is None:
            raise ParameterError("An estimate needs a number of clusters; got n_clusters='auto'. Guess one.")
        return estimate(int(n), check_dims(dims), options)

    def check(self, n_samples, widths=None, n_here=None):
        """Refuse parameters that cannot work for so many samples; returns them as the solver takes them.

        With the `widths` of the views, a memory_limit under which there is no fit is refused, too. `n_here` of the
        samples are clustered on this machine; None is all.
        """
        self._check_parameters()
        check_enough(n_samples, fewest_rows(self))
        options = solver_options(self, n_samples)
        if widths is not None:
            needs = memory_needs(widths, options, n_samples if n_here is None else n_here)
            needs.plan(options.memory_limit, options.n_threads)
        return options

    def _check_parameters(self):
        check_parameters(self)
        if self.n_bits % 8:
            raise ParameterError(f"n_bits must be a multiple of 8; got {self.n_bits}.")

    def _keep(self, model, view_names, columns, counts):
        self._model, self.view_names_ = model, list(view_names)
        self._columns = columns or (None,) * len(view_names)
        self.cluster_centers_, self.n_clusters_, self.cluster_counts_ = model.centers, len(model.centers), counts
        self.bit_weights_, self._majority = model.bit_weights, None
        self._n_features_out = model.centers.shape[1]

    # ---- new images

    def transform(self, X):
        """Packed codes (n, n_bits/8) uint8 of images seen through all or some of the fitted views."""
        return self._encode(X)

    def fit_transform(self, X, y=None):
        """Fit, and return the packed codes of the same images."""
        return self.fit(X).codes_

    def predict(self, X):
        """The cluster of each image, from all or some of the fitted views (a dict names them)."""
        codes = self._encode(X)
        if is_dask(codes):
            return lazy.of_rows(lazy.assign, self._model, codes, None, np.int32)
        return self._model.assign(codes, available_threads(self.n_threads))

    def nearest(self, X):
        """The cluster of each image, its distance from the center, and how much farther the second one is, in bits."""
        return self.nearest_of_codes(self._encode(X))

    def nearest_of_codes(self, codes, numbers=None):
        """As :meth:`nearest`, for packed codes. Centers of the same `numbers` (n_clusters_,) count as one cluster."""
        if is_dask(codes):
            columns = lazy.of_rows(lazy.nearest_two, self._model, codes, 3, np.float64)
            return columns[:, 0].astype(np.int32), columns[:, 1].astype(np.float32), columns[:, 2].astype(np.float32)
        return self._model.nearest_two(codes, available_threads(self.n_threads), numbers)

    def distances_to_own(self, codes, labels, numbers=None):
        """The distance of packed codes from the centers of their `labels`, and how much farther the nearest other
        center is (of other `numbers`), in bits: less than 0 where another is nearer, as constraints may want it."""
        check_fitted(self)
        return self._model.distances_to_own(codes, labels, available_threads(self.n_threads), numbers)

    def _encode(self, X):
        views, numbers = self._views_to_encode(X)
        if on_cluster(views):
            return lazy.encode(self._model, views, numbers, self.chunk_size)
        return self._model.encode(views, numbers, self.chunk_size, available_threads(self.n_threads))

    def _views_to_encode(self, X):
        """The given views, and which of the fitted ones they are."""
        check_fitted(self)
        views = as_views(X)
        numbers = fitted_views.match(X, views, self.view_names_)
        self._check_columns(X, views, reset=False)
        fitted_views.check(views, numbers, self.view_names_, self._model.widths, self._columns)
        return fitted_views.in_order(views, numbers)

    def _check_columns(self, X, views, reset):
        """scikit-learn's checks of names and number of columns, for input that is one table."""
        if len(views) == 1 and not fitted_views.names_its_views(X) and not isinstance(X, list | tuple):
            try:
                validate_data(self, X, reset=reset, skip_check_array=True)
            except ValueError as error:
                raise ViewMismatchError(str(error)) from None
        elif reset:
            self.n_features_in_ = sum(views.widths)

    # ---- files

    def save(self, path):
        """Write the fitted model as one file that holds no code: safetensors with a JSON manifest."""
        check_fitted(self)
        write_model(path, "HSIC", *hsic_file.contents(self))

    @classmethod
    def load(cls, path):
        """Read a model written by :meth:`save`. Nothing in the file is executed."""
        arrays, facts = read_model(path, "HSIC")
        with complete(path):
            estimator = cls(**facts["parameters"])
            estimator._check_parameters()
            hsic_file.restore(estimator, arrays, facts, path)
        return estimator

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags
