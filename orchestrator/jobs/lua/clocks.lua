-- What runs when: the time of jobs, which their limits count, and the clock of leases.
-- A job's time runs while an attempt works, and while a parked one waits for a child whose time runs. Its
-- record has `ran_ms`, the time until the last stop, and while it is parked and its time runs `clock_from`,
-- since when; `wake_at` is when it wanted to be resumed.

-- Starts the clock of a parked job: its time runs while the time of a child that it waits for does,
-- not while it waits for a person. The reaper looks at the job at its deadline, and when it wanted to
-- be resumed (wake_at).
local function start_clock(id)
  if redis.call('HSETNX', key('job', id), 'clock_from', now_ms()) == 0 then return end
  local job = redis.call('HMGET', key('job', id), 'timeout_ms', 'ran_ms', 'wake_at')
  local at = job[1] and now_ms() + job[1] - job[2]
  local wake = job[3] and tonumber(job[3])
  if wake and (not at or wake < at) then at = wake end
  if at then redis.call('ZADD', key('deadlines'), at, id) end
end

-- Holds the clock of a parked job: the elapsed time counts as running time.
local function hold_clock(id)
  redis.call('ZREM', key('deadlines'), id)
  local job = redis.call('HMGET', key('job', id), 'clock_from', 'wake_at')
  if job[1] then redis.call('HINCRBY', key('job', id), 'ran_ms', now_ms() - job[1]) end
  redis.call('HDEL', key('job', id), 'clock_from')
  if job[2] then redis.call('ZADD', key('deadlines'), job[2], id) end
end

-- Returns whether the time of a job runs that this one waits for.
local function awaits_work(id)
  for _, child in ipairs(redis.call('SMEMBERS', key('dispatch', 'working', id))) do
    if redis.call('SISMEMBER', key('awaited', id), child) == 1 then return true end
  end
  return false
end

-- The time of a job begins to run: so does that of those that wait for it.
local function begin_work(id)
  while true do
    local parent = redis.call('HGET', key('job', id), 'parent')
    if not parent or parent == '' then return end
    redis.call('SADD', key('dispatch', 'working', parent), id)
    local above = redis.call('HMGET', key('job', parent), 'state', 'approvals', 'clock_from')
    if above[1] ~= 'waiting' or above[2] ~= '' or above[3]
        or redis.call('SISMEMBER', key('awaited', parent), id) == 0 then
      return
    end
    start_clock(parent)
    id = parent
  end
end

-- The time of a job stands: so does that of those that wait for nothing else.
local function end_work(id)
  while true do
    local parent = redis.call('HGET', key('job', id), 'parent')
    if not parent or parent == '' then return end
    if redis.call('SREM', key('dispatch', 'working', parent), id) == 0 then return end
    local above = redis.call('HMGET', key('job', parent), 'state', 'clock_from')
    if above[1] ~= 'waiting' or not above[2] or awaits_work(parent) then return end
    hold_clock(parent)
    id = parent
  end
end

-- Starts the clock of a parked job, with those of the jobs that wait for it, if it waits for one whose
-- time runs.
local function resume_clock(id)
  if awaits_work(id) then
    start_clock(id)
    begin_work(id)
  else
    hold_clock(id)
  end
end

-- Stops the clock of a parked job; the elapsed time counts as running time.
local function stop_clock(id)
  redis.call('HDEL', key('job', id), 'wake_at')
  hold_clock(id)
  redis.call('HDEL', key('job', id), 'timeout_ms', 'late')
  end_work(id)
end

-- Has a parked job looked at in that many milliseconds by the reaper, or sooner.
local function wake_in(id, delay)
  local at = now_ms() + delay
  if redis.call('HSETNX', key('job', id), 'wake_at', at) == 0 then return end
  redis.call('ZADD', key('deadlines'), 'LT', at, id)
end

-- The most that the clock of leases advances from one script to the next.
local LEASE_STEP_MS = 1000

-- Advances the clock of leases, in milliseconds, and returns it. It runs while scripts do: a lease
-- does not lapse while Redis hangs or is unavailable, nor because the time of its machine is set.
local function lease_clock()
  local now, clock = now_ms(), redis.call('HMGET', key('lease_clock'), 'at', 'elapsed')
  local step = math.max(0, math.min(now - (clock[1] or now), LEASE_STEP_MS))
  local elapsed = (clock[2] or 0) + step
  redis.call('HSET', key('lease_clock'), 'at', now, 'elapsed', elapsed)
  return elapsed
end
