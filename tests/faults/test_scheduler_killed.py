"""Row: scheduler kill -9. Bounded wait, a checkpoint, resumed to the same bits."""

import signal

import pytest
from helpers.faulty import lost_cluster_ends_in_a_checkpoint


@pytest.mark.cluster
def test_killed(tmp_path):
    lost_cluster_ends_in_a_checkpoint(tmp_path, lambda s, _: [s], signal.SIGKILL, 45)
