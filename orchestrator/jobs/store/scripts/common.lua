-- What every script begins with. ARGV[1] is the key prefix; the clock is the Redis server's.
-- The key names are those of keys.py, and these besides:
--   active:<root>    set: a tree's jobs on their way to a worker or running
--   tenant_active:<tenant>, agent_active:<agent>   sets: the same of a tenant, and of an agent
--   transit          sorted set: the jobs on their way to a worker, by wire version
--   held:<worker>    set: the jobs running on a worker
--   host:<host>      set: the jobs running on a host
--   tree:<root>      sorted set: all jobs of a tree by submission
--   ended            sorted set: the jobs that have ended, by when
--   children:<job>   set: the jobs that a job submitted
--   awaited:<job>    set: those for which a parked job waits
--   offspring:<root> how many children the jobs of a tree have submitted, ended ones too
--   deadlines        sorted set: jobs that the reaper ends, by when: those whose time runs while they wait for children
--                    alone, and those whose worker has not heard yet that they are cancelled
--   cancelling       list: jobs that are to be cancelled with all below them, and were not looked at yet
--   usage:<job>      hash: what a job and all below it have consumed; of a tree's root id, the whole tree (journal.py)
--   worker:<name>    hash: what a worker told when it registered
--   policy           hash: the admission policy (json), and when the worker that gave it started
-- Jobs wait in lanes. What is full is in no turn, so nobody has to pass over it. A class is <agent>:<wire version>.
--   lane:<class>:<root>:<tenant>   sorted set: a tree's waiting jobs of a class, first to go first
--   lanes:<root>     set: <class>:<tenant> of a tree's lanes that are not empty
--   trees:<class>:<tenant>   sorted set: the trees with such lanes and room, least recently served first
--   tenants:<class>  sorted set: the tenants with such trees and room -> virtual time at which each is due
--   classes          set: the classes with such tenants
--   classes:<tenant> set: the classes in which a tenant has trees in turn, whether the tenant has room or not
--   full_trees, full_tenants   sets: those that were found at their limit; they come back when a job gives its place back
--   turns            counter of dispatches: a tree's place in its tenant's turn
--   virtual_time     when the tenant served last was due (start-time fair queueing: a dispatch takes 1 / weight)
--   finish_times     sorted set: tenant -> virtual end of its last dispatch, where that lies ahead
local PREFIX = ARGV[1]

local function key(...) return PREFIX .. ':' .. table.concat({...}, ':') end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Adds an event to a job's journal and rings; the data is JSON.
local function tell(id, attempt, kind, data)
  redis.call('XADD', key('journal', id), '*', 'type', kind, 'attempt', attempt, 'data', data)
  redis.call('PUBLISH', key('bell', id), id)
end

local function journal(id, attempt, data)
  redis.call('HSET', key('job', id), 'last_event', data.state)
  tell(id, attempt, 'job.state', cjson.encode(data))
end

-- Ends the wait for an approval; the decision is remembered for a while, what was asked is not.
local function settle(approval, decision, request, kept_seconds)
  redis.call('HSET', key('approval', approval), 'decision', decision, 'answered_in', request)
  redis.call('HDEL', key('approval', approval), 'request')
  redis.call('EXPIRE', key('approval', approval), kept_seconds)
  redis.call('ZREM', key('approvals'), approval)
end

-- What a job no longer waits for: nobody can answer it any more.
local function withdraw_approvals(id)
  local job = redis.call('HMGET', key('job', id), 'approvals', 'approvals_kept')
  for approval in string.gmatch(job[1] or '', '%S+') do settle(approval, 'withdrawn', '', job[2]) end
  redis.call('HDEL', key('job', id), 'waiting_for', 'approvals')
end

