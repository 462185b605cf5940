"""Row: all workers lost. Bounded wait, a checkpoint, resumed to the same bits."""

import signal

import pytest
from helpers.faulty import lost_cluster_ends_in_a_checkpoint


@pytest.mark.slow
def test_killed(tmp_path):
    lost_cluster_ends_in_a_checkpoint(tmp_path, lambda _, workers: workers, signal.SIGKILL, 30)
