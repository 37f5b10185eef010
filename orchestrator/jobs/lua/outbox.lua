-- The outbox's ways in and out; follows common.lua in the scripts of notifications.

-- Lets a receiver be looked at when its next notification is due, or when one that is sent now
-- leaves room for it.
local function look_again(receiver, most)
  local outbox, sending = key('notify', 'outbox', receiver), key('notify', 'sending', receiver)
  local due = redis.call('ZRANGE', outbox, 0, 0, 'WITHSCORES')[2]
  if redis.call('ZCARD', sending) >= most then
    due = redis.call('ZRANGE', sending, 0, 0, 'WITHSCORES')[2]
  end
  if due then
    redis.call('ZADD', key('notify', 'receivers'), due, receiver)
  else
    redis.call('ZREM', key('notify', 'receivers'), receiver)
  end
end

local function leave_outbox(receiver, id)
  redis.call('ZREM', key('notify', 'outbox', receiver), id)
  redis.call('ZREM', key('notify', 'sending', receiver), id)
  redis.call('DEL', key('notify', 'one', id))
end
