"""The plan: sums spelled out again, invariants over many shapes, refusals with their numbers."""

import re

import pytest
from hypothesis import given, strategies as st

from gmkcf_dask.compute.costs import (
    PROCESS_BYTES,
    SCHEDULER_BYTES,
    Job,
    build_task_bytes,
    fit_task_bytes,
    summing_bytes,
)
from gmkcf_dask.compute.plan import (
    make_plan,
    refuse_beyond_machine,
    refuse_by_count,
    refuse_large_driver,
    refuse_small_workers,
)
from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.kernels.tiling import GROUP_BYTES, Tiling, default_block
from gmkcf_dask.system.units import GIB, MIB, ceil_div, human_bytes, human_time

shapes = st.builds(Tiling, st.integers(1, 400), st.integers(1, 450))


@given(shapes)
def test_tiles_cover_the_triangle_once(tiling):
    covered = set()
    for t, pair in enumerate(tiling.pairs()):
        assert tiling.pair(t) == pair
        assert pair[0] <= pair[1]
        covered.add(pair)
    assert len(covered) == tiling.n_tiles
    assert sum(tiling.rows(i).stop - tiling.rows(i).start for i in range(tiling.n_blocks)) == (
        tiling.n
    )


@given(shapes, st.sampled_from([4, 8]))
def test_tasks_hold_a_bounded_number_of_bytes(tiling, itemsize):
    group = tiling.tiles_per_task(itemsize)
    assert 1 <= group <= tiling.n_tiles
    assert group == 1 or group * tiling.block**2 * itemsize <= GROUP_BYTES


def test_peaks_term_by_term():
    tiling = Tiling(10_000, 1000)
    tile, group = 4 * 1000**2, tiling.tiles_per_task(4)
    assert group == 3  # 55 tiles cut into at least 16 groups
    expected = (
        group * tile  # fused tiles
        + 4 * tile  # read, decoded, widened, rank-2k
        + 10_000 * 20 * 4  # the factor
        + (group + 1) * 1000 * 20 * 8  # the partial product
    )
    assert fit_task_bytes(tiling, 20, "float32") == expected
    assert build_task_bytes(1000, 5) == 13 * 8 * 1000**2 + 7 * 5 + 4 * 8 * 2**17


def test_tiles_larger_than_blas_can_count_are_refused():
    much = {"memory_per_worker": 1 << 50, "feature_bytes": 0}
    with pytest.raises(InputError, match="block size must be at most 32,768, not 40,000"):
        make_plan(100_000, 5, 1, 2, block=40_000, **much)
    assert make_plan(1000, 5, 1, 2, block=40_000, **much).n_tiles == 1, "no tile is that large"


def test_plan_term_by_term():
    plan = make_plan(
        12_000, 500, 12, 10, feature_bytes=12_000_000, n_workers=2, memory_per_worker=GIB
    )
    tiles = 12 * 13 // 2
    assert plan.block == 1024
    assert plan.n_tiles == tiles
    assert plan.stored_bytes == 12 * tiles * 1024**2 * 4
    assert plan.kw_bytes == tiles * 1024**2 * 4
    assert plan.residency == "memory"
    assert plan.kernel_sweeps_per_iteration == 2
    assert plan.read_per_iteration == 2 * plan.stored_bytes + 2 * plan.kw_bytes
    assert plan.disk_needed == plan.stored_bytes + 12_000_000
    building = PROCESS_BYTES + plan.build_task_bytes
    summing = (8 + 1) * 8 * 12_000 * 32  # partial products and their sum, at least 32 columns
    fitting = PROCESS_BYTES + plan.fit_task_bytes + summing + 3 * plan.kw_bytes // 4
    assert plan.worker_peak_bytes == max(building, fitting) == fitting


