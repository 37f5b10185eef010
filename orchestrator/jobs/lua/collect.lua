-- Replaces the result of an ended job, once, by one with the changes that were collected after its
-- end.
-- ARGV: prefix, id, the present result, the new one, data of the event for the journal.
-- Returns 1, or 0 when another worker was first, or the job is forgotten.
even_if_full()
local id = ARGV[2]
if text_of('result', id) ~= ARGV[3] or redis.call('ZREM', key('uncollected'), id) == 0 then
  return 0
end
redis.call('HSET', key('job', id), 'result', ARGV[4])
add_event(id, redis.call('HGET', key('job', id), 'attempt'), 'changes.collected', ARGV[5])
return 1
