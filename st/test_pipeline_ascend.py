"""dw on a second stream of an NPU, beside the communication: the same values, and less time."""

import pytest

from st.test_pipeline import launch

pytestmark = [pytest.mark.platform_ascend910b, pytest.mark.allcards]


@pytest.mark.level0
@pytest.mark.timeout(900)
def test_values_with_dw_on_a_second_stream(tmp_path):
    done = launch("pipeline_streams.py", "values", workers=2, folder=tmp_path, timeout=600)
    assert done.exit_code == 0, done.report()
    assert all(f"rank {rank}: equal" in done.logs[f"worker_{rank}.log"] for rank in range(2)), done.report()


@pytest.mark.level1
@pytest.mark.timeout(900)
def test_a_second_stream_does_not_cost_time(tmp_path):
    done = launch("pipeline_streams.py", "time", workers=2, folder=tmp_path, timeout=600)
    assert done.exit_code == 0, done.report()
    ratio = float(done.logs["worker_0.log"].split("one stream / two streams = ")[1].split()[0])
    assert ratio > 0.98, done.report()
