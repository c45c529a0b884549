"""Views -> a trained model: scan, anchors, embeddings, Algorithm 1 on a sample, then codes and clusters of all rows."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from bitmosaic.errors import InvalidDataError
from bitmosaic.io.threads import in_order, row_ranges, single_threaded_blas
from bitmosaic.solver.blocks import FusedBlocks
from bitmosaic.solver.clustering import refine
from bitmosaic.solver.constrained.clustering import best_seeding, with_final_sizes, with_rules
from bitmosaic.solver.embedding import (
    REACH,
    CenteredRows,
    basis_rows,
    centered_rows,
    fit_embedding,
    normalization,
    principal_basis,
)
from bitmosaic.solver.loop import NO_CHECKPOINT, Settings, encode, learn
from bitmosaic.solver.memory import Needs
from bitmosaic.solver.model import Model
from bitmosaic.solver.n_clusters import ClusterCounts, estimate_n_clusters, most_clusters
from bitmosaic.solver.proposals import KEPT_DRAWS, ROWS_PER_ANCHOR, proposals_start
from bitmosaic.solver.scan import SMALLEST_SPREAD, rows_per_block
from bitmosaic.solver.start import Guide, Start, find_consensus, rotation_start
from bitmosaic.solver.steps import L21, Frobenius
from bitmosaic.views import exact_dtype, read_rows

PROBES = 2048  # rows that determine the kernel width
START_ROWS, START_ROWS_PER_CLUSTER = 15_000, 50  # rows from which first clusters are proposed
AUTO_COUPLING = 0.15  # fraction of the total vote of the views
PAPER_COUPLING = 1e-5
FEW_ROWS, FEW_PAIRS, DRAWS_OF_FEW_ROWS = 5000, 200_000, 3  # pairs of rows and clusters
CLUSTER_ITER, FINAL_ITER = 10, 50  # rounds of centroids and assignment, in each iteration and on all codes
ROUND_WORK, FINAL_WORK = 2000, 5000  # rounds × clusters: fewer rounds for many clusters


@dataclass(frozen=True)
class Options:
    """The checked parameters of the estimator, as plain numbers."""

    n_clusters: int | None  # None: estimated
    n_bits: int
    n_anchors: int
    shared_ratio: float
    same_anchors: bool
    scaling: str  # "auto", "standard", "root", "unit" or "center"
    n_components: int | None  # None: views are not reduced
    kernel_width: float
    start: str  # "proposals" or "rotation"
    norm: str  # "l21" or "frobenius"
    joint: bool
    ridge: float
    variance_reward: float
    coupling: float | None  # None: proportional to the vote of the views
    balance: float
    view_exponent: float
    max_iter: int
    cluster_iter: int | None  # None: fewer for many clusters
    n_init: int
    n_fits: int | None  # None: more for few rows
    tol: float
    n_train: int
    memory_limit: int
    chunk_size: int | None
    n_threads: int


@dataclass(frozen=True)
class Trained:
    model: Model
    view_weights: np.ndarray  # (m,)
    codes: Any  # (n, K/8) uint8
    labels: Any  # (n,) int32
    n_found: int  # clusters that are not empty
    history: list[tuple[int, str, float]]
    n_iter: int
    converged: bool
    counts: ClusterCounts | None  # if the number of clusters was estimated


def train(data, options, rng, report: Callable[..., None], checkpoint=NO_CHECKPOINT, rules=None, known=None):
    """Learn from views, given as LocalData or a class with the same interface. `report` receives a progress message,
    and the number of steps done if more than one.

    `checkpoint` saves what another process needs to resume, and may provide such a state. Labels of all rows satisfy
    `rules`. `known` (n,) are labels to start from, -1 where unknown.
    """
    with single_threaded_blas():
        return _train(data, options, rng, report, checkpoint, rules, known)


def _train(data, o, rng, report, checkpoint, rules, known):
    n, n_views = data.n_rows, len(data.names)
    needs = memory_needs(data.widths, o, data.n_here, rules, getattr(data, "most_values", None))
    n_threads, cache_bytes = needs.plan(o.memory_limit, o.n_threads)
    keep_fused = needs.fused <= cache_bytes
    if keep_fused:
        cache_bytes -= needs.fused
    cache_bytes //= min(needs.n_draws, KEPT_DRAWS)

    report(f"scanning {o.n_train} of {n} rows of {n_views} views")
    rows = training_rows(n, o.n_train, rules, rng)
    train_rules = None if rules is None else rules.subset(rows)
    guide = make_guide(train_rules, None if known is None else known[rows], len(rows))
    sample = data.sample(rows)
    facts = sample.scan(rows, n_threads, o.scaling)
    present = np.array([f.present for f in facts])  # (m, n_train)
    n_present = present.sum(1)
    for name, count in zip(data.names, n_present, strict=True):
        if count == 0 and len(rows) == n:
            raise InvalidDataError(
                f"A view must have at least one row that is not NaN; view {name!r} has none. Remove the view."
            )
        if count == 0:
            raise InvalidDataError(
                f"The training sample must contain rows of every view; none of its {len(rows)} rows has view {name!r}. "
                "Raise train_size or remove the view."
            )

    warn_if_unlinked(present)
    warn_if_silent(data.names, facts, len(rows))

    def embedded(linear=o.start == "proposals"):
        """Draw anchors, and embed the training rows with them. `linear` is explained in `fit_embedding`."""
        anchors = choose_anchors(present, o, rng)  # positions in `rows`, for each view
        probes = np.sort(rng.choice(len(rows), min(len(rows), PROBES), replace=False))
        draw = int(rng.integers(2**31))  # one seed for all views: a copy of a view must get the same components
        basis = [basis_positions(p, d, o) for p, d in zip(present, data.widths, strict=True)]
        arrays = sample.arrays(rows[reduce(np.union1d, [probes, *anchors, *basis])])

        def one_embedding(v):
            of_view = probes[present[v, probes]]
            return _embedding(arrays[v], facts[v], rows, basis[v], anchors[v], of_view, o, n_views > 1, draw, linear)

        widest_first = np.argsort(data.widths)[::-1]
        found = dict(zip(widest_first, in_order(one_embedding, widest_first, n_threads), strict=True))
        embeddings = [found[v] for v in range(n_views)]
        blocks = sample.blocks(embeddings, rows, chunk_size=o.chunk_size, cache_bytes=cache_bytes, n_threads=n_threads)
        return anchors, blocks

    def agreement(blocks):
        joint, slices = blocks.joint_gram()
        return find_consensus(joint, slices, len(rows), n_present, n_threads)

    start_rows = np.sort(rng.choice(len(rows), needs.n_start, replace=False))
    counts = consensus = None
    anchors, blocks = embedded(linear=o.start == "proposals" or o.n_clusters is None)
    report(
        f"embedding {len(rows)} training rows with {len(anchors[0])} anchors; "
        f"{blocks.n_cached} of {len(blocks)} blocks stay in memory"
    )
    blocks.center(n_present)
    if o.n_clusters is None:
        report("estimating the number of clusters")
        consensus = agreement(blocks)
        counts = estimate_n_clusters(blocks, start_rows, consensus, rng)
        o = replace(o, n_clusters=counts.chosen)

    report(f"{o.start} start")
    learning, n_learned = blocks, n_present
    if o.start == "proposals":
        count = n_draws(o, len(rows), o.n_clusters)

        def draws():
            """Blocks and consensus of several draws of anchors."""
            yield blocks, consensus or agreement(blocks)
            for _ in range(1, count):
                other = embedded()[1]
                other.center(n_present)
                yield other, agreement(other)

        found = proposals_start(draws(), start_rows, o, rng, guide)
        learning = FusedBlocks(blocks, found.projections, keep_fused and blocks.is_local)
        n_learned = np.array([len(rows)])
        start = Start([found.rotation], found.labels)
        grams = learning.grams()
    else:
        if counts:  # the blocks were made for counting
            anchors, learning = embedded()
            learning.center(n_present)
        grams = learning.grams()
        start = rotation_start(grams, o.n_bits, rng)

    settings = loop_settings(o, len(rows), anchors)

    def progress(iteration, objective, flips):
        if flips is None:
            report(f"resuming after iteration {iteration}/{o.max_iter}: objective {objective:.6g}", iteration)
            return
        report(f"iteration {iteration}/{o.max_iter}: objective {objective:.6g}, {flips:.2%} of the bits changed")

    first = None if known is None else guide.known
    learned = learn(
        learning, grams, n_learned, start, start_rows, settings, rng, progress, checkpoint, train_rules, first
    )

    report(f"encoding {n} rows")
    Ps, weights, view_weights = learned.Ps, learned.weights, learned.view_weights
    if o.start == "proposals":
        Ps, weights, view_weights = [P @ Ps[0] for P in found.projections], np.ones(n_views), found.view_weights
    projections = [P.astype(np.float32) for P in Ps]
    blocks = blocks if o.start == "proposals" else learning
    embeddings = blocks.embeddings
    if len(rows) < n or sample is not data:  # the cached blocks cannot be reused
        blocks = data.blocks(embeddings, chunk_size=o.chunk_size, n_threads=n_threads)
    codes = encode(blocks, projections, weights, checkpoint)
    clustering = final_clusters(partial(blocks.problem, codes), n, learned.clustering.Q, o, rng, rules, known)
    model = Model(embeddings, projections, weights, clustering.centers, clustering.bit_weights)
    return Trained(
        model,
        view_weights,
        codes,
        clustering.labels,
        int((clustering.sizes > 0).sum()),
        learned.history,
        learned.n_iter,
        learned.converged,
        counts,
    )


def n_draws(o, n_rows, n_clusters):
    """Number of draws of anchors that proposals come from."""
    few = n_rows <= FEW_ROWS and n_rows * n_clusters <= FEW_PAIRS
    return o.n_fits or (DRAWS_OF_FEW_ROWS if few else 1)


def training_rows(n, n_train, rules, rng):
    """Sorted rows to learn from. Constrained rows make up at most half of them, if there are enough others."""
    if n_train == n:
        return np.arange(n)
    if rules is None or not rules.constrained.any():
        return np.sort(rng.choice(n, n_train, replace=False))
    constrained = rules.constrained
    mentioned, others = np.flatnonzero(constrained), np.flatnonzero(~constrained)
    n_mentioned = max(min(len(mentioned), n_train // 2), n_train - len(others))
    some = rng.choice(mentioned, n_mentioned, replace=False)
    return np.sort(np.concatenate([some, rng.choice(others, n_train - n_mentioned, replace=False)]))


def make_guide(rules, known, n):
    """Guide from fixed rows and `known` labels (n,) for n rows; None without both."""
    if rules is None and known is None:
        return None
    held, first = np.full((2, n), -1, np.int32)
    if rules is not None:
        held[rules.fixed_rows] = rules.fixed_labels
        first = rules.initial_labels()
    return Guide(first if known is None else np.where(held >= 0, held, known).astype(np.int32), held)


def memory_needs(widths, o, n_rows, rules=None, most_values=None):
    """The memory needs of a fit of views with these widths; `n_rows` are clustered on this machine. `most_values` is
    that of LocalData, for sparse views."""
    n_anchors = min(o.n_anchors, most_anchors(o, o.n_train))
    n_clusters = o.n_clusters or most_clusters(o.n_train)
    n_start = min(o.n_train, max(START_ROWS, START_ROWS_PER_CLUSTER * n_clusters))
    more = n_rows if n_rows > o.n_train else 0
    others = 0 if rules is None else rules.n_bytes
    return Needs(
        tuple(widths),
        o.n_components,
        n_anchors,
        o.n_bits,
        n_clusters,
        n_start,
        o.n_train,
        more,
        others,
        proposals=o.start == "proposals",
        n_draws=n_draws(o, o.n_train, o.n_clusters or 1) if o.start == "proposals" else 1,
        most_values=most_values,
    )


def choose_anchors(present, o, rng):
    """Positions of the anchors of each view among the training rows.

    The same images in every view, so that a shared projection is meaningful. If too few images have all views, each
    view draws its own anchors, and there are no shared bits.
    """
    complete = np.flatnonzero(present.all(0))
    wanted = min(o.n_anchors, most_anchors(o, present.shape[1]))
    if o.same_anchors and len(complete) >= wanted:
        return [np.sort(rng.choice(complete, wanted, replace=False))] * len(present)
    own = (np.flatnonzero(p) for p in present)
    return [np.sort(rng.choice(p, min(wanted, len(p)), replace=False)) for p in own]


def warn_if_unlinked(present):
    """Warn if no image has two views: such views cannot be combined."""
    if len(present) > 1 and present.sum(0).max() == 1:
        warnings.warn(
            "No training image has more than one view, so nothing links the views: clusters of images with different "
            "views will not match.",
            UserWarning,
            stacklevel=5,
        )


def warn_if_silent(names, facts, n_rows):
    """Warn about views without spread. They are harmless, but probably a mistake."""
    silent = [name for name, f in zip(names, facts, strict=True) if f.constant.all()]
    if silent and n_rows > 1:
        warnings.warn(
            f"Views {silent} are constant in the {n_rows} rows scanned and carry no information (a spread below "
            f"{SMALLEST_SPREAD:g} counts as constant). Scale the values up or remove these views.",
            UserWarning,
            stacklevel=5,
        )


def most_anchors(o, n_train):
    """Upper limit of anchors. With too many for the rows, every view can reproduce any bit, and agreement is
    meaningless."""
    return max(n_train // ROWS_PER_ANCHOR, min(n_train, (o.n_clusters or 1) + 1)) if o.start != "rotation" else n_train


def basis_positions(present, width, o):
    """Positions of the training rows that give the components of a view; none if it is not reduced."""
    if o.n_components is None or width <= o.n_components:
        return np.empty(0, np.int64)
    there = np.flatnonzero(present)
    return there[np.linspace(0, len(there) - 1, basis_rows(o.n_components, len(there))).astype(int)]


def _embedding(array, facts, rows, basis, anchors, probes, o, damped, draw, linear):
    """The embedding of one view, not yet centered. A view with rows for a `basis` is reduced, and `damped`."""
    constant = facts.constant
    spread = np.where(constant, 0, facts.variance)
    if facts.scaling in ("standard", "root"):
        factor = np.where(constant, 0, 1 / np.sqrt(np.where(constant, 1, spread)))
    else:
        size = np.sqrt(spread.sum())  # the mean norm of a row becomes 1; γ scales with it, so only rounding changes
        factor = np.where(constant, 0, 1 / size if size > 0 else 0)
    plain = normalization(facts.mean, factor.astype(np.float32), facts.scaling)
    dtype = exact_dtype(array)

    def blocks(positions):
        for block in row_ranges(len(positions), rows_per_block([array.shape[1]])):
            yield read_rows(array, rows[positions[block]], dtype), block

    if len(basis):
        X = centered_rows(plain, lambda: blocks(basis), len(basis), array.shape[1])
        components = principal_basis(X, o.n_components, draw, damped)
        plain = replace(plain, basis=components, sparse=isinstance(X, CenteredRows))
        del X
    own = np.searchsorted(anchors, probes).clip(max=len(anchors) - 1)
    is_anchor = np.where(anchors[own] == probes, own, -1)
    return fit_embedding(
        plain,
        (X for X, _ in blocks(anchors)),
        ((X, is_anchor[block]) for X, block in blocks(probes)),
        o.kernel_width,
        None if o.start == "rotation" else REACH,
        linear=linear,
    )


def loop_settings(o, n, anchors):
    """The settings in the symbols of the paper, for `n` training rows."""
    m = len(anchors)
    same_images = all(np.array_equal(a, anchors[0]) for a in anchors)
    norm = make_norm(o.norm, o.n_bits)
    coupling, rotate = o.coupling, o.start == "proposals"
    if coupling is None and rotate:  # λ3·d is a fixed fraction of the largest total vote
        coupling = AUTO_COUPLING / typical_bit_weight(o.norm, n)
    elif coupling is None:
        coupling = PAPER_COUPLING
    return Settings(
        n_clusters=o.n_clusters,
        K=o.n_bits,
        K_S=round(o.shared_ratio * o.n_bits) if m > 1 and (same_images or not o.same_anchors) else 0,
        ridge=0.0 if rotate else o.ridge,
        variance_reward=0.0 if rotate else o.variance_reward,
        coupling=coupling if o.joint else 0.0,
        balance=o.balance * n * typical_bit_weight(o.norm, n),
        norm=norm,
        exponent=o.view_exponent,
        max_iter=o.max_iter,
        cluster_iter=o.cluster_iter or max(2, min(CLUSTER_ITER, ROUND_WORK // o.n_clusters)),
        n_init=o.n_init,
        tol=o.tol,
        rotate=rotate,
    )


def make_norm(name, n_bits):
    return L21() if name == "l21" else Frobenius(np.ones(n_bits))


def typical_bit_weight(norm, n):
    """d of a bit that is wrong in a quarter of n rows: the unit of λ3 and ν."""
    return 0.5 / np.sqrt(n) if norm == "l21" else 1.0


def final_clusters(problem_with, n, Q, o, rng, rules=None, known=None):
    """Clusters of all n codes: refined from the learned centroids Q, or from the best seeding if none were learned.

    `problem_with(norm, balance)` returns the clustering problem. Labels satisfy `rules`. Without learned centroids,
    clusters start from `known` labels (n,).
    """
    problem = with_rules(
        rules, problem_with(make_norm(o.norm, o.n_bits), o.balance * n * typical_bit_weight(o.norm, n))
    )
    rounds = max(5, min(FINAL_ITER, FINAL_WORK // o.n_clusters))
    if o.joint:
        return with_final_sizes(problem, refine(problem, Q, rounds))
    if known is not None:
        known = make_guide(rules, known, n).known
    return with_final_sizes(problem, best_seeding(problem, o.n_clusters, o.n_init, rounds, rng, known))
