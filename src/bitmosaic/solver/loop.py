"""Algorithm 1: embeddings -> projections, codes, centroids, labels and view weights, in turn."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bitmosaic import kernels
from bitmosaic.codes import cluster_bit_sums, pack, unpack
from bitmosaic.solver import steps
from bitmosaic.solver.clustering import Clustering, refine
from bitmosaic.solver.constrained import best_seeding, under
from bitmosaic.solver.keeping import NOTHING_KEPT, LoopState, imprint
from bitmosaic.threads import row_ranges

FEW_FLIPS = 0.08  # of the bits of a block; adding single rows is then faster than a matrix product
CHECKED_BLOCKS = 16  # of codes that were kept, which are made again to see that they are of these data
PART_BLOCKS = 256  # whose codes are kept together, where somebody keeps them
LOWEST_LOSS = 1e-3  # of a bit, where view weights are concerned


@dataclass(frozen=True)
class Settings:
    """The parameters of the objective and of the loop, in the paper's symbols."""

    n_clusters: int
    K: int  # bits
    K_S: int  # shared bits, the first ones
    ridge: float  # λ1
    variance_reward: float  # λ2/N
    coupling: float  # λ3; 0 learns the codes first and the clusters afterwards (HSIC-TS)
    balance: float  # ν
    norm: steps.L21 | steps.Frobenius
    exponent: float  # r
    max_iter: int  # t
    cluster_iter: int  # κ
    n_init: int
    tol: float


@dataclass(frozen=True)
class Learned:
    """What Algorithm 1 has learned from the training rows."""

    Ps: list[np.ndarray]  # (l, K) for each view
    weights: np.ndarray  # (m,) w_v = ω_v α_v^r · N/N_v
    view_weights: np.ndarray  # (m,) ω_v α_v, sum 1
    clustering: Clustering
    codes: np.ndarray  # (n, K/8) uint8, of the training rows
    history: list[tuple[int, str, float]]  # (iteration, step, objective)
    n_iter: int
    converged: bool


def learn(
    blocks,
    grams,
    n_present,
    start,
    start_rows,
    settings,
    rng,
    report: Callable[[int, float, float | None], None],
    keeper=NOTHING_KEPT,
    rules=None,
    known=None,
):
    """Run Algorithm 1 on the training rows in `blocks`.

    grams: Z_vᵀZ_v of each view · n_present (m,): how many of the rows have each view · start_rows: the rows that
    `start.labels` speaks of · report(iteration, objective, share of bits that changed): called after each iteration,
    and with None after those that were done before · keeper: is given the state between iterations, and may have one to
    go on from · rules: that labels obey · known (n,): first labels, -1 where there is none, for a start without labels.
    """
    s, n, m = settings, blocks.n_rows, len(blocks.embeddings)
    factors = [steps.regularised_factor(G, s.ridge, s.variance_reward) for G in grams]
    fairness = n / n_present  # a view that fewer rows have is judged by its mean loss, not by its smaller sum
    shares = np.ones(m) if start.shares is None else start.shares
    state = keeper.begin(lambda: imprint(s, grams, n_present, start, start_rows, rng), rng)
    if state is None:
        state = first_state(blocks, start, start_rows, s, shares, rng, rules, known)
    elif state.fits(n, s, [len(G) for G in grams], shares):
        report(state.n_iter, state.before, None)
    else:
        raise keeper.refuse("other arrays or values than this fit would have")
    codes, ZtBs, clustering, alpha = state.codes, state.ZtBs, state.clustering, state.alpha
    history, n_iter, before, converged = state.history, state.n_iter, state.before, state.converged
    del state
    problem = under(rules, blocks.problem(codes, s.norm, s.balance))
    weights = shares * alpha**s.exponent * fairness

    def note(step, coding, grouping):
        history.append((n_iter, step, coding + s.coupling * grouping))

    def new_projections():
        Ps = projections(grams, factors, ZtBs, weights, s)
        costs = [steps.projection_cost(G, P, s.ridge, s.variance_reward) for G, P in zip(grams, Ps, strict=True)]
        note("P", weights @ losses(Ps, costs), clustering.objective)
        return Ps, costs

    def losses(Ps, costs):
        views = zip(n_present, Ps, ZtBs, costs, strict=True)
        return np.array([steps.view_loss(n_v, s.K, P, ZtB, cost) for n_v, P, ZtB, cost in views])

    while not converged and n_iter < s.max_iter:
        n_iter += 1
        Ps, costs = new_projections()

        codes, flips = new_codes(blocks, codes, ZtBs, Ps, weights, clustering_pull(problem, clustering, s))
        problem = under(rules, blocks.problem(codes, s.norm, s.balance))
        h = losses(Ps, costs)
        coding = weights @ h
        S = problem.sums(clustering.labels, s.n_clusters)
        note("B", coding, problem.objective(S, clustering.Q))

        if s.coupling > 0:
            on_step = partial(lambda step, grouping, coding: note(step, coding, grouping), coding=coding)
            clustering = refine(problem, clustering.Q, s.cluster_iter, on_step, clustering.labels, S)
        else:
            clustering = replace(clustering, S=S)

        alpha = steps.view_weights(h * fairness, s.exponent, LOWEST_LOSS * n * s.K, shares)
        weights = shares * alpha**s.exponent * fairness
        note("α", weights @ h, clustering.objective)

        objective = history[-1][2]
        converged = flips == 0 or before - objective <= s.tol * abs(objective)
        before = objective
        report(n_iter, objective, flips / (n * s.K))
        state = LoopState(codes, ZtBs, clustering, alpha, history, n_iter, before, converged)
        keeper.keep(partial(state.as_kept, rng))

    Ps, _ = new_projections()
    return Learned(Ps, weights, shares * alpha, clustering, codes, history, n_iter, converged)


