-- Records that a model is not to be asked: a request to it has failed for a reason that all others
-- share. Requests that were in progress when it was closed do not prolong that.
-- ARGV: prefix, access, name, state, why, milliseconds until it may be open again (-1: unknown), first
-- and longest pause where that is unknown, request, 1 if it must have answered once (else 0),
-- milliseconds for which no other request may have been answered (-1: not checked), the root of a
-- tree: one that is open must have answered since that was submitted ('': not checked), milliseconds
-- by which an answer may be recorded too early.
-- Returns {state, why, time in milliseconds of the next trial}; false when it is not closed.
even_if_full()
local access, name, state, why, request = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[9]
local wait, began, now = tonumber(ARGV[6]), tonumber(ARGV[11]), now_ms()
local record, closed = key('dispatch', 'model', access), key('dispatch', 'models_closed')
local known = redis.call('HMGET', record, 'worked', 'answered_at', 'tries', 'until', 'state', 'why')
if ARGV[10] == '1' and not known[1] then return false end
if began >= 0 and tonumber(known[2] or 0) >= now - began then return false end
local trial, is_closed = key('dispatch', 'model_trial', access), redis.call('ZSCORE', closed, access)
if ARGV[12] ~= '' and not is_closed then
  local submitted_at = tonumber(redis.call('HGET', key('job', ARGV[12]), 'submitted_at') or 0)
  if tonumber(known[2] or 0) + tonumber(ARGV[13]) < submitted_at then return false end
end
local is_trial = redis.call('GET', trial) == request
if is_closed and known[4] and not is_trial and wait < 0 then
  return {known[5], known[6], tonumber(known[4])}
end
local tries = is_closed and is_trial and tonumber(known[3] or 0) + 1 or 0
local pause = math.min(ARGV[7] * 2 ^ math.min(tries, 20), tonumber(ARGV[8]))
local at = now + (wait >= 0 and math.max(1000, math.min(wait, LONGEST_WAIT_MS)) or pause)
if is_trial or not is_closed then redis.call('DEL', trial) end
if not is_closed then redis.call('HSET', record, 'since', now) end
redis.call('HSET', record, 'name', name, 'state', state, 'why', why, 'until', at, 'tries', tries)
redis.call('PEXPIRE', record, MODEL_KEPT_MS)
redis.call('ZADD', closed, at, access)
redis.call('SREM', key('dispatch', 'models_reopening'), access)
return {state, why, at}
