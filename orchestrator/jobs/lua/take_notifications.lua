-- Takes notifications that are due, each for the time of a lease: if the process that takes them
-- dies, they are due again. Of one receiver only a few are sent at once, by all processes together,
-- so that one which does not answer keeps nobody else waiting.
-- ARGV: prefix, maximum number, maximum number at once of one receiver, milliseconds of the lease,
-- seconds for which this process runs the installation's hook (0: it has none).
-- Returns of each: id, receiver, job, subscription as JSON ('' for the hook), what happened, to which
-- job, when (ms), number of this try.
even_if_full()
local most, at_once, lease, hook = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local now, taken = now_ms(), {}
if hook ~= '0' then redis.call('SET', key('notify', 'hook'), 1, 'EX', hook) end

local function take(receiver, id)
  local one = redis.call('HMGET', key('notify', 'one', id), 'job', 'subscription', 'what',
    'source', 'at')
  local subscription = receiver == HOOK and ''
    or (one[1] and redis.call('HGET', key('notify', 'of', one[1]), one[2]))
  if not one[1] or not subscription then  -- unsubscribed, or forgotten with its job
    leave_outbox(receiver, id)
    return
  end
  local tries = redis.call('HINCRBY', key('notify', 'one', id), 'tries', 1)
  redis.call('ZADD', key('notify', 'outbox', receiver), now + lease, id)
  redis.call('ZADD', key('notify', 'sending', receiver), now + lease, id)
  taken[#taken + 1] = {id, receiver, one[1], subscription, one[3], one[4], one[5], tries}
end

for _, receiver in ipairs(redis.call('ZRANGEBYSCORE', key('notify', 'receivers'), '-inf', now,
    'LIMIT', 0, most)) do
  if receiver ~= HOOK or hook ~= '0' then
    local sending = key('notify', 'sending', receiver)
    redis.call('ZREMRANGEBYSCORE', sending, '-inf', now)
    local room = math.min(at_once - redis.call('ZCARD', sending), most - #taken)
    if room > 0 then
      for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('notify', 'outbox', receiver), '-inf',
          now, 'LIMIT', 0, room)) do
        take(receiver, id)
      end
    end
    look_again(receiver, at_once)
  elseif redis.call('EXISTS', key('notify', 'hook')) == 0 then  -- nobody runs it any more
    redis.call('DEL', key('notify', 'outbox', receiver), key('notify', 'sending', receiver))
    redis.call('ZREM', key('notify', 'receivers'), receiver)
  end
end
return taken
