"""bench growth on a few images."""

from image_kinds import write_images

from bitmosaic.bench.growth import measure
from bitmosaic.images import quiet


def test_growth_is_measured_in_the_same_order_of_images(tmp_path):
    first, more = write_images(tmp_path / "first", 8), write_images(tmp_path / "more", 4, seed=5)
    done = measure(str(first), str(more), tmp_path / "out", 3, 2, quiet)
    assert len(done.agreement) == 4
    assert len(done.between_seeds) == 1
    assert done.truth.tolist() == ["disc"] * 4 + ["noise"] * 4 + ["stripes"] * 4
    assert done.nmi(done.added).min() > 0.6
    assert done.nmi(done.fitted).min() > 0.6
    assert done.add > 0
    assert done.new_run > 0
