-- Takes queued jobs from their lanes as far as workers and the limits have room, and binds each to a
-- worker that runs it: tenants in turn by weight, a tenant's trees in turn, a tree's jobs by priority
-- and age. Looks at `MOST_CLASSES` of the classes for which there is room, the longest not served first.
-- ARGV: prefix, maximum number of jobs, milliseconds that a message may be in transit, name of this
-- request, oldest and newest wire version that the caller reads, the policy if no worker has
-- registered one. A request that is repeated under the same name, because its answer was lost,
-- returns the same jobs.
-- Returns for each job: id, number of the dispatch, specification, pool of the workers it is sent to,
-- the worker's name, and its own queue ('': it has none); and 1 if another call may take more.
local most, transit, request = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local oldest, newest = tonumber(ARGV[5]), tonumber(ARGV[6])
local now = now_ms()

-- The classes whose heads are compared for each job, those that are looked at in one call, and the
-- commands of which a call has some 3,000: Redis answers nobody else meanwhile, for 5 ms.
local MOST_CLASSES = 16
local MOST_LOOKS = 64
local MOST_HEADS = 256

local function queue_of(worker)
  return redis.call('HGET', key('dispatch', 'worker', worker), 'queue') or ''
end

local answered = redis.call('GET', key('dispatch', request))
if answered then
  local again = {}
  for _, job in ipairs(cjson.decode(answered)) do
    local is = redis.call('HMGET', key('job', job[1]), 'state', 'dispatched', 'dispatches', 'sent_to',
      'bound_to')
    if is[1] == 'queued' and is[2] == IN_TRANSIT and tonumber(is[3]) == job[2] then
      again[#again + 1] = {job[1], job[2], text_of('spec', job[1]), is[4] or '', is[5] or '',
        queue_of(is[5] or '')}
    end
  end
  return {again, 0}
end
if redis.call('EXISTS', key('dispatch', 'open')) == 0
    or redis.call('EXISTS', key('dispatch', 'ready')) == 0 then
  return {{}, 0}
end

local policy = cjson.decode(redis.call('HGET', key('policy'), 'json') or ARGV[7])
local kinds, agent_room, classes = living_kinds(), {}, {}

-- Finds workers with room for a class; sets it aside when there is none, or its agent has reached its
-- limit. Returns whether there is room.
local function find_room(class)
  if agent_room[class.agent] <= 0 then
    set_aside(class.name, AGENT_FULL)
    return false
  end
  class.open = open_profiles(class.servers, class.agent)
  if #class.open == 0 then set_aside(class.name, #class.servers > 0 and BLOCKED or class.unserved) end
  return #class.open > 0
end

-- Returns a class with room, by its name; nil when this call cannot take jobs of it.
local function class_with_room(name)
  local named, wire = string.match(name, '^(.*):(.*)$')
  local agent, pool = string.match(named, '^([^@]*)@?(.*)$')
  local class = {name = name, agent = agent, pool = pool, wire = tonumber(wire), corrected = {}}
  if class.wire < oldest or newest < class.wire then return nil end
  class.servers, class.sent_to, class.unserved = servers_of(kinds, class)
  agent_room[agent] = agent_room[agent]
    or (policy.agents[agent] or math.huge) - redis.call('SCARD', key('agent_active', agent))
  return find_room(class) and class or nil
end

-- Returns the tenant of a class that is due first, after those that were served in other classes have
-- been moved to where they are due by that; and when it is due.
local function first_tenant(class)
  while true do
    local head = redis.call('ZRANGE', key('tenants', class.name), 0, 0, 'WITHSCORES')
    local tenant, due = head[1], tonumber(head[2])
    if not tenant or class.corrected[tenant] then return tenant, due end
    class.corrected[tenant] = true
    local finished = tonumber(redis.call('ZSCORE', key('finish_times'), tenant) or 0)
    if finished <= due then return tenant, due end
    redis.call('ZADD', key('tenants', class.name), 'XX', finished, tenant)
  end
end

-- Returns the member with the lowest score among the heads of sorted sets of these classes, its score
-- and its class.
local function first(head_of)
  local best, score, of
  for _, class in ipairs(classes) do
    local head, due = head_of(class)
    if head and (not best or due < score or (due == score and head < best)) then
      best, score, of = head, due, class
    end
  end
  return best, score, of
end

local function first_of(kind, ...)
  local rest_of_key = {...}
  return first(function(class)
    local head = redis.call('ZRANGE', key(kind, class.name, unpack(rest_of_key)), 0, 0, 'WITHSCORES')
    return head[1], tonumber(head[2])
  end)
