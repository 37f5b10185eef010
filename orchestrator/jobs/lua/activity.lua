-- Notes what running jobs do at this moment; nothing depends on it. Views hear only of a verification
-- that begins: the timeline shows it while it runs, and other activities are read when somebody asks.
-- ARGV: prefix, then id, token and activity ('': none) of each job.
local function is_verifying(activity)
  return activity and string.find(activity, '"kind": ?"verification"') ~= nil
end

local now = now_ms()
for first = 2, #ARGV, 3 do
  local job = key('job', ARGV[first])
  local known = redis.call('HMGET', job, 'token', 'state', 'activity')
  if known[1] == ARGV[first + 1] and known[2] == 'running' then
    if ARGV[first + 2] == '' then
      redis.call('HDEL', job, 'activity', 'activity_at')
    else
      redis.call('HSET', job, 'activity', ARGV[first + 2], 'activity_at', now)
      if is_verifying(ARGV[first + 2]) and not is_verifying(known[3]) then publish(ARGV[first]) end
    end
  end
end