@given(
    n=st.integers(1, 300_000),
    m=st.integers(1, 40),
    k=st.integers(1, 50),
    precision=st.sampled_from(["float32", "float64", "compact"]),
    workers=st.integers(1, 64),
    threads=st.integers(1, 8),
    memory=st.integers(64 * MIB, 64 * GIB),
    disk=st.one_of(st.none(), st.integers(0, 1 << 44)),
)
def test_what_is_accepted_fits(n, m, k, precision, workers, threads, memory, disk):
    k = min(k, n)
    try:
        plan = make_plan(
            n,
            100,
            m,
            k,
            feature_bytes=n * 800,
            precision=precision,
            n_workers=workers,
            threads_per_worker=threads,
            memory_per_worker=memory,
            disk_free=disk,
        )
    except PlanRefused:
        return
    assert plan.worker_peak_bytes <= memory * 6 // 10
    assert disk is None or plan.disk_needed <= disk
    assert all(isinstance(v, int | str | type(None)) for v in vars(plan).values())
    assert "\n".join(plan.lines()) == str(plan)


def test_residency_follows_memory_and_disk():
    def residency(memory, disk, **kwargs):
        return make_plan(
            40_000,
            100,
            12,
            10,
            feature_bytes=0,
            n_workers=2,
            memory_per_worker=memory,
            disk_free=disk,
            tiles_stored=40 * 41 // 2,
            **kwargs,
        ).residency

    assert residency(16 * GIB, 0) == "memory"
    assert residency(1 * GIB, 100 * GIB) == "scratch"
    assert residency(1 * GIB, 0) == "recompute"
    with pytest.raises(PlanRefused, match="fused kernel needs"):
        residency(1 * GIB, 0, residency="memory")


def test_recompute_costs_a_third_sweep():
    plan = make_plan(5_000, 10, 3, 4, feature_bytes=0, residency="recompute")
    assert plan.kernel_sweeps_per_iteration == 3
    assert plan.read_per_iteration == 3 * plan.stored_bytes


def test_tiles_shrink_until_a_task_fits():
    roomy = make_plan(8_000, 10, 12, 10, feature_bytes=0, memory_per_worker=8 * GIB)
    tight = make_plan(8_000, 10, 12, 10, feature_bytes=0, memory_per_worker=560 * MIB)
    assert tight.block < roomy.block


def test_refusals_say_the_numbers():
    with pytest.raises(PlanRefused, match=r"needs .*iB of memory .* has 100\.0 MiB"):
        make_plan(9_000, 10, 12, 10, feature_bytes=0, memory_per_worker=100 * MIB)
    with pytest.raises(PlanRefused, match=r"needs up to .*iB of disk but 1\.0 MiB are free"):
        make_plan(9_000, 10, 12, 10, feature_bytes=0, disk_free=MIB)
    with pytest.raises(InputError, match="block size must be at least 1"):
        make_plan(10, 1, 1, 1, feature_bytes=0, block=-3)


