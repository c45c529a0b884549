"""A copy of a run over images of which some are copies, for one test."""

import pytest
from copied_images import copy_run

from bitmosaic.run.folder import Run


@pytest.fixture
def run(run_with_copies, tmp_path):
    copy_run(run_with_copies, tmp_path)
    return Run(tmp_path / "run")


@pytest.fixture
def images(run, tmp_path):
    return tmp_path / "images"
