"""The first pass: moments that do not depend on the cut into blocks."""

import numpy as np
import pytest
from scipy.stats import skew

from bitmosaic.solver.scan import Moments, scan
from bitmosaic.views import as_views


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 700], [500]])
def test_moments_of_blocks_are_those_of_all_rows(cuts):
    X = np.random.default_rng(0).gamma(1, size=(900, 4)) + 1e6 * np.arange(4)
    moments = Moments(np.empty((0, 4)))
    for part in np.split(X, cuts):
        moments.add(Moments(part.copy()))
    np.testing.assert_allclose(moments.mean, X.mean(0))
    np.testing.assert_allclose(moments.variance, X.var(0), rtol=1e-6)
    assert moments.typical_skewness() == pytest.approx(np.median(np.abs(skew(X))), rel=1e-5)


def test_columns_that_do_not_vary_have_no_skewness():
    assert Moments(np.ones((5, 3))).typical_skewness() == 0


def test_a_rooted_view_has_the_moments_of_its_roots():
    X = np.random.default_rng(0).gamma(0.5, size=(3000, 3))
    (facts,) = scan(as_views(X), root=True)
    assert facts.root
    np.testing.assert_allclose(facts.mean, np.sqrt(X).mean(0))
    np.testing.assert_allclose(facts.variance, np.sqrt(X).var(0))
    for other in (X - 1, X**0.25, np.zeros((5, 2))):  # negative values, more symmetric as they are, nothing to say
        assert not scan(as_views(other), root=True)[0].root
