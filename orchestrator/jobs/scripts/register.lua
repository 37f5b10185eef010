-- ARGV: prefix, worker, milliseconds that the registration holds (0: the worker leaves), then its fields.
if ARGV[3] == '0' then
  redis.call('ZREM', key('workers'), ARGV[2])
  redis.call('DEL', key('worker', ARGV[2]))
  return 0
end
redis.call('ZADD', key('workers'), now_ms() + ARGV[3], ARGV[2])
redis.call('HSET', key('worker', ARGV[2]), unpack(ARGV, 4))
return 1
