-- Jobs that run after others; follows endings.lua in every script that lets them.
-- A new one has links to those that have not ended, and is told by their end. Ends and links are followed
-- in steps: whoever has ended a job begins, and the reaper goes on.

-- How long a job is believed not to have ended if nobody says so: earlier releases do not.
local LOOK_AGAIN_MS = 60000

-- How many links, or looks, take as long as to follow an end to one job.
local LINKS_OF_AN_END = 10

-- Words for the states of a job after which others are not run.
local WITHOUT_SUCCESS = {failed = 'failed', timed_out = 'has run out of time',
  cancelled = 'was cancelled'}

-- Returns whether a job still waits for the end of others.
local function comes_after(id)
  local job = redis.call('HMGET', key('job', id), 'state', 'dispatched')
  return job[1] == 'queued' and job[2] == COMES_AFTER
end

-- Lets a job wait in its lane if all have ended after which it runs.
local function enter_if_free(id)
  if redis.call('EXISTS', key('dispatch', 'after', id), key('dispatch', 'unlinked', id)) > 0
      or not comes_after(id) then
    return
  end
  redis.call('HSET', key('job', id), 'dispatched', IN_LANE)
  enter_lane(id, redis.call('HGET', key('job', id), 'root'))
  publish(id)
end

-- Ends a job that is not run, because the job `before` did not succeed, or was not run itself: then the
-- one is named that is the cause.
local function end_without_run(id, before)
  local cause = redis.call('HGET', key('job', before), 'not_run_after') or before
  local found = redis.call('HMGET', key('job', cause), 'state', 'name')
  redis.call('HSET', key('job', id), 'not_run_after', cause)
  local named = found[2] and found[2] .. ' (' .. cause .. ')' or cause
  end_with_error(id, 'cancelled', 'NotRun', 'Not run: job ' .. named .. ' '
    .. (WITHOUT_SUCCESS[found[1]] or 'is no longer stored') .. ', after which it was to run.')
end

-- Follows the end of a job to one that comes after it. `state` is false when it is no longer stored.
local function follow_to(id, before, state)
  redis.call('SREM', key('dispatch', 'after', id), before)
  if not comes_after(id) then return end
  if state == 'succeeded' or redis.call('HGET', key('job', id), 'on_failure') == 'run' then
    enter_if_free(id)
  else
    end_without_run(id, before)
  end
end

-- Links a job to one after which it runs, or follows that one's end. Returns what this costs.
local function link(id, before)
  local state = redis.call('HGET', key('job', before), 'state')
  if not state or ENDED[state] then
    follow_to(id, before, state)
    return 1
  end
  redis.call('SADD', key('dispatch', 'after', id), before)
  redis.call('SADD', key('dispatch', 'before', before), id)
  redis.call('ZADD', key('dispatch', 'predecessors'), 'NX', now_ms() + LOOK_AGAIN_MS, before)
  return 1 / LINKS_OF_AN_END
end

-- Links the job that has waited longest for it. Returns what is left of `most`; nil when none waits.
local function link_first(most)
  local id = redis.call('LINDEX', key('dispatch', 'linking'), 0)
  if not id then return nil end
  while most > 0 and comes_after(id) do
    local before = redis.call('SPOP', key('dispatch', 'unlinked', id))
    if not before then break end
    most = most - link(id, before)
  end
  if redis.call('EXISTS', key('dispatch', 'unlinked', id)) == 0 or not comes_after(id) then
    redis.call('LPOP', key('dispatch', 'linking'))
    enter_if_free(id)
  end
  return most - 1 / LINKS_OF_AN_END
end

-- Follows the end of the job that it is time to look at. Returns what is left of `most`; nil when there is
-- none.
local function follow_first(most)
  local before = redis.call('ZRANGEBYSCORE', key('dispatch', 'predecessors'), '-inf', now_ms(), 'LIMIT',
    0, 1)[1]
  if not before then return nil end
  local state = redis.call('HGET', key('job', before), 'state')
  if state and not ENDED[state] then
    redis.call('ZADD', key('dispatch', 'predecessors'), now_ms() + LOOK_AGAIN_MS, before)
    return most - 1 / LINKS_OF_AN_END
  end
  local asked = math.ceil(most)
  local ids = redis.call('SPOP', key('dispatch', 'before', before), asked)
  for _, id in ipairs(ids) do follow_to(id, before, state) end
  if #ids < asked then redis.call('ZREM', key('dispatch', 'predecessors'), before) end
  return most - #ids - 1 / LINKS_OF_AN_END
end

-- Links jobs and follows ends, as much of both as `most` says. Returns whether there may be more.
local function follow(most)
  for _, step in ipairs({link_first, follow_first}) do
    local left = most
    while left and left > 0 do left = step(left) end
    if left then return true end
  end
  return false
end