def test_the_largest_rows_count():
    alike = make_plan(9_000, 10, 12, 10, feature_bytes=9_000 * MIB // 100, block=100)
    books = make_plan(
        9_000,
        10,
        12,
        10,
        feature_bytes=9_000 * MIB // 100,
        block=100,
        largest_rows=lambda edge: edge * MIB,
    )
    assert alike.build_task_bytes == build_task_bytes(100, MIB)
    assert books.build_task_bytes == build_task_bytes(100, 100 * MIB)


def test_many_clusters_take_memory_for_their_sums():
    """Partial n×2k products wait for each other on one worker; k = 400 once broke the promise."""
    few, many, signed = (
        make_plan(4_000, 10, 3, k, feature_bytes=0, block=512, signed=signed).worker_peak_bytes
        for k, signed in ((16, False), (400, False), (400, True))
    )
    assert (
        many - few
        > 9 * 8 * 4_000 * (800 - 32)
        == summing_bytes(4_000, 800) - summing_bytes(4_000, 32)
    )
    assert signed - many == summing_bytes(4_000, 1600) - summing_bytes(4_000, 800)
    with pytest.raises(PlanRefused, match="a worker needs"):
        make_plan(4_000, 10, 3, 400, feature_bytes=0, memory_per_worker=600 * MIB)


@given(
    st.integers(1, 50_000),
    st.integers(1, 200),
    st.integers(1, 700 * MIB),
    st.sampled_from([None, 64, 1000]),
)
def test_the_least_memory_that_is_named_will_do(n, k, memory, block):
    options = {"feature_bytes": 1000 * n, "block": block}
    try:
        make_plan(n, 10, 3, min(k, n), memory_per_worker=memory, **options)
    except PlanRefused as refusal:
        least = int(re.search(r"needs ([\d,]+) MiB", str(refusal))[1].replace(",", ""))
        assert least * MIB > memory
        make_plan(n, 10, 3, min(k, n), memory_per_worker=least * MIB, **options)


def test_workers_smaller_than_themselves_are_refused():
    refuse_small_workers(500 * MIB)
    with pytest.raises(PlanRefused, match=r"needs 500 MiB .* alone but has 499\.0 MiB"):
        refuse_small_workers(499 * MIB)


def test_more_than_the_machine_has_is_refused():
    plan = make_plan(9_000, 10, 12, 10, feature_bytes=0, n_workers=3)
    need = 3 * plan.worker_peak_bytes + plan.driver_bytes
    refuse_beyond_machine(plan, need)
    with pytest.raises(PlanRefused, match=r"3 × .*iB for workers .* use fewer workers"):
        refuse_beyond_machine(plan, need - 1)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 4096, 5000, 64 * 1024 + 1, 300_000])
def test_default_block_grows_with_n(n):
    assert 64 <= default_block(n) <= 4096
    assert default_block(n) <= default_block(n + 1)


def test_bytes_for_people():
    assert human_bytes(0) == "0 B"
    assert human_bytes(5 * MIB) == "5.0 MiB"
    assert human_bytes(3 << 40) == "3.0 TiB"


def test_network_term_by_term():
    """n = 8,000 in 36 tiles, 2 to a task: 18 partial products, summed to 3 and to 1."""
    plan = make_plan(8_000, 10, 2, 5, feature_bytes=0, n_workers=3)
    factors = 8_000 * (10 + 5 + 10) * 4  # [U, V], U, and [U, A] for the errors
    results = 8_000 * (10 + 5) * 8
    rows = 18 * 3 * 1024 + 3 * 8_000  # two tiles touch three row blocks
    tasks = 3 * (3 * 18 + 3 + 1)
    assert plan.driver_network_per_iteration == factors + results + tasks * 1024 + 65536
    moved = rows * (10 + 5) * 8 * 2 // 3  # a third is where it is summed
    expected = (1 + 3) * factors + moved + 2 * results + tasks * 5 * 1024 + 3 * 65536
    assert plan.network_per_iteration == pytest.approx(expected, abs=2)


def test_nothing_travels_inside_one_process():
    plan = make_plan(8_000, 10, 2, 5, feature_bytes=0, one_process=True)
    assert plan.network_per_iteration == plan.driver_network_per_iteration == 0


def test_runs_go_together_by_n_and_k_alone():
    """The paper's k1b with 60 clusters, 20 restarts and 12 kernels: 240 runs, 9 at a time."""
    job = Job(60, "kcf", n_init=20, n_alone=12)
    one = 24 * 8 * 2340 * 60
    assert job.n_runs == 240
    assert job.together(2340) == 256 * MIB // one == 9
    assert Job(60, "kcf").together(2340) == 1
    assert Job(60, "gmkcf", n_init=20).together(2340) == 1, "one after the other"
    assert Job(60, "kcf", n_init=20).together(10**6) == 1, "at least one"


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_driver_term_by_term(in_memory):
    n, k, m, d = 2340, 60, 12, 1000
    job = Job(k, "kcf", n_init=20, n_alone=12)
    plan = make_plan(n, d, m, k, feature_bytes=5000, job=job, one_process=in_memory)
    assert plan.kernels_in_memory == in_memory
    block, columns = 8 * n * k, 9 * 2 * k
    held = 9 * 24 * block + 12 * 6 * block + 12 * 4 * block  # running, found, best so far
    flight = 2 * 8 * n * columns + 2 * 4 * n * columns + 3 * 8 * n * columns
    if in_memory:  # 10 tiles of 640: each part has two row blocks, and two sums all rows
        flight += 8 * columns * (10 * 2 * 640 + 2 * n)
    facts = n * (2 * m * 8 + 2048) + 3 * 5000 + 3 * 8 * k * d
    assert plan.driver_bytes == PROCESS_BYTES + SCHEDULER_BYTES * (not in_memory) + (
        facts + held + flight
    )
    both = plan.worker_peak_bytes + plan.driver_bytes
    assert plan.machine_bytes == (both - PROCESS_BYTES if in_memory else both)


