-- Stops all requests to a model for some time: its service refused a request because there were too
-- many. Requests that were in progress when the cut began have the same cause: they lengthen the
-- cut, but do not increase the pause. A repeated call changes nothing.
-- ARGV: prefix, model, request, the tokens reserved for it, milliseconds that the service asks to
-- wait (-1: unknown), first and longest pause where that is unknown, how long the cut is remembered
-- after its end; all times in milliseconds.
-- Returns how long the cut lasts.
local sent, state = key('model-sent', ARGV[2]), key('model', ARGV[2])
local asked, now = tonumber(ARGV[5]), now_ms()
local member = ARGV[3] .. ' ' .. ARGV[4]
local given = redis.call('ZSCORE', sent, member)
local cut = redis.call('HMGET', state, 'cut_until', 'cut_at', 'pause')
local cut_until, pause = tonumber(cut[1] or 0), tonumber(cut[3] or 0)
if not given then return math.max(cut_until - now, 0) end
if pause == 0 or tonumber(given) > tonumber(cut[2] or 0) then
  pause = math.min(math.max(2 * pause, tonumber(ARGV[6])), tonumber(ARGV[7]))
  redis.call('HSET', state, 'cut_at', now, 'pause', pause)
end
cut_until = math.max(cut_until, now + (asked >= 0 and asked or pause))
-- It was refused, not answered. Added first, as in model_settle.lua.
redis.call('ZADD', sent, given, ARGV[3] .. ' 0')
redis.call('ZREM', sent, member)
redis.call('HINCRBY', state, 'sent_tokens', -ARGV[4])
redis.call('HSET', state, 'cut_until', cut_until)
redis.call('PEXPIREAT', state, cut_until + ARGV[8])
return cut_until - now
