from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from malletrain.core.apply import apply
from malletrain.core.demand import demand
from malletrain.core.events import JobCancelled, JobSubmitted, JobSuspended, WorkersLost
from malletrain.core.model import Cluster, JobSpec, Observation, Scalability, StatedScaling
from malletrain.core.scalability import model_curve
from malletrain.core.settings import AdvisorKind, AdvisorSettings, CoreSettings
from tests.core.world import World, spec


def waiting(*specs: JobSpec, **more: object) -> Cluster:
    cluster = Cluster(**more)  # type: ignore[arg-type]
    for submitted in specs:
        cluster = apply(cluster, JobSubmitted(at_s=0.0, spec=submitted))
    return cluster


def measured(rates: dict[int, float]) -> Scalability:
    return Scalability(tuple(Observation(n, rate, 1e-6, 500) for n, rate in sorted(rates.items())))


PEAKED = {1: 100.0, 2: 190.0, 4: 350.0, 8: 500.0, 16: 400.0, 32: 250.0, 64: 120.0}


def test_without_jobs_there_is_none() -> None:
    assert demand(Cluster()) == 0


def test_jobs_that_were_never_measured_could_use_all_they_ask_for() -> None:
    assert demand(waiting(spec("a", 2, 64), spec("b", 1, 8))) == 72


def test_jobs_that_are_over_or_suspended_use_nothing() -> None:
    cluster = waiting(spec("a"), spec("b"), spec("c", 1, 3))
    cluster = apply(cluster, JobCancelled(at_s=1.0, job_id="a"))
    cluster = apply(cluster, JobSuspended(at_s=1.0, job_id="b"))
    assert demand(cluster) == 3


def test_a_job_asks_for_no_more_than_what_still_helps() -> None:
    curves = {"model": measured(PEAKED)}
    cluster = waiting(spec("a", 1, 64, model_key="model"), curves=curves)
    assert 7 <= demand(cluster) <= 10
    least_is_more = waiting(spec("a", 32, 64, model_key="model"), curves=curves)
    assert demand(least_is_more) == 32
    small = waiting(spec("a", 1, 4, model_key="model"), curves=curves)
    assert demand(small) == 4


def test_a_job_that_scales_well_asks_for_all_it_may_have() -> None:
    curves = {"model": measured({n: 100.0 * n for n in (1, 2, 4, 8, 16, 32)})}
    assert demand(waiting(spec("a", 1, 48, model_key="model"), curves=curves)) == 48


def test_what_is_stated_counts_where_the_advisor_is_told() -> None:
    stated = StatedScaling((1, 4, 16), (100.0, 400.0, 401.0), 1.0, 1.0)
    told = CoreSettings(advisor=AdvisorSettings(kind=AdvisorKind.TOLD))
    job = spec("a", 1, 16, stated=stated)
    assert demand(waiting(job, settings=told)) == 4
    assert demand(waiting(job)) == 16


def test_quotas_bound_what_an_owner_asks_for() -> None:
    jobs = [spec(i, 1, 8, owner=owner) for i, owner in (("a", "ann"), ("b", "ann"), ("c", "ben"))]
    settings = CoreSettings(quotas={"ann": 10})
    assert demand(waiting(*jobs, settings=settings)) == 18
    never = spec("d", 12, 16, owner="ann")
    assert demand(waiting(never, settings=settings)) == 0


def test_a_job_in_back_off_asks_for_what_it_holds() -> None:
    world = World()
    world.join("a1", "a2", "a3")
    world.submit(spec("job", 1, 8))
    assert demand(world.cluster) == 8
    failed = WorkersLost(
        at_s=world.now_s,
        job_id="job",
        generation=world.job("job").running_generation,
        node_ids=("a1",),
        reason="died",
    )
    cluster = apply(world.cluster, failed)
    assert demand(cluster) == 2
    assert demand(replace(cluster, now_s=cluster.jobs["job"].retry_at_s)) == 8


@given(
    st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 32]), st.floats(1.0, 1e4)),
    st.integers(1, 64),
    st.integers(0, 64),
)
def test_it_is_within_the_jobs_bounds_and_gives_up_next_to_nothing(
    rates: dict[int, float], least: int, more: int
) -> None:
    curves = {"model": measured(rates)} if rates else {}
    job = spec("a", least, least + more, model_key="model")
    cluster = waiting(job, curves=curves)
    wanted = demand(cluster)
    assert least <= wanted <= least + more
    if not rates:
        assert wanted == least + more
    predicted = model_curve(cluster, "model").rates(least + more)
    assert predicted[least:].max() <= 1.01 * predicted[wanted]
