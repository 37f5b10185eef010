"""All key names in Redis; further ones, which only scripts use, are listed in `common.lua`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    """The key names of one installation; several can share a Redis with different prefixes."""

    prefix: str = "fanout"

    def job(self, job_id: str) -> str:
        """Hash: a job's record, with its specification and, when it has ended, its result."""
        return f"{self.prefix}:job:{job_id}"

    def spec(self, job_id: str) -> str:
        """String: a job's specification in layout 2, which is read, not written."""
        return f"{self.prefix}:spec:{job_id}"

    def result(self, job_id: str) -> str:
        """String: an ended job's result in layout 2, which is read, not written."""
        return f"{self.prefix}:result:{job_id}"

    def after(self, job_id: str) -> str:
        """Set: the jobs whose end a queued job awaits."""
        return f"{self.prefix}:dispatch:after:{job_id}"

    def unlinked(self, job_id: str) -> str:
        """Set: those of them of which nobody has looked yet whether they have ended."""
        return f"{self.prefix}:dispatch:unlinked:{job_id}"

    def journal(self, job_id: str) -> str:
        """Stream: a job's events."""
        return f"{self.prefix}:journal:{job_id}"

    def payloads(self, job_id: str) -> str:
        """Hash: the long values in a job's journal, compressed, by the SHA-256 of each."""
        return f"{self.prefix}:journal:payloads:{job_id}"

    def script_summary(self, job_id: str) -> str:
        """String: how a script stands, as its worker has summarised it."""
        return f"{self.prefix}:journal:script:{job_id}"

    def journal_changed(self, job_id: str) -> str:
        """Channel: published when a job's journal has a new event."""
        return f"{self.prefix}:bell:{job_id}"

    def job_ended(self, job_id: str) -> str:
        """Channel: published when a job has ended."""
        return f"{self.prefix}:bell:{job_id}:ended"

    def approval(self, approval_id: str) -> str:
        """Hash: a call that waits for a person, or its outcome."""
        return f"{self.prefix}:approval:{approval_id}"

    def answers(self, user: str, approval_id: str) -> str:
        """String: the fingerprint of a user's answer to an approval."""
        return f"{self.prefix}:answers:{user}:{approval_id}"

    def usage(self, job_id: str) -> str:
        """Hash: the usage of a job and its descendants; under a root id, of the whole tree."""
        return f"{self.prefix}:usage:{job_id}"

    def reserved(self, job_id: str) -> str:
        """Hash: what calls of models have reserved of a job's budget; as for `usage`."""
        return f"{self.prefix}:dispatch:reserved:{job_id}"

    def messages(self, job_id: str) -> str:
        """List: the messages to a job that has not ended."""
        return f"{self.prefix}:messages:{job_id}"

    @property
    def installation(self) -> str:
        """String: the random id of this ledger's installation, made by its first worker."""
        return f"{self.prefix}:installation"

    @property
    def approvals(self) -> str:
        """Sorted set: the ids of open approvals, by time of request."""
        return f"{self.prefix}:approvals"

    @property
    def index(self) -> str:
        """Sorted set: all job ids by time of submission."""
        return f"{self.prefix}:jobs"

    @property
    def ids(self) -> str:
        """Sorted set: all job ids in alphabetical order, for searches by their beginnings."""
        return f"{self.prefix}:ids"

    @property
    def ids_by_end(self) -> str:
        """Sorted set: all job ids by their last characters, as a number (`end_scores`)."""
        return f"{self.prefix}:ids_by_end"

    def owned(self, owner_key: str) -> str:
        """Sorted set: the ids of an owner's jobs by time of submission (`stored.owner_key`)."""
        return f"{self.prefix}:owned:{owner_key}"

    def uploads(self, owner_key: str) -> str:
        """Sorted set: the snapshots that an owner has stored, by time (`stored.owner_key`)."""
        return f"{self.prefix}:uploads:{owner_key}"

    def idempotency(self, unique_key: str) -> str:
        """String: the id of the job that has an idempotency key (`stored.unique_key`)."""
        return f"{self.prefix}:idempotency:{unique_key}"

    @property
    def live(self) -> str:
        """Set: the ids of jobs that have not ended."""
        return f"{self.prefix}:live"

    @property
    def uncollected(self) -> str:
        """Sorted set: the ids of ended jobs whose changes are not yet collected, by time of end."""
        return f"{self.prefix}:uncollected"

    @property
    def leases(self) -> str:
        """Sorted set: job id -> end of its lease (running) or of its transit (dispatched)."""
        return f"{self.prefix}:leases"

    @property
    def workers(self) -> str:
        """Sorted set: worker name -> end of its registration."""
        return f"{self.prefix}:workers"

    @property
    def cancellations(self) -> str:
        """Channel: ids of running jobs that are to be cancelled."""
        return f"{self.prefix}:cancel"

    @property
    def policy(self) -> str:
        """Hash: the admission policy (`json`), and the start time of the worker that set it."""
        return f"{self.prefix}:policy"

    def active(self, root_id: str) -> str:
        """Set: a tree's jobs in transit to a worker or running."""
        return f"{self.prefix}:active:{root_id}"

    def tenant_active(self, tenant: str) -> str:
        """Set: the same for a tenant."""
        return f"{self.prefix}:tenant_active:{tenant}"

    def agent_active(self, agent: str) -> str:
        """Set: the same for an agent."""
        return f"{self.prefix}:agent_active:{agent}"

    def tree(self, root_id: str) -> str:
        """Sorted set: a tree's job ids by time of submission."""
        return f"{self.prefix}:tree:{root_id}"

    def worker(self, name: str) -> str:
        """Hash: a worker's registration."""
        return f"{self.prefix}:worker:{name}"

    @property
    def classes(self) -> str:
        """Set: the classes of queued jobs with tenants that take turns."""
        return f"{self.prefix}:classes"

    def tenants(self, job_class: str) -> str:
        """Sorted set: the tenants that take turns in a class, the next one first."""
        return f"{self.prefix}:tenants:{job_class}"

    def tenant_classes(self, tenant: str) -> str:
        """Set: the classes in which a tenant has trees that take turns."""
        return f"{self.prefix}:classes:{tenant}"

    def trees(self, job_class: str, tenant: str) -> str:
        """Sorted set: the trees of a tenant that take turns in a class, the next one first."""
        return f"{self.prefix}:trees:{job_class}:{tenant}"

    def lanes(self, root_id: str) -> str:
        """Set: `<class>:<tenant>` of a tree's lanes that are not empty."""
        return f"{self.prefix}:lanes:{root_id}"

    def lane(self, job_class: str, root_id: str, tenant: str) -> str:
        """Sorted set: a tree's queued jobs of a class, the next one first."""
        return f"{self.prefix}:lane:{job_class}:{root_id}:{tenant}"

    @property
    def full_tenants(self) -> str:
        """Set: the tenants at their limit, which take no turns."""
        return f"{self.prefix}:full_tenants"

    @property
    def full_trees(self) -> str:
        """Set: the same for trees."""
        return f"{self.prefix}:full_trees"

    @property
    def totals(self) -> str:
        """Hash: what all workers have counted (`fleet_totals.py`)."""
        return f"{self.prefix}:worker:!totals"

    def spent(self, minute: int) -> str:
        """Hash: the tokens and the cost of a minute since the epoch; kept for three."""
        return f"{self.prefix}:worker:!spent:{minute}"

    def pool(self, pool: str) -> str:
        """Set: the ids of the jobs of a pool of workers that have not ended."""
        return f"{self.prefix}:pool:{pool}"

    def api_key(self, key_id: str) -> str:
        """Hash: a key of the HTTP service, as its SHA-256, and what it permits."""
        return f"{self.prefix}:api_key:{key_id}"

    @property
    def api_keys(self) -> str:
        """Sorted set: the ids of all keys by time of creation."""
        return f"{self.prefix}:api_keys"

    @property
    def api_key_names(self) -> str:
        """Hash: name -> id of the newest key of that name."""
        return f"{self.prefix}:api_key_names"

    def session(self, digest: str) -> str:
        """String: the caller of a browser session, under the SHA-256 of its id."""
        return f"{self.prefix}:session:{digest}"

    def login(self, digest: str) -> str:
        """String: the caller of a one-time login link, under the SHA-256 of its token."""
        return f"{self.prefix}:login:{digest}"

    @property
    def audit(self) -> str:
        """Stream: the audit log of the HTTP service."""
        return f"{self.prefix}:audit"

    def subscriptions(self, job_id: str) -> str:
        """Hash: the subscriptions to a job's notifications, as JSON by id."""
        return f"{self.prefix}:notify:of:{job_id}"

    @property
    def receivers(self) -> str:
        """Sorted set: receivers with notifications in the outbox, by when to look at them next."""
        return f"{self.prefix}:notify:receivers"

    @property
    def models_closed(self) -> str:
        """Sorted set: the accesses of models that are not open, by when they are tried."""
        return f"{self.prefix}:dispatch:models_closed"

    def model_state(self, access: str) -> str:
        """Hash: what is known of a model at an address with a key."""
        return f"{self.prefix}:dispatch:model:{access}"

    def model_waiting(self, access: str) -> str:
        """Sorted set: the jobs that wait for it, the next one first."""
        return f"{self.prefix}:dispatch:model_waiting:{access}"

    def model_accesses(self, pool: str) -> str:
        """Hash: `<agent> <model>` -> what such jobs of a pool's workers have waited for."""
        return f"{self.prefix}:dispatch:model_accesses:{pool}"

    def answered_call(self, call: str) -> str:
        """String: the newest job that has answered a call of a script, by the call's digest."""
        return f"{self.prefix}:dispatch:answered:{call}"

    @property
    def stored_jobs(self) -> str:
        """Hash: how many jobs are stored, by account (`Records.stored`)."""
        return f"{self.prefix}:dispatch:stored_jobs"

    @property
    def stored_bytes(self) -> str:
        """Hash: about how many bytes they take, by account."""
        return f"{self.prefix}:dispatch:stored_bytes"

    @property
    def hook(self) -> str:
        """String: present while a process runs the installation's hook."""
        return f"{self.prefix}:notify:hook"

    @property
    def dead_notifications(self) -> str:
        """Stream: the newest notifications that were given up."""
        return f"{self.prefix}:notify:dead"
