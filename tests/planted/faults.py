"""The faults that a fleet of workers, releases and hosts must not have, with their tests."""

from __future__ import annotations

from tests.planted.planting import Fault

_SCRIPTS = "orchestrator/jobs/lua"
_LEDGER = "tests/unit/jobs/test_ledger.py"
_VERSIONS = "tests/unit/wire/test_versions.py"
_RELEASES = "tests/faults/test_releases.py"
_HOLDS = f"{_RELEASES}::test_scripts_of_both_releases_agree_on_who_holds_a_job"
_LAPSES = f"{_LEDGER}::test_a_lease_lapses_by_the_time_in_which_redis_works"
_SET_BACK = (
    f"{_LEDGER}::test_the_lease_of_a_dead_worker_lapses_although_the_time_of_redis_was_set_back"
)
_HANGS = (
    "tests/faults/test_outages.py::"
    "test_a_job_with_one_attempt_outlives_outages_that_are_longer_than_its_lease[hangs]"
)
_LOST_WRITES = "tests/unit/jobs/test_lost_writes.py"

RELEASES = (
    Fault(
        "releases: a specification is read from its key only, before every release writes it there",
        f"{_SCRIPTS}/common.lua",
        "return redis.call('HGET', key('job', id), kind) or redis.call('GET', key(kind, id))",
        "return redis.call('GET', key(kind, id))",
        f"{_VERSIONS}::test_a_job_that_an_earlier_release_has_raised_runs_here_and_is_lowered_again",
    ),
    Fault(
        "releases: a job that is dispatched is not written where earlier releases read it",
        f"{_SCRIPTS}/dispatch.lua",
        "  adopt(id)\n  bind(id, worker)",
        "  bind(id, worker)",
        f"{_VERSIONS}::test_a_job_of_the_second_layout_is_put_where_every_release_reads_it_before_it_is_sent",
    ),
    Fault(
        "releases: a renewed lease is on the new clock only, and the reaper before takes the job",
        f"{_SCRIPTS}/beat.lua",
        "    redis.call('ZADD', key('leases'), 'XX', now + lease, id)\n",
        "",
        _HOLDS,
    ),
    Fault(
        "releases: the lease of an earlier release is judged by what this one has left there",
        f"{_SCRIPTS}/reap.lua",
        "if not job[1] or job[2] ~= job[3] then return -1 end",
        "if not job[1] then return -1 end",
        _HOLDS,
    ),
    Fault(
        "releases: a job with a policy is sent to workers that do not check it",
        "orchestrator/jobs/versions.py",
        '                "caller_policy",\n',
        "",
        # The release before refuses what it does not know: such a job would be late, not lost.
        f"{_VERSIONS}::test_every_field_of_a_specification_is_in_the_table_of_versions",
    ),
)
LEASES = (
    Fault(
        "leases: the clock runs while Redis hangs",
        f"{_SCRIPTS}/clocks.lua",
        "math.max(0, math.min(now - (clock[1] or now), LEASE_STEP_MS))",
        "math.max(0, now - (clock[1] or now))",
        _LAPSES,
    ),
    Fault(
        "leases: the clock goes back with the time of Redis",
        f"{_SCRIPTS}/clocks.lua",
        "math.max(0, math.min(now - (clock[1] or now), LEASE_STEP_MS))",
        "math.min(now - (clock[1] or now), LEASE_STEP_MS)",
        _SET_BACK,
    ),
    Fault(
        "leases: the reaper judges by the time of Redis",
        f"{_SCRIPTS}/reap.lua",
        "elseif job[1] == 'running' and lease_left(id) >= 0 then",
        "elseif false then",
        _LAPSES,
    ),
    Fault(
        "leases: after the time of Redis was set back, a dead worker's lease lasts for that much longer",
        f"{_SCRIPTS}/reap.lua",
        "if now < tonumber(redis.call('HGET', key('lease_clock'), 'reaped_at') or 0) then",
        "if false then",
        _SET_BACK,
    ),
    Fault(
        "leases: a renewal does not count on the clock",
        f"{_SCRIPTS}/beat.lua",
        "'beat_at', now, 'lease_at', lease_at, 'lease_of', token)",
        "'beat_at', now)",
        f"{_LEDGER}::test_a_lease_that_was_renewed_for_long_outlives_a_redis_that_hangs",
    ),
    Fault(
        "leases: an attempt that could not renew its lease is used up",
        "workers/attempt/job_runner.py",
        "if isinstance(failure, (LeaseNotRenewed, ShuttingDown, NotUnderstood, LedgerUnavailable)):",
        "if isinstance(failure, (ShuttingDown, NotUnderstood, LedgerUnavailable)):",
        _HANGS,
    ),
    Fault(
        "leases: a claim whose answer was lost is nobody's, and uses up an attempt",
        "workers/attempt/job_runner.py",
        "if has_refused or self._registration().draining:",
        "if True:",
        "tests/faults/test_arrows.py::"
        "test_a_claim_whose_answer_got_lost_is_asked_for_again_and_costs_no_attempt",
    ),
)
TOKENS = (
    Fault(
        "tokens: a token is the counter alone, which repeats after lost writes",
        f"{_SCRIPTS}/claim.lua",
        "redis.call('INCR', key('fence')) .. ARGV[13]",
        "redis.call('INCR', key('fence'))",
        _LOST_WRITES,
    ),
    Fault(
        "tokens: their digits are always the same ones",
        "orchestrator/jobs/store/ledger.py",
        "{secrets.randbelow(10**TOKEN_DIGITS):0{TOKEN_DIGITS}}",
        "{0:0{TOKEN_DIGITS}}",
        _LOST_WRITES,
    ),
    Fault(
        "tokens: they have letters, which earlier releases cannot read",
        f"{_SCRIPTS}/claim.lua",
        "redis.call('INCR', key('fence')) .. ARGV[13]",
        "redis.call('INCR', key('fence')) .. 'x' .. ARGV[13]",
        _HOLDS,
    ),
    Fault(
        "tokens: who holds a job is judged by its state",
        f"{_SCRIPTS}/common.lua",
        "if job[1] ~= token or job[2] ~= 'running' then return nil end",
        "if job[2] ~= 'running' then return nil end",
        f"{_LEDGER}::test_an_attempt_whose_lease_lapsed_can_neither_beat_nor_finish",
    ),
)
_HOST = "tests/integration/jobs/test_host_faults.py"
HOSTS = (
    Fault(
        "hosts: an engine that is away uses up the attempts of jobs",
        f"{_SCRIPTS}/give_back.lua",
        "redis.call('HSET', key('job', id), 'attempt', job.attempt - 1)",
        "redis.call('HSET', key('job', id), 'attempt', job.attempt)",
        f"{_HOST}::test_a_job_waits_for_its_host_and_then_runs_in_its_first_attempt",
    ),
)
_PAYLOADS = "tests/integration/worker/test_payloads.py"
JOURNAL = (
    Fault(
        "journal: a job with long values is given to a release that cannot read them",
        f"{_SCRIPTS}/append.lua",
        "if job[2] and needs > tonumber(job[3] or 1) then",
        "if false then",
        f"{_PAYLOADS}::test_only_a_job_with_long_values_needs_a_release_that_reads_them",
    ),
    Fault(
        "journal: a claim lowers the version of a job with long values",
        f"{_SCRIPTS}/lower.lua",
        "if redis.call('ZSCORE', key('journal', 'with_payloads'), id) then return 1 end\n",
        "",
        f"{_PAYLOADS}::test_a_job_with_long_values_keeps_its_version_when_it_is_claimed_again",
    ),
    Fault(
        "journal: the same output is stored each time that it is returned",
        "orchestrator/jobs/payloads.py",
        "return hashlib.sha256(self.content).hexdigest()",
        "return hashlib.sha256(self.content + str(id(self)).encode()).hexdigest()",
        f"{_PAYLOADS}::test_the_same_output_is_in_redis_once_however_often_it_is_returned",
    ),
)

