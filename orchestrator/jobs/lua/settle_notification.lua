-- Records what became of a try: 'done' (delivered), 'retry', 'pass' (left to another process: it was
-- no try), 'gone' (the receiver wants no more: its subscription ends) or 'dead' (given up, which the
-- stream of dead notifications records).
-- ARGV: prefix, id, receiver, number of the try, maximum number at once of one receiver, outcome,
-- milliseconds until the next try, reason.
-- Returns 1, or 0 when another process has taken the notification meanwhile.
even_if_full()
local id, receiver, outcome = ARGV[2], ARGV[3], ARGV[6]
local one = redis.call('HMGET', key('notify', 'one', id), 'tries', 'job', 'subscription', 'what')
if one[1] ~= ARGV[4] then return 0 end
if outcome == 'retry' or outcome == 'pass' then
  if outcome == 'pass' then redis.call('HINCRBY', key('notify', 'one', id), 'tries', -1) end
  redis.call('ZADD', key('notify', 'outbox', receiver), now_ms() + ARGV[7], id)
  redis.call('ZREM', key('notify', 'sending', receiver), id)
else
  leave_outbox(receiver, id)
  if outcome == 'gone' then redis.call('HDEL', key('notify', 'of', one[2]), one[3]) end
  if outcome == 'dead' then
    redis.call('XADD', key('notify', 'dead'), 'MAXLEN', '~', 1000, '*', 'id', id, 'job', one[2],
      'subscription', one[3], 'what', one[4], 'receiver', receiver, 'tries', one[1],
      'reason', ARGV[8])
  end
end
look_again(receiver, tonumber(ARGV[5]))
return 1
