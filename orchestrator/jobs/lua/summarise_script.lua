-- Replaces the summary of how a running script stands.
-- ARGV: prefix, id, token, summary.
-- Returns 1, or 0 when the attempt no longer holds the job.
even_if_full()
local id, summary = ARGV[2], ARGV[4]
if not held_job(id, ARGV[3]) then return 0 end
local of = key('journal', 'script', id)
count_bytes(id, #summary - redis.call('STRLEN', of))
redis.call('SET', of, summary)
return 1
