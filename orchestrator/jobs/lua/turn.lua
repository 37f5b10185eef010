-- Takes the turn at something that one process does for all.
-- ARGV: prefix, what is done, milliseconds for which nobody else does it.
-- Returns 1, or 0 when another process has the turn.
even_if_full()
return redis.call('SET', key('turn', ARGV[2]), 1, 'NX', 'PX', ARGV[3]) and 1 or 0