QUEUES = (
    Fault(
        "queues: a job is sent to a worker that does not have its agent",
        f"{_SCRIPTS}/fleet.lua",
        "if #agents == 0 then agents = {''} end",
        "agents = {''}",
        "tests/unit/jobs/test_fleet.py::"
        "test_jobs_that_one_of_four_workers_can_run_are_sent_to_that_one_and_none_is_refused",
    ),
    Fault(
        "queues: what was sent to a worker that ends stays there until its transit lapses",
        f"{_SCRIPTS}/register.lua",
        "  take_back(worker, MOST_TAKEN_BACK)\n",
        "",
        "tests/unit/jobs/test_fleet.py::"
        "test_what_was_sent_to_a_worker_that_takes_it_no_more_goes_to_another",
    ),
)

_FULL = "tests/adversarial/test_redis_full.py"
_SHARES = "tests/adversarial/test_redis_shares.py"
MEMORY = (
    Fault(
        "memory: a running job waits without end for room in a full Redis",
        "orchestrator/jobs/store/outage.py",
        "most = FULL_SECONDS if isinstance(failure, LedgerFull) else OUTAGE_SECONDS",
        'most = float("inf") if isinstance(failure, LedgerFull) else OUTAGE_SECONDS',
        f"{_FULL}::test_running_jobs_are_given_back_when_redis_is_full_and_resumed_when_there_is_room",
    ),
    Fault(
        "memory: an owner may store without a bound, and a filling Redis accepts new jobs",
        f"{_SCRIPTS}/submit.lua",
        "  if why then return {why, whose} end\n",
        "",
        f"{_SHARES}::test_an_owner_and_a_tenant_have_a_share_and_the_others_do_not_notice",
    ),
)

FAULTS = (*RELEASES, *LEASES, *TOKENS, *HOSTS, *JOURNAL, *QUEUES, *MEMORY)
