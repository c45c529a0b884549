"""Near-duplicates of a run: found once, kept in its folder."""

import numpy as np

from bitmosaic.explorer.kept import keep, kept
from bitmosaic.images import Progress
from bitmosaic.near_duplicates import Group, find_duplicates
from bitmosaic.run import Run
from bitmosaic.threads import available_threads

NAME = "duplicates"


def duplicates_of(run: Run, codes: np.ndarray, progress: Progress) -> tuple[int, list[Group]]:
    """The radius and the groups, as they were kept or found anew."""
    stored = _stored(run)
    if stored is not None:
        return stored
    radius, groups = find_duplicates(codes, run.views, None, available_threads(), progress)
    keep(
        run,
        NAME,
        radius=np.array(radius),
        sizes=np.array([len(group.rows) for group in groups], np.int64),
        rows=_joined([group.rows for group in groups]),
        distances=_joined([group.distances for group in groups]),
    )
    return radius, groups


def _stored(run: Run) -> tuple[int, list[Group]] | None:
    arrays = kept(run, NAME, ("radius", "sizes", "rows", "distances"))
    if arrays is None:
        return None
    radius, sizes, rows, distances = arrays
    whole = radius.ndim == 0 and sizes.ndim == 1 and distances.shape == rows.shape
    if not whole or (sizes < 1).any() or sum(sizes.tolist()) != len(rows):
        return None
    cuts = np.cumsum(sizes)[:-1]
    pairs = zip(np.split(rows, cuts), np.split(distances, cuts), strict=True) if len(sizes) else ()
    return int(radius), [Group(rows, distances, None) for rows, distances in pairs]


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *arrays])
