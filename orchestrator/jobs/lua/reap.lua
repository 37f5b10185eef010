-- Requeues jobs whose lease lapsed: their message was lost, or their worker stopped responding.
-- Ends jobs whose time ran out while they waited for children, and cancelled jobs whose worker does
-- not confirm the cancellation. Resumes jobs that wanted to wait for no longer. Offers jobs that a
-- worker could not read to one that has not tried. Ends jobs for which Redis has had no memory for
-- too long. Leases lapse by the clock of leases; those of releases before it by the time of Redis.
-- One of these that lapsed while Redis was unavailable says nothing about its worker, and uses up no
-- attempt.
-- Takes workers out whose registration lapsed, with the jobs that were sent to them, and puts the
-- classes into the order of dispatches that an earlier release has entered or taken out.
-- ARGV: prefix, maximum number of jobs, milliseconds for which no other process of those that read the
-- same wire versions does this (0: any may), the error of a job for which Redis had no memory, oldest
-- and newest wire version that the caller reads. Who reaps dispatches afterwards, but no jobs that it
-- cannot read: were there one round for all, an older release that is always first would leave those.
-- Lets one job go on for each model of which a trial may be made, and those that wait for an open
-- one. Ends those that have waited for a model for as long as they may.
-- Returns id and new state of each job, with the time if its worker was lost while it ran, and 1 if
-- more is left to do; false when another process has done this in those milliseconds.
even_if_full()
local round = key('dispatch', 'round', ARGV[5] .. '-' .. ARGV[6])
if ARGV[3] ~= '0' and not redis.call('SET', round, 1, 'NX', 'PX', ARGV[3]) then
  return false
end

-- The longest time for which a class is not noticed that an earlier release has entered while it took
-- another one out.
local COMPARE_SECONDS = 5

-- How many agents of a lost worker take as long to take out as one of its jobs.
local AGENTS_OF_A_JOB = 20

-- The longest lease that a worker can have; a registration and a message in transit last less.
local LONGEST_LEASE_MS = 60000

-- The field of the totals for leases that lapsed; see totals.py.
local LAPSED = '["fanout_leases_lost","lapsed"]'

local now, lease_now, reaped, is_more = now_ms(), lease_clock(), {}, 0
local left = tonumber(ARGV[2])

-- Returns when Redis started, up to two seconds too early; 0 where it does not report that, as a
-- managed one may not.
local function up_since()
  local info = redis.pcall('INFO', 'server')
  local seconds = type(info) == 'string' and string.match(info, 'uptime_in_seconds:(%d+)')
  return seconds and now - (seconds + 1) * 1000 or 0
end

-- Requeues or ends a running job whose lease lapsed; returns its new state.
local function reap_attempt(id)
  local job = redis.call('HMGET', key('job', id), 'root', 'host', 'attempt', 'max_attempts',
    'cancel', 'ran_ms', 'claimed_at', 'beat_at')
  if job[5] == '1' then
    end_with_error(id, 'cancelled', 'JobCancelled',
      'Cancelled while its worker was lost.')
    return 'cancelled'
  end
  redis.call('HINCRBY', key('worker', '!totals'), LAPSED, 1)
  local attempt, reason = job[3], 'its worker stopped responding'
  if up_since() > tonumber(job[8]) then
    attempt, reason = attempt - 1, 'Redis was unavailable for longer than its lease'
  elseif tonumber(attempt) >= tonumber(job[4]) then
    end_with_error(id, 'failed', 'AttemptsUsedUp',
      'The worker was lost in each of the ' .. job[4] .. ' attempts.')
    return 'failed'
  end
  redis.call('HSET', key('job', id), 'ran_ms', job[6] + job[8] - job[7], 'attempt', attempt)
  release_slots(id, job[1], job[2])
  requeue(id, job[1], attempt, reason)
  return 'queued'
end

-- Returns whether a parked job's time is not over, but only what it wanted to wait.
local function wants_to_resume(id)
  local job = redis.call('HMGET', key('job', id), 'wake_at', 'timeout_ms', 'ran_ms', 'clock_from')
  local is_late = job[2] and job[4] and job[4] + job[2] - job[3] <= now
  return job[1] and tonumber(job[1]) <= now and not is_late
end

-- Requeues a parked job although not all its children have ended.
local function resume(id)
  local job = redis.call('HMGET', key('job', id), 'root', 'attempt')
  redis.call('DEL', key('awaited', id))
  stop_clock(id)
  requeue(id, job[1], job[2], 'it has waited for as long as it wanted')
