-- Returns how many jobs of a part of a tree are in which state.
-- ARGV: prefix, root id, position after which the part begins, maximum number of jobs.
-- Returns {position of the last job, or '' when the tree has no more jobs; state, number, ...}.
local most = tonumber(ARGV[4])
local part = redis.call('ZRANGEBYSCORE', key('tree', ARGV[2]), '(' .. ARGV[3], '+inf', 'WITHSCORES',
  'LIMIT', 0, most)
local counts = {}
for at = 1, #part, 2 do
  local state = redis.call('HGET', key('job', part[at]), 'state')
  if state then counts[state] = (counts[state] or 0) + 1 end
end
local answer = {#part < 2 * most and '' or part[#part]}
for state, number in pairs(counts) do
  answer[#answer + 1] = state
  answer[#answer + 1] = number
end
return answer
