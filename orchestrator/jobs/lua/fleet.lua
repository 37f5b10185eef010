-- Which workers have room, and which classes of jobs wait for it. Nothing here walks over all workers
-- or all classes: a change of one worker's slots costs a few commands, whatever their number.
--
-- A kind is the workers of one pool that read the same wire versions: <oldest>-<newest>@<pool>. There
-- are few. A profile is the workers of a kind that have the same agents: <kind>/<digest>. A job is sent
-- to one worker, to which it is bound until that one claims it; a slot is free when no job runs in it
-- and none is bound to it. So slots are recounted from sets, never added up, and what an earlier
-- release has done to `held:<worker>` counts at the worker's next heartbeat.
--   dispatch:workers           sorted set: the workers that take jobs, by the end of their registration
--   dispatch:worker:<name>     hash: what dispatches need to know of one
--   dispatch:members:<profile> set: its workers
--   dispatch:agents:<profile>  set: the agents that they have; missing: any
--   dispatch:able:<kind>:<agent>   set: the profiles of a kind that have an agent; '': any
--   dispatch:kinds             sorted set: the kinds, by when the newest worker of each started
--   dispatch:profiles:<kind>   set: its profiles
--   dispatch:free:<profile>    sorted set: its workers with free slots, by their number
--   dispatch:open              set: the profiles with such workers
--   dispatch:on_host:<host>    set: the workers of a host with free slots
--   dispatch:host_full:<host>  set: those which have some, but their host has reached its limit
--   dispatch:bound:<worker>    set: the jobs in transit to a worker
--   dispatch:bound_to_host:<host>  set: the same for a host
-- Of the set `classes` (common.lua), each is in one of two:
--   dispatch:ready             sorted set: those that a dispatch looks at, the one to look at first first
--   dispatch:aside             sorted set: those that none can serve now, by why: `BLOCKED` and the like
--   dispatch:full:<agent>      set: the classes that are aside because of an agent's limit
-- What changes that puts them back. An earlier release maintains only `classes`: the reaper compares.

-- Why a class is aside: its workers have no free slot; no worker can run it; its agent has reached its
-- limit; the worker of its pool may be started again.
local BLOCKED = 1
local UNSERVED = 2
local AGENT_FULL = 3
local POOL_AWAITED = 4

-- The most values that are handed to a command at once: Lua has room for 8,000.
local MOST_VALUES = 2000

-- Of profiles, and of workers, that are looked at to find one with room.
local SAMPLE = 8

