-- Records that a request was answered: it counts with the tokens that it used, and the pauses of
-- its model start from the shortest one again. A repeated call changes nothing.
-- ARGV: prefix, model, request, the tokens reserved for it, the tokens that it used.
even_if_full()
local sent, state = key('model-sent', ARGV[2]), key('model', ARGV[2])
local member = ARGV[3] .. ' ' .. ARGV[4]
local given = redis.call('ZSCORE', sent, member)
if not given then return 0 end
if ARGV[4] ~= ARGV[5] then
  -- Added first: an empty set would lose its expiry.
  redis.call('ZADD', sent, given, ARGV[3] .. ' ' .. ARGV[5])
  redis.call('ZREM', sent, member)
  redis.call('HINCRBY', state, 'sent_tokens', ARGV[5] - ARGV[4])
end
if tonumber(given) >= tonumber(redis.call('HGET', state, 'cut_until') or 0) then
  redis.call('HDEL', state, 'pause')
end
return 1
