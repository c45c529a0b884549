"""What a fit of HSIC should say of its own result."""

import warnings

from sklearn.exceptions import ConvergenceWarning

UNSETTLED = 0.1  # a fall of the objective in the last iteration, of what it was after the first, worth a warning


def warn_of(estimator, found, converged, constrained):
    """Of clusters whose number is not clear or not reached, and of an objective that still fell."""
    if estimator.cluster_counts_ and not estimator.cluster_counts_.clear:
        warnings.warn(f"The number of clusters is not clear: {estimator.cluster_counts_}.", UserWarning, stacklevel=3)
    if found < estimator.n_clusters_:
        why = "Many images may be alike, or n_bits too small"
        warnings.warn(
            f"There are fewer distinct codes than n_clusters={estimator.n_clusters_}: {found} clusters were found. "
            f"{why}{', or constraints keep clusters empty' if constrained else ''}.",
            ConvergenceWarning,
            stacklevel=3,
        )
    ends = [value for _, step, value in estimator.objective_history_ if step == "α"]
    fell = (ends[-2] - ends[-1]) / abs(ends[0]) if len(ends) > 1 and ends[0] else 0
    if not converged and fell > UNSETTLED:
        warnings.warn(
            f"The objective still fell by {fell:.0%} of its first value in the last of max_iter={estimator.n_iter_} "
            "iterations. Raise max_iter.",
            ConvergenceWarning,
            stacklevel=3,
        )
