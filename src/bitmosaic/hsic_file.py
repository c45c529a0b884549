"""A fitted HSIC <-> the named arrays and facts of its file."""

import numpy as np

from bitmosaic.hsic_options import effective
from bitmosaic.model_file import require, require_arrays, require_labels
from bitmosaic.parameters import as_json
from bitmosaic.solver.how_many import ClusterCounts
from bitmosaic.solver.model import Model
from bitmosaic.solver.online import Majority


def contents(estimator):
    """Arrays and facts of a fitted estimator."""
    arrays, kernels = estimator._model.to_arrays()
    arrays |= {"labels": np.asarray(estimator.labels_), "codes": np.asarray(estimator.codes_)}  # from a cluster, if so
    arrays["view_weights"] = estimator.view_weights_
    if estimator._majority is not None:  # after a partial_fit, it is not that of these codes alone
        arrays |= {"bit_sums": estimator._majority.bit_sums, "counts": estimator._majority.counts}
    facts = {
        "parameters": as_json(estimator.get_params()),
        "view_names": estimator.view_names_,
        "columns": [names and list(names) for names in estimator._columns],
        "kernels": kernels,
        "n_components": effective(estimator)["n_components"],
        "cluster_counts": estimator.cluster_counts_ and estimator.cluster_counts_.as_json(),
        "n_iter": estimator.n_iter_,
        "objective_history": [list(entry) for entry in estimator.objective_history_],
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": [str(name) for name in getattr(estimator, "feature_names_in_", [])],
    }
    return arrays, facts


def restore(estimator, arrays, facts, path):
    """Give an estimator that has its parameters what was learned; an error where that does not fit together."""
    model, names = Model.from_arrays(arrays, facts["kernels"]), facts["view_names"]
    n, m, n_bytes = len(arrays["labels"]), len(names), estimator.n_bits // 8
    counts = ClusterCounts.from_json(facts["cluster_counts"]) if estimator.n_clusters == "auto" else None
    n_clusters = estimator.n_clusters if counts is None else counts.chosen
    expected = model.expected_arrays(n_clusters, n_bytes)
    expected |= {"labels": (np.int32, (n,)), "codes": (np.uint8, (n, n_bytes)), "view_weights": (np.float64, (m,))}
    if "bit_sums" in arrays:
        expected |= {"bit_sums": (np.int64, (n_clusters, 8 * n_bytes)), "counts": (np.int64, (n_clusters,))}
    require_arrays(arrays, expected, path)
    require_labels(arrays["labels"], n_clusters, path)
    require(isinstance(names, list) and all(isinstance(name, str) for name in names), "its views have no names", path)
    require(len(set(names)) == m == len(model.embeddings), f"it holds {len(model.embeddings)} views, not {names}", path)
    most = facts["n_components"]  # of the preset, as it was when the model was made
    require(most is None or isinstance(most, int), "its number of components is no number", path)
    require(
        all((e.basis is not None) == (most is not None and len(e.offset) > most) for e in model.embeddings),
        "its views are not reduced as it says",
        path,
    )
    require(min(model.widths) > 0 and model.is_sound(), "it has a view without columns, anchors or width", path)
    alpha = arrays["view_weights"]
    require(bool((alpha > 0).all() and abs(alpha.sum() - 1) < 1e-6), "its view weights are no weights", path)
    columns, column_names = facts["n_features_in"], facts["feature_names_in"]
    require(columns == sum(model.widths), f"it is for {columns!r} columns, not {sum(model.widths)}", path)
    require(all(isinstance(name, str) for name in column_names), "its columns have no names", path)
    require(len(column_names) in (0, columns), f"it names {len(column_names)} of {columns} columns", path)

    columns_of_views = tuple(names and tuple(map(str, names)) for names in facts["columns"])
    require(len(columns_of_views) == m, "its columns are not those of its views", path)
    estimator._keep(model, names, columns_of_views, counts)
    if "bit_sums" in arrays:
        estimator._majority = Majority(model.centers, arrays["bit_sums"], arrays["counts"])
        require(estimator._majority.is_sound(), "its sums are not those of so many codes", path)
    estimator.labels_, estimator.codes_, estimator.view_weights_ = (
        arrays["labels"],
        arrays["codes"],
        arrays["view_weights"],
    )
    estimator.n_iter_, estimator.n_features_in_ = int(facts["n_iter"]), columns
    estimator.objective_history_ = [(int(i), str(step), float(value)) for i, step, value in facts["objective_history"]]
    estimator.objective_ = estimator.objective_history_[-1][2]
    if column_names:
        estimator.feature_names_in_ = np.array(column_names, object)
