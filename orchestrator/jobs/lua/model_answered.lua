-- Records that a model has answered. One that was not open is: the jobs that wait for it go on, and
-- its rate increases as after a pause.
-- ARGV: prefix, access, name, how long the rate increases, maximum number of jobs that go on now.
-- Returns how many went on.
even_if_full()
local access, name, now = ARGV[2], ARGV[3], now_ms()
local record = key('dispatch', 'model', access)
redis.call('HSET', record, 'name', name, 'worked', 1, 'answered_at', now)
redis.call('PEXPIRE', record, MODEL_KEPT_MS)
if not redis.call('ZSCORE', key('dispatch', 'models_closed'), access) then return 0 end
local rate = key('model', name)
if tonumber(redis.call('HGET', rate, 'cut_until') or 0) < now then
  redis.call('HSET', rate, 'cut_until', now)
  redis.call('PEXPIRE', rate, ARGV[4])
end
return reopen_model(access, tonumber(ARGV[5]))
