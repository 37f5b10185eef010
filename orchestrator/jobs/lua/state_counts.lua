-- Returns how many jobs are in which state, and recounts some of them on the way: releases before
-- this one change states and do not count.
-- ARGV: prefix, number of jobs to recount, 1 to begin the recount again (else 0).
-- Returns {1, or 0 while no recount is complete; number of all jobs; state, number, ...}.
even_if_full()
local counts, indexed = key('dispatch', 'state_counts'), key('jobs')

if ARGV[3] == '1' then
  redis.call('DEL', counts)
end
local reached = tonumber(redis.call('HGET', counts, 'reached') or 0)
local page = redis.call('ZRANGEBYSCORE', indexed, '(' .. reached, '+inf', 'WITHSCORES', 'LIMIT', 0,
  ARGV[2])
local recounted = {}
for at = 1, #page, 2 do
  local state = redis.call('HGET', key('job', page[at]), 'state')
  if state then recounted[state] = (recounted[state] or 0) + 1 end
end
for state, number in pairs(recounted) do
  redis.call('HINCRBY', counts, 'counted:' .. state, -number)
  redis.call('HINCRBY', counts, 'recounted:' .. state, number)
end
if #page > 0 then redis.call('HSET', counts, 'reached', page[#page]) end

local sums, recount, all = {}, {'complete', 1}, redis.call('HGETALL', counts)
for at = 1, #all, 2 do
  local part, state = string.match(all[at], '^(%a+):(.*)$')
  if part then sums[state] = (sums[state] or 0) + all[at + 1] end
  if part == 'recounted' then
    recount[#recount + 1] = 'counted:' .. state
    recount[#recount + 1] = all[at + 1]
    sums[state] = sums[state] or 0
  end
end
local is_complete = redis.call('HGET', counts, 'complete')
if #page < 2 * ARGV[2] then  -- the recount has reached the last job
  is_complete, sums = '1', {}
  for at = 3, #recount, 2 do
    sums[string.match(recount[at], ':(.*)$')] = tonumber(recount[at + 1])
  end
  redis.call('DEL', counts)
  redis.call('HSET', counts, unpack(recount))
end
local answer = {tonumber(is_complete or 0), redis.call('ZCARD', indexed)}
for state, number in pairs(sums) do
  answer[#answer + 1] = state
  answer[#answer + 1] = math.max(0, number)
end
return answer
