-- Replaces what a call of a model has reserved by what it has used. That of a reply is held until the
-- journal's event of it is charged (append.lua); that of another call is charged here. A repeated
-- call changes nothing, and neither does one whose reservation has lapsed.
-- ARGV: prefix, id, name of the call, tokens of its input, tokens of its output, their price in
-- billionths of a dollar, 1 for a reply (else 0).
even_if_full()
local id, name, calls = ARGV[2], ARGV[3], key('dispatch', 'calls', ARGV[2])
local stored = redis.call('HGET', calls, name)
if not stored then return 0 end
local call, ids = read_call(stored), charged_to(id)
hold(ids, call, -1)
call.input, call.output, call.nanodollars = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
call.is_answered = ARGV[7] == '1'
if call.is_answered then
  redis.call('HSET', calls, name, write_call(call))
  hold(ids, call, 1)
else
  redis.call('HDEL', calls, name)
  spend(ids, call)
end
return 1
