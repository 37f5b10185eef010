-- Notes what running jobs do at this moment; nothing depends on it, and nobody is told.
-- ARGV: prefix, then id, token and activity ('': none) of each job.
local now = now_ms()
for first = 2, #ARGV, 3 do
  local job = key('job', ARGV[first])
  local known = redis.call('HMGET', job, 'token', 'state')
  if known[1] == ARGV[first + 1] and known[2] == 'running' then
    if ARGV[first + 2] == '' then
      redis.call('HDEL', job, 'activity', 'activity_at')
    else
      redis.call('HSET', job, 'activity', ARGV[first + 2], 'activity_at', now)
    end
  end
end