-- Calls a function with parts of a list that a command can take.
local function in_parts(list, act)
  for first = 1, #list, MOST_VALUES do
    act(unpack(list, first, math.min(first + MOST_VALUES - 1, #list)))
  end
end

-- Returns those values of a list whose flag in another list, as Redis returns it, is as wanted.
local function with_flag(list, flags, wanted)
  local found = {}
  for at, value in ipairs(list) do
    if flags[at] == wanted then found[#found + 1] = value end
  end
  return found
end

-- Returns for each value of a list whether a set has it: 1 or 0.
local function are_members(set, list)
  local flags = {}
  in_parts(list, function(...)
    for _, flag in ipairs(redis.call('SMISMEMBER', set, ...)) do flags[#flags + 1] = flag end
  end)
  return flags
end

-- Lets dispatches look at classes, unless they do.
local function make_ready(classes)
  local entries = {}
  for at, class in ipairs(classes) do entries[2 * at - 1], entries[2 * at] = 0, class end
  in_parts(entries, function(...) redis.call('ZADD', key('dispatch', 'ready'), 'NX', ...) end)
end

-- Lets dispatches look at classes again that are aside.
local function put_back(classes)
  in_parts(classes, function(...) redis.call('ZREM', key('dispatch', 'aside'), ...) end)
  make_ready(classes)
end

-- Returns the classes that are aside for a reason, or for one of several.
local function classes_aside(first, last)
  return redis.call('ZRANGEBYSCORE', key('dispatch', 'aside'), first, last or first)
end

local function agent_of(class) return string.match(class, '^[^@:]*') end

-- Puts back, of the classes that are aside for a reason, those whose agent a profile has.
local function put_back_known(reason, profile)
  local classes, agents = classes_aside(reason), key('dispatch', 'agents', profile)
  if #classes == 0 then return end
  if redis.call('EXISTS', agents) == 0 then return put_back(classes) end
  local names = {}
  for at, class in ipairs(classes) do names[at] = agent_of(class) end
  put_back(with_flag(classes, are_members(agents, names), 1))
end

-- Puts back what is aside because an agent had reached its limit.
local function open_agent(agent)
  local classes = redis.call('SMEMBERS', key('dispatch', 'full', agent))
  if #classes == 0 then return end
  redis.call('DEL', key('dispatch', 'full', agent))
  put_back(classes)
end

-- The same for all agents.
local function open_agents()
  local classes, full = classes_aside(AGENT_FULL), {}
  for at, class in ipairs(classes) do full[at] = key('dispatch', 'full', agent_of(class)) end
  in_parts(full, function(...) redis.call('DEL', ...) end)
  put_back(classes)
end

-- Classes have jobs whose turn can come: dispatches look at them, unless it is known that none runs
-- them.
local function add_classes(classes)
  local new = with_flag(classes, are_members(key('classes'), classes), 0)
  in_parts(new, function(...) redis.call('SADD', key('classes'), ...) end)
  make_ready(new)
end

local function remove_class(class)
  redis.call('SREM', key('classes'), class)
  if redis.call('ZREM', key('dispatch', 'ready'), class) == 0 then
    redis.call('ZREM', key('dispatch', 'aside'), class)
    redis.call('SREM', key('dispatch', 'full', agent_of(class)), class)
  end
end

local function set_aside(class, reason)
  redis.call('ZREM', key('dispatch', 'ready'), class)
  redis.call('ZADD', key('dispatch', 'aside'), reason, class)
  if reason == AGENT_FULL then redis.call('SADD', key('dispatch', 'full', agent_of(class)), class) end
end

-- A worker has no free slot any more.
local function close_worker(worker, profile, host)
  if redis.call('ZREM', key('dispatch', 'free', profile), worker) == 0 then return end
  redis.call('SREM', key('dispatch', 'on_host', host), worker)
  if redis.call('EXISTS', key('dispatch', 'free', profile)) == 0 then
    redis.call('SREM', key('dispatch', 'open'), profile)
  end
end

local function open_worker(worker, profile, host, free)
  if redis.call('ZADD', key('dispatch', 'free', profile), free, worker) == 0 then return end
  redis.call('SADD', key('dispatch', 'on_host', host), worker)
  if redis.call('SADD', key('dispatch', 'open'), profile) == 1 then
    put_back_known(BLOCKED, profile)
  end
end

-- Counts the free slots of a worker, and returns their number; a negative one when more jobs are bound
-- to it, or run there, than it takes.
local function count_free(worker)
  local fields = redis.call('HMGET', key('dispatch', 'worker', worker), 'profile', 'host',
    'concurrency', 'host_limit')
  local profile, host, limit = fields[1], fields[2], tonumber(fields[4])
  if not profile then return 0 end
  local free = fields[3] - redis.call('SCARD', key('held', worker))
    - redis.call('SCARD', key('dispatch', 'bound', worker))
  if limit > 0 and free > 0 then
    local left = limit - redis.call('SCARD', key('host', host))
      - redis.call('SCARD', key('dispatch', 'bound_to_host', host))
    if left <= 0 then redis.call('SADD', key('dispatch', 'host_full', host), worker) end
    free = math.max(0, math.min(free, left))
  end
  if free > 0 then
    open_worker(worker, profile, host, free)
  else
    close_worker(worker, profile, host)
  end
  return free
end

-- A slot on a host is free: lets its other workers be used again that wait for that.
local function open_host(host)
  for _, worker in ipairs(redis.call('SPOP', key('dispatch', 'host_full', host), SAMPLE)) do
    count_free(worker)
  end
end

-- Binds a job to the worker that it is sent to; its record names that one.
local function bind(id, worker)
  redis.call('SADD', key('dispatch', 'bound', worker.name), id)
  if worker.has_limit then redis.call('SADD', key('dispatch', 'bound_to_host', worker.host), id) end
  count_free(worker.name)
end

-- Ends what binds a job to a worker, without counting that one's slots.
local function unbind(id, worker)
  redis.call('SREM', key('dispatch', 'bound', worker), id)
  local host = redis.call('HGET', key('dispatch', 'worker', worker), 'host')
  if host then redis.call('SREM', key('dispatch', 'bound_to_host', host), id) end
end

-- Forgets the jobs that an earlier release has taken from the worker to which they were bound.
local function correct_bound(worker)
  for _, id in ipairs(redis.call('SMEMBERS', key('dispatch', 'bound', worker))) do
    local job = redis.call('HMGET', key('job', id), 'state', 'dispatched', 'bound_to')
    if job[1] ~= 'queued' or job[2] ~= '1' or job[3] ~= worker then unbind(id, worker) end
  end
end

local function parse_kind(name)
  local oldest, newest, pool = string.match(name, '^(%d+)-(%d+)@(.*)$')
  return {name = name, oldest = tonumber(oldest), newest = tonumber(newest), pool = pool}
end

local function kind_of(profile) return string.match(profile, '^(.*)/') end

-- Returns the kinds of workers, that of the worker that started last first.
local function living_kinds()
  local kinds = {}
  for at, name in ipairs(redis.call('ZREVRANGE', key('dispatch', 'kinds'), 0, -1)) do
    kinds[at] = parse_kind(name)
  end
  return kinds
end

-- Returns the sets of the profiles of a kind that have an agent.
local function able_sets(kind, agent)
  return key('dispatch', 'able', kind, agent), key('dispatch', 'able', kind, '')
end

local function reads(kind, class)
  return kind.oldest <= class.wire and class.wire <= kind.newest
    and redis.call('EXISTS', able_sets(kind.name, class.agent)) > 0
end

-- Returns the kinds of workers that run the jobs of a class, and the pool to whose queue they are sent:
-- those of its own pool, if one of them can, and none while these may be started again; else the ones
-- without a pool, and of those with one the pool that started last.
local function servers_of(kinds, class)
  local own, open, others, lives = {}, {}, {}, class.pool == ''
  for _, kind in ipairs(kinds) do
    lives = lives or kind.pool == class.pool
    if reads(kind, class) then
      local list = kind.pool == '' and open or kind.pool == class.pool and own or others
      list[#list + 1] = kind
    end
  end
  if #own > 0 then return own, class.pool end
  if not lives and redis.call('EXISTS', key('pool_seen', class.pool)) == 1 then
    return {}, class.pool, POOL_AWAITED
  end
  local pool = #open == 0 and others[1] and others[1].pool or ''
  for _, kind in ipairs(others) do
    if kind.pool == others[1].pool then open[#open + 1] = kind end
  end
  return open, pool, UNSERVED
end

-- Returns whether a profile is of one of these kinds, and has an agent.
local function is_able(kinds, agent, profile)
  for _, kind in ipairs(kinds) do
    if kind.name == kind_of(profile) then
      local named, any = able_sets(kind.name, agent)
      return redis.call('SISMEMBER', named, profile) == 1
        or redis.call('SISMEMBER', any, profile) == 1
    end
  end
  return false
end

-- Returns whether a worker is one of those that run the jobs of a class.
local function is_server(class, worker)
  local profile = redis.call('HGET', key('dispatch', 'worker', worker), 'profile')
  return profile and is_able(servers_of(living_kinds(), class), class.agent, profile)
end

-- Adds some of those profiles of a set that have a worker with a free slot to a list.
local function add_open(able, found)
  local some, before = redis.call('SRANDMEMBER', able, SAMPLE), #found
  if #some == 0 then return end
  for at, is_open in ipairs(redis.call('SMISMEMBER', key('dispatch', 'open'), unpack(some))) do
    if is_open == 1 then found[#found + 1] = some[at] end
  end
  if #found > before or #some < SAMPLE then return end
  local all = redis.call('SINTER', able, key('dispatch', 'open'))
  for at = 1, math.min(#all, SAMPLE) do found[#found + 1] = all[at] end
end

-- Returns some of the profiles of these kinds that have an agent and a worker with a free slot.
local function open_profiles(kinds, agent)
  local found = {}
  for _, kind in ipairs(kinds) do
    for _, able in ipairs({able_sets(kind.name, agent)}) do add_open(able, found) end
  end
  return found
end

-- Returns how many workers of these kinds have an agent, as far as that can be counted quickly.
local function count_able(kinds, agent)
  local count = 0
  for _, kind in ipairs(kinds) do
    for _, able in ipairs({able_sets(kind.name, agent)}) do
      for _, profile in ipairs(redis.call('SRANDMEMBER', able, 8 * SAMPLE)) do
        count = count + redis.call('SCARD', key('dispatch', 'members', profile))
      end
    end
  end
  return count
end

-- Enters a profile, or takes it out, for each agent that its workers have.
local function for_each_agent(profile, command)
  local agents = redis.call('SMEMBERS', key('dispatch', 'agents', profile))
  if #agents == 0 then agents = {''} end
  for _, agent in ipairs(agents) do
    redis.call(command, key('dispatch', 'able', kind_of(profile), agent), profile)
  end
  return #agents
end

-- Takes a profile out that has no workers. Returns how many agents it had.
local function remove_profile(profile)
  local kind = kind_of(profile)
  local agents = for_each_agent(profile, 'SREM')
  redis.call('DEL', key('dispatch', 'agents', profile))
  redis.call('SREM', key('dispatch', 'profiles', kind), profile)
  if redis.call('EXISTS', key('dispatch', 'profiles', kind)) == 0 then
    redis.call('ZREM', key('dispatch', 'kinds'), kind)
  end
  -- The jobs of a pool that has ended run elsewhere.
  if parse_kind(kind).pool ~= '' then
    put_back(classes_aside(BLOCKED, UNSERVED))
    put_back(classes_aside(POOL_AWAITED))
  end
  return agents
end

-- Takes a worker out of its profile. Returns how many agents were taken out with it.
local function leave_profile(worker, profile, host)
  close_worker(worker, profile, host)
  redis.call('SREM', key('dispatch', 'host_full', host), worker)
  redis.call('SREM', key('dispatch', 'members', profile), worker)
  if redis.call('EXISTS', key('dispatch', 'members', profile)) == 1 then return 0 end
  return remove_profile(profile)
end

-- How long messages may still come to the queue of a worker that takes none.
local LATE_MESSAGES_MS = 600000

-- Deletes the queue of a worker that takes no messages. One that was being sent may come later, and so
-- do those that the worker gives back when it ends: the reaper deletes them.
local function delete_queue(queue)
  if (queue or '') == '' then return end
  redis.call('DEL', key('queue', queue))
  redis.call('ZADD', key('dispatch', 'old_queues'), now_ms() + LATE_MESSAGES_MS, queue)
  redis.call('PEXPIRE', key('dispatch', 'old_queues'), LATE_MESSAGES_MS)
end

-- Takes a worker out; the jobs that were bound to it have been taken back. Returns how many agents
-- were taken out with it.
local function remove_worker(worker)
  local fields = redis.call('HMGET', key('dispatch', 'worker', worker), 'profile', 'host', 'queue')
  redis.call('ZREM', key('dispatch', 'workers'), worker)
  redis.call('DEL', key('dispatch', 'worker', worker))
  if not fields[1] then return 0 end
  delete_queue(fields[3])
  return leave_profile(worker, fields[1], fields[2])
end

-- Enters a profile, and its first worker.
local function add_profile(profile, agents)
  local names = {}
  for agent in string.gmatch(agents, '%S+') do names[#names + 1] = agent end
  in_parts(names, function(...) redis.call('SADD', key('dispatch', 'agents', profile), ...) end)
  for_each_agent(profile, 'SADD')
  redis.call('SADD', key('dispatch', 'profiles', kind_of(profile)), profile)
  put_back_known(UNSERVED, profile)
  put_back(classes_aside(POOL_AWAITED))
end

-- Enters a worker that takes jobs, with the fields of its registration, and a digest of its agents.
local function add_worker(worker, started, digest)
  local fields = redis.call('HMGET', key('worker', worker), 'host', 'concurrency', 'host_limit',
    'wire_oldest', 'wire_newest', 'agents', 'pool', 'queue')
  local kind = (fields[4] or 1) .. '-' .. (fields[5] or 1) .. '@' .. (fields[7] or '')
  local profile = kind .. '/' .. digest
  local known = redis.call('HMGET', key('dispatch', 'worker', worker), 'profile', 'host')
  if known[1] and known[1] ~= profile then leave_profile(worker, known[1], known[2]) end
  redis.call('ZADD', key('dispatch', 'kinds'), 'GT', started, kind)
  redis.call('HSET', key('dispatch', 'worker', worker), 'profile', profile, 'host', fields[1],
    'concurrency', fields[2], 'host_limit', fields[3], 'queue', fields[8] or '')
  redis.call('ZREM', key('dispatch', 'old_queues'), fields[8] or '')
  if redis.call('SADD', key('dispatch', 'members', profile), worker) == 1
      and redis.call('SISMEMBER', key('dispatch', 'profiles', kind), profile) == 0 then
    add_profile(profile, fields[6] or '')
  end
end
