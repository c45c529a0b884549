"""The start from proposals: several first clusterings, judged by held-out bits, and what they agree on.

The held-out bits of a partition L say how much the views know about L on rows that were not used for fitting: each
view predicts the cluster indicators by ridge regression on the other half of the rows, the predictions of all views are
added with weights β ≥ 0, and the bits are the entropy of L minus the cross-entropy of the prediction. They need no true
labels. They weigh the proposals, and the views: how well does a view predict its own clusters, and how well would
normally distributed rows of the same covariance do so?

Everything here works on a sample of rows. X_v (n, k), the reduced columns of view v, are held in memory; Y_v (n, p),
its whitened similarities, only for the rows that judge partitions. Both are zero where the view is missing.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.sparse import csr_array, diags_array, hstack
from scipy.sparse.linalg import ArpackError, svds

from bitmosaic.hamming import kernels
from bitmosaic.io.threads import in_order, row_ranges
from bitmosaic.solver.blocks import side_by_side
from bitmosaic.solver.embedding import REACH, fit_embedding, normalization, squares
from bitmosaic.solver.start import (
    AGREEMENT_EXPONENT,
    DIRECTIONS_PER_CLUSTER,
    ITER,
    MOST_DIRECTIONS,
    SCORES,
    WHITENED,
    Consensus,
    agreed_space,
    kmeans,
    kmeans_hints,
    moved_centers,
    on_the_sphere,
    random_rotation,
    top_eigenvectors,
    whitener,
)
from bitmosaic.solver.steps import FUSED_LENGTH, rotation

ROWS_PER_ANCHOR = 5  # at least
BITS_ROWS, BITS_CLUSTERS = 6000, 64  # most rows and clusters that a partition is judged on
BITS_RIDGE = 0.01  # of the mean eigenvalue
LEAST_BITS, MOST_BITS = 0.01, 0.99  # bounds on shares of bits, so that odds stay finite
NORMAL_ROWS, NORMAL_ROWS_PER_CLUSTER = 2000, 10  # normally distributed rows that a view is compared with
LANDMARKS, ROWS_PER_LANDMARK, NEAREST = 1000, 4, 5
DENSE_LANDMARKS = 1024  # most of a graph whose spectrum is computed from a dense Gram matrix, which is faster
LANDMARK_ROWS, LANDMARK_ITER = 6, 5  # rows per landmark, and iterations, of the k-means that finds landmarks
GRAPHS = 3  # at least, of all views together: graphs of different landmarks vary, and less so side by side
REPEATS, REPEATED_CLUSTERS = 2, 64  # proposals that differ in their landmarks only; up to this number of clusters
KEPT_DRAWS = 3  # of anchors, in memory at once: the first, the last and the next
FEW_CLUSTERS = 128  # up to this number, graphs and the consensus of all proposals are affordable
OWN_INIT = 2  # initializations of the clusters of single views
LEAST_ITER, KMEANS_WORK = 3, 20_000_000  # iterations of k-means; rows × clusters × iterations
STRONG = 2  # power of the strength of a view, in its weight in a proposal
DOUBT = 2  # power of the share of bits that a single view has about the clusters, in the length of their prediction
ROTATION_ROWS, ROTATION_ITER = 6000, 8
GRAM_ROWS = 2048


@dataclass(frozen=True)
class Sample:
    """The rows from which first clusters are proposed, given by their positions in the blocks."""

    blocks: Any  # Blocks of this process or of a cluster
    rows: np.ndarray  # (n,) sorted
    consensus: Consensus
    plain: list[np.ndarray]  # X_v (n, k) float32, mean squared length 1
    scales: list[np.ndarray]  # (k,) factors that take linear columns of Z_v to X_v

    def white(self, some):
        """Y_v (len(some), p) float32 of some rows, for every view."""
        maps = [W.astype(np.float32) for W in self.consensus.whiteners]
        both, _ = self.blocks.run_some(partial(whitened_block, maps), self.rows[some])
        return [both[:, view] for view in self.consensus.views]

    def projected(self, maps):
        """Σ_v Y_v M_v (n, k) float32, for one matrix M_v (p, k) per view."""
        both = [(W @ M).astype(np.float32) for W, M in zip(self.consensus.whiteners, maps, strict=True)]
        return self.blocks.run_some(partial(projected_block, both), self.rows)[0]

    def products(self, T):
        """Y_vᵀT (p, k) for every view, T (n, k) of values within ±2."""
        sums = self.blocks.run_some(partial(products_block, self.n_anchors), self.rows, T)[1]
        return [W.T @ ZtT for W, ZtT in zip(self.consensus.whiteners, sums, strict=True)]

    @property
    def n_anchors(self):
        return [len(W) for W in self.consensus.whiteners]


@dataclass(frozen=True)
class Proposals:
    labels: list[np.ndarray]  # (n,) each
    weights: list[float]  # of each in the consensus
    strengths: np.ndarray  # (m,) of the views


@dataclass(frozen=True)
class Fused:
    """The space in which codes are learned."""

    projections: list[np.ndarray]  # (l + k, d) float32 for each view; the weights of the views are in them
    rotation: np.ndarray  # (d, K) float32, for the first codes
    labels: np.ndarray  # (n,) of the sample's rows
    view_weights: np.ndarray  # (m,), sum 1


def proposals_start(draws, rows, o, rng, guide=None):
    """The fused space and the first labels of some rows, given by their positions in the blocks.

    `draws` are pairs (blocks, consensus), one for each draw of anchors; the space belongs to the first draw.
    Where a `guide` knows a label, it is the first label.
    """
    hints, n_init = kmeans_hints(guide, rows), max(1, o.n_init // 2)
    propose = propose_by_means
    if o.n_clusters <= FEW_CLUSTERS:
        propose = partial(propose_by_graphs, repeats=REPEATS if o.n_clusters <= REPEATED_CLUSTERS else 1)
    proposals: list[Proposals] = []
    for blocks, consensus in draws:
        sample = start_sample(blocks, rows, consensus)
        held_out = HeldOut(sample.white, len(rows), rng, blocks.n_threads)
        if not proposals:
            first = sample, held_out
        proposals.append(propose(sample, held_out, o.n_clusters, n_init, rng, blocks.n_threads, hints))
    labels = agree(proposals, o.n_clusters, o.n_init, rng, blocks.n_threads, hints)
    if guide is not None:
        labels = np.where(guide.known[rows] >= 0, guide.known[rows], labels)
    strengths = np.mean([p.strengths for p in proposals], axis=0)
    return fused_start(*first, labels, strengths, o.n_clusters, o.n_bits, rng, blocks.n_threads)


def proposals_bytes(n_rows, columns, n_anchors, n_clusters, n_draws, n_threads):
    """Upper bound on the memory of :func:`proposals_start` for views with these numbers of columns."""
    m, plain, white = len(columns), sum(columns), len(columns) * min(n_anchors, WHITENED)
    n_judging, few = min(n_rows, BITS_ROWS), n_clusters <= FEW_CLUSTERS
    sample = 4 * (n_rows * plain + n_judging * white) * min(n_draws, KEPT_DRAWS)
    of_views = max(m, GRAPHS + m - 1)
    n_graphs = max(of_views + 2 * REPEATS, GRAPHS * REPEATS)
    graphs = 60 * n_rows * (n_graphs + n_threads * of_views) if few else 0
    spaces = 12 * n_rows * max(MOST_DIRECTIONS, min(n_clusters, FEW_CLUSTERS), 0 if few else plain) * n_threads
    judged = 4 * n_judging * (min(n_clusters, BITS_CLUSTERS) * (m + 3) * n_threads + white)
    fused = 12 * n_rows * min(n_clusters, FEW_CLUSTERS) + 8 * GRAM_ROWS * (plain + n_clusters) * n_threads
    n_normal = normal_rows(n_rows, n_clusters)
    normal = 8 * n_normal * (max(columns) + min(n_anchors, n_normal) + min(n_anchors, WHITENED)) * n_threads
    return sample + judged + max(graphs + max(spaces, normal if m > 1 else 0), fused)


def start_sample(blocks, rows, consensus):
    """The Sample of some rows."""
    scales = [column_scale(e) for e in blocks.embeddings]
    n_anchors = [len(W) for W in consensus.whiteners]
    both, _ = blocks.run_some(partial(plain_block, n_anchors, scales), rows)  # (n, Σk)
    plain = [both[:, part] for part in side_by_side([len(scale) for scale in scales])]
    for X, scale in zip(plain, scales, strict=True):
        there = X.any(1)
        size = np.sqrt(squares(X[there]).mean(dtype=np.float64)) if there.any() else 0.0
        if size > 0:
            X /= np.float32(size)
            scale /= np.float32(size)
    return Sample(blocks, rows, consensus, plain, scales)


def plain_block(n_anchors, scales, Zs):
    return np.hstack([Z[:, l:] * scale for Z, l, scale in zip(Zs, n_anchors, scales, strict=True)]), []


def whitened_block(maps, Zs):
    return np.hstack([Z[:, : len(W)] @ W for Z, W in zip(Zs, maps, strict=True)]), []


def projected_block(maps, Zs):
    return sum(Z[:, : len(M)] @ M for Z, M in zip(Zs, maps, strict=True)), []


def products_block(n_anchors, Zs, T):
    return None, [Z[:, :l].T @ T for Z, l in zip(Zs, n_anchors, strict=True)]


def column_scale(embedding):
    """Factors (k,) that undo the damping of the components of a view."""
    if embedding.basis is None:
        return np.ones(embedding.width, np.float32)
    lengths = np.linalg.norm(embedding.basis, axis=0)
    return (1 / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def propose_by_graphs(sample, held_out, n_clusters, n_init, rng, n_threads=1, hints=None, repeats=1):
    """Proposals for few clusters, each with equal views and with views weighted by their strengths: from
    nearest-landmark graphs of the single views side by side, and from graphs of the space on which the views agree.

    Bits compare the two weightings. Between the two kinds they are biased: there, the number of views decides. A single
    view has nothing to agree with: its graphs are proposed beside k-means on its own directions.
    """
    m, shares = len(sample.plain), sample.consensus.shares

    def run(jobs):
        """Call each function with a random generator of its own, and return the results."""
        seeded = zip(jobs, rng.integers(2**63, size=len(jobs)).tolist(), strict=True)
        return list(in_order(lambda job: job[0](np.random.default_rng(job[1])), seeded, n_threads))

    def graphs_of(X, n_graphs, rng):
        count = landmark_count(len(X), n_clusters)
        return [landmark_graph(X, count, rng) for _ in range(n_graphs)]

    def judged(labels):
        return labels, held_out.confidence(labels, n_clusters)

    def by_graphs(graphs, weights, rng):
        return judged(graph_labels(graphs, weights, n_clusters, n_init, rng, hints))

    def by_graphs_of(X, n_graphs, rng):
        return by_graphs(graphs_of(X, n_graphs, rng), np.ones(n_graphs), rng)

    def by_means(X, rng):
        return judged(kmeans(X, n_clusters, n_init, rng, 1, **(hints or {})))

    if m == 1:
        by_view = partial(by_graphs_of, sample.plain[0], GRAPHS)
        by_directions = partial(by_means, agreed_angles(sample, np.ones(1), n_clusters))
        found = run([by_view] * repeats + [by_directions] * repeats)
        return Proposals([labels for labels, _ in found], [value for _, value in found], np.ones(1))

    copies = -(-GRAPHS // m)

    def own_clusters(X, rng):
        graphs = graphs_of(X, copies, rng)
        return graph_labels(graphs, np.ones(copies), n_clusters, OWN_INIT, rng), graphs

    def own_graphs(v, rng):
        labels, graphs = own_clusters(sample.plain[v], rng)
        return graphs, strength(sample, held_out, v, labels, n_clusters, lambda X: own_clusters(X, rng)[0], rng)

    def by_agreement(weights):
        return [partial(by_graphs_of, agreed_angles(sample, weights, n_clusters), 1)] * repeats

    # The agreement of equal views needs no strengths, so it is found beside the graphs of the single views.
    found = run([partial(own_graphs, v) for v in range(m)] + by_agreement(shares))
    views, equal_agreed = found[:m], found[m:]
    graphs, strengths = [Z for Zs, _ in views for Z in Zs], np.array([value for _, value in views])
    factors = [np.ones(m), strengths**STRONG]
    by_views = [partial(by_graphs, graphs, np.repeat(shares * factor, copies)) for factor in factors]
    by_equal, by_strong, *strong_agreed = run(by_views + by_agreement(shares * factors[1]))
    labels, values = [], []
    for factor, (of_views, value), agreed in zip(
        factors, (by_equal, by_strong), (equal_agreed, strong_agreed), strict=True
    ):
        confidence = np.sqrt(value * np.exp(np.mean([np.log(v) for _, v in agreed])))
        share = 1 - 1 / max(n_effective(shares, factor), 1) ** 2  # of the agreement
        labels += [of_views, *(found for found, _ in agreed)]
        values += [confidence * (1 - share)] + [confidence * share / repeats] * repeats
    return Proposals(labels, values, strengths)


def propose_by_means(sample, held_out, n_clusters, n_init, rng, n_threads=1, hints=None):
    """Proposals for many clusters, where graphs take too long: k-means in the space on which the views agree, and on
    the views themselves, weighted by their strengths."""
    m, hints = len(sample.plain), hints or {}
    max_iter = iterations(len(sample.plain[0]), n_clusters)
    seeds = rng.integers(2**63, size=m + 2).tolist()

    def own_strength(v):
        rng = np.random.default_rng(seeds[v])

        def clusters(X):
            return kmeans(X, n_clusters, 1, rng, 1, LEAST_ITER)

        return strength(sample, held_out, v, clusters(sample.plain[v]), n_clusters, clusters, rng)

    strengths = np.array(list(in_order(own_strength, range(m), n_threads))) if m > 1 else np.ones(1)
    w = sample.consensus.shares * strengths**STRONG

    def judged(job):
        space, seed = job
        labels = kmeans(space(), n_clusters, n_init, np.random.default_rng(seed), 1, max_iter, **hints)
        return labels, held_out.confidence(labels, n_clusters)

    def agreed():
        return agreed_angles(sample, w, n_clusters)

    def plain():
        return np.hstack([np.float32(np.sqrt(a)) * X for a, X in zip(w / w.sum(), sample.plain, strict=True)])

    found = list(in_order(judged, zip((agreed, plain), seeds[m:], strict=True), n_threads))
    return Proposals([labels for labels, _ in found], [value for _, value in found], strengths)


def n_effective(shares, strength):
    """The number of different, equally strong views that these (m,) amount to; copies of a view count as one."""
    return (shares * strength).sum() ** 2 / (shares * strength**2).sum()


def iterations(n_rows, n_clusters):
    """Most iterations of k-means for a proposal."""
    return max(LEAST_ITER, min(ITER, KMEANS_WORK // (n_rows * n_clusters)))


def odds(share):
    """p / (1 - p), finite."""
    inside = np.clip(share, LEAST_BITS, MOST_BITS)
    return float(inside / (1 - inside))


def strength(sample, held_out, v, labels, n_clusters, clusters, rng):
    """How clearly view v has clusters: the odds of its bits about its own clusters `labels`, divided by the odds of
    normally distributed rows of the same covariance about theirs. Noise of few columns predicts its own clusters well,
    but not better than such rows. ``clusters(X)`` finds the clusters of rows."""
    X = sample.plain[v]
    X = X[X.any(1)]
    if len(X) < 2:
        return odds(0)
    X = normal_like(X, normal_rows(len(X), n_clusters), rng)
    Y = whitened(X / sample.scales[v], sample.n_anchors[v])
    normal = HeldOut(lambda rows: [Y[rows]], len(Y), rng)
    return odds(held_out.bits(labels, n_clusters, v)[0]) / odds(normal.bits(clusters(X), n_clusters)[0])


def normal_rows(n_rows, n_clusters):
    return min(n_rows, max(NORMAL_ROWS, NORMAL_ROWS_PER_CLUSTER * n_clusters))


def normal_like(X, count, rng):
    """`count` normally distributed rows with the covariance of the rows X."""
    centered = X - X.mean(0)
    values, U = np.linalg.eigh((centered.T @ centered).astype(np.float64) / len(X))
    return (rng.standard_normal((count, len(U))) * np.sqrt(np.maximum(values, 0)) @ U.T).astype(np.float32)


def whitened(X, n_anchors):
    """Whitened similarities (n, p) float32 of reduced rows X to the first of them."""
    n, k = X.shape
    n_anchors, probes = min(n_anchors, max(n // ROWS_PER_ANCHOR, 2)), np.arange(n)
    plain = normalization(np.zeros(k), np.ones(k, np.float32), "center")
    is_anchor = np.where(probes < n_anchors, probes, -1)
    Z, _ = fit_embedding(plain, [X[:n_anchors]], [(X, is_anchor)], 1.0, REACH)(X)
    Z -= Z.mean(0)
    return Z @ whitener((Z.T @ Z).astype(np.float64), n).astype(np.float32)


def agree(proposals, n_clusters, n_init, rng, n_threads=1, hints=None):
    """First labels (n,): the transfer cut of all proposals, with their weights; with many clusters, the best proposal.

    The proposals form a bipartite graph of rows and proposed clusters. Its spectral embedding is computed on the side
    of the clusters, and k-means on the angles there gives the labels.
    """
    labels = [found for p in proposals for found in p.labels]
    weights = np.array([value for p in proposals for value in p.weights])
    if n_clusters > FEW_CLUSTERS or len(labels) == 1:
        return labels[int(weights.argmax())]
    weights = weights / weights.max()
    n, q = len(labels[0]), len(labels)
    columns = np.stack([found + j * n_clusters for j, found in enumerate(labels)], axis=1)  # (n, q)
    B = csr_array((np.tile(weights, n), columns.ravel(), np.arange(0, n * q + 1, q)), shape=(n, q * n_clusters))
    B = B[:, np.flatnonzero(B.sum(axis=0) > 0)]
    W = (B.T @ B).toarray() / weights.sum()  # similarity of clusters
    scale = 1 / np.sqrt(W.sum(1))
    top = len(scale) - min(n_clusters, len(scale))
    _, V = eigh(scale[:, None] * W * scale, subset_by_index=(top, len(scale) - 1))
    E = (B @ (scale[:, None] * V[:, ::-1])).astype(np.float32)
    return kmeans(on_the_sphere(E), n_clusters, n_init, rng, n_threads, **(hints or {}))


# ---- held-out bits


class HeldOut:
    """Judges partitions of some rows by the bits that views have about them on held-out halves."""

    def __init__(self, white, n, rng, n_threads=1):
        """``white(rows)`` returns the whitened views of some of n rows."""
        self.rows = np.sort(rng.choice(n, BITS_ROWS, replace=False)) if n > BITS_ROWS else np.arange(n)
        self.seed = int(rng.integers(2**31))
        self.half = rng.permutation(len(self.rows)) % 2 == 0
        self.views = list(in_order(self.prepare, white(self.rows), n_threads))

    def prepare(self, Y):
        """Both halves of the rows, each with the inverse of the ridge regression fitted to it."""
        halves = []
        for half in (Y[self.half], Y[~self.half]):
            G = (half.T @ half).astype(np.float64)
            G[np.diag_indices(len(G))] += BITS_RIDGE * np.trace(G) / len(G)
            halves.append((half, np.linalg.pinv(G, hermitian=True).astype(np.float32)))
        return halves

    def confidence(self, labels, n_clusters):
        """The odds of the bits of all views as a share of the entropy of the labels (n,), times the odds of the bits as
        a share of log2(c). The first factor does not depend on the sizes of the clusters, the second favors equal ones.
        """
        known, entropy, _ = self.bits(labels, n_clusters)
        return odds(known) * odds(known * entropy)

    def bits(self, labels, n_clusters, view=None):
        """The held-out bits of the labels (n,) as a share of their entropy, this entropy as a share of log2(c), and β,
        from all views or from one."""
        labels, chosen = labels[self.rows], np.ones(len(self.rows), bool)
        if n_clusters > BITS_CLUSTERS:  # judge some of the clusters only
            some = np.random.default_rng(self.seed).choice(n_clusters, BITS_CLUSTERS, replace=False)
            chosen = np.isin(labels, some)
        present, labels = np.unique(labels[chosen], return_inverse=True)
        if len(present) < 2:
            return 0.0, 0.0, np.ones(len(self.views) if view is None else 1)
        views = self.views if view is None else [self.views[view]]
        T = np.zeros((len(labels), len(present)), np.float32)
        T[np.arange(len(labels)), labels] = 1
        T -= T.mean(0)
        predictions = np.stack([self.predict(halves, T, chosen) for halves in views])
        beta, bits = stacked(predictions, labels)
        sizes = np.bincount(labels) / len(labels)
        entropy = -(sizes * np.log2(sizes)).sum()
        return bits / entropy, entropy / np.log2(min(n_clusters, BITS_CLUSTERS)), beta

    def predict(self, halves, T, chosen):
        """Predictions (n, c) of the indicators T of the chosen rows, each half from the other."""
        out = np.empty_like(T)
        first = self.half[chosen]
        (A, inverse_A), (B, inverse_B) = halves
        A, B = A[chosen[self.half]], B[chosen[~self.half]]
        out[first] = A @ (inverse_B @ (B.T @ T[~first]))
        out[~first] = B @ (inverse_A @ (A.T @ T[first]))
        return out


def stacked(predictions, labels):
    """β (m,) ≥ 0 that minimizes the cross-entropy of softmax(log prior + Σ β_v S_v), and the bits gained by it.

    predictions (m, n, c) float32 are the S_v.
    """
    m, n, _ = predictions.shape
    shares = np.bincount(labels) / n
    prior = np.log(shares).astype(np.float32)
    rows = np.arange(n)
    own = predictions[:, rows, labels].astype(np.float64)  # (m, n)

    def loss(beta):
        A = np.tensordot(beta.astype(np.float32), predictions, 1) + prior
        A -= A.max(1, keepdims=True)
        right = A[rows, labels].astype(np.float64)
        np.exp(A, out=A)
        total = A.sum(1, keepdims=True)
        A /= total
        gradient = [(a - np.einsum("ij,ij->i", A, S)).mean() for a, S in zip(own, predictions, strict=True)]
        return float((np.log(total[:, 0]) - right).mean()), -np.array(gradient)

    found = minimize(loss, np.full(m, 3.0), jac=True, method="L-BFGS-B", bounds=[(0, 200)] * m, options={"maxiter": 40})
    return found.x, float(-(shares * np.log2(shares)).sum() - found.fun / np.log(2))


# ---- the spaces of the proposals


def agreed_rows(sample, weights, count, exponent=AGREEMENT_EXPONENT):
    """Rows in the space of `count` directions on which the weighted views agree (n, count) float32."""
    consensus, rng = sample.consensus, np.random.default_rng(0)
    weights = weights / weights.max()
    return sample.projected(agreed_space(consensus.gram, consensus.views, weights, count, rng, exponent))


def agreed_angles(sample, weights, n_clusters):
    """Rows of length 1 in the space on which the weighted views agree (n, k) float32."""
    count = min(DIRECTIONS_PER_CLUSTER * n_clusters, MOST_DIRECTIONS)
    return on_the_sphere(agreed_rows(sample, weights, count))


def landmark_count(n_rows, n_clusters):
    return min(LANDMARKS, max(2 * n_clusters, n_rows // ROWS_PER_LANDMARK), n_rows)


def landmark_graph(X, count, rng):
    """Z (n, p): similarities of each row to its nearest landmarks, divided by the root of the landmark's degree.

    Landmarks are centers of a short k-means. Rows without the view have no edges.
    """
    there = np.flatnonzero(X.any(1))
    n, count = len(X), min(count, len(there))
    if count < 2:
        return csr_array((n, 1), dtype=np.float32)
    some = X[np.sort(rng.choice(there, min(len(there), LANDMARK_ROWS * count), replace=False))]
    first = some[rng.choice(len(some), count, replace=False)]
    centers = moved_centers(some, first[None], LANDMARK_ITER, n_threads=1)[0]
    r = min(NEAREST, count - 1)
    nearest, D = np.empty((n, r), np.int32), np.empty((n, r), np.float32)
    sizes, doubled = squares(centers), -2 * centers.T
    for rows in row_ranges(n, max(64, SCORES // count)):
        differences = X[rows] @ doubled  # ‖x - c‖² - ‖x‖²
        differences += sizes
        kernels.smallest(differences, nearest[rows], D[rows])
    D = np.maximum(D + squares(X)[:, None], 0)
    width = 2 * np.sqrt(D[there]).mean(dtype=np.float64) ** 2 + np.finfo(np.float32).tiny
    weights = np.exp((D[:, :1] - D) / np.float32(width))
    weights /= weights.sum(1, keepdims=True)
    missing = np.ones(n, bool)
    missing[there] = False
    weights[missing] = 0
    Z = csr_array((weights.ravel(), nearest.ravel(), np.arange(0, n * r + 1, r)), shape=(n, count))
    degrees = np.asarray(Z.sum(axis=0))
    return csr_array(Z @ diags_array(1 / np.sqrt(np.maximum(degrees, 1e-9)).astype(np.float32)))


def graph_labels(graphs, weights, n_clusters, n_init, rng, hints=None):
    """Spectral clustering of the rows of all graphs side by side, each times the root of its weight."""
    weights = np.asarray(weights) / np.sum(weights)
    Z = csr_array(hstack([np.float32(np.sqrt(w)) * Z for w, Z in zip(weights, graphs, strict=True)]))
    count = min(n_clusters + 1, min(Z.shape) - 1)
    if count < 1 or not Z.nnz:
        return np.zeros(Z.shape[0], np.int32)
    U, values = left_vectors(Z, count)
    connected = len(values) > 1 and values[1] < 1 - 1e-4  # then the first vector is constant
    U = U[:, 1:] if connected else U[:, :n_clusters]
    max_iter = iterations(len(U), n_clusters)
    return kmeans(on_the_sphere(U.astype(np.float32)), n_clusters, n_init, rng, 1, max_iter, **(hints or {}))


def left_vectors(Z, count):
    """The left singular vectors (n, k) of a sparse matrix, and the squares of their singular values, largest first."""
    p = Z.shape[1]
    if p > DENSE_LANDMARKS and count < p // 8:
        start = np.random.default_rng(0).standard_normal(min(Z.shape)).astype(Z.dtype)
        with suppress(ArpackError):
            U, values, _ = svds(Z, count, v0=start, tol=1e-3)
            order = np.argsort(-values, kind="stable")
            return np.ascontiguousarray(U[:, order]), values[order] ** 2
    values, V = top_eigenvectors((Z.T @ Z).toarray(), count, np.random.default_rng(0))
    values, V = values[::-1], V[:, ::-1]
    return Z @ (V / np.sqrt(np.maximum(values, 1e-9))), values


# ---- codes


def fused_start(sample, held_out, labels, strengths, n_clusters, K, rng, n_threads=1):
    """The Fused space for first labels of the sample's rows: it holds the views and the predicted clusters.

    F = [√w_1 X_1 … √w_m X_m | S], where w_v are the weights of the views and S = Σ β_v Y_v M_v predicts the clusters by
    ridge regression; both parts have mean squared length 1. A single view knows all that S says, so S is shorter if the
    clusters are uncertain: codes then keep more of the view. The K principal directions, as projections (l + k, d) of
    every view, and the rotation (d, K) after which their signs lose least.
    """
    n, consensus = len(labels), sample.consensus
    weights = consensus.shares * strengths
    weights = weights / weights.sum()
    known, _, beta = held_out.bits(labels, n_clusters)
    products = sample.products(indicators(labels, n_clusters, rng))
    grams = [consensus.gram[view, view] * (n / sample.blocks.n_rows) for view in consensus.views]
    maps = [b * ridge_map(G, YtT) for b, G, YtT in zip(beta, grams, products, strict=True)]  # (p, c) each
    S = sample.projected(maps)
    size = np.sqrt(squares(S).mean(dtype=np.float64))
    size = (known**DOUBT if len(grams) == 1 else 1) / size if size > 0 else 0.0
    parts = [*zip(np.sqrt(weights), sample.plain, strict=True), (size, S)]

    def fused_rows(where):
        return np.hstack([np.float32(factor) * part[where] for factor, part in parts])

    def gram(where):
        F = fused_rows(where)
        return (F.T @ F).astype(np.float64)

    G = sum(in_order(gram, row_ranges(n, GRAM_ROWS), n_threads)) / n
    d = min(K, len(G))
    values, U = eigh(G, subset_by_index=(len(G) - d, len(G) - 1))
    total = values.sum()
    U = U[:, ::-1] * (FUSED_LENGTH / np.sqrt(total) if total > 0 else 1.0)
    blocks = [U[part] for part in side_by_side([part.shape[1] for _, part in parts])]
    projections = [
        np.vstack([W @ (size * M @ blocks[-1]), scale[:, None] * (np.sqrt(w) * block)]).astype(np.float32)
        for W, M, scale, w, block in zip(consensus.whiteners, maps, sample.scales, weights, blocks[:-1], strict=True)
    ]
    some = np.arange(n) if n <= ROTATION_ROWS else np.sort(rng.choice(n, ROTATION_ROWS, replace=False))
    R = best_rotation(fused_rows(some) @ U.astype(np.float32), K, rng)
    return Fused(projections, R, labels, weights)


def indicators(labels, n_clusters, rng):
    """Centered indicators of clusters (n, c) float32; with many clusters, a random projection of them (n, 128)."""
    if n_clusters <= FEW_CLUSTERS:
        places = np.eye(n_clusters, dtype=np.float32)
    else:
        places = rng.standard_normal((n_clusters, FEW_CLUSTERS), np.float32)
    T = places[labels]
    T -= T.mean(0)
    return T


def ridge_map(G, YtT):
    """(p, c): the ridge regression of T on Y, from YᵀY and YᵀT."""
    ridge = BITS_RIDGE * np.trace(G) / len(G)
    return np.linalg.pinv(G + ridge * np.eye(len(G)), hermitian=True) @ YtT


def best_rotation(F, K, rng):
    """R (d, K) with orthogonal rows, alternately fitted to the signs of F R (iterative quantization). With fewer
    columns than bits, it starts from several random rotations side by side."""
    d = F.shape[1]
    R = np.hstack([random_rotation(d, d, rng) for _ in range(-(-K // d))])[:, :K].astype(np.float32)
    for _ in range(ROTATION_ITER):
        R = rotation(F.T @ np.where(F @ R >= 0, np.float32(1), np.float32(-1))).astype(np.float32)
    return R
