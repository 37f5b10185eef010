-- Deletes whole trees before their time, those first whose jobs ended first. A tree is kept of which a
-- job has not ended or ended a short time ago, or whose changes are not yet collected.
-- ARGV: prefix, account whose jobs are deleted, bytes and jobs to delete, time before which all jobs
-- of a tree have ended, number of the oldest jobs that were kept so far, maximum number of jobs.
-- Returns the numbers of deleted bytes, of deleted jobs and of checked jobs that are kept, and 1 when
-- no other can be deleted.
even_if_full()
local account, bytes, jobs = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local before, skipped, most = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local freed, deleted, kept, is_known = 0, 0, 0, {}

local function counts_in(owned)
  for _, one in ipairs(accounts(owned)) do
    if one == account then return true end
  end
  return false
end

local function is_needed(id)
  local ended = tonumber(redis.call('ZSCORE', key('ended'), id) or 0)
  return ended >= before or redis.call('SISMEMBER', key('live'), id) == 1
    or redis.call('ZSCORE', key('uncollected'), id) ~= false
end

-- Returns the jobs of a tree, the newest first, if none of them is needed.
local function unneeded_tree(root)
  local members = redis.call('ZREVRANGE', key('tree', root), 0, -1)
  for _, id in ipairs(members) do
    if is_needed(id) then return {} end
  end
  return members
end

local found = redis.call('ZRANGEBYSCORE', key('ended'), '-inf', '(' .. before, 'LIMIT', skipped, most)
for _, id in ipairs(found) do
  if deleted >= most or (freed >= bytes and deleted >= jobs) then
    return {freed, deleted, kept, freed >= bytes and deleted >= jobs and 1 or 0}
  end
  local job = redis.call('HMGET', key('job', id), 'root', 'owned')
  if job[1] and not is_known[job[1]] and counts_in(job[2]) then
    is_known[job[1]] = true
    for _, member in ipairs(unneeded_tree(job[1])) do
      if deleted >= most then break end
      freed = freed + (tonumber(redis.call('HGET', key('job', member), 'bytes')) or 0)
      deleted = deleted + 1
      forget_job(member)
    end
  end
  if redis.call('ZSCORE', key('ended'), id) then kept = kept + 1 end
end
return {freed, deleted, kept, #found < most and 1 or 0}
