-- How jobs go on that wait for a model; follows endings.lua in every script that needs it.

-- Lets the first of the jobs go on that wait for a model; `is_trial`: to find out whether it answers.
-- Returns how many did.
local function wake_for_model(access, most, is_trial)
  local waiting, woken = key('dispatch', 'model_waiting', access), 0
  for _, id in ipairs(redis.call('ZRANGE', waiting, 0, most - 1)) do
    local job = redis.call('HMGET', key('job', id), 'state', 'root', 'attempt', 'model_wait')
    redis.call('ZREM', waiting, id)
    leave_models(id)
    if job[4] and (job[1] == 'waiting' or job[1] == 'queued') then
      woken = woken + 1
      if is_trial then redis.call('HSET', key('job', id), 'model_trial', 1) end
    end
    if job[4] and job[1] == 'waiting' then
      requeue(id, job[2], job[3],
        is_trial and 'it tries whether its model answers again' or 'its model answers again')
    elseif job[4] and job[1] == 'queued' then
      redis.call('HSET', key('job', id), 'dispatched', IN_LANE)
      redis.call('HDEL', key('job', id), 'waiting_for')
      enter_lane(id, job[2])
    end
  end
  return woken
end

-- Lets the jobs go on that wait for a model, `most` of them now, and the others as the reaper comes to
-- them. Returns how many now.
local function reopen_model(access, most)
  redis.call('ZREM', key('dispatch', 'models_closed'), access)
  redis.call('DEL', key('dispatch', 'model_trial', access))
  redis.call('HDEL', key('dispatch', 'model', access), 'state', 'why', 'since', 'until', 'tries')
  local woken = wake_for_model(access, most, false)
  if redis.call('EXISTS', key('dispatch', 'model_waiting', access)) == 1 then
    redis.call('SADD', key('dispatch', 'models_reopening'), access)
  else
    redis.call('SREM', key('dispatch', 'models_reopening'), access)
  end
  return woken
end
