-- Counts what is stored of some jobs, the oldest first. Of a job of an earlier release, which has not
-- counted it, the bytes are measured and noted.
-- ARGV: prefix, position after which to count, maximum number of jobs.
-- Returns the position of the last one ('' when there is none), then account, jobs and bytes of each
-- account.
even_if_full()
local found = redis.call('ZRANGEBYSCORE', key('jobs'), '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT',
  0, ARGV[3])
local jobs, bytes, counts = {}, {}, {found[#found] or ''}

local function measured(id)
  local size = redis.pcall('MEMORY', 'USAGE', key('journal', id))
  local texts = #(text_of('spec', id) or '') + #(text_of('result', id) or '')
  local sum = JOB_BYTES + texts + (type(size) == 'number' and size or 0)
  redis.call('HSET', key('job', id), 'bytes', sum)
  return sum
end

for at = 1, #found, 2 do
  local job = redis.call('HMGET', key('job', found[at]), 'state', 'owned', 'bytes')
  if job[1] then
    local size = tonumber(job[3]) or measured(found[at])
    for _, account in ipairs(accounts(job[2])) do
      jobs[account] = (jobs[account] or 0) + 1
      bytes[account] = (bytes[account] or 0) + size
    end
  end
end
for account, count in pairs(jobs) do
  counts[#counts + 1] = account
  counts[#counts + 1] = count
  counts[#counts + 1] = bytes[account]
end
return counts
