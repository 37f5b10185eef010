-- What every script begins with. ARGV[1] is the key prefix; the clock is the Redis server's.
-- The key names are those of keys.py, and these besides:
--   ready:<root>     sorted set: a tree's waiting jobs, first to go first
--   active:<root>    set: a tree's jobs on their way to a worker or running
--   host:<host>      set: the jobs running on a host
--   tree:<root>      sorted set: all jobs of a tree by submission
--   ended            sorted set: the jobs that have ended, by when
--   children:<job>   set: the jobs that a job submitted
--   awaited:<job>    set: those for which a parked job waits
--   offspring:<root> how many children the jobs of a tree have submitted, ended ones too
--   trees            sorted set: trees with waiting jobs and room, least recently served first
--   served           hash: tree -> when it was last served (a counter, not a time)
--   worker:<name>    hash: what a worker told when it registered
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

-- Lets the tree be served again if something of it waits.
local function offer(root)
  if redis.call('ZCARD', key('ready', root)) > 0 then
    redis.call('ZADD', key('trees'), 'NX', redis.call('HGET', key('served'), root) or 0, root)
  end
end

-- Puts a job among its tree's waiting ones, at the place that its priority and its age give it.
local function make_ready(id, root)
  local fields = redis.call('HMGET', key('job', id), 'priority', 'sequence')
  redis.call('ZADD', key('ready', root), fields[2] - fields[1] * 1e12, id)
  offer(root)
end

-- Gives back whatever an attempt, or a job on its way, holds.
local function give_back(id, root, host)
  redis.call('ZREM', key('leases'), id)
  redis.call('SREM', key('active', root), id)
  if host and host ~= '' then redis.call('SREM', key('host', host), id) end
  offer(root)
end

-- Puts a new job in the queue.
local function enqueue(id, root, parent, priority, max_attempts, idempotency, spec)
  local sequence, now = redis.call('INCR', key('sequence')), now_ms()
  redis.call('HSET', key('job', id), 'spec', spec, 'state', 'queued', 'root', root, 'parent', parent,
    'priority', priority, 'max_attempts', max_attempts, 'sequence', sequence, 'attempt', 0, 'token', 0,
    'dispatched', 0, 'ran_ms', 0, 'submitted_at', now)
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

-- Says how far a parked job's children are; the last end sends it on, unless people are awaited too.
local function count_children(id)
  local job = redis.call('HMGET', key('job', id), 'state', 'root', 'attempt', 'approvals', 'awaited')
  if job[1] ~= 'waiting' or job[4] ~= '' then return end
  local open = redis.call('SCARD', key('awaited', id))
  if open == 0 then
    requeue(id, job[2], job[3], 'what it waited for is there')
  else
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
  redis.call('ZREM', key('ready', root), id)
  redis.call('SREM', key('live'), id)
  redis.call('ZADD', key('ended'), now_ms(), id)
  redis.call('DEL', key('messages', id), key('awaited', id))
  redis.call('HDEL', key('job', id), 'so_far')
  redis.call('HSET', key('job', id), 'state', state, 'result', result, 'finished_at', now_ms(), 'token', 0,
    'dispatched', 0)
  data.state = state
  journal(id, attempt, data)
  wake_parent(id, state)
end

-- How many jobs each host with living workers may run: what its workers run together, or its own limit where that is less.
local function places_by_host(now)
  local slots, limits = {}, {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key('workers'), now, '+inf')) do
    local worker = redis.call('HMGET', key('worker', name), 'host', 'concurrency', 'host_limit', 'draining')
    if worker[1] and worker[4] ~= '1' then
      slots[worker[1]] = (slots[worker[1]] or 0) + worker[2]
      local limit = tonumber(worker[3])
      if limit > 0 then limits[worker[1]] = math.min(limits[worker[1]] or limit, limit) end
    end
  end
  for host, count in pairs(slots) do slots[host] = math.min(count, limits[host] or count) end
  return slots
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