end

-- Returns what has lapsed, as far as this call has not done its maximum yet.
local function lapsed(...)
  local found = redis.call('ZRANGEBYSCORE', key(...), '-inf', '(' .. now, 'LIMIT', 0, left)
  left = left - #found
  if left == 0 then is_more = 1 end
  return found
end

-- Returns how much of a running attempt's lease is left by the clock of leases; -1 when it has
-- lapsed, and when a worker of an earlier release holds it.
local function lease_left(id)
  local job = redis.call('HMGET', key('job', id), 'lease_at', 'lease_of', 'token')
  if not job[1] or job[2] ~= job[3] then return -1 end
  return math.max(-1, job[1] - lease_now)
end

-- The most scores that are lowered at once.
local MOST_LOWERED = 1000

-- Lowers scores of a sorted set, which are times, to what they can be now. Returns whether that is
-- done with all of them.
local function lower(latest, ...)
  local late = redis.call('ZRANGEBYSCORE', key(...), '(' .. latest, '+inf', 'LIMIT', 0, MOST_LOWERED)
  local entries, of = {}, key(...)
  for at, member in ipairs(late) do entries[2 * at - 1], entries[2 * at] = latest, member end
  in_parts(entries, function(...) redis.call('ZADD', of, ...) end)
  return #late < MOST_LOWERED
end

-- When the time of Redis was set back, what waits for a time would wait for that much longer.
local latest, is_lowered = now + LONGEST_LEASE_MS, true
if now < tonumber(redis.call('HGET', key('lease_clock'), 'reaped_at') or 0) then
  is_lowered = lower(latest, 'leases') and lower(latest, 'workers')
    and lower(latest, 'dispatch', 'workers')
end
if is_lowered then redis.call('HSET', key('lease_clock'), 'reaped_at', now) else is_more = 1 end

