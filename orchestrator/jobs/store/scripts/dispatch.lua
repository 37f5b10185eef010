-- Takes queued jobs from their lanes as far as the living workers and the limits have room: tenants
-- in turn by weight, a tenant's trees in turn, a tree's jobs by priority and age.
-- ARGV: prefix, maximum number of jobs, milliseconds that a message may be in transit, name of this
-- request, oldest and newest wire version that the caller reads, the policy if no worker has
-- registered one. A request that is repeated under the same name, because its answer was lost,
-- returns the same jobs.
-- Returns for each job: id, number of the dispatch, specification, pool of the workers it is sent to.
local most, transit, request = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local oldest, newest = tonumber(ARGV[5]), tonumber(ARGV[6])
local now = now_ms()

local answered = redis.call('GET', key('dispatch', request))
if answered then
  local again = {}
  for _, job in ipairs(cjson.decode(answered)) do
    local is = redis.call('HMGET', key('job', job[1]), 'state', 'dispatched', 'dispatches', 'sent_to')
    if is[1] == 'queued' and is[2] == IN_TRANSIT and tonumber(is[3]) == job[2] then
      again[#again + 1] = {job[1], job[2], text_of('spec', job[1]), is[4] or ''}
    end
  end
  return again
end

local policy = cjson.decode(redis.call('HGET', key('policy'), 'json') or ARGV[7])
local workers, left = living_workers(now)

-- Returns how many jobs are in transit; given a class, how many of that class.
local function in_transit(class)
  if not class then return redis.call('ZCARD', key('transit')) end
  local count = 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('transit'), class.wire, class.wire)) do
    count = count + redis.call('SISMEMBER', key('agent_active', class.agent), id)
  end
  return count
end

-- Returns how many jobs these workers can run at once.
local function free_slots(servers)
  local total = 0
  for _, free in pairs(free_by_host(servers, left)) do total = total + free end
  return total
end

-- Returns how many more jobs may be sent to the queue of a pool; the queue that all serve has no
-- limit but those of classes.
local function room_of_queue(pool)
  local members = {}
  for _, worker in ipairs(workers) do
    if worker.pool == pool then members[#members + 1] = worker end
  end
  if pool == '' or #members == #workers then return math.huge end
  local count = free_slots(members)
  for _, id in ipairs(redis.call('ZRANGE', key('transit'), 0, -1)) do
    if redis.call('HGET', key('job', id), 'sent_to') == pool then count = count - 1 end
  end
  return count
end

local room, agent_room, classes = math.min(most, free_slots(workers) - in_transit()), {}, {}
local queues = {}  -- pool -> how many more jobs may be sent to its queue
if room <= 0 then return {} end
for _, name in ipairs(redis.call('SMEMBERS', key('classes'))) do
  local named, wire = string.match(name, '^(.*):(.*)$')
  local agent, pool = string.match(named, '^([^@]*)@?(.*)$')
  local class = {name = name, agent = agent, pool = pool, wire = tonumber(wire), room = 0}
  local servers
  servers, class.sent_to = servers_of(workers, class)
  if oldest <= class.wire and class.wire <= newest then
    class.room = #servers == #workers and room or free_slots(servers) - in_transit(class)
  end
  queues[class.sent_to] = queues[class.sent_to] or room_of_queue(class.sent_to)
  agent_room[agent] = agent_room[agent]
    or (policy.agents[agent] or math.huge) - redis.call('SCARD', key('agent_active', agent))
  classes[#classes + 1] = class
end

-- Returns the member with the lowest score among the heads of the sorted sets of all classes with
-- room, its score and its class.
local function first(kind, ...)
  local best, score, of
  for _, class in ipairs(classes) do
    if agent_room[class.agent] > 0 and class.room > 0 and queues[class.sent_to] > 0 then
      local head = redis.call('ZRANGE', key(kind, class.name, ...), 0, 0, 'WITHSCORES')
      local due = tonumber(head[2])
      if due and (not best or due < score or (due == score and head[1] < best)) then
        best, score, of = head[1], due, class
      end
    end
  end
  return best, score, of
end

local function tenant_limit(tenant)
  return (policy.tenants[tenant] or {}).jobs or policy.tenant_jobs or math.huge
end

-- Moves the tree and the tenant that were served to their next positions, in all classes.
local function advance_turns(root, tenant, due)
  local turn = redis.call('INCR', key('turns'))
  local start = math.max(due, tonumber(redis.call('GET', key('virtual_time')) or 0))
  local next_due = start + 1 / ((policy.tenants[tenant] or {}).weight or 1)
  for _, class in ipairs(classes) do
    redis.call('ZADD', key('trees', class.name, tenant), 'XX', turn, root)
    redis.call('ZADD', key('tenants', class.name), 'XX', next_due, tenant)
  end
  redis.call('SET', key('virtual_time'), start)
  redis.call('ZADD', key('finish_times'), next_due, tenant)
  redis.call('ZREMRANGEBYSCORE', key('finish_times'), '-inf', start)
end

-- Marks a job as in transit; it occupies its slots from now on.
local function take(id, root, tenant, class)
  redis.call('SADD', key('active', root), id)
  redis.call('SADD', key('tenant_active', tenant), id)
  redis.call('SADD', key('agent_active', class.agent), id)
  redis.call('ZADD', key('transit'), class.wire, id)
  redis.call('ZADD', key('leases'), now + transit, id)
  redis.call('HSET', key('job', id), 'dispatched', IN_TRANSIT, 'sent_to', class.sent_to)
  adopt(id)
  queues[class.sent_to] = queues[class.sent_to] - 1
  room, class.room, agent_room[class.agent] = room - 1, class.room - 1, agent_room[class.agent] - 1
  return redis.call('HINCRBY', key('job', id), 'dispatches', 1)
end

-- Each turn takes a job, or finds a tree or a tenant at its limit, which then takes no turns until
-- one of its running jobs ends.
local taken, names = {}, {}
while room > 0 do
  local tenant, due = first('tenants')
  if not tenant then break end
  local root = first('trees', tenant)
  if redis.call('SCARD', key('tenant_active', tenant)) >= tenant_limit(tenant) then
    redis.call('SADD', key('full_tenants'), tenant)
    for _, class in ipairs(redis.call('SMEMBERS', key('classes', tenant))) do
      withdraw_tenant(tenant, class)
    end
  elseif redis.call('SCARD', key('active', root)) >= policy.tree_jobs then
    redis.call('SADD', key('full_trees'), root)
    for_each_lane(root, withdraw_tree)
  else
    local id, _, class = first('lane', root, tenant)
    if redis.call('HGET', key('job', id), 'state') == 'queued' then
      advance_turns(root, tenant, due)
      local number = take(id, root, tenant, class)
      taken[#taken + 1] = {id, number, text_of('spec', id), class.sent_to}
      names[#names + 1] = {id, number}
    end
    leave_lane(id, root, class.name, tenant)
  end
end
if #taken > 0 then
  redis.call('SET', key('dispatch', request), cjson.encode(names), 'PX', transit)
end
return taken
