-- How jobs end without their worker; follows common.lua in every script.

-- Ends a job that has not ended yet, with an error and the contents of its newest checkpoint. The
-- time of a running attempt counts until `ended_at`, by default until its newest heartbeat.
local function end_with_error(id, state, kind, message, ended_at)
  stop_clock(id)
  local job = redis.call('HMGET', key('job', id), 'state', 'root', 'host', 'attempt', 'ran_ms',
    'submitted_at', 'started_at', 'beat_at', 'claimed_at', 'so_far')
  local ran = job[5]
  if job[1] == 'running' then
    ran = job[5] + (ended_at or job[8]) - job[9]
    redis.call('HSET', key('job', id), 'ran_ms', ran)
  end
  local result = cjson.decode(job[10] or '{}')
  result.job_id, result.state, result.success, result.attempts = id, state, false, tonumber(job[4])
  result.queued_seconds = ((tonumber(job[7]) or now_ms()) - job[6]) / 1000
  result.execution_seconds = ran / 1000
  result.error = {type = kind, message = message, retryable = false}
  finish(id, job[2], job[3], job[4], state, cjson.encode(result), {})
end

-- Lists jobs for cancellation, with all their descendants.
local function list_for_cancellation(ids)
  in_parts(ids, function(...) redis.call('RPUSH', key('cancelling'), ...) end)
end

-- The same for a job's children. Returns their number.
local function cancel_children(id)
  local children = redis.call('SMEMBERS', key('children', id))
  list_for_cancellation(children)
  return #children
end

-- Ends a queued or waiting job; asks the worker of a running one to end it, and gives the worker
-- `hearing` milliseconds to confirm. Lists its children for cancellation, and returns their number.
local function cancel_one(id, hearing)
  local job = redis.call('HMGET', key('job', id), 'state', 'cancel', 'started_at')
  if job[1] == 'queued' or job[1] == 'waiting' then
    end_with_error(id, 'cancelled', 'JobCancelled', 'Cancelled.')
    -- A remote agent may still work for it.
    if job[3] then redis.call('PUBLISH', key('cancel'), id) end
  elseif job[1] == 'running' then
    if job[2] ~= '1' then redis.call('ZADD', key('deadlines'), now_ms() + hearing, id) end
    redis.call('HSET', key('job', id), 'cancel', 1)
    redis.call('PUBLISH', key('cancel'), id)
  end
  return cancel_children(id)
end

-- Ends a job whose parent has ended, or is about to: no other job would wait for it, and no
-- cancellation would find it.
local function end_if_orphaned(id, parent)
  if parent == '' then return end
  local state = redis.call('HMGET', key('job', parent), 'state', 'cancel')
  if state[1] and (state[2] == '1' or redis.call('SISMEMBER', key('live'), parent) == 0) then
    end_with_error(id, 'cancelled', 'JobCancelled',
      'Cancelled: its parent had ended before it was submitted.')
  end
end

-- Deletes all that is stored of a job that has ended.
local function forget_job(id)
  count_state(id)
  local job = redis.call('HMGET', key('job', id), 'root', 'parent', 'idempotency', 'owned', 'bytes',
    'answered_call')
  for _, index in ipairs({'ended', 'jobs', 'ids', 'ids_by_end', 'uncollected'}) do
    redis.call('ZREM', key(index), id)
  end
  redis.call('ZREM', key('journal', 'with_payloads'), id)
  redis.call('ZREM', key('reversed_ids'), string.reverse(id))  -- of releases before ids_by_end
  if job[1] then
    redis.call('ZREM', key('tree', job[1]), id)
    if redis.call('EXISTS', key('tree', job[1])) == 0 then
      redis.call('DEL', key('offspring', job[1]), key('usage', job[1]),
        key('dispatch', 'reserved', job[1]))
    end
  end
  if job[2] and job[2] ~= '' then redis.call('SREM', key('children', job[2]), id) end
  if job[3] and job[3] ~= '' then redis.call('DEL', key('idempotency', job[3])) end
  if job[4] then redis.call('ZREM', key('owned', job[4]), id) end
  if job[5] then count_stored(job[4], -1, -job[5]) end
  if job[6] then
    local answered = key('dispatch', 'answered', job[6])
    if redis.call('GET', answered) == id then redis.call('DEL', answered) end
  end
  redis.call('UNLINK', key('job', id), key('spec', id), key('result', id), key('journal', id),
    key('journal', 'payloads', id), key('journal', 'script', id), key('children', id), key('notify', 'of', id),
    key('dispatch', 'calls', id), key('dispatch', 'working', id))
  if id ~= job[1] then redis.call('DEL', key('usage', id), key('dispatch', 'reserved', id)) end
end
