-- Records that the jobs of an agent and a model use other accesses now: a key or an address was
-- changed. What was known of the ones before does not hold.
-- ARGV: prefix, pool, '<agent> <model>', the accesses before, and now, maximum number of jobs that go
-- on now.
-- Returns 1; 0 when another process has done it.
even_if_full()
local mapping, what, before = key('dispatch', 'model_accesses', ARGV[2]), ARGV[3], ARGV[4]
local found = redis.call('HGET', mapping, what)
local most, accesses = string.match(found or '', '^(%d+) (.*)$')
if accesses ~= before then return 0 end
redis.call('HSET', mapping, what, most .. ' ' .. ARGV[5])
for access in string.gmatch(before, '%S+') do
  if not string.find(' ' .. ARGV[5] .. ' ', ' ' .. access .. ' ', 1, true) then
    reopen_model(access, tonumber(ARGV[6]))
  end
end
return 1
