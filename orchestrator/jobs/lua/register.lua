-- Registers a worker and its admission policy, or renews its registration. The policy of the
-- installation is that of the worker that started last.
-- ARGV: prefix, worker, milliseconds that the registration is valid (0: unregister), its admission
-- policy ('' for none), its start time, 1 if it takes no jobs, digest of all that does not change from
-- one heartbeat to the next, digest of its agents, number of values that change, these fields and
-- values, then the fields that do not change; without them, it is renewed if the ledger has a
-- registration of that digest.
-- Returns 1; 2 when jobs can be sent to the worker that could not be before; 0 when its registration
-- is needed as a whole.
even_if_full()
local worker, hold, policy, started = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local takes_none, digest, changing = ARGV[6] == '1', ARGV[7], tonumber(ARGV[9])
local function pool_of() return redis.call('HGET', key('worker', worker), 'pool') or '' end

-- Takes a worker out that takes no jobs, and what was sent to it back. The reaper takes out one to which
-- more was sent.
local function leave()
  if redis.call('EXISTS', key('dispatch', 'worker', worker)) == 0 then return end
  redis.call('HSET', key('dispatch', 'worker', worker), 'concurrency', 0)
  take_back(worker, MOST_TAKEN_BACK)
  if redis.call('EXISTS', key('dispatch', 'bound', worker)) == 1 then
    redis.call('ZADD', key('dispatch', 'workers'), 0, worker)
  else
    remove_worker(worker)
  end
end

if hold == 0 then
  redis.call('DEL', key('pool_seen', pool_of()))
  leave()
  delete_queue(redis.call('HGET', key('worker', worker), 'queue'))
  redis.call('ZREM', key('workers'), worker)
  redis.call('DEL', key('worker', worker))
  return 1
end
local is_whole = #ARGV > 9 + changing
if not is_whole and redis.call('HGET', key('worker', worker), 'digest') ~= digest then return 0 end
redis.call('ZADD', key('workers'), now_ms() + hold, worker)
redis.call('HSET', key('worker', worker), 'started_at', started, 'digest', digest, unpack(ARGV, 10))
if pool_of() ~= '' then redis.call('SET', key('pool_seen', pool_of()), 1, 'EX', POOL_KEPT_SECONDS) end
local free_before = redis.call('ZSCORE', key('dispatch', 'workers'), worker)
  and count_free(worker) or 0
if takes_none then
  leave()
else
  redis.call('ZADD', key('dispatch', 'workers'), now_ms() + hold, worker)
  if is_whole or redis.call('EXISTS', key('dispatch', 'worker', worker)) == 0 then
    add_worker(worker, started, ARGV[8])
  end
  correct_bound(worker)
end
local free = count_free(worker)
if free < 0 then take_back(worker, math.min(-free, MOST_TAKEN_BACK)) end
local known = redis.call('HMGET', key('policy'), 'json', 'started_at')
local before = tonumber(known[2] or -1)
if policy ~= '' and (started > before or (started == before and policy > known[1])) then
  redis.call('HSET', key('policy'), 'json', policy, 'started_at', started)
  if policy ~= known[1] then
    -- A limit may be higher now. What is not reopened here, the reaper reopens.
    list_to_reopen()
    reopen(MOST_REOPENED)
    open_agents()
  end
end
return free > free_before and 2 or 1