for _, id in ipairs(lapsed('leases')) do
  local job = redis.call('HMGET', key('job', id), 'state', 'root', 'attempt', 'dispatched')
  if job[1] == 'queued' and job[4] == RESTS then
    end_rest(id, job[2])
  elseif job[1] == 'queued' then
    release_slots(id, job[2])
    requeue(id, job[2], job[3], 'no worker had taken it')
    reaped[#reaped + 1] = {id, 'queued'}
  elseif job[1] == 'running' and lease_left(id) >= 0 then
    redis.call('ZADD', key('leases'), now + lease_left(id), id)
  elseif job[1] == 'running' then
    reaped[#reaped + 1] = {id, reap_attempt(id), now}
  else
    redis.call('ZREM', key('leases'), id)
  end
end
for _, id in ipairs(lapsed('deadlines')) do
  local job = redis.call('HMGET', key('job', id), 'state', 'cancel', 'late')
  local has_deadline = redis.call('ZSCORE', key('deadlines'), id)
  if not has_deadline then
    -- The end of another one has just stopped its clock.
  elseif job[1] == 'waiting' and wants_to_resume(id) then
    resume(id)
    reaped[#reaped + 1] = {id, 'queued'}
  elseif job[1] == 'waiting' then
    end_with_error(id, 'timed_out', 'DeadlineExceeded', job[3])
    cancel_children(id)
    reaped[#reaped + 1] = {id, 'timed_out'}
  elseif job[1] == 'running' and job[2] == '1' then
    end_with_error(id, 'cancelled', 'JobCancelled',
      'Cancelled; its worker did not respond.')
    reaped[#reaped + 1] = {id, 'cancelled', now}
  else
    redis.call('ZREM', key('deadlines'), id)
  end
end
for _, id in ipairs(lapsed('dispatch', 'starved')) do
  redis.call('ZREM', key('dispatch', 'starved'), id)
  local job = redis.call('HMGET', key('job', id), 'state', 'starved', 'requeued_at')
  if job[1] == 'queued' and job[2] == job[3] and memory().refuses then
    end_with_error(id, 'failed', 'LedgerFull', ARGV[4])
    cancel_children(id)
    reaped[#reaped + 1] = {id, 'failed'}
  end
end
-- How many models are looked at; those that no job waits for are, once a minute, and for a day.
local MOST_MODELS = 16
local UNAWAITED_MS = 60000
local FORGOTTEN_MS = 86400000

-- Lets a job make the trial of a model, unless one does.
local function try_model(access)
  local closed = key('dispatch', 'models_closed')
  local at = redis.call('HGET', key('dispatch', 'model', access), 'until')
  if redis.call('EXISTS', key('dispatch', 'model_waiting', access)) == 0 then
    if not at or now - at > FORGOTTEN_MS then return redis.call('ZREM', closed, access) end
    redis.call('ZADD', closed, 'XX', now + UNAWAITED_MS, access)
  elseif not at then
    reopen_model(access, 1)
  elseif redis.call('SET', key('dispatch', 'model_trial', access), 'released', 'NX', 'PX', TRIAL_MS) then
    wake_for_model(access, 1, true)
  end
end

for _, access in ipairs(redis.call('ZRANGEBYSCORE', key('dispatch', 'models_closed'), '-inf', now,
    'LIMIT', 0, MOST_MODELS)) do
  try_model(access)
end
for _, access in ipairs(redis.call('SRANDMEMBER', key('dispatch', 'models_reopening'), MOST_MODELS)) do
  if left > 0 then left = left - reopen_model(access, left) end
end
if left <= 0 then
  left, is_more = 0, 1
end
for _, id in ipairs(left > 0 and lapsed('dispatch', 'model_deadlines') or {}) do
  local job = redis.call('HMGET', key('job', id), 'state', 'model_wait')
  if job[2] and (job[1] == 'waiting' or job[1] == 'queued') then
    local access = string.match(job[2], '%S+')
    local known = redis.call('HMGET', key('dispatch', 'model', access), 'name', 'why')
    end_with_error(id, 'failed', 'ModelClosed', 'The job has waited for a model for as long as it may '
      .. '(limits.max_wait_seconds): ' .. (known[1] or 'its model') .. ' ' .. (known[2] or 'is not open')
      .. '.')
    cancel_children(id)
    reaped[#reaped + 1] = {id, 'failed'}
  else
    redis.call('ZREM', key('dispatch', 'model_deadlines'), id)
  end
end

-- Takes a worker out whose registration lapsed, after the jobs that were sent to it, as far as these
-- are no more than `most`. Returns what of that is left.
local function remove_lost_worker(worker, most)
  local bound = redis.call('SCARD', key('dispatch', 'bound', worker))
  redis.call('HSET', key('dispatch', 'worker', worker), 'concurrency', 0)
  take_back(worker, most)
  if bound > most then return 0 end
  return most - bound - 1 - math.ceil(remove_worker(worker) / AGENTS_OF_A_JOB)
end

for _, worker in ipairs(lapsed('workers')) do
  redis.call('ZREM', key('workers'), worker)
  redis.call('DEL', key('worker', worker))
end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', key('dispatch', 'workers'), '-inf', '(' .. now,
    'LIMIT', 0, left)) do
  left = remove_lost_worker(worker, left)
  if left <= 0 then
    is_more = 1
    break
  end
end

-- The most queues of workers that have gone which one call looks at: those first that went first.
local MOST_QUEUES = 500

local old_queues = {}
for at, queue in ipairs(redis.call('ZRANGE', key('dispatch', 'old_queues'), 0, MOST_QUEUES - 1)) do
  old_queues[at] = key('queue', queue)
end
in_parts(old_queues, function(...) redis.call('DEL', ...) end)
redis.call('ZREMRANGEBYSCORE', key('dispatch', 'old_queues'), '-inf', now)

-- Enters the classes that an earlier release has entered into `classes` alone, and takes out those
-- that it has taken out there.
local function compare_classes()
  local ready, aside = key('dispatch', 'ready'), key('dispatch', 'aside')
  put_back(redis.call('ZDIFF', 3, key('classes'), ready, aside))
  for _, known in ipairs({ready, aside}) do
    for _, class in ipairs(redis.call('ZDIFF', 2, known, key('classes'))) do remove_class(class) end
  end
end

if left > 0 and reopen(left) then is_more = 1 end

-- The worker of a pool is not started again after some time: nothing happens then.
put_back(classes_aside(POOL_AWAITED))
if redis.call('SCARD', key('classes')) ~= redis.call('ZCARD', key('dispatch', 'ready'))
    + redis.call('ZCARD', key('dispatch', 'aside'))
    or redis.call('SET', key('dispatch', 'compared'), 1, 'NX', 'EX', COMPARE_SECONDS) then
  compare_classes()
end
return {reaped, is_more}