-- What decides about a job's place in the queue. A job of a release without lanes tells it by its specification only.
local function line_of(id)
  local known = redis.call('HMGET', key('job', id), 'tenant', 'agent', 'wire', 'priority', 'sequence', 'worker')
  if not known[2] then
    local read, spec = pcall(cjson.decode, redis.call('HGET', key('job', id), 'spec'))
    if not read or type(spec) ~= 'table' then spec = {} end
    known[1] = type(spec.tenant) == 'string' and spec.tenant or 'default'
    known[2] = type(spec.agent) == 'string' and string.match(spec.agent, '^[%w_-]+$') or 'general-purpose'
    known[3] = '1'
    redis.call('HSET', key('job', id), 'tenant', known[1], 'agent', known[2], 'wire', known[3])
  end
  return {tenant = known[1], agent = known[2], wire = known[3], class = known[2] .. ':' .. known[3],
    priority = known[4], sequence = known[5], worker = known[6]}
end

-- A tenant's place in the turn of a class: where it left, or now, so nobody saves up by staying away.
local function offer_tenant(tenant, class)
  if redis.call('SISMEMBER', key('full_tenants'), tenant) == 1 then return end
  local due = math.max(tonumber(redis.call('GET', key('virtual_time')) or 0),
    tonumber(redis.call('ZSCORE', key('finish_times'), tenant) or 0))
  redis.call('ZADD', key('tenants', class), 'NX', due, tenant)
  redis.call('SADD', key('classes'), class)
end

local function withdraw_tenant(tenant, class)
  redis.call('ZREM', key('tenants', class), tenant)
  if redis.call('EXISTS', key('tenants', class)) == 0 then redis.call('SREM', key('classes'), class) end
end

-- A tree's place in its tenant's turn: behind those that have waited since before, before whoever is served from now on.
local function offer_tree(root, class, tenant)
  local turn = redis.call('GET', key('turns')) or 0
  if redis.call('ZADD', key('trees', class, tenant), 'NX', turn, root) == 1 then
    redis.call('SADD', key('classes', tenant), class)
    offer_tenant(tenant, class)
  end
end

local function withdraw_tree(root, class, tenant)
  if redis.call('ZREM', key('trees', class, tenant), root) == 1
      and redis.call('EXISTS', key('trees', class, tenant)) == 0 then
    redis.call('SREM', key('classes', tenant), class)
    withdraw_tenant(tenant, class)
  end
end

local function for_each_lane(root, act)
  for _, lane in ipairs(redis.call('SMEMBERS', key('lanes', root))) do
    act(root, string.match(lane, '^([^:]*:[^:]*):(.*)$'))
  end
end

-- Lets a tree that was full be served again.
local function open_tree(root)
  if redis.call('SREM', key('full_trees'), root) == 1 then for_each_lane(root, offer_tree) end
  if redis.call('EXISTS', key('ready', root)) == 1 then  -- of a release without lanes: see dispatch.lua
    redis.call('ZADD', key('trees'), 'NX', 0, root)
  end
end

-- Lets a tenant that was full be served again.
local function open_tenant(tenant)
  if redis.call('SREM', key('full_tenants'), tenant) == 0 then return end
  for _, class in ipairs(redis.call('SMEMBERS', key('classes', tenant))) do offer_tenant(tenant, class) end
end

-- Puts a job among its tree's waiting ones, at the place that its priority and its age give it.
local function make_ready(id, root)
  local job = line_of(id)
  redis.call('ZADD', key('lane', job.class, root, job.tenant), job.sequence - job.priority * 1e12, id)
  redis.call('SADD', key('lanes', root), job.class .. ':' .. job.tenant)
  if redis.call('SISMEMBER', key('full_trees'), root) == 0 then offer_tree(root, job.class, job.tenant) end
end

-- Takes a job from among the waiting ones, if it is there.
local function leave_lane(id, root, class, tenant)
  local lane = key('lane', class, root, tenant)
  if redis.call('ZREM', lane, id) == 1 and redis.call('EXISTS', lane) == 0 then
    redis.call('SREM', key('lanes', root), class .. ':' .. tenant)
    withdraw_tree(root, class, tenant)
  end
end

