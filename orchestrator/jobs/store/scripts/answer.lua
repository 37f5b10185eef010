-- ARGV: prefix, approval, decision, entry for the journal, a name for this request: one whose answer got lost is asked
-- again under the same name, and is told what it did. Returns {'taken', job}, or what stands against it and what is
-- known of it: {'unknown'}, {'settled', decision, job} or {'not allowed', decisions that are}.
-- The job goes on when the last of its approvals is answered, and its children have ended.
local approval, decision, entry, request = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local known = redis.call('HMGET', key('approval', approval), 'job', 'decision', 'answered_in', 'request')
local id = known[1]
if not id then return {'unknown'} end
if known[2] then
  if known[3] == request then return {'taken', id} end
  return {'settled', known[2], id}
end
local offered = cjson.decode(known[4]).decisions
local allowed = false
for _, name in ipairs(offered) do allowed = allowed or name == decision end
if not allowed then return {'not allowed', table.concat(offered, ', ')} end
local job = redis.call('HMGET', key('job', id), 'attempt', 'approvals', 'approvals_kept')
settle(approval, decision, request, job[3])
tell(id, job[1], 'approval.resolved', entry)
local open = {}
for other in string.gmatch(job[2] or '', '%S+') do
  if other ~= approval then open[#open + 1] = other end
end
redis.call('HSET', key('job', id), 'approvals', table.concat(open, ' '))
count_children(id)
return {'taken', id}
