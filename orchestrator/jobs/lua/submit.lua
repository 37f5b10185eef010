-- Stores and queues jobs. A job that exists already, by its id or its idempotency key, is the same
-- job. Of a submission that takes several calls, the first one checks for all its jobs whether their
-- owners have room for them: all are stored, or none.
-- ARGV: prefix, the id that all trees of the submission have in common ('': these are the first ones),
-- JSON of how many new jobs the next calls have by the index of their owner, then of each job two
-- values, as `submission` reads them.
-- Returns the ids of the jobs, with a space between two; or, if they are refused, {why, whose limit
-- it is}.
local group, jobs, records, keys, ids, new = ARGV[2], {}, {}, {}, {}, {}
for first = 4, #ARGV, 2 do
  local job = submission(first)
  jobs[#jobs + 1] = job
  if job.idempotency ~= '' then keys[#keys + 1] = key('idempotency', job.idempotency) end
end
local known, known_as = {}, {}
if #keys > 0 then
  for at, id in ipairs(redis.call('MGET', unpack(keys))) do known[keys[at]] = id or nil end
end
for at, job in ipairs(jobs) do
  local idempotency = job.idempotency ~= '' and key('idempotency', job.idempotency)
  ids[at] = idempotency and known[idempotency] or job.id
  if idempotency then known[idempotency] = ids[at] end
  records[at] = key('job', ids[at])
  known_as[job.id] = ids[at]
  for number, before in ipairs(job.after) do job.after[number] = known_as[before] or before end
end
local is_any_known, is_new = redis.call('EXISTS', unpack(records)) > 0, {}
for at, job in ipairs(jobs) do
  local id = ids[at]
  if not is_new[id] and (not is_any_known or redis.call('EXISTS', records[at]) == 0) then
    is_new[id], new[#new + 1] = true, job
  end
end
if #new > 0 then
  local why, whose
  if group == '' then
    why, whose = why_refused(new, cjson.decode(ARGV[3]))
  else
    why, whose = why_full(), ''
  end
  if why then return {why, whose} end
  enqueue(new, group ~= '' and group or #jobs > 1 and ids[1] or '')
end
for _, job in ipairs(new) do end_if_orphaned(job.id, job.parent) end
return table.concat(ids, ' ')
