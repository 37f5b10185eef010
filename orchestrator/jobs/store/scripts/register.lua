-- ARGV: prefix, worker, milliseconds that the registration holds (0: the worker leaves), its admission policy ('' for none),
-- when it started, then its fields. The policy of the installation is that of the worker that started last.
if ARGV[3] == '0' then
  redis.call('ZREM', key('workers'), ARGV[2])
  redis.call('DEL', key('worker', ARGV[2]))
  return 0
end
redis.call('ZADD', key('workers'), now_ms() + ARGV[3], ARGV[2])
redis.call('HSET', key('worker', ARGV[2]), unpack(ARGV, 6))
local policy, started = ARGV[4], tonumber(ARGV[5])
local known = redis.call('HMGET', key('policy'), 'json', 'started_at')
local before = tonumber(known[2] or -1)
if policy ~= '' and (started > before or (started == before and policy > known[1])) then
  redis.call('HSET', key('policy'), 'json', policy, 'started_at', started)
  if policy ~= known[1] then  -- a limit may be higher now; what is full has running jobs, so there are not many
    for _, root in ipairs(redis.call('SMEMBERS', key('full_trees'))) do open_tree(root) end
    for _, tenant in ipairs(redis.call('SMEMBERS', key('full_tenants'))) do open_tenant(tenant) end
  end
end
return 1