end

local function tenant_limit(tenant)
  return (policy.tenants[tenant] or {}).jobs or policy.tenant_jobs or math.huge
end

-- Moves the tree and the tenant that were served to their next positions, in these classes.
local function advance_turns(root, tenant, due)
  local turn = redis.call('INCR', key('turns'))
  local start = math.max(due, tonumber(redis.call('GET', key('virtual_time')) or 0))
  local next_due = start + 1 / ((policy.tenants[tenant] or {}).weight or 1)
  for _, class in ipairs(classes) do
    redis.call('ZADD', key('trees', class.name, tenant), 'XX', turn, root)
    redis.call('ZADD', key('tenants', class.name), 'XX', next_due, tenant)
    class.corrected[tenant] = true
  end
  redis.call('SET', key('virtual_time'), start)
  redis.call('ZADD', key('finish_times'), next_due, tenant)
  redis.call('ZREMRANGEBYSCORE', key('finish_times'), '-inf', start)
end

-- Returns what is known of a worker, if it can take a job now: its registration is valid, it has not
-- failed to read the job, and its host has a place.
local function usable(worker, job)
  if is_listed(job.unread_by, worker) then return nil end
  local fields = redis.call('HMGET', key('dispatch', 'worker', worker), 'profile', 'host', 'host_limit',
    'queue')
  local known = {name = worker, profile = fields[1], host = fields[2], has_limit = fields[3] ~= '0',
    queue = fields[4]}
  if tonumber(redis.call('ZSCORE', key('dispatch', 'workers'), worker) or 0) < now then
    if known.profile then close_worker(worker, known.profile, known.host) end
    return nil
  end
  return (not known.has_limit or count_free(worker) > 0) and known or nil
end

-- Returns a worker on the host that has the files of a job.
local function worker_on_host(class, job)
  if not job.files_host then return nil end
  local some = redis.call('SRANDMEMBER', key('dispatch', 'on_host', job.files_host), SAMPLE)
  for _, name in ipairs(some) do
    local worker = usable(name, job)
    if worker and is_able(class.servers, class.agent, worker.profile) then return worker end
  end
end

-- Returns the worker of a profile that has the most free slots, and their number.
local function freest_of(profile, job)
  local free, at = key('dispatch', 'free', profile), 0
  if job.unread_by then  -- another part of them each time
    at = job.dispatches * SAMPLE % math.max(1, redis.call('ZCARD', free))
  end
  for _ = 1, SAMPLE do
    local found = redis.call('ZREVRANGE', free, at, at, 'WITHSCORES')
    if not found[1] then return nil end
    local worker = usable(found[1], job)
    if worker then return worker, tonumber(found[2]) end
    if redis.call('ZSCORE', free, found[1]) then at = at + 1 end
  end
end

-- Returns a worker for a job: on the host that has its files, else the one with the most free slots of
-- some profiles.
local function worker_for(class, job)
  local best, most_free = worker_on_host(class, job), nil
  if best then return best end
  for _, profile in ipairs(class.open) do
    local worker, free = freest_of(profile, job)
    if worker and (not best or free > most_free) then best, most_free = worker, free end
  end
  return best
end

-- Marks a job as in transit to a worker; it occupies its slots from now on.
local function take(id, root, tenant, class, worker)
  redis.call('SADD', key('active', root), id)
  redis.call('SADD', key('tenant_active', tenant), id)
  redis.call('SADD', key('agent_active', class.agent), id)
  redis.call('ZADD', key('transit'), class.wire, id)
  redis.call('ZADD', key('leases'), now + transit, id)
  redis.call('HSET', key('job', id), 'dispatched', IN_TRANSIT, 'sent_to', class.sent_to,
    'bound_to', worker.name)
  adopt(id)
  bind(id, worker)
  agent_room[class.agent] = agent_room[class.agent] - 1
  return redis.call('HINCRBY', key('job', id), 'dispatches', 1)
end

local is_any_closed = redis.call('EXISTS', key('dispatch', 'models_closed')) == 1