@given(
    n=st.integers(10, 50_000),
    m=st.integers(1, 20),
    k=st.integers(1, 10),
    n_init=st.sampled_from([1, 20]),
    alone=st.booleans(),
    memory=st.integers(300 * MIB, 16 * GIB),
    method=st.sampled_from(["gmkcf", "kcf", "kkm", "sc", "coreg", "rmkkm"]),
)
def test_one_process_takes_no_more_than_it_may(n, m, k, n_init, alone, memory, method):
    job = Job(k, method, n_init=n_init, n_alone=m if alone else 1)
    options = {"feature_bytes": 0, "memory_per_worker": memory, "one_process": True, "job": job}
    try:
        plan = make_plan(n, 10, m, k, **options)
    except PlanRefused:
        return
    assert plan.machine_bytes <= memory
    assert 1 <= plan.runs_together <= job.n_runs


def test_a_job_too_large_for_one_process_is_refused_with_its_name():
    job = Job(60, "kcf", n_init=20, n_alone=12)
    options = {"feature_bytes": 0, "one_process": True, "memory_per_worker": 700 * MIB}
    make_plan(2340, 10, 12, 60, **options)
    with pytest.raises(PlanRefused, match=r"kcf, 20 restarts, 12 kernels .* 700\.0 MiB"):
        make_plan(2340, 10, 12, 60, job=job, **options)


def test_a_driver_larger_than_what_is_free_is_refused():
    plan = make_plan(9_000, 10, 12, 10, feature_bytes=0, job=Job(10, "kcf", n_init=20))
    refuse_large_driver(plan, plan.driver_bytes)
    with pytest.raises(PlanRefused, match=r"the driver needs .* kcf, 20 restarts"):
        refuse_large_driver(plan, plan.driver_bytes - 1)


def test_the_time_and_what_it_comes_from():
    """12 kernels in 78 tiles at 120 MB/s and 350 MB/s per core on two workers."""
    plan = make_plan(12_000, 10, 12, 10, feature_bytes=0, n_workers=2, job=Job(10, max_iter=100))
    assert plan.build_ms == plan.stored_bytes // (120_000 * 2)
    read = ceil_div(2 * plan.stored_bytes + 2 * plan.kw_bytes, 350_000 * 2)
    products = ceil_div(2 * 12_000**2 * 50, 20_000_000 * 2)
    assert plan.iteration_ms == read + products + 4 * 100
    assert plan.iterations == 100
    line = next(line for line in plan.lines() if line.startswith("time: "))
    assert human_time(plan.build_ms + 100 * plan.iteration_ms) in line
    assert "350 MB/s" in line


def test_a_count_alone_is_refused_and_what_would_do_is_said():
    with pytest.raises(PlanRefused, match=r"587,136 samples need .* TiB .* 50\.0 GiB") as e:
        refuse_by_count(587_136, 12, "float32", 50 * GIB)
    fit = int(re.search(r"at most ([\d,]+) samples", str(e.value))[1].replace(",", ""))
    assert "compact" in str(e.value)
    assert 40_000 < fit < 60_000
    make_plan(fit, 10, 12, 10, feature_bytes=0, disk_free=50 * GIB)
    refuse_by_count(fit, 12, "float32", 50 * GIB)
    refuse_by_count(587_136, 12, "float32", None)
