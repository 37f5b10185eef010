-- ARGV: prefix, id, worker, host, jobs at once on the host (0: no limit), lease in milliseconds, a name for this request:
-- one whose answer got lost is asked again under the same name, and has the claim that it made; milliseconds of head start
-- that the host with a job's files has after the job was queued again; the oldest and the newest wire version that the
-- worker knows; the names of the agents that it knows.
-- Returns {'claimed', token, attempt, specification, milliseconds run before, submitted at, started at} or
-- {'refused', why}: a message that comes twice, late, to a full host, or to a worker that does not know
-- the job's wire version or its agent uses up no attempt.
local id, worker, host, host_limit, lease, request = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local head_start, oldest, newest = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local agents = ARGV[11]
local job = redis.call('HMGET', key('job', id), 'state', 'dispatched', 'root', 'spec', 'ran_ms', 'submitted_at',
  'started_at', 'attempt', 'claim', 'token', 'files_host', 'requeued_at', 'wire',
  'waiting_for', 'agent')
if not job[1] then return {'refused', 'unknown'} end
if job[1] == 'running' and job[9] == request then
  return {'claimed', job[10], job[8], job[4], job[5], job[6], job[7]}
end
if job[1] ~= 'queued' or job[2] ~= '1' then return {'refused', job[1]} end
local wire, agent = tonumber(job[13] or 1), job[15]
local known, awaited
if wire < oldest or wire > newest then
  known = 'wire version ' .. wire .. ': this worker knows ' .. oldest .. ' to ' .. newest
  awaited = (wire > newest and 'a newer' or 'an older') .. ' worker, for wire version ' .. wire
elseif agent and not knows(agents, agent) then
  known = 'agent ' .. agent .. ': this worker knows ' .. agents
  awaited = 'a worker that knows the agent ' .. agent
end
if known then
  give_back(id, job[3])
  if job[14] == awaited then  -- its journal says so already
    redis.call('HSET', key('job', id), 'dispatched', 0)
    make_ready(id, job[3])
  else
    requeue(id, job[3], job[8], known .. '; it waits for ' .. awaited)
    redis.call('HSET', key('job', id), 'waiting_for', awaited)
  end
  return {'refused', known}
end
if host_limit > 0 and redis.call('SCARD', key('host', host)) >= host_limit then
  give_back(id, job[3])
  requeue(id, job[3], job[8], 'the host is full')
  return {'refused', 'host full'}
end
local now = now_ms()
if job[11] and job[11] ~= host and now - (job[12] or 0) < head_start
    and (free_by_host(living_workers(now))[job[11]] or 0) > 0 then
  give_back(id, job[3])
  redis.call('HSET', key('job', id), 'dispatched', 0)
  make_ready(id, job[3])
  return {'refused', 'waits for its host'}
end
local token = redis.call('INCR', key('fence'))
local attempt = redis.call('HINCRBY', key('job', id), 'attempt', 1)
local started = job[7] or tostring(now)
redis.call('HSET', key('job', id), 'state', 'running', 'token', token, 'worker', worker, 'host', host,
  'files_host', host, 'claimed_at', now, 'beat_at', now, 'started_at', started, 'claim', request)
redis.call('HDEL', key('job', id), 'waiting_for')
redis.call('ZADD', key('leases'), now + lease, id)
occupy(id, worker, host)
journal(id, attempt, {state = 'running', worker = worker, host = host})
return {'claimed', token, attempt, job[4], job[5], job[6], started}
