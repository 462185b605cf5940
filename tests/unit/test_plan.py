"""The plan: sums spelled out again, invariants over many shapes, refusals with their numbers."""

import re

import pytest
from hypothesis import given, strategies as st

from gmkcf_dask.compute.costs import (
    PROCESS_BYTES,
    SCHEDULER_BYTES,
    STRIP_BYTES,
    TABLE_BYTES,
    Job,
    StoredGram,
    build_task_bytes,
    cached_table_bytes,
    dense_fit_bytes,
    expected_gram,
    fit_task_bytes,
    products_per_weight_step,
    summing_bytes,
    tiled_bytes,
    waiting_rows,
)
from gmkcf_dask.compute.plan import (
    make_plan,
    refuse_beyond_machine,
    refuse_by_count,
    refuse_large_driver,
    refuse_small_workers,
)
from gmkcf_dask.errors import DiskRefused, InputError, PlanRefused
from gmkcf_dask.kernels.features import CACHED_ENTRIES
from gmkcf_dask.kernels.gram_loops import ENTRIES
from gmkcf_dask.kernels.tiling import (
    GROUP_BYTES,
    Tiling,
    default_block,
    encoded_bytes,
)
from gmkcf_dask.pipeline import kernels as in_memory
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


# layout gram

CODES = StoredGram(itemsize=2, by_table=True, beside=0)
FORMULAS = StoredGram(itemsize=4, by_table=False, beside=0)
grams = st.one_of(
    st.none(), st.builds(StoredGram, st.sampled_from([2, 4, 8]), st.booleans(), st.just(0))
)


def test_sizes_of_tables_and_strips_are_those_of_the_loops():
    assert (TABLE_BYTES, STRIP_BYTES) == (8 * ENTRIES, 8 * CACHED_ENTRIES)


def test_a_gram_matrix_is_stored_once_for_all_kernels():
    how = {"feature_bytes": 0, "precision": "compact", "tiles_stored": 8}
    plan = make_plan(12_000, 500, 12, 10, gram=CODES, **how)
    entries = 12 * 13 // 2 * 1024**2
    assert plan.stored_bytes == 2 * entries
    assert plan.disk_needed == 2 * (entries - 8 * 1024**2)
    assert plan.read_per_iteration == 2 * plan.stored_bytes + 2 * plan.kw_bytes
    assert plan.kw_bytes == 4 * entries
    each = make_plan(12_000, 500, 12, 10, **how)
    assert each.stored_bytes == 12 * plan.stored_bytes
    assert plan.build_task_bytes == each.build_task_bytes, "an upper bound"
    beside = make_plan(12_000, 500, 12, 10, gram=StoredGram(4, True, 3), **how)
    assert beside.stored_bytes == entries * (4 + 3 * 2)
    assert beside.disk_needed == (entries - 8 * 1024**2) * (4 + 3 * 2)


@pytest.mark.parametrize("gram", [CODES, FORMULAS])
def test_a_task_evaluates_in_a_few_tables_or_strips(gram):
    tiling = Tiling(10_000, 1000)
    work = 4 * 65_537 * 8 if gram.by_table else 12 * 65_536 * 8
    more = fit_task_bytes(tiling, 20, "float32", 12, gram) - fit_task_bytes(
        tiling, 20, "float32", 12
    )
    assert more == gram.itemsize * 1000**2 + work
    assert summing_bytes(1000, 40) == summing_bytes(1000, 40, FORMULAS) == 9 * 8 * 1000 * 40
    assert summing_bytes(1000, 40, CODES) == 9 * 8 * 65_537
    assert summing_bytes(10_000, 40, CODES) == 9 * 8 * 10_000 * 40