def first_state(blocks, start, start_rows, s, shares, rng, rules=None, known=None):
    """Codes by the start's projections, and their clusters."""
    m = len(blocks.embeddings)
    codes = blocks.constant(np.zeros(s.K // 8, np.uint8))
    ZtBs = [-np.outer(total, np.ones(s.K)) for total in blocks.totals()]  # of codes that are -1 throughout
    codes, _ = new_codes(blocks, codes, ZtBs, start.projections, np.ones(m))
    problem = under(rules, blocks.problem(codes, s.norm, s.balance))
    clustering = first_clusters(problem, start, start_rows, s, rng, known)
    return LoopState(codes, ZtBs, clustering, np.full(m, 1 / shares.sum()), [], 0, np.inf, False)


def projections(grams, factors, ZtBs, weights, s):
    """P_v = [P_S, P_I_v] for every view: (l, K) float64    [eq. 12, 13]"""
    P_Is = [steps.individual_projection(F, ZtB[:, s.K_S :]) for F, ZtB in zip(factors, ZtBs, strict=True)]
    if s.K_S == 0:
        return P_Is
    P_S = steps.shared_projection(grams, [ZtB[:, : s.K_S] for ZtB in ZtBs], weights, s.ridge, s.variance_reward)
    return [np.hstack([P_S, P_I]) for P_I in P_Is]


def clustering_pull(problem, clustering, s):
    """λ3 Q D (c, K) and the labels: what the clusters say of each bit; None where they are learned afterwards."""
    if s.coupling == 0:
        return None
    d = problem.weights(clustering.S, clustering.Q)
    return steps.centroid_pull(clustering.Q, d, s.coupling), clustering.labels


def new_codes(blocks, codes, ZtBs, Ps, weights, pull=None):
    """B = sgn(Σ w_v Z_v P_v + λ3 Q[labels] D) instead of `codes`, and how many bits changed    [eq. 18]

    In the same pass Z_vᵀB (l, K) float64 of every view is brought up to date in `ZtBs`.
    """
    pulls, labels = (None, ()) if pull is None else ((pull[0] / weights.max()).astype(np.float32), (pull[1],))
    work = partial(code_block, [P.astype(np.float32) for P in Ps], weights, pulls)
    codes, (*changes, flips) = blocks.run(work, codes, *labels)
    for ZtB, change in zip(ZtBs, changes, strict=True):
        ZtB += change
    return codes, int(flips)


def code_block(Ps, weights, pulls, Zs, old, labels=None):
    """New codes of a block, the changes of Z_vᵀB and the number of flips; pulls (c, K) are scaled as `vote` is."""
    R = steps.vote(Zs, Ps, weights)
    if pulls is not None:
        R += pulls[labels]
    new = pack(R)
    flips = int(np.bitwise_count(old ^ new).sum())
    return new, [*(change_of_products(Z, old, new, flips) for Z in Zs), flips]


def change_of_products(Z, old, new, flips):
    """Zᵀ(new - old) (l, K) float32 of packed codes: from the rows of the flipped bits alone where these are few."""
    if flips > FEW_FLIPS * 8 * new.size:
        return Z.T @ (unpack(new) - unpack(old))
    change = np.zeros((8 * new.shape[1], Z.shape[1]), np.float32)
    kernels.add_flipped(Z, old, new, change)
    return change.T


def encode(blocks, Ps, weights, keeper=NOTHING_KEPT):
    """b = sgn(Σ_{v present} w_v ψ(x_v) P_v) for every row: packed codes, training and new images alike."""
    work = partial(encoded_block, Ps, weights)
    if not keeper.wanted:
        return blocks.run(work)[0]
    codes = np.empty((blocks.n_rows, Ps[0].shape[1] // 8), np.uint8)
    n_kept = keeper.read_codes(codes)
    some = np.linspace(0, -(-n_kept // blocks.step), CHECKED_BLOCKS, endpoint=False).astype(int)
    for number in np.unique(some) if n_kept else ():
        positions = np.arange(number * blocks.step, min((number + 1) * blocks.step, n_kept))
        if not np.array_equal(blocks.run_some(work, positions)[0], codes[positions]):
            raise keeper.refuse("codes of other data")
    for rows in row_ranges(blocks.n_rows - n_kept, PART_BLOCKS * blocks.step):
        positions = np.arange(n_kept + rows.start, n_kept + rows.stop)
        codes[positions] = blocks.run_some(work, positions)[0]
        keeper.keep_codes(codes[positions])
    return codes


def encoded_block(Ps, weights, Zs):
    return pack(steps.vote(Zs, Ps, weights)), []


def first_clusters(problem, start, start_rows, s, rng, known=None):
    """Clusters of the first codes: the start's, the nearest of them for rows it did not see; or of the best seeding."""
    if start.labels is None:
        n_init = s.n_init if s.coupling > 0 else 1  # without coupling, clusters are learned from the final codes
        return best_seeding(problem, s.n_clusters, n_init, s.cluster_iter, rng, known)
    start_labels = start.labels.astype(np.int32)
    S = cluster_bit_sums(problem.take(start_rows), start_labels, s.n_clusters)
    Q = np.where(S >= 0, 1, -1).astype(np.int8)
    return refine(problem, Q, 0, labels=problem.labels_with(Q, start_rows, start_labels))