-- Gives back whatever an attempt, or a job on its way, holds.
local function give_back(id, root, host)
  local job = line_of(id)
  redis.call('ZREM', key('leases'), id)
  redis.call('ZREM', key('transit'), id)
  redis.call('SREM', key('active', root), id)
  redis.call('SREM', key('tenant_active', job.tenant), id)
  redis.call('SREM', key('agent_active', job.agent), id)
  if job.worker and job.worker ~= '' then redis.call('SREM', key('held', job.worker), id) end
  if host and host ~= '' then redis.call('SREM', key('host', host), id) end
  open_tree(root)
  open_tenant(job.tenant)
end

-- A job that arrived takes a place on its worker and host.
local function occupy(id, worker, host)
  redis.call('ZREM', key('transit'), id)
  redis.call('SADD', key('held', worker), id)
  redis.call('SADD', key('host', host), id)
end

-- How many values a job is submitted with: id, root, parent ('' for none), priority, max attempts, idempotency key ('' for
-- none, made unique by tenant), tenant, agent, wire version, specification.
local SUBMISSION = 10

-- Puts a new job in the queue, given where its values begin in ARGV.
local function enqueue(first, root, parent)
  local id, priority, max_attempts, idempotency, tenant, agent, wire, spec =
    ARGV[first], unpack(ARGV, first + 3, first + SUBMISSION - 1)
  local sequence, now = redis.call('INCR', key('sequence')), now_ms()
  redis.call('HSET', key('job', id), 'spec', spec, 'state', 'queued', 'root', root, 'parent', parent,
    'priority', priority, 'max_attempts', max_attempts, 'sequence', sequence, 'attempt', 0, 'token', 0,
    'dispatched', 0, 'ran_ms', 0, 'submitted_at', now, 'tenant', tenant, 'agent', agent, 'wire', wire)
  if idempotency ~= '' then
    redis.call('SET', key('idempotency', idempotency), id)
    redis.call('HSET', key('job', id), 'idempotency', idempotency)
  end
  redis.call('ZADD', key('jobs'), sequence, id)
  redis.call('ZADD', key('tree', root), sequence, id)
  redis.call('SADD', key('live'), id)
  if parent ~= '' then redis.call('SADD', key('children', parent), id) end
  make_ready(id, root)
  journal(id, 0, {state = 'queued'})
end

-- Returns a job to the queue; its place is where it was.
local function requeue(id, root, attempt, reason)
  redis.call('HDEL', key('job', id), 'waiting_for', 'approvals')
  redis.call('HSET', key('job', id), 'state', 'queued', 'dispatched', 0, 'token', 0, 'worker', '', 'host', '',
    'requeued_at', now_ms())
  make_ready(id, root)
  journal(id, attempt, {state = 'queued', reason = reason})
end

-- Tells a job that a child of it has ended, or was never begun and why.
local function tell_of_child(parent, id, state, reason)
  local attempt = redis.call('HGET', key('job', parent), 'attempt')
  tell(parent, attempt, 'child.finished', cjson.encode({id = id, state = state, reason = reason}))
end

-- A parked job's time runs while it waits for its children alone, not while a person thinks.
local function start_clock(id)
  if redis.call('HSETNX', key('job', id), 'clock_from', now_ms()) == 0 then return end
  local job = redis.call('HMGET', key('job', id), 'timeout_ms', 'ran_ms')
  if job[1] then redis.call('ZADD', key('deadlines'), now_ms() + job[1] - job[2], id) end
end

-- What it has waited so counts as run.
local function stop_clock(id)
  redis.call('ZREM', key('deadlines'), id)
  local since = redis.call('HGET', key('job', id), 'clock_from')
  if since then redis.call('HINCRBY', key('job', id), 'ran_ms', now_ms() - since) end
  redis.call('HDEL', key('job', id), 'clock_from', 'timeout_ms', 'late')
end

