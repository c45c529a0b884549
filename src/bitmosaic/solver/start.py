"""Where Algorithm 1 begins: first projections, and first labels where the start has an opinion on them.

A start looks at a sample of the training rows and returns one matrix (l, K) per view; the first codes are the signs of
Σ_v Z_v P_v, taken over all rows in the same pass as always.
"""

import warnings
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackError, eigsh
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits


@dataclass(frozen=True)
class Start:
    projections: list[np.ndarray]  # (l, K) float32 for each view
    labels: np.ndarray | None = None  # (n,) of the sample's rows


def random_rotation(n_from, n_to, rng):
    """The first rows and columns of a random rotation: (n_from, n_to), with orthonormal rows or columns."""
    Q = np.linalg.qr(rng.standard_normal((max(n_from, n_to), min(n_from, n_to))))[0]
    return Q if n_from >= n_to else Q.T


def joint_gram(blocks):
    """Gram matrix of the concatenated embeddings (Σl, Σl), and the edges of the views in it."""
    edges = np.concatenate([[0], np.cumsum([e.n_anchors for e in blocks.embeddings])])
    total = np.zeros((edges[-1], edges[-1]))

    def one_block(rows, Zs):
        Z = np.concatenate(Zs, axis=1)
        return Z.T @ Z

    for part in blocks.sweep(one_block):
        total += part
    return total, edges


def top_eigenvectors(A, count, rng):
    """The largest eigenvalues of a symmetric matrix and their vectors; Lanczos where few are wanted."""
    v0 = rng.standard_normal(len(A))
    if count < len(A) // 4:
        with suppress(ArpackError):  # a matrix of zeros, or no convergence
            return eigsh(A, k=count, v0=v0)
    return eigh(A, subset_by_index=[len(A) - count, len(A) - 1])


def rotation_start(grams, K, rng):
    """Signs of the principal components of all views after a random rotation; G_v (l, l) for each view.

    The rotation spreads the variance over all the bits; without it most bits carry noise.
    """
    components = [top_eigenvectors(G, min(K, len(G)), rng)[1] for G in grams]  # (l, k_v) each
    edges = np.concatenate([[0], np.cumsum([V.shape[1] for V in components])])
    R = random_rotation(edges[-1], K, rng)
    return Start([(V @ R[a:b]).astype(np.float32) for V, (a, b) in zip(components, pairwise(edges), strict=True)])


def consensus_start(blocks, K, n_clusters, n_init, rng, *, ridge=1.0, keep=0.3):
    """What the views agree on (MAXVAR generalised canonical correlation), and k-means in that space.

    Each view is whitened with a ridge of `ridge` times its mean eigenvalue. The eigenvalues w of the joint Gram matrix
    of the whitened views lie in [0, m]; w = m is a direction on which all views agree. The top `keep`·l directions are
    kept, each weighted by w/m.
    """
    joint, edges = joint_gram(blocks)
    m = len(blocks.embeddings)
    whiteners = []
    for a, b in pairwise(edges):
        w, U = eigh(joint[a:b, a:b])
        w = np.maximum(w, 0)
        shrunk = w + ridge * w.mean()
        whiteners.append(U / np.sqrt(np.where(shrunk > 0, shrunk, 1)))
        joint[a:b] = whiteners[-1].T @ joint[a:b]
        joint[:, a:b] = joint[:, a:b] @ whiteners[-1]

    n_directions = min(max(n_clusters, round(keep * np.diff(edges).max())), len(joint), blocks.n_rows)
    w, U = top_eigenvectors(joint, n_directions, rng)
    U = U * (np.sqrt(np.maximum(w, 0)) / m)
    directions = [W @ U[a:b] for W, (a, b) in zip(whiteners, pairwise(edges), strict=True)]  # (l, k) each

    Y = np.empty((blocks.n_rows, n_directions), np.float32)
    narrow = [T.astype(np.float32) for T in directions]

    def place(rows, Zs):
        Y[rows] = sum(Z @ T for Z, T in zip(Zs, narrow, strict=True))

    for _ in blocks.sweep(place):
        pass
    # scikit-learn's sums depend on the number of threads; fewer distinct points than clusters are reported later on.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans = KMeans(n_clusters, n_init=n_init, random_state=int(rng.integers(2**31))).fit(Y)
    rotation = random_rotation(n_directions, K, rng)
    return Start([(T @ rotation).astype(np.float32) for T in directions], kmeans.labels_)
