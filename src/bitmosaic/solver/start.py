"""Where Algorithm 1 begins: first projections, and first labels where the start has an opinion on them.

A start looks at a sample of the training rows and returns one matrix (l, K) per view; the first codes are the signs of
Σ_v Z_v P_v, taken over all rows in the same pass as always.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits


@dataclass(frozen=True)
class Start:
    projections: list[np.ndarray]  # (l, K) float32 for each view
    labels: np.ndarray | None = None  # (n,) of the sample's rows


def random_rotation(n_from, n_to, rng):
    """The first rows and columns of a random rotation: (n_from, n_to)."""
    size = max(n_from, n_to)
    return np.linalg.qr(rng.standard_normal((size, size)))[0][:n_from, :n_to]


def rotation_start(blocks, K, rng):
    """Signs of the principal components of the mean embedding after a random rotation.

    The rotation spreads the variance over all the bits; without it most bits carry noise. Views that differ in their
    number of anchors cannot be averaged, so shorter ones are padded: their anchors stand for nothing beyond.
    """
    m = len(blocks.embeddings)
    n_anchors = [e.n_anchors for e in blocks.embeddings]
    total = np.zeros((max(n_anchors), max(n_anchors)))

    def mean_gram(rows, Zs):
        mean = np.zeros((len(Zs[0]), max(n_anchors)), np.float32)
        for Z in Zs:
            mean[:, : Z.shape[1]] += Z / np.float32(m)
        return mean.T @ mean

    for part in blocks.sweep(mean_gram):
        total += part
    n_components = min(K, len(total))
    V = eigh(total, subset_by_index=[len(total) - n_components, len(total) - 1])[1]  # (l, n_components)
    P = V @ random_rotation(n_components, K, rng) / m
    return Start([P[:l].astype(np.float32) for l in n_anchors])


def consensus_start(blocks, K, n_clusters, rng, *, ridge=1.0, keep=0.3):
    """What the views agree on (MAXVAR generalised canonical correlation), and k-means in that space.

    Each view is whitened with a ridge of `ridge` times its mean eigenvalue. The eigenvalues w of the joint Gram matrix
    of the whitened views lie in [0, m]; w = m is a direction on which all views agree. The top `keep`·l directions are
    kept, each weighted by w/m.
    """
    sizes = [e.n_anchors for e in blocks.embeddings]
    edges = np.concatenate([[0], np.cumsum(sizes)])
    m, l = len(sizes), max(sizes)
    joint = np.zeros((edges[-1], edges[-1]))

    def joint_gram(rows, Zs):
        Z = np.concatenate(Zs, axis=1)
        return Z.T @ Z

    for part in blocks.sweep(joint_gram):
        joint += part

    whiteners = []
    for a, b in zip(edges[:-1], edges[1:], strict=True):
        w, U = eigh(joint[a:b, a:b])
        w = np.maximum(w, 0)
        shrunk = w + ridge * w.mean()
        whiteners.append(U / np.sqrt(np.where(shrunk > 0, shrunk, 1)))
        joint[a:b] = whiteners[-1].T @ joint[a:b]
        joint[:, a:b] = joint[:, a:b] @ whiteners[-1]

    n_directions = min(max(n_clusters, round(keep * l)), edges[-1], blocks.n_rows)
    if n_directions < edges[-1] // 2:
        w, U = eigsh(joint, k=n_directions, v0=rng.standard_normal(edges[-1]))
    else:
        w, U = eigh(joint, subset_by_index=[edges[-1] - n_directions, edges[-1] - 1])
    U = U * (np.sqrt(np.maximum(w, 0)) / m)
    directions = [W @ U[a:b] for W, a, b in zip(whiteners, edges[:-1], edges[1:], strict=True)]  # (l, k) each

    Y = np.empty((blocks.n_rows, n_directions), np.float32)
    narrow = [T.astype(np.float32) for T in directions]

    def place(rows, Zs):
        Y[rows] = sum(Z @ T for Z, T in zip(Zs, narrow, strict=True))[: rows.stop - rows.start]

    for _ in blocks.sweep(place):
        pass
    with threadpool_limits(limits=1):  # scikit-learn's sums depend on the number of threads
        kmeans = KMeans(n_clusters, n_init=3, random_state=int(rng.integers(2**31))).fit(Y)
    rotation = random_rotation(n_directions, K, rng)
    return Start([(T @ rotation).astype(np.float32) for T in directions], kmeans.labels_)
