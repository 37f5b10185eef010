-- Registers a worker and its admission policy. The policy of the installation is that of the worker
-- that started last.
-- ARGV: prefix, worker, milliseconds that the registration is valid (0: unregister), its admission
-- policy ('' for none), its start time, then its fields.
even_if_full()
local function pool_of() return redis.call('HGET', key('worker', ARGV[2]), 'pool') or '' end

if ARGV[3] == '0' then
  redis.call('DEL', key('pool_seen', pool_of()))
  redis.call('ZREM', key('workers'), ARGV[2])
  redis.call('DEL', key('worker', ARGV[2]))
  return 0
end
redis.call('ZADD', key('workers'), now_ms() + ARGV[3], ARGV[2])
redis.call('HSET', key('worker', ARGV[2]), 'started_at', ARGV[5], unpack(ARGV, 6))
if pool_of() ~= '' then redis.call('SET', key('pool_seen', pool_of()), 1, 'EX', POOL_KEPT_SECONDS) end
local policy, started = ARGV[4], tonumber(ARGV[5])
local known = redis.call('HMGET', key('policy'), 'json', 'started_at')
local before = tonumber(known[2] or -1)
if policy ~= '' and (started > before or (started == before and policy > known[1])) then
  redis.call('HSET', key('policy'), 'json', policy, 'started_at', started)
  if policy ~= known[1] then
    -- A limit may be higher now. Trees and tenants at their limit are few: they have running jobs.
    for _, root in ipairs(redis.call('SMEMBERS', key('full_trees'))) do open_tree(root) end
    for _, tenant in ipairs(redis.call('SMEMBERS', key('full_tenants'))) do open_tenant(tenant) end
  end
end
return 1
