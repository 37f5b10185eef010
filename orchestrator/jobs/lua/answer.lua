-- Answers an approval. When it is the last one of its job, and the job's children have ended, the
-- job is requeued.
-- ARGV: prefix, approval, decision, entry for the journal, name of this request, who answers, the
-- fingerprint of the entry, seconds to keep it. A request that is
-- repeated under the same name, because its answer was lost, returns the same.
-- Returns {'taken', job}, or the reason for the refusal: {'unknown'}, {'settled', decision, job},
-- {'not allowed', allowed decisions} or {'not you', who may}.
-- The fingerprint is written to a key with the answerer's name. Where each user of Redis may write
-- the keys of its own name only, nobody can answer in another's.
even_if_full()
local approval, decision, entry, request = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local known = redis.call('HMGET', key('approval', approval), 'job', 'decision',
  'answered_in', 'request')
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
local user, fingerprint, kept = ARGV[6], ARGV[7], ARGV[8]
local policy = cjson.decode(redis.call('HGET', key('policy'), 'json') or '{}')
local may = not policy.approvers or #policy.approvers == 0
for _, name in ipairs(policy.approvers or {}) do may = may or name == user end
if not may then return {'not you', table.concat(policy.approvers, ', ')} end
redis.call('SET', key('answers', user, approval), fingerprint, 'EX', kept)
local job = redis.call('HMGET', key('job', id), 'attempt', 'approvals', 'approvals_kept')
settle(approval, decision, request, job[3])
add_event(id, job[1], 'approval.resolved', entry)
local open = {}
for other in string.gmatch(job[2] or '', '%S+') do
  if other ~= approval then open[#open + 1] = other end
end
redis.call('HSET', key('job', id), 'approvals', table.concat(open, ' '))
count_children(id)
return {'taken', id}