@pytest.mark.parametrize("gram", [CODES, FORMULAS])
@pytest.mark.parametrize("n", [2_000, 30_000, 100_000])
def test_more_kernels_take_no_more_of_a_task_or_a_store(gram, n):
    """But for what compares kernels, which does not depend on the layout and has a bound."""
    few, many = (
        make_plan(
            n, 10, m, 10, feature_bytes=0, precision="compact", gram=gram, residency="scratch"
        )
        for m in (12, 100)
    )
    assert few.stored_bytes == many.stored_bytes
    assert few.disk_needed == many.disk_needed
    assert few.summing_bytes == many.summing_bytes
    tiling = Tiling(n, few.block, gram=True)
    fused = (tiling.tiles_per_task(4) + 1) * 4 * few.block**2
    kept = [max(fused, tiling.compared_bytes(m, 4)) for m in (12, 100)]
    assert many.fit_task_bytes - few.fit_task_bytes == kept[1] - kept[0]
    if gram.by_table:
        assert few.evaluation_ms == many.evaluation_ms
    else:
        assert many.evaluation_ms > 8 * few.evaluation_ms


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_driver_has_the_tables(in_memory):
    n, k, m = 2340, 10, 12
    how = {"feature_bytes": 0, "precision": "compact", "one_process": in_memory}
    by_table, by_formula = (
        make_plan(n, 10, m, k, gram=StoredGram(2, tables, 2), **how) for tables in (True, False)
    )
    assert by_table.kernels_in_memory == in_memory
    sums = 2 * 8 * 3 if in_memory else 1
    assert by_table.driver_bytes - by_formula.driver_bytes == (m - 2 + sums) * 8 * 65_537
    if not in_memory:  # some that were made to see whether they are exact enough
        cached = by_formula.driver_bytes - make_plan(n, 10, m, k, **how).driver_bytes
        assert cached == cached_table_bytes(m, StoredGram(2, False, 2)) == 10 * 8 * 65_537


def test_products_added_up_as_they_come_take_no_more_than_all_of_them():
    tiling = Tiling(20_000, 500)  # 820 tiles, 16 to a task: 52 parts, 7 sums, 1 in the end
    assert waiting_rows(tiling, 4) == 16 * 17 * 500 + 7 * 20_000 + 20_000
    job, cached = Job(40), cached_table_bytes(12, FORMULAS)
    by_tree = dense_fit_bytes(job, tiling, 12, "compact", gram=FORMULAS)
    assert by_tree < dense_fit_bytes(job, tiling, 12, "compact")
    for n in (1, 500, 501, 3_000, 60_000):
        for block in (64, 500, 2048):
            at = Tiling(n, block)
            least = 2 * 2 * 8 * n * 80  # the sum itself, of products with K and with K⁺
            count = dense_fit_bytes(job, at, 12, "compact", gram=FORMULAS) - cached
            assert least < count <= dense_fit_bytes(job, at, 12, "compact")


def test_memory_of_a_gram_matrix_with_and_without_the_fused_kernel():
    tiling = Tiling(5_000, 500)
    entries = 55 * 500**2
    assert tiled_bytes(tiling, 12, "compact") == entries * (12 * 2 + 4)
    assert tiled_bytes(tiling, 12, "compact", CODES) == entries * (2 + 4)
    assert tiled_bytes(tiling, 12, "compact", CODES, keep_fused=False) == entries * 2
    assert tiled_bytes(tiling, 12, "float64", StoredGram(8, False, 3)) == entries * (8 + 3 * 8 + 8)


def test_one_is_fetched_ahead_where_m_were():
    how = {"feature_bytes": 0, "n_workers": 2, "memory_per_worker": 4 * GIB, "remote": True}
    plan = make_plan(12_000, 500, 12, 10, gram=StoredGram(4, True, 1), precision="compact", **how)
    assert plan.tiles_per_task == 4
    assert plan.prefetch_bytes == (4 * 2 + 1) * encoded_bytes(4 * 1024**2), "the larger entries"