-- Returns the accesses of the models that a job waits for, and the milliseconds that it may; nil when
-- it may ask one, when nothing is known of them, and for the job that makes the trial.
local function closed_models(id, class)
  if not is_any_closed or redis.call('HEXISTS', key('job', id), 'model_trial') == 1 then return nil end
  local is_readable, spec = pcall(cjson.decode, text_of('spec', id) or '')
  if not is_readable or type(spec) ~= 'table' then return nil end
  local known = redis.call('HGET', key('dispatch', 'model_accesses', class.sent_to),
    class.agent .. ' ' .. (spec.model or ''))
  local most, accesses = string.match(known or '', '^(%d+) (.*)$')
  if not most then return nil end
  local own = (spec.limits or {}).max_wait_seconds
  if type(own) == 'number' then most = math.floor(own * 1000) end
  if tonumber(most) == 0 or not are_closed(accesses) then return nil end
  return accesses, tonumber(most)
end

local function is_open(profile)
  return redis.call('SISMEMBER', key('dispatch', 'open'), profile) == 1
end

-- Removes the classes from the list that have no room any more.
local function drop_full()
  for at = #classes, 1, -1 do
    local class, open = classes[at], {}
    for _, profile in ipairs(class.open) do
      if is_open(profile) then open[#open + 1] = profile end
    end
    class.open = open
    if (#open == 0 or agent_room[class.agent] <= 0) and not find_room(class) then
      table.remove(classes, at)
    end
  end
end

local taken, names, turns = {}, {}, 0

-- How many turns it is worth to look at a job that waits for a model: its specification is read.
local TURNS_OF_WAIT = 4

-- Takes the job of a tree whose turn it is, if a worker has room for it. One that none of those can
-- read rests.
local function take_first(root, tenant, due)
  local id, _, class = first_of('lane', root, tenant)
  local fields = redis.call('HMGET', key('job', id), 'state', 'files_host', 'unread_by', 'dispatches')
  local job = {files_host = fields[2], unread_by = fields[3], dispatches = fields[4] or 0}
  if fields[1] ~= 'queued' then return leave_lane(id, root, class.name, tenant) end
  local accesses, most_ms = closed_models(id, class)
  if accesses then
    turns = turns + TURNS_OF_WAIT
    redis.call('HSET', key('job', id), 'dispatched', RESTS, 'waiting_for', 'a model that is not open')
    await_models(id, root, accesses, false, most_ms)
    return leave_lane(id, root, class.name, tenant)
  end
  local worker = worker_for(class, job)
  if worker then
    advance_turns(root, tenant, due)
    local number = take(id, root, tenant, class, worker)
    taken[#taken + 1] = {id, number, text_of('spec', id), class.sent_to, worker.name, worker.queue}
    names[#names + 1] = {id, number}
  elseif job.unread_by then
    rest(id)
  end
  if worker or job.unread_by then leave_lane(id, root, class.name, tenant) end
  if not worker or not is_open(worker.profile) or agent_room[class.agent] <= 0 then drop_full() end
end

local ready = redis.call('ZRANGE', key('dispatch', 'ready'), 0, MOST_LOOKS)
local looked, looks = {}, 0
for at = 1, math.min(#ready, MOST_LOOKS) do
  looks = at
  local class = class_with_room(ready[at])
  classes[#classes + 1] = class
  looked[#looked + 1] = class
  if #classes == MOST_CLASSES then break end
end
local bound = math.min(most, math.ceil(MOST_HEADS / math.max(4, #classes)))

-- Each turn takes a job, or finds a tree or a tenant at its limit, which then takes no turns in these
-- classes until one of its running jobs ends.
local most_turns = bound + math.ceil(MOST_HEADS / math.max(1, #classes))
while #taken < bound and turns < most_turns do
  turns = turns + 1
  local tenant, due = first(first_tenant)
  if not tenant then break end
  local root = first_of('trees', tenant)
  if redis.call('SCARD', key('tenant_active', tenant)) >= tenant_limit(tenant) then
    redis.call('SADD', key('full_tenants'), tenant)
    for _, class in ipairs(looked) do withdraw_tenant(tenant, class.name) end
  elseif redis.call('SCARD', key('active', root)) >= policy.tree_jobs then
    redis.call('SADD', key('full_trees'), root)
    for _, class in ipairs(looked) do withdraw_tree(root, class.name, tenant) end
  else
    take_first(root, tenant, due)
  end
end

-- What was looked at comes behind what was not.
for _, class in ipairs(looked) do
  local head = redis.call('ZRANGE', key('tenants', class.name), 0, 0, 'WITHSCORES')
  if head[2] then redis.call('ZADD', key('dispatch', 'ready'), 'XX', head[2], class.name) end
end
if #taken > 0 then
  redis.call('SET', key('dispatch', request), cjson.encode(names), 'PX', transit)
end
local is_cut = #taken == bound or turns >= most_turns or #ready > looks
return {taken, #taken < most and is_cut and 1 or 0}