-- Says how far a parked job's children are; the last end sends it on, unless people are awaited too.
local function count_children(id)
  local job = redis.call('HMGET', key('job', id), 'state', 'root', 'attempt', 'approvals', 'awaited')
  if job[1] ~= 'waiting' or job[4] ~= '' then return end
  local open = redis.call('SCARD', key('awaited', id))
  if open == 0 then
    stop_clock(id)
    requeue(id, job[2], job[3], 'what it waited for is there')
  else
    start_clock(id)
    redis.call('HSET', key('job', id), 'waiting_for', 'children: ' .. job[5] - open .. ' of ' .. job[5])
  end
end

-- Wakes the job that waits for this one.
local function wake_parent(id, state)
  local parent = redis.call('HGET', key('job', id), 'parent')
  if parent and parent ~= '' and redis.call('SREM', key('awaited', parent), id) == 1 then
    tell_of_child(parent, id, state)
    count_children(parent)
  end
end

-- Ends a job. The caller has made sure that it has not ended yet.
local function finish(id, root, host, attempt, state, result, data)
  give_back(id, root, host)
  withdraw_approvals(id)
  local job = line_of(id)
  leave_lane(id, root, job.class, job.tenant)
  redis.call('SREM', key('live'), id)
  redis.call('ZREM', key('deadlines'), id)
  redis.call('ZADD', key('ended'), now_ms(), id)
  redis.call('DEL', key('messages', id), key('awaited', id))
  redis.call('HDEL', key('job', id), 'so_far')
  redis.call('HSET', key('job', id), 'state', state, 'result', result, 'finished_at', now_ms(), 'token', 0,
    'dispatched', 0)
  data.state = state
  journal(id, attempt, data)
  wake_parent(id, state)
end

-- The living workers that take jobs, each with its free places; `left`: how many more jobs a host with a limit may run.
local function living_workers(now)
  local workers, limits, left = {}, {}, {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key('workers'), now, '+inf')) do
    local told = redis.call('HMGET', key('worker', name), 'host', 'concurrency', 'host_limit', 'draining', 'wire_oldest',
      'wire_newest', 'agents')
    local host, limit = told[1], tonumber(told[3])
    if host and told[4] ~= '1' then
      workers[#workers + 1] = {host = host, free = math.max(0, told[2] - redis.call('SCARD', key('held', name))),
        oldest = tonumber(told[5] or 1), newest = tonumber(told[6] or 1), agents = told[7] or ''}
      if limit > 0 then limits[host] = math.min(limits[host] or limit, limit) end
    end
  end
  for host, limit in pairs(limits) do left[host] = math.max(0, limit - redis.call('SCARD', key('host', host))) end
  return workers, left
end

-- Whether an agent is among the names that a worker tells; one of a release that tells none counts as knowing all.
local function knows(agents, agent)
  return agents == '' or string.find(' ' .. agents .. ' ', ' ' .. agent .. ' ', 1, true) ~= nil
end

local function reads(worker, class)
  return worker.oldest <= class.wire and class.wire <= worker.newest and knows(worker.agents, class.agent)
end

-- How many more jobs each host may run; given a class, how many of that one.
local function free_by_host(workers, left, class)
  local free = {}
  for _, worker in ipairs(workers) do
    if not class or reads(worker, class) then
      free[worker.host] = (free[worker.host] or 0) + worker.free
    end
  end
  for host, places in pairs(free) do free[host] = math.min(places, left[host] or places) end
  return free
end

-- The result of a job that no worker ended, with what it had done at its newest checkpoint.
local function bare_result(id, state, attempt, ran_ms, submitted_at, started_at, kind, message)
  local now = now_ms()
  local result = cjson.decode(redis.call('HGET', key('job', id), 'so_far') or '{}')
  result.job_id, result.state, result.success, result.attempts = id, state, false, tonumber(attempt)
  result.queued_seconds = ((tonumber(started_at) or now) - submitted_at) / 1000
  result.execution_seconds = ran_ms / 1000
  result.error = {type = kind, message = message, retryable = false}
  return cjson.encode(result)
end
