-- Deletes whole trees before their time, those first whose jobs ended first. A tree is kept of which a
-- job has not ended or ended a short time ago, or whose changes are not yet collected. A tree may have
-- any number of jobs: one call looks at some of them, and the next one continues there.
-- ARGV: prefix, account whose jobs are deleted, bytes and jobs to delete, time before which all jobs
-- of a tree have ended, number of the oldest jobs that were kept so far, maximum number of jobs to look
-- at, root of the tree at which the call before has stopped ('': none), number of its jobs that are
-- known not to be needed (-1: all), roots of trees that are known to be kept.
-- Returns the numbers of deleted bytes, of deleted jobs and of checked jobs that are kept, 1 when no
-- other is to be deleted, the root and the number for the next call, and the roots of trees that are
-- kept, as far as this call has found them.
even_if_full()
local account, bytes, jobs = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local before, skipped, left = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local root, checked = ARGV[8], tonumber(ARGV[9])
local freed, deleted, kept, is_over, is_kept, found_kept = 0, 0, 0, 0, {}, {}
for at = 10, #ARGV do is_kept[ARGV[at]] = true end

-- How many jobs are looked at in the time in which one is deleted.
local LOOKS_OF_A_DELETION = 10

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

-- Leaves the tree as it is.
local function keep()
  is_kept[root] = true
  found_kept[#found_kept + 1] = root
  root = ''
end

-- Goes to the tree of the next ended job.
local function find_tree()
  local found = redis.call('ZRANGE', key('ended'), skipped + kept, skipped + kept, 'WITHSCORES')
  if not found[1] or tonumber(found[2]) >= before then
    is_over = 1
    return
  end
  local job = redis.call('HMGET', key('job', found[1]), 'root', 'owned')
  left = left - 1
  if job[1] and not is_kept[job[1]] and counts_in(job[2]) then
    root, checked = job[1], 0
    if is_needed(root) then keep() end  -- of a tree that is needed, mostly the root is
  else
    kept = kept + 1
  end
end

-- Looks whether further jobs of the tree are needed, the newest first.
local function check_tree()
  local most = left
  local members = redis.call('ZREVRANGE', key('tree', root), checked, checked + most - 1)
  left = left - #members
  for _, id in ipairs(members) do
    if is_needed(id) then return keep() end
  end
  checked = #members < most and -1 or checked + #members
end

-- Deletes jobs of the tree, the newest first.
local function delete_jobs()
  local most = math.ceil(left / LOOKS_OF_A_DELETION)
  local members = redis.call('ZREVRANGE', key('tree', root), 0, most - 1)
  for _, id in ipairs(members) do
    if is_needed(id) then return keep() end  -- it has come since
    freed = freed + (tonumber(redis.call('HGET', key('job', id), 'bytes')) or 0)
    deleted, left = deleted + 1, left - LOOKS_OF_A_DELETION
    forget_job(id)
  end
  if #members < most then root = '' end
end

while left > 0 and is_over == 0 do
  if root == '' and freed >= bytes and deleted >= jobs then
    is_over = 1
  elseif root == '' then
    find_tree()
  elseif checked >= 0 then
    check_tree()
  else
    delete_jobs()
  end
end
return {freed, deleted, kept, is_over, root, checked, found_kept}