def test_a_gram_matrix_of_a_hundred_thousand_samples_is_held_by_one_process():
    """24 GiB, of which 22 are free: ten of them hold the codes, and the fused kernel is nowhere."""
    for k in (10, 25, 40):
        for threads in (1, 2, 4, 8):
            for signed in (False, True):
                plan = make_plan(
                    100_000,
                    50_000,
                    12,
                    k,
                    feature_bytes=1608 * 100_000,
                    precision="compact",
                    one_process=True,
                    threads_per_worker=threads,
                    memory_per_worker=22 * GIB,
                    disk_free=200 * GIB,
                    signed=signed,
                    gram=CODES,
                )
                assert plan.stored_bytes == 49 * 50 // 2 * 2048**2 * 2
                assert plan.kernels_in_memory
                assert plan.residency == "recompute"
                assert plan.stored_bytes < plan.machine_bytes <= 22 * GIB
                assert plan.read_per_iteration == 3 * plan.stored_bytes


def of_40_000(memory, gram, disk=None, **options):
    how = {"feature_bytes": 0, "memory_per_worker": memory, "disk_free": disk, **options}
    return make_plan(40_000, 100, 12, 10, precision="compact", gram=gram, **how)


def test_residency_follows_from_counting_bytes():
    stored = {"tiles_stored": 40 * 41 // 2, "n_workers": 2}
    much, little, disk = 16 * GIB, 1 * GIB, 100 * GIB
    for gram in (None, CODES, FORMULAS):
        assert of_40_000(much, gram, 0, **stored).residency == "memory"
        assert of_40_000(little, gram, 0, **stored).residency == "recompute"
    expected = {
        None: "scratch",
        FORMULAS: "scratch",  # every look at it takes m formulas an entry
        CODES: "recompute",
        StoredGram(4, True, 0): "recompute",
        StoredGram(2, True, 1): "recompute",  # 2 + 2 of 4 bytes
        StoredGram(4, True, 1): "scratch",  # 4 + 2 of 4
        StoredGram(2, True, 2): "scratch",
    }
    for gram, residency in expected.items():
        assert of_40_000(little, gram, disk, **stored).residency == residency
    forced = of_40_000(little, CODES, disk, residency="scratch", **stored)
    assert forced.residency == "scratch"


def test_one_process_holds_the_matrix_alone_where_that_is_worth_it():
    alone = {"one_process": True}
    assert of_40_000(32 * GIB, CODES, **alone).residency == "memory"
    # K_w of 3.2 GiB beside a matrix of 1.6 GiB, then without it, then neither
    held = of_40_000(6 * GIB, CODES, **alone)
    assert (held.residency, held.kernels_in_memory) == ("recompute", True)
    store = of_40_000(3 * GIB, CODES, **alone)
    assert (store.residency, store.kernels_in_memory) == ("recompute", False)
    on_disk = of_40_000(4 * GIB, FORMULAS, 100 * GIB, **alone)
    assert (on_disk.residency, on_disk.kernels_in_memory) == ("scratch", False)
    nowhere = of_40_000(4 * GIB, StoredGram(2, False, 0), 5 * GIB, **alone)
    assert (nowhere.residency, nowhere.kernels_in_memory) == ("recompute", True)
    assert not of_40_000(64 * GIB, None, residency="recompute", **alone).kernels_in_memory


@pytest.mark.parametrize("gram", [CODES, FORMULAS, StoredGram(2, True, 2)])
def test_more_memory_never_takes_kernels_out_of_it(gram):
    ranks, before = {"recompute": 0, "scratch": 0, "memory": 1}, (False, 0)
    for memory in range(1, 60):
        plan = of_40_000(memory * GIB, gram, 100 * GIB, one_process=True, block=1024)
        assert plan.machine_bytes <= memory * GIB
        now = (plan.kernels_in_memory, ranks[plan.residency])
        assert now[0] >= before[0]
        assert now[0] > before[0] or now[1] >= before[1]
        before = now
    assert before == (True, 1)


@given(
    n=st.integers(1, 300_000),
    m=st.integers(1, 40),
    k=st.integers(1, 50),
    precision=st.sampled_from(["float32", "float64", "compact"]),
    workers=st.integers(1, 64),
    one_process=st.booleans(),
    memory=st.integers(64 * MIB, 64 * GIB),
    disk=st.one_of(st.none(), st.integers(0, 1 << 44)),
    gram=grams,
    remote=st.booleans(),
)
def test_what_is_accepted_with_a_gram_matrix_fits(
    n, m, k, precision, workers, one_process, memory, disk, gram, remote
):
    how = {"precision": precision, "memory_per_worker": memory, "disk_free": disk, "gram": gram}
    try:
        plan = make_plan(
            n,
            100,
            m,
            min(k, n),
            feature_bytes=n * 800,
            n_workers=1 if one_process else workers,
            one_process=one_process,
            remote=remote,
            **how,
        )
    except PlanRefused:
        return
    assert plan.worker_peak_bytes <= memory * 6 // 10
    assert disk is None or plan.disk_needed <= disk
    assert not one_process or plan.machine_bytes <= memory
    assert plan.layout == ("each" if gram is None else "gram")
    assert all(isinstance(v, int | str | type(None)) for v in vars(plan).values())
    assert "\n".join(plan.lines()) == str(plan)


def test_the_time_of_evaluating():
    """78 tiles, one core: .4 ns to look up, .6 ns to add, 2.5 ns for each of 11 formulas."""
    entries = 78 * 1024**2

    def plan_of(gram, **options):
        job = Job(10, max_iter=100, **options)
        return make_plan(12_000, 10, 12, 10, feature_bytes=0, gram=gram, job=job)

    each, tables = plan_of(None), plan_of(CODES)
    assert tables.build_ms == 8 * entries // 120_000
    assert tables.evaluation_ms == ceil_div(entries * 10, 10**7)
    read = ceil_div(2 * (2 + 4) * entries, 1_500_000)
    products = ceil_div(2 * 12_000**2 * 50, 40_000_000)
    assert tables.iteration_ms == read + products + 4 * 100 + tables.evaluation_ms
    formulas = plan_of(StoredGram(4, False, 1))
    assert formulas.build_ms == (8 + 4) * entries // 120_000
    assert formulas.evaluation_ms == ceil_div(2 * 11 * entries * 25, 10**7)
    assert each.evaluation_ms == 0
    one_by_one = plan_of(CODES, method="kkm", n_alone=12)
    assert one_by_one.evaluation_ms == ceil_div(48 * entries, 10**7)
    assert plan_of(CODES, method="rmkkm").evaluation_ms == ceil_div(52 * entries, 10**7)
    assert plan_of(CODES, method="coreg").evaluation_ms == ceil_div(48 * entries, 10**7)
    again = make_plan(12_000, 10, 12, 10, feature_bytes=0, gram=CODES, residency="recompute")
    assert again.evaluation_ms == ceil_div(14 * entries, 10**7), "two products, and the errors"


def test_sums_by_entries_of_tables_travel():
    """n = 8,000 in 36 tiles, 2 to a task: 18 sums, then 3, then 1; two tables go out."""
    plans = [
        make_plan(8_000, 10, 2, 5, feature_bytes=0, n_workers=3, gram=gram)
        for gram in (CODES, FORMULAS, None)
    ]
    by_table, by_formula, each = plans
    assert by_formula.network_per_iteration == each.network_per_iteration
    table = 8 * 65_537
    driver = by_table.driver_network_per_iteration - each.driver_network_per_iteration
    assert driver == (2 + 1) * table
    more = by_table.network_per_iteration - each.network_per_iteration
    assert more == pytest.approx(2 * 4 * table + (18 + 3) * table * 2 // 3 + 2 * table, abs=2)


def test_the_plan_says_which_layout():
    def line(gram, m=12):
        lines = make_plan(9_000, 10, m, 10, feature_bytes=0, gram=gram).lines()
        return [line for line in lines if line.startswith("layout")]

    assert line(None) == []
    assert line(CODES) == [
        "layout gram: a code of the distance of each pair of samples (2 B), of which 12 kernels "
        "are computed in every sweep, by table"
    ]
    assert line(StoredGram(8, False, 1), 2) == [
        "layout gram: a float64 number of each pair of samples (8 B), of which 1 kernel is "
        "computed in every sweep, by formula; 1 more with tiles of its own"
    ]


def test_a_refusal_for_disk_names_layout_gram_where_it_fits():
    instead = expected_gram(12, 12, "float32")
    how = {"feature_bytes": 0, "disk_free": 50 * GIB, "gram_instead": instead}
    with pytest.raises(DiskRefused, match=r"layout gram, which takes about 19\.1 GiB") as e:
        make_plan(100_000, 10, 12, 10, **how)
    assert "free some" in str(e.value)
    make_plan(100_000, 10, 12, 10, feature_bytes=0, disk_free=50 * GIB, gram=instead)
    with pytest.raises(DiskRefused, match=r"layout gram with precision compact, .* 9\.6 GiB"):
        make_plan(100_000, 10, 12, 10, **how | {"disk_free": 15 * GIB})
    with pytest.raises(DiskRefused) as e:
        make_plan(100_000, 10, 12, 10, **how | {"disk_free": 5 * GIB})
    assert "layout gram" not in str(e.value)
    with pytest.raises(DiskRefused) as e:
        make_plan(100_000, 10, 12, 10, **how | {"gram_instead": None})
    assert "layout gram" not in str(e.value)


def test_a_count_is_refused_by_the_bytes_of_its_layout():
    gram = expected_gram(12, 12, "compact")
    assert gram == StoredGram(2, False, 0)
    with pytest.raises(DiskRefused, match=r"layout gram, which takes about 9\.6 GiB"):
        refuse_by_count(100_000, 12, "compact", 50 * GIB, gram_instead=gram)
    refuse_by_count(100_000, 12, "compact", 50 * GIB, gram)
    with pytest.raises(DiskRefused, match=r"at most [\d,]+ samples") as e:
        refuse_by_count(587_136, 12, "compact", 50 * GIB, gram)
    fit = int(re.search(r"at most ([\d,]+) samples", str(e.value))[1].replace(",", ""))
    assert 200_000 < fit < 240_000
    assert "kernels, " not in str(e.value).partition(": ")[2], "fewer would take as much"
    make_plan(fit, 10, 12, 10, feature_bytes=0, disk_free=50 * GIB, precision="compact", gram=gram)
    mixed = expected_gram(10, 14, "compact")
    assert mixed == StoredGram(2, False, 4)
    with pytest.raises(DiskRefused, match="at most 3 of the 4 kernels that have an array beside"):
        refuse_by_count(100_000, 14, "compact", 39 * GIB, mixed)
    assert expected_gram(1, 5, "float32") is None
    refuse_by_count(10**9, 0, "compact", 1, gram)


@pytest.mark.parametrize(
    ("half_gibs", "gram", "kept"),
    [(4, CODES, True), (2, CODES, False), (1, CODES, None), (2, None, None), (15, None, True)],
)
def test_tiles_in_memory_with_or_without_the_fused_kernel(monkeypatch, half_gibs, gram, kept):
    """n = 20,000: 0.4 GB of codes for each of 12 kernels or for all, and 0.8 GB of K_w."""
    monkeypatch.setattr(in_memory, "free_memory", lambda: half_gibs * GIB // 2)
    instead = expected_gram(12, 12, "compact") if gram is None else None
    given = (12, 20_000, None, "compact", Job(2), gram, instead)
    if kept is not None:
        wanted = Tiling(20_000, 512, gram=gram is not None)
        assert in_memory._tiling_in_memory(*given) == (wanted, kept)
        return
    with pytest.raises(PlanRefused, match="give a store path") as e:
        in_memory._tiling_in_memory(*given)
    assert ("layout gram" in str(e.value)) == (gram is None)


def test_weights_are_set_as_often_in_every_layout():
    """What is computed may not depend on how kernels are stored."""
    assert [products_per_weight_step(12, p) for p in ("compact", "float32", "float64")] == [
        12,
        24,
        24,
    ]
