-- Asks whether a request may be sent to a model now. One that is not open is tried by one request at a
-- time, from the time on at which it may be open again.
-- ARGV: prefix, access, request.
-- Returns {'open'}; {'trial'}: this request is the trial; or {'closed', state, why, time in
-- milliseconds of the next trial}.
local access, request = ARGV[2], ARGV[3]
if not redis.call('ZSCORE', key('dispatch', 'models_closed'), access) then return {'open'} end
local known = redis.call('HMGET', key('dispatch', 'model', access), 'state', 'why', 'until')
local now, trial = now_ms(), key('dispatch', 'model_trial', access)
if not known[3] then return {'open'} end
local by = redis.call('GET', trial)
if tonumber(known[3]) <= now and (not by or by == 'released' or by == request) then
  redis.call('SET', trial, request, 'PX', TRIAL_MS)
  return {'trial'}
end
return {'closed', known[1], known[2], math.max(known[3], now)}
