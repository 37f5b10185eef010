-- ARGV: prefix, model, request, the tokens that were set aside for it, those that it used. A request was answered: it counts
-- with what it used, and a model that answers pauses no longer than it asks for. Asked again it changes nothing.
local sent, state = key('model-sent', ARGV[2]), key('model', ARGV[2])
local member = ARGV[3] .. ' ' .. ARGV[4]
local given = redis.call('ZSCORE', sent, member)
if not given then return 0 end
if ARGV[4] ~= ARGV[5] then
  redis.call('ZADD', sent, given, ARGV[3] .. ' ' .. ARGV[5])  -- first: an empty set would lose its expiry
  redis.call('ZREM', sent, member)
end
if tonumber(given) >= tonumber(redis.call('HGET', state, 'cut_until') or 0) then redis.call('HDEL', state, 'pause') end
return 1
