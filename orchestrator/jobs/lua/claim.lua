-- Claims a dispatched job for a worker.
-- ARGV: prefix, id, worker, host, maximum number of jobs on the host (0: no limit), lease in
-- milliseconds, name of this request, milliseconds of head start for the host that has the files of
-- a requeued job, oldest and newest wire version that the worker reads, names of the agents that it
-- has, number of the dispatch that the message is of ('': not checked), random digits. A request
-- that is repeated under the same name, because its answer was lost, returns the same claim.
-- Returns {'claimed', token, attempt, specification, milliseconds of earlier attempts, time of
-- submission, time of first start, 1 if this is it, wire version} or {'refused', why}. A refusal uses
-- up no attempt: the message is a duplicate or late, the host is full, the worker lacks the job's
-- wire version or agent, or could not read it before.

-- Returns whether a host has a place for a job: a free one, or that on the worker to which it is bound.
local function has_place_on(host, bound_to)
  return redis.call('EXISTS', key('dispatch', 'on_host', host)) == 1
    or redis.call('HGET', key('dispatch', 'worker', bound_to or ''), 'host') == host
end

local id, worker, host, host_limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local lease, request, head_start = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local oldest, newest, agents = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11]
local job = redis.call('HMGET', key('job', id), 'state', 'dispatched', 'root', 'agent', 'ran_ms',
  'submitted_at', 'started_at', 'attempt', 'claim', 'token', 'files_host', 'requeued_at', 'wire',
  'waiting_for', 'dispatches', 'unread_by', 'pool', 'bound_to')
if not job[1] then return {'refused', 'unknown'} end
if job[1] == 'running' and job[9] == request then
  return {'claimed', job[10], job[8], text_of('spec', id), job[5], job[6], job[7], 0,
    job[13]}
end
if job[1] ~= 'queued' or job[2] ~= IN_TRANSIT then return {'refused', job[1]} end
if ARGV[12] ~= '' and ARGV[12] ~= job[15] then return {'refused', 'a newer message'} end
local wire, agent = tonumber(job[13]), job[4]
local refusal, awaited
if wire < oldest or wire > newest then
  refusal = 'wire version ' .. wire .. ': this worker knows ' .. oldest .. ' to ' .. newest
  awaited = (wire > newest and 'a newer' or 'an older') .. ' worker, for wire version ' .. wire
elseif not knows(agents, agent) then
  refusal = 'agent ' .. agent .. ': this worker knows ' .. agents
  awaited = 'agent ' .. agent .. ', which no worker has read yet'
end
if refusal then
  release_slots(id, job[3])
  if job[14] == awaited then  -- its journal contains this already
    return_to_lane(id, job[3])
  else
    requeue(id, job[3], job[8], refusal .. '; it waits for ' .. awaited)
    redis.call('HSET', key('job', id), 'waiting_for', awaited)
  end
  return {'refused', refusal}
end
if is_listed(job[16], worker) then
  release_slots(id, job[3])
  leave_to_others(id, worker)
  return {'refused', 'this worker cannot read it'}
end
local pool = job[17] or ''
if job[18] ~= worker and pool ~= (redis.call('HGET', key('worker', worker), 'pool') or '')
    and not is_server({agent = agent, pool = pool, wire = wire}, worker) then
  return_to_lane(id, job[3])
  return {'refused', 'waits for its worker'}
end
if host_limit > 0 and redis.call('SCARD', key('host', host)) >= host_limit then
  release_slots(id, job[3])
  requeue(id, job[3], job[8], 'the host is full')
  return {'refused', 'host full'}
end
local now = now_ms()
if job[11] and job[11] ~= host and now - (job[12] or 0) < head_start
    and has_place_on(job[11], job[18]) then
  return_to_lane(id, job[3])
  return {'refused', 'waits for its host'}
end
-- The counter alone repeats when Redis has lost its last writes, while an attempt that claimed before
-- is still at work; a token of digits is one that older releases can read.
local token = redis.call('INCR', key('fence')) .. ARGV[13]
local attempt = redis.call('HINCRBY', key('job', id), 'attempt', 1)
local started = job[7] or tostring(now)
lapse_calls(id)  -- a worker of an earlier release may have ended the attempt that made them
count_state(id, 'running')
redis.call('HSET', key('job', id), 'state', 'running', 'token', token, 'worker', worker,
  'host', host, 'files_host', host, 'claimed_at', now, 'beat_at', now, 'started_at', started,
  'claim', request, 'lease_at', lease_clock() + lease, 'lease_of', token)
local is_trial = redis.call('HDEL', key('job', id), 'model_trial') == 1
redis.call('HDEL', key('job', id), 'waiting_for', 'starved')
redis.call('ZREM', key('dispatch', 'starved'), id)
adopt(id)
redis.call('ZADD', key('leases'), now + lease, id)
occupy(id, worker, host)
-- The time of its parents does not run while it only tries whether its model answers.
if not is_trial then begin_work(id) end
journal(id, attempt, {state = 'running', worker = worker, host = host})
return {'claimed', token, attempt, text_of('spec', id), job[5], job[6], started, job[7] and 0 or 1,
  job[13]}
