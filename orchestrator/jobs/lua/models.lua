-- Which models are not to be asked now, and the jobs that wait for them. An access is a model at an
-- address with a key, by a digest of the three; a job waits for the accesses of its list of models.
--   dispatch:model:<access>   hash: what is known of it: name, state, why, since, until (of the next
--                    trial), tries, worked (1: it has answered), answered_at
--   dispatch:models_closed    sorted set: the accesses that are not open, by when a trial may be made
--   dispatch:models_reopening set: those that are open again while jobs still wait for them
--   dispatch:model_trial:<access>     string: present while one request is the trial, or a job is on
--                    its way to make it
--   dispatch:model_waiting:<access>   sorted set: the jobs that wait for it, the next one first
--   dispatch:model_turns:<access>     hash: tree -> how many of its jobs have begun to wait
--   dispatch:model_deadlines  sorted set: the jobs that wait, by when they have for as long as they may
--   dispatch:model_accesses:<pool>    hash: '<agent> <model>' -> the milliseconds that such a job may
--                    wait, and the accesses of its models; of what has waited only, and for a day
--   dispatch:working:<job>    set: its children whose time runs
-- A job's record has, while it waits, `model_wait` (the accesses), and until a model has answered it
-- `model_since` (since when it waits) and `model_trial` (it is let through to make the trial).

-- How long what is known of a model is kept after it was last used.
local MODEL_KEPT_MS = 30 * 86400000

-- How long a job on its way to make a trial, or a request that is one, holds the others back.
local TRIAL_MS = 60000

-- The longest wait that a service is believed to ask for.
local LONGEST_WAIT_MS = 7 * 86400000

-- The queued jobs come after those that had begun, which are fewer than this.
local AFTER_BEGUN = 1e9

-- Returns whether none of the models of a list may be asked now.
local function are_closed(accesses)
  local is_any = false
  for access in string.gmatch(accesses, '%S+') do
    if not redis.call('ZSCORE', key('dispatch', 'models_closed'), access) then return false end
    is_any = true
  end
  return is_any
end

-- Lets a job wait for the first of these models that may be asked again, for `most_ms` in all: jobs
-- that had begun first, and each tree in its turn.
local function await_models(id, root, accesses, has_begun, most_ms)
  redis.call('HSETNX', key('job', id), 'model_since', now_ms())
  redis.call('HSET', key('job', id), 'model_wait', accesses)
  redis.call('HDEL', key('job', id), 'model_trial')
  local since = redis.call('HGET', key('job', id), 'model_since')
  redis.call('ZADD', key('dispatch', 'model_deadlines'), since + most_ms, id)
  for access in string.gmatch(accesses, '%S+') do
    local turn = redis.call('HINCRBY', key('dispatch', 'model_turns', access), root, 1)
    redis.call('ZADD', key('dispatch', 'model_waiting', access),
      turn + (has_begun and 0 or AFTER_BEGUN), id)
    local at = redis.call('HGET', key('dispatch', 'model', access), 'until')
    if at then redis.call('ZADD', key('dispatch', 'models_closed'), 'XX', 'LT', at, access) end
  end
end

-- Ends a job's wait for a model, if it waits for one.
local function leave_models(id)
  local accesses = redis.call('HGET', key('job', id), 'model_wait')
  if not accesses then return end
  redis.call('HDEL', key('job', id), 'model_wait')
  redis.call('ZREM', key('dispatch', 'model_deadlines'), id)
  for access in string.gmatch(accesses, '%S+') do
    redis.call('ZREM', key('dispatch', 'model_waiting', access), id)
    if redis.call('EXISTS', key('dispatch', 'model_waiting', access)) == 0 then
      redis.call('DEL', key('dispatch', 'model_turns', access))
    end
  end
end
